"""What people expect of a library on the first day: files of settings, a version, a device, types, messages."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import pickle
import re
import sys
import tomllib
import types
import typing
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import spacerl
from spacerl.algorithms import ALGORITHMS
from spacerl.cli import main, training
from spacerl.cli.main import parse
from spacerl.envs.host.single import Recipe, construct
from spacerl.policies import policy as policies
from spacerl.runs.config import SETTINGS
from spacerl.runs.elsewhere import ALGORITHMS_ELSEWHERE, ELSEWHERE, known_elsewhere
from spacerl.runs.fields import names_of
from spacerl.runs.folder import RunFolder
from spacerl.runs.text import number_text
from spacerl.runs.toml import read_toml, toml_text
from spacerl.training import progress
from spacerl.training.settings import resolve
from spacerl.types import ActionSpace, InputError
from support.runs import made

pytestmark = pytest.mark.usefixtures("quick_compilation")

TINY = {"algorithm": "trpo", "batch_size": 100, "hidden": (4,), "updates": 1, "log": ()}


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "programs"))
    monkeypatch.chdir(tmp_path)


def refused(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    assert stop.value.code == 2
    return capsys.readouterr().err


# ---------------------------------------------------------------- settings


def test_the_typed_settings_are_those_that_there_are():
    """Four of them are arguments of their own: what is learned, by what rule, from whom, at what cost."""
    options = {name for entry in ALGORITHMS.values() for name in names_of(entry.options)}
    assert set(spacerl.Settings.__annotations__) == {*SETTINGS, *options} - {"task", "algorithm", "baseline", "cost"}
    for function in (spacerl.train, spacerl.sweep, spacerl.iterate):
        hints = typing.get_type_hints(function, include_extras=True)
        assert typing.get_args(hints["settings"]) == (spacerl.Settings,)


def test_the_public_functions_are_listed_and_typed():
    for name in ("check_env", "sweep", "iterate", "export", "film", "train", "resume", "evaluate", "report"):
        assert name in dir(spacerl)
        assert "return" in typing.get_type_hints(getattr(spacerl, name))


@pytest.mark.parametrize(
    "value",
    [1, -2.5e-7, float("inf"), True, 'a "quoted" \\ text\nof two lines', (1, 2), ("x", "é"), (), (0.1,)],
    ids=repr,
)
def test_a_value_comes_back_from_toml(value, tmp_path):
    (tmp_path / "x.toml").write_text(toml_text({"name": value, "left_out": None}), encoding="utf-8")
    assert read_toml(tmp_path / "x.toml") == {"name": value}


def test_every_run_has_its_settings_as_toml_and_another_run_takes_them():
    first = spacerl.train("point-circle", out="first", seed=3, delta=0.02, progress=False, **TINY)
    written = tomllib.loads(Path("first/config.toml").read_text())
    assert (written["task"], written["seed"], written["delta"], written["hidden"]) == ("point-circle", 3, 0.02, [4])
    main(["train", "--config", "first/config.toml", "--seed", "4", "--out", "second", "--quiet"])
    config, other = first.folder / "config.json", Path("second/config.json")
    assert json.loads(other.read_text()) == json.loads(config.read_text()) | {"seed": 4}
    spacerl.train(config="first/config.toml", seed=5, out="third", progress=False)
    assert json.loads(Path("third/config.json").read_text()) == json.loads(config.read_text()) | {"seed": 5}
    assert first.metrics[0]["J_R"] != RunFolder("second").metrics()[0]["J_R"]


def test_a_config_names_an_environment_and_limits_by_name(monkeypatch):
    Path("x.toml").write_text(
        'task = "env:Pendulum-v1"\nalgorithm = "pcpo"\ncost = ["a=none", "b=none"]\nprojection = "l2"\n'
        "[cost_limit]\na = 2.5\nb = 3.0\n"
    )
    given: dict = {}
    monkeypatch.setattr(
        "spacerl.api.train", lambda **arguments: given.update(arguments) or types.SimpleNamespace(folder=1)
    )
    main(["train", "--config", "x.toml", "--seed=7"])
    assert (given["env"], given["algorithm"], given["seed"]) == ("Pendulum-v1", "pcpo", 7)
    assert (given["cost_limit"], given["projection"]) == ({"a": 2.5, "b": 3.0}, "l2")
    main(["train", "point-circle", "--config=x.toml", "--algorithm", "trpo"])
    assert (given["task"], given["env"], given["algorithm"]) == ("point-circle", None, "trpo")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("delta = ", "is not TOML"),
        ("dleta = 0.1", "did you mean 'delta'?"),
        ("[main]\ndelta = 0.1", "has a table 'main'"),
        ('delta = "much"', "delta is 'much'"),
    ],
)
def test_a_config_that_cannot_be_used_is_one_sentence(capsys, text, said):
    Path("x.toml").write_text(text)
    told = refused(capsys, "train", "point-circle", "--config", "x.toml", "--algorithm", "trpo")
    assert said in told
    assert "does not exist" in refused(capsys, "train", "point-circle", "--config", "none.toml")


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert not stop.value.code
    assert re.match(
        rf"spacerl {re.escape(spacerl.__version__)} \(\w+\+?; jax .*numpy .*python 3", capsys.readouterr().out
    )


def test_a_device_is_chosen_or_refused(capsys):
    result = spacerl.train("point-circle", out="run", device="cpu", progress=False, **TINY)
    assert json.loads((result.folder / "versions.json").read_text())["device"].startswith("cpu")
    assert "allowed are cpu" in refused(capsys, "train", "point-circle", "--algorithm", "trpo", "--device", "tpu")
    assert "cpu:7" in refused(capsys, "evaluate", "run", "--device", "cpu:7")


# ---------------------------------------------------------------- settings as one value

SOME = {"task": "point-circle", "baseline": "near", "updates": 3, "hidden": [4]}


def test_a_config_has_every_setting_there_is():
    options = {name for entry in ALGORITHMS.values() for name in names_of(entry.options)}
    assert set(names_of(spacerl.Config)) == {*SETTINGS, *options}
    named = {"task", "algorithm", "baseline", "cost"}
    hints = typing.get_type_hints(spacerl.Config.__init__, include_extras=True)
    (taken,) = typing.get_args(hints["settings"])
    assert set(taken.__annotations__) == set(spacerl.Settings.__annotations__) | named


def test_a_config_says_what_was_given_and_knows_the_rest():
    config = spacerl.Config(**SOME)
    assert repr(config) == "Config(task='point-circle', baseline=('near',), updates=3, hidden=(4,))"
    assert eval(repr(config), {"Config": spacerl.Config}) == config
    complete = resolve(config.given)
    for name, value in {**complete.values, **complete.options}.items():
        if name != "start":  # auto, until it is known whether the algorithm can
            assert getattr(config, name) == value, name
    assert config.multiplier_rate is None  # an option of another algorithm
    assert spacerl.Config(task="env:Pendulum-v1").rollout_length is None
    assert spacerl.Config(task="ant-circle", algorithm="trpo").initial_std == 0.15


def test_a_config_is_a_value():
    config = spacerl.Config(**SOME)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.delta = 3.0
    assert config.replace(seed=0) == config  # which it is anyway
    assert hash(config.replace(seed=0)) == hash(config)
    assert config.replace(seed=1) != config
    assert config.replace(algorithm="pcpo").given == config.given | {"algorithm": "pcpo"}
    assert config.replace(algorithm="pcpo").pull_kl is None
    assert dataclasses.replace(config, seed=2) == config.replace(seed=2)
    assert dataclasses.asdict(config)["baseline"] == ("near",)
    for copied in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert (copied, copied.given) == (config, config.given)


def test_a_config_is_a_file_and_comes_back():
    config = spacerl.Config(
        task="env:Pendulum-v1",
        cost={"a": "info:hit", "b": "none"},
        cost_limit={"a": 1.5, "b": 2},
        baseline=Path("x.zip"),
    )
    assert config.cost == ("a=info:hit", "b=none")
    assert config.to_toml("x.toml") == Path("x.toml").read_text()
    assert spacerl.Config.from_toml("x.toml") == config
    assert spacerl.Config.from_toml("x.toml").given == config.given
    with pytest.raises(InputError, match="nothing is overwritten"):
        config.to_toml("x.toml")
    Path("y.toml").write_text("delta = -1")
    with pytest.raises(InputError, match=r"config 'y\.toml': delta is -1"):
        spacerl.Config.from_toml("y.toml")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dleta": 1.0}, "did you mean 'delta'"),
        ({"delta": 0.0}, "delta is 0.0: allowed is a finite number above 0"),
        ({"task": "point-circel"}, "did you mean 'point-circle'"),
        ({"algorithm": "trpo", "pull_kl": 0.1}, "it belongs to space"),
        ({"cost_limit": {"a": -1.0}}, "cost-limit is -1"),
        ({"env": "Pendulum-v1"}, "task='env:ID'"),
        ({"baseline": len}, "baseline is builtin_function_or_method, and a config holds names alone"),
        ({"cost": {"a": len}}, "cost is builtin_function_or_method"),
        ({"algorithm": Recipe("x", ())}, "algorithm is Recipe"),
    ],
)
def test_what_a_config_cannot_hold_is_one_sentence(settings, said):
    with pytest.raises(InputError, match=re.escape(said)):
        spacerl.Config(**settings)


def test_a_config_trains_sweeps_and_iterates():
    """What is given beside it has the last word; the run is that of the same keywords."""
    config = spacerl.Config(task="point-circle", **{name: TINY[name] for name in TINY if name != "log"})
    run = spacerl.train(config=config, seed=3, out="run", log=(), progress=False)
    again = spacerl.Config.from_toml("run/config.toml")
    assert (again.seed, again.hidden, again.algorithm) == (3, (4,), "trpo")
    assert again == config.replace(seed=3, start="fresh")
    same = spacerl.train("point-circle", seed=3, out="same", progress=False, **TINY)
    assert same.metrics[0]["J_R"] == run.metrics[0]["J_R"]
    folders = spacerl.sweep(config=config, seeds=(1,), out="sweep", log=(), progress=False)
    folders += spacerl.iterate(
        1, config=config, baseline="near", algorithm="pcpo", out="rounds", log=(), progress=False
    )
    assert [RunFolder(folder).config().batch_size for folder in folders] == [100, 100]
    assert RunFolder(folders[1]).config().algorithm == "pcpo"


# ---------------------------------------------------------------- results and progress


def test_a_result_is_short_and_its_metrics_are_a_table():
    result = spacerl.train("point-circle", out="run", progress=False, **TINY)
    assert len(repr(result)) < 120
    assert all(isinstance(value, float) for value in result.metrics[0].values())
    assert {"update", "J_R", "episode_return", "episode_length", "J_C"} <= set(result.metrics[0])


def test_progress_has_no_nan_and_counts_the_steps_of_all_runs(capsys, monkeypatch):
    clock = iter(np.arange(0.0, 100.0, 1.0))
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    spacerl.sweep("point-circle", seeds=(0, 1), out="sweep", **TINY | {"updates": 3, "evaluate_every": 0})
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("update")]
    assert "nan" not in "".join(lines)
    assert "steps/s" not in lines[0]
    assert "  200 steps/s" in lines[1]  # a second for two runs of 100 steps
    assert re.search(r"return -?\d+\.\d+ in 50 steps", lines[0])


def test_progress_shows_every_cost_with_its_own_limit():
    row = {"update": 0, "J_R": 1.0, "J_D": np.nan, "h_D": np.nan, "episode_return": 2.0, "episode_length": 3.0}
    row |= {"J_C": 9.0, "h_C": 5.0, "J_C_hull": 1.0, "h_C_hull": 2.0, "J_C_fuel": 9.0, "h_C_fuel": 5.0}
    assert "J_C hull 1.000 / 2, fuel 9.000 / 5  return" in progress._line(row, 5, np.nan, np.nan)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0.000"),
        (-29.5351, "-29.535"),
        (0.012, "0.012"),
        (-0.000543, "-0.000543"),
        (99_999.5, "99999.500"),
        (-11_545_471.2, "-11,545,471"),
        (3.1e14, "3.1e+14"),
    ],
)
def test_a_reward_of_any_scale_is_shown_with_the_digits_that_matter(value, shown):
    assert number_text(value, 3) == shown


def test_a_notebook_shows_progress_in_place(monkeypatch):
    shown: list[str] = []

    class Handle:
        def update(self, page):
            shown.append(page)

    display = types.ModuleType("IPython.display")
    display.HTML = str
    display.display = lambda page, display_id: shown.append(page) or Handle()
    shell = types.ModuleType("IPython")
    shell.get_ipython = lambda: types.SimpleNamespace(kernel="kernel")
    shell.display = display
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    spacerl.train("point-circle", out="run", **TINY)
    assert len(shown) == 2
    assert "compiling the update" in shown[0]
    assert "undiscounted, in 50 steps" in shown[1]
    assert all(page.startswith("<pre>") for page in shown)


# ---------------------------------------------------------------- messages


def test_a_vector_environment_is_told_to_be_one_too_many():
    vector = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")
    for env in (vector, lambda: vector):
        with pytest.raises(InputError, match="a vector environment of 3: give a single one"):
            spacerl.train(env=env, cost="none", algorithm="trpo", workers=0, progress=False)


def test_a_function_that_gives_a_class_is_told_to_make_one_of_it():
    class Mine(gymnasium.Env):
        pass

    with pytest.raises(InputError, match=r"gave the class Mine: return one made of it, Mine\(\)"):
        spacerl.train(env=lambda: Mine, cost="none", algorithm="trpo", workers=0, progress=False)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ("train", "point-circle", "--total-timesteps", "1e6"),
            "unknown option --total-timesteps: here it is --updates,",
        ),
        (("train", "point-circle", "--lr=3e-4"), "unknown option --lr: here it is --delta, the trust region"),
        (("sweep", "point-circle", "--algo", "PPOLag"), "unknown option --algo: here it is --algorithm"),
        (
            ("train", "point-circle", "--basline", "near"),
            "`spacerl train --help-all` lists all; did you mean --baseline?",
        ),
        (("evaluate", "run", "--lr", "3"), "unknown option --lr: `spacerl evaluate --help` lists all"),
        (("train", "point-circle", "near"), "'near' is one word too many: `spacerl train --help` shows"),
        (("evaluate",), "evaluate needs RUN (Run folder)"),
        (("export",), "export needs RUN (Run folder) and OUT (File to write: .onnx, .py (NumPy only) or .npz"),
        (("train", "Pendulum-v1"), "give it as --env Pendulum-v1"),
        (("train", "zoo.py:Cart"), "give it as --env zoo.py:Cart"),
        (("train", "--env", "Pendulum-v1", "--algorithm", "pcpo"), "`spacerl check-env` says what random actions cost"),
        ((), "`spacerl --help` says what each does"),
        (("train", "point-circle", "--algorithm", "PPOLag"), "nearest to it here is trpo-lagrangian; `spacerl"),
        (("train", "point-circle", "--algorithm", "SPACE"), "did you mean 'space'?"),
        (("train", "--task", "point-circle"), "the task comes first, as in `spacerl train point-circle`"),
        (("train", "point-circle", "--gpu"), "unknown option --gpu: here it is --device, with gpu"),
        (("record", "Pendulum-v1"), "unknown task 'Pendulum-v1': allowed are point-circle"),
        (("check-env", "Pendulum-v1", "--cost", "effort"), "; the key 'effort' of info is info:effort"),
        (("check-env", "Pendulum-v1", "--cost", "info:a,info:b"), "several costs are given with spaces between them"),
        (("train", "point-circle", "--baseline", str(Path(__file__))), "name the function in it, as in"),
        (
            ("train", "point-circle", "--algorithm", "trpo", "--log", "none"),
            "to log to none of them, give --log without a name (log=() in Python)",
        ),
    ],
)
def test_words_of_other_libraries_and_slips_are_answered_with_ours(capsys, given, said):
    told = refused(capsys, *given)
    assert said in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--seed", "1.5"), "--seed is '1.5': allowed is a whole number"),
        (("--delta=much",), "--delta is 'much': allowed is a number"),
        (("--workers", "many"), "--workers is 'many': allowed is a whole number or auto"),
        (("--hidden", "64,64"), "--hidden is '64,64': allowed are whole numbers with spaces between them, as in"),
        (("--hidden", "8", "x"), "--hidden is '8 x': allowed are whole numbers"),
        (("--seed",), "--seed was given without a value"),
        (("--projection", "k1"), "--projection is 'k1': allowed are kl, l2; did you mean 'kl'?"),
    ],
)
def test_a_value_that_cannot_be_read_is_told_with_what_is_allowed(capsys, given, said):
    told = refused(capsys, "train", "point-circle", "--algorithm", "pcpo", *given)
    assert said in told
    assert len(told.splitlines()) == 1
    assert "pars" not in told


def test_a_value_that_may_be_left_out_is_told_as_any_other(capsys):
    assert "--updates is 'x': allowed is a whole number\n" in refused(capsys, "resume", "run", "--updates", "x")


def test_a_run_folder_that_is_not_there_names_the_nearest(capsys):
    made(Path("runs/pendulum"), task="point-circle")
    assert "'runs/pendlum' does not exist; did you mean 'runs/pendulum'?" in refused(capsys, "evaluate", "runs/pendlum")
    assert refused(capsys, "export", "runs/xyz", "policy.py").endswith("run folder 'runs/xyz' does not exist\n")


def test_one_of_several_may_be_given_by_itself():
    folder = spacerl.train("point-circle", out="run", progress=False, **TINY).folder
    assert spacerl.report(str(folder)) == spacerl.report(folder) == folder / "report.html"
    with pytest.raises(InputError, match=r"seeds is 3: allowed are whole numbers in a list, such as \[0, 1, 2\]"):
        spacerl.sweep("point-circle", seeds=3, progress=False, **TINY)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"unknown baseline 'nearr'.*did you mean 'near'"):
        spacerl.sweep("point-circle", baselines="nearr", progress=False, **TINY)


def test_an_environment_given_as_a_task_is_told_where_it_belongs():
    with pytest.raises(InputError, match=r"task is PendulumEnv: .* an environment is given as env="):
        spacerl.train(gymnasium.make("Pendulum-v1").unwrapped, cost="none")  # type: ignore[arg-type]


def test_help_is_also_a_word(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["help"])
    assert not stop.value.code
    assert "check-env" in capsys.readouterr().out


def test_settings_of_other_libraries_are_answered_with_ours():
    with pytest.raises(InputError, match="unknown setting 'learning_rate': here it is delta, the trust region"):
        spacerl.train("point-circle", algorithm="trpo", learning_rate=3e-4)  # type: ignore[call-arg]
    with pytest.raises(InputError, match="unknown setting 'verbose': here it is progress, False for none"):
        spacerl.Config(task="point-circle", verbose=1)  # type: ignore[call-arg]


def test_what_a_name_of_another_library_is_here_exists():
    options = {name for entry in ALGORITHMS.values() for name in names_of(entry.options)}
    arguments = {field.name for field in dataclasses.fields(training.Train)} | {"env"}
    in_python = set(inspect.signature(spacerl.train).parameters)
    for theirs in ELSEWHERE:
        assert theirs not in {*SETTINGS, *options, *arguments, *in_python}
        option, setting = known_elsewhere(f"--{theirs}", option=True), known_elsewhere(theirs, option=False)
        assert option.partition(",")[0].removeprefix("--").replace("-", "_") in {*SETTINGS, *options, *arguments}
        assert setting.partition(",")[0] in {*SETTINGS, *options, *in_python}


def test_algorithms_of_other_libraries_lead_to_ours():
    for theirs, here in ALGORITHMS_ELSEWHERE.items():
        assert theirs not in ALGORITHMS
        assert here.partition(",")[0] in ALGORITHMS


@pytest.mark.parametrize(
    ("arguments", "log"), [(("--log",), ()), (("--log", "--quiet"), ()), ((), ("tensorboard",))], ids=str
)
def test_the_option_that_logs_is_given_without_a_name_to_log_nothing(arguments, log):
    assert parse(["train", "point-circle", "--algorithm", "trpo", *arguments]).log == log


@pytest.mark.parametrize(("log", "events"), [(None, False), ((), False), ("tensorboard", True)])
def test_what_is_logged_is_nothing_or_one_name_or_several(log, events):
    result = spacerl.train("point-circle", out="run", progress=False, **{**TINY, "log": log})
    assert (result.folder / "events").exists() == events


def test_missing_packages_are_named_with_what_installs_them(monkeypatch):
    with pytest.raises(InputError, match=r"pip install \"gymnasium\[atari\]\".*ale_py:ALE/Pong-v5"):
        construct(Recipe("ALE/Pong-v5", ()))

    def needs_box2d(*_, **__):
        raise gymnasium.error.DependencyNotInstalled(
            'Box2D is missing, install it by running `pip install swig` followed by `pip install "gymnasium[box2d]"`'
        )

    monkeypatch.setattr(gymnasium, "make", needs_box2d)
    with pytest.raises(InputError, match=r'install it with `pip install swig && pip install "gymnasium\[box2d\]"`'):
        construct(Recipe("LunarLander-v3", ()))

    def needs_imageio(*_, **__):
        raise ModuleNotFoundError("No module named 'imageio'", name="imageio")

    monkeypatch.setattr(gymnasium, "make", needs_imageio)
    with pytest.raises(InputError, match=r'lacks the package imageio: install it with `.*"gymnasium\[mujoco\]"`'):
        construct(Recipe("HalfCheetah-v4", ()))


def test_training_without_a_baseline_says_which_there_are(capsys):
    told = refused(capsys, "train", "point-circle")
    assert "--baseline with near, cost, reward, rule (which point-circle brings" in told
    told = refused(capsys, "train", "--env", "Pendulum-v1", "--cost", "none")
    assert "--baseline with a policy file, a run folder, or a policy of yours" in told


def test_what_baseline_show_takes_is_said(capsys):
    told = refused(capsys, "baseline", "show", "point-circel")
    assert "unknown task, policy file or run folder 'point-circel'" in told
    assert "did you mean 'point-circle'?" in told


def test_a_zip_that_was_cut_is_said_to_be(tmp_path):
    Path("model.zip").write_bytes(b"PK\x03\x04" + bytes(40))
    with pytest.raises(InputError, match="damaged, cut short or no zip archive"):
        spacerl.train("point-circle", baseline="model.zip", trust=True, progress=False)


def test_a_baseline_far_outside_of_its_bounds_is_told_once(capsys, monkeypatch):
    monkeypatch.setattr(policies, "_SAID", set())
    action = ActionSpace("box", 1, (-2.0,), (2.0,), scaled=True)
    far = policies.FunctionPolicy(lambda obs: 40.0 * np.ones((len(obs), 1)), action, 1, "degrees")
    near = policies.FunctionPolicy(lambda obs: 3.0 * np.ones((len(obs), 1)), action, 1, "newtons")
    for policy in (near, far, far):
        policy(np.zeros((4, 3), np.float32))
    told = capsys.readouterr().err
    assert told.count("far outside of their bounds [-2, 2]") == 1
    assert "baseline 'degrees' gives actions from 40 to 40" in told


def test_the_command_line_sends_runs_with_objects_to_python(capsys):
    folder = made(Path("run"), task="env:Pendulum-v1", cost=("none",), cost_limit=1.0)
    config = json.loads((folder / "config.json").read_text())
    for changed, said in (
        ({"task": "own:mine"}, "use it in Python"),
        ({"cost": ["cost=function"]}, "use it in Python"),
    ):
        (folder / "config.json").write_text(json.dumps(config | changed))
        assert said in refused(capsys, "evaluate", "run", "--episodes", "1")
