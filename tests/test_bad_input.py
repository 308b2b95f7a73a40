"""Bad input ends with exit code 2 and one sentence, before anything is trained, and leaves every file as it was.

Numbers that stop being finite end a run with exit code 3 and keep its last good state.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import spacerl
from spacerl.algorithms import ALGORITHMS
from spacerl.cli import main
from spacerl.envs.tasks import TASKS
from spacerl.policies.family import PolicyFamily
from spacerl.training.settings import needs_of, resolve
from spacerl.types import ActionSpace, InputError, RunStopped
from support.learners import Toy
from support.settings import (
    CHOICES,
    HINTS,
    NEED_BASELINE,
    NUMBERS,
    ONE_COST_ONLY,
    algorithm_with,
    asking_for,
    has_range,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

TINY = ["--batch-size", "100", "--hidden", "4", "--updates", "2", "--quiet"]
OURS = {"format": "spacerl-checkpoint-1", "update": "2"}
PCPO = ["train", "point-circle", "--algorithm", "pcpo", "--out", "new", *TINY]


def train_with(option: str) -> list[str]:
    """The command of a run whose algorithm has an option."""
    asked = asking_for(algorithm_with(option.replace("-", "_")))
    given = [word for name, value in asked.items() for word in (f"--{name}", value)]
    return ["train", "point-circle", *given, "--out", "new", *TINY]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two updates; tests work on copies."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    settings = {"batch_size": 100, "hidden": (4,), "updates": 2, "progress": False}
    return spacerl.train("point-circle", algorithm="pcpo", out=folder, **settings).folder


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch, tmp_path_factory):
    """Every test works in an empty folder; compiled programs are not kept in the home of who runs the tests."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "programs"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def run(workplace, finished):
    return shutil.copytree(finished, Path("run"))


def tree() -> dict[str, bytes | None]:
    """All folders and files below the working folder, with what is in them."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in Path().rglob("*")}


@pytest.fixture
def refused(capsys):
    """Calls the command line with bad input: exit code 2, one line that names what was given, and nothing touched."""

    def call(*arguments, names: str) -> str:
        before = tree()
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert stop.value.code == 2
        assert printed.out == ""
        assert printed.err.count("\n") == 1, printed.err
        assert printed.err.startswith("spacerl: ")
        assert names in printed.err
        assert tree() == before
        return printed.err

    return call


# ---------------------------------------------------------------- as a user sees it: real processes


def only_checkpoint(run: Path) -> Path:
    """The newest checkpoint of a run, after the others are removed."""
    *older, newest = sorted((run / "checkpoints").iterdir())
    for path in older:
        path.unlink()
    return newest


@pytest.fixture
def spacerl_process(quick_environment):
    def run(*arguments) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "spacerl", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=quick_environment, timeout=120, check=False)

    return run


def test_exit_code_and_sentence_of_real_processes(run, spacerl_process):
    newest = only_checkpoint(run)
    newest.write_bytes(newest.read_bytes()[:100])
    before = tree()
    cases = {
        "'point-circel'": ["train", "point-circel"],
        "'run' exists": [*PCPO, "--out", "run"],
        newest.name: ["resume", "run", "--updates", "3"],
    }
    for named, arguments in cases.items():
        process = spacerl_process(*arguments)
        assert process.returncode == 2
        assert process.stdout == ""
        assert process.stderr.count("\n") == 1
        assert named in process.stderr
    assert tree() == before


def test_numbers_that_stop_being_finite_give_exit_code_3(run, spacerl_process):
    newest = max(Path("run/checkpoints").iterdir())
    arrays = load_file(newest)
    arrays["theta"][-2:] = 200.0  # the logarithms of the standard deviations: e^200 is more than a float holds
    save_file(arrays, newest, OURS)
    process = spacerl_process("resume", "run", "--updates", "4", "--quiet")
    assert process.returncode == 3
    assert process.stdout == ""
    assert process.stderr.count("\n") == 1
    assert "finite in update 3 of seed 0; the state before it is saved in 'run'" in process.stderr
    assert len(Path("run/metrics.csv").read_text().splitlines()) == 3
    kept = load_file(max(Path("run/checkpoints").iterdir()))
    assert all(np.array_equal(kept[name], arrays[name], equal_nan=True) for name in arrays)


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("arguments", "given", "nearest"),
    [
        (["train", "point-circel"], "unknown task 'point-circel'", "'point-circle'"),
        (["train", "point-circle", "--algorithm", "spaec"], "unknown algorithm 'spaec'", "'space'"),
        (["train", "point-circle", "--baseline", "rewrad"], "unknown baseline 'rewrad'", "'reward'"),
        (["train", "point-gather", "--baseline", "cots", "--algorithm", "f-cpo"], "unknown baseline 'cots'", "'cost'"),
        (["baseline", "make", "point-gahter"], "unknown task 'point-gahter'", "'point-gather'"),
        (["baseline", "make", "point-circle", "--kind", "rewards"], "unknown baseline kind 'rewards'", "'reward'"),
    ],
)
def test_unknown_names_say_what_is_allowed_and_the_nearest(arguments, given, nearest, refused):
    said = refused(*arguments, names=given)
    assert "allowed are " in said
    assert f"did you mean {nearest}?" in said


def test_a_name_like_nothing_gets_no_guess(refused):
    assert "did you mean" not in refused("train", "xyzzy", names="unknown task 'xyzzy'")


def test_tasks_without_an_environment_yet_are_refused(refused):
    for name, task in TASKS.items():
        if not task.available:
            said = refused("train", name, "--algorithm", "pcpo", names=f"'{name}'")
            assert "allowed are point-circle, point-gather" in said


@pytest.mark.parametrize("algorithm", NEED_BASELINE)
def test_an_algorithm_that_needs_a_baseline_is_refused_without_one(algorithm, refused):
    said = refused("train", "point-circle", "--algorithm", algorithm, *TINY, names=f"'{algorithm}'")
    assert "--baseline" in said
    assert all(name in said for name in ALGORITHMS if name not in NEED_BASELINE)


def test_the_algorithms_themselves_say_what_they_need_whatever_their_options():
    free = {"trpo", "trpo-lagrangian", "trpo-pid", "cpo", "pcpo", "space-alone"}
    one_cost = {"cpo", "f-cpo", "d-cpo"}
    assert set(NEED_BASELINE) == set(ALGORITHMS) - free
    assert set(ONE_COST_ONLY) == one_cost
    for name in ALGORITHMS:
        needs = resolve({"task": "point-circle", "algorithm": name, "baseline": "near"}).algorithm.needs
        assert needs == needs_of(name)
        assert needs.baseline == (name not in free)
        assert needs.many_costs == (name not in one_cost)


def test_an_option_of_another_algorithm_is_refused_and_says_whose_it_is(refused):
    said = refused(*PCPO, "--pull-kl", "0.1", names="--pull-kl is not an option of the algorithm")
    assert "it belongs to space (--algorithm)" in said
    with pytest.raises(InputError, match=r"pull-kl is not a setting of algorithm 'pcpo': it belongs to space$"):
        spacerl.train("point-circle", algorithm="pcpo", pull_kl=0.1)


def test_an_unknown_setting_of_the_library_names_the_nearest():
    with pytest.raises(InputError, match=r"unknown setting 'batchsize'.*did you mean 'batch_size'"):
        spacerl.train("point-circle", algorithm="pcpo", batchsize=100)


def test_neither_task_nor_environment_is_refused():
    with pytest.raises(InputError, match="neither a task nor an env"):
        spacerl.train(algorithm="pcpo")


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize("limit", ["-1", "-0.001", "nan", "inf", "-inf"])
@pytest.mark.parametrize("option", ["cost-limit", "divergence-threshold"])
def test_thresholds_that_are_negative_or_no_number(option, limit, refused):
    said = refused(*train_with(option), f"--{option}", limit, names=f"{option} is {float(limit)!r}")
    assert "allowed is a finite number that is not negative" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["--cost-limit", "abc"],
        ["--algorithm", "space", "--divergence-threshold", "abc"],
        ["--updates", "abc"],
        ["--algorithm", "abc"],
        ["--projection", "abc"],
        ["--hidden", "8", "abc"],
        ["--abc", "3"],
    ],
)
def test_what_cannot_be_parsed_is_one_sentence_as_well(arguments, refused):
    refused(*PCPO, *arguments, names="abc")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("", "train"),
        ("trian", "trian"),
        ("train", "neither a task nor --env was given"),
        ("sweep", "neither a task nor --env was given"),
        ("baseline", "baseline make"),
        ("baseline makes", "baseline make"),
        ("baseline make", "neither a task nor --env was given"),
        ("resume", "resume needs RUN (Run folder)"),
    ],
)
def test_a_command_that_is_missing_or_incomplete_is_one_sentence_as_well(command, told, refused):
    refused(*command.split(), names=told)


def outside(name: str) -> list:
    """Values that no setting of that kind accepts, and those just beyond the ends of its range."""
    wrong = [math.nan, math.inf, -math.inf, -1, "3", True]
    whole = {"updates", "seed", "batch_size", "rollout_length", "cg_iterations", "backtrack_tries", "pretrain_updates"}
    whole |= {"checkpoint_every", "keep_checkpoints", "environments", "critic_steps"}
    above_zero = {"delta", "initial_std", "critic_kl", "projection_kl_bound", "fisher_subsample"}
    above_zero |= {"worker_timeout", "baseline_std", "baseline_exploration"}
    above_zero |= {name for name in NUMBERS if name.endswith("discount")}
    at_most_one = {"fisher_subsample"} | {n for n in NUMBERS if n.endswith(("discount", "gae_lambda"))}
    below_one = {"backtrack_factor", "weight_decay", "pretrain_tolerance", "baseline_exploration"}
    wrong += [1.5, 3.0] if name in whole | {"workers"} else []
    wrong += [0] if name in above_zero | (whole - {"seed"}) else []
    wrong += [1.0001] if name in at_most_one else []
    wrong += [1.0] if name in below_one else []
    return [value for value in wrong if name != "projection_kl_bound" or value != math.inf]  # inf: no bound


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_has_its_range(name):
    usual = {"task": "point-circle", **asking_for(algorithm_with(name))}
    resolve(usual)  # the defaults themselves are fine
    for value in outside(name):
        with pytest.raises(InputError) as error:
            resolve(usual | {name: value})
        assert f"{name.replace('_', '-')} is {value!r}" in str(error.value)
        assert "allowed is " in str(error.value)


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_is_checked_by_the_command_line(name, refused):
    option = name.replace("_", "-")
    refused(*train_with(option), f"--{option}", "-1", names=f"{option} is -1")


def test_all_numbers_of_a_config_have_a_range():
    assert {"delta", "seed", "workers", "projection_kl_bound", "pretrain_delta"} <= set(NUMBERS)
    assert all(has_range(HINTS[name]) for name in NUMBERS)
    assert {name for name, hint in HINTS.items() if has_range(hint)} == {*NUMBERS, "hidden", "filters"}


@pytest.mark.parametrize("sizes", [[], ["0"], ["8", "-3"]])
def test_hidden_layers_must_exist_and_have_units(sizes, refused):
    assert "allowed" in refused(*PCPO, "--hidden", *sizes, names="hidden is (")


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_that_does_not_exist_names_the_nearest(name):
    choice = CHOICES[name][-1]
    with pytest.raises(InputError, match=f"'{choice}x': allowed are .*did you mean '{choice}'"):
        resolve({"task": "point-circle", **asking_for(algorithm_with(name)), name: choice + "x"})


def test_the_number_of_cost_limits_must_be_that_of_the_costs(refused):
    assert "1 cost" in refused(*PCPO, "--cost-limit", "5", "6", names="2 cost limits")
    for algorithm in ONE_COST_ONLY:
        arguments = ["--algorithm", algorithm, "--baseline", "near", "--cost-limit", "5", "6"]
        assert "pcpo" in refused(*PCPO, *arguments, names=f"'{algorithm}' handles one cost and 2")


@pytest.mark.parametrize("episodes", ["0", "-5"])
def test_episodes_to_evaluate_are_counted_from_one(episodes, run, refused):
    refused("evaluate", run, "--episodes", episodes, names=f"episodes is {episodes}")


def test_a_seed_of_evaluation_that_is_too_large_is_refused(run, refused):
    refused("evaluate", run, "--seed", 10**20, names=f"seed is {10**20}")


# ---------------------------------------------------------------- folders


def test_an_output_folder_with_something_in_it_is_refused(run, refused):
    said = refused(*PCPO, "--out", "run", names="'run' exists")
    assert "spacerl resume run" in said
    Path("file.txt").write_text("mine")
    refused(*PCPO, "--out", "file.txt", names="'file.txt' exists")
    refused(*PCPO, "--out", "file.txt/below", names="file.txt")
    refused("baseline", "make", "point-circle", "--out", "file.txt", names="'file.txt' exists")


def test_a_sweep_with_one_bad_part_makes_no_folder_at_all(finished, refused):
    sweep = ["sweep", "point-circle", *TINY, "--out", "sweep"]
    refused(*sweep, "--baselines", "reward", "rewrad", names="unknown baseline 'rewrad'")
    refused(*sweep, "--baselines", "reward", finished, names="architecture")
    refused(*sweep, "--algorithm", "pcpo", "--seeds", "0", "-1", names="seed is -1")
    refused(*sweep, "--algorithm", "pcpo", "--seeds", "0", "0", names="seed0")


@pytest.mark.parametrize("command", ["resume", "evaluate", "report"])
def test_what_is_no_run_folder_is_refused(command, refused):
    Path("empty").mkdir()
    Path("notes").mkdir()
    Path("notes/notes.txt").write_text("nothing to see")
    for path in ("nowhere", "empty", "notes", "notes/notes.txt"):
        refused(command, path, names=path)


def test_a_report_of_nothing_is_refused(refused):
    refused("report", names="no run folder was given")


# ---------------------------------------------------------------- damaged and foreign files


def changed(**change) -> bytes:
    settings = {"task": "point-circle", "algorithm": "pcpo", "batch_size": 100, "hidden": (4,), "updates": 2}
    good = resolve(settings).config(spacerl.make_env("point-circle").spec)
    return json.dumps(json.loads(good.to_json()) | change).encode()


CONFIG_DAMAGES = {  # the file, and what the sentence must name
    "a foreign key": (changed(**{"lambda": 3}), "'lambda'"),
    "no task's name": (changed(task=5), "task is 5"),
    "no list of sizes": (changed(hidden=4), "hidden is 4"),
    "sizes that are no numbers": (changed(hidden="ab"), "hidden is 'ab'"),
    "half a unit": (changed(hidden=[8.5]), "hidden is (8.5,)"),
    "a float of steps": (changed(rollout_length=50.0), "rollout-length is 50.0"),
    "no baseline's name": (changed(baseline=7), "baseline is 7"),
    "no limit": (changed(cost_limit=["five"]), "cost-limit is ('five',)"),
    "a word for a flag": (changed(bootstrap_truncation="no"), "bootstrap-truncation is 'no'"),
    "no algorithm": (changed(algorithm="pcp"), "'pcp'"),
    "another algorithm's option": (changed(pull_kl=0.1), "'pull_kl'"),
    "an option out of its range": (changed(projection_kl_bound=-1), "projection-kl-bound is -1"),
    "a later format": (changed(format=3), "its format is 3"),
    "no task": (json.dumps({"algorithm": "pcpo"}).encode(), "config.json"),
    "cut short": (b'{"task": "poi', "config.json"),
    "a list": (b"[]", "config.json"),
    "a number": (b"5", "config.json"),
    "empty": (b"", "config.json"),
    "no text": (b"\xff\xfe", "config.json"),
}


@pytest.mark.parametrize("damage", CONFIG_DAMAGES)
def test_a_config_that_is_damaged_or_foreign_is_refused(damage, run, refused):
    content, told = CONFIG_DAMAGES[damage]
    (run / "config.json").write_bytes(content)
    refused("resume", run, "--updates", "3", names=told)
    refused("evaluate", run, "--episodes", "2", names=told)


def test_a_config_that_cannot_be_read_is_named(run, refused):
    for text in (b'{"task": "poi', b"[]", b"\xff\xfe"):
        (run / "config.json").write_bytes(text)
        for command in ("resume", "evaluate", "report"):
            refused(command, run, names=str(run / "config.json"))


def without(path: Path, name: str) -> dict[str, np.ndarray]:
    return {key: array for key, array in load_file(path).items() if key != name}


CHECKPOINT_DAMAGES = {
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "empty": lambda path: path.write_bytes(b""),
    "noise": lambda path: path.write_bytes(np.random.default_rng(0).bytes(3000)),
    "of another program": lambda path: save_file(load_file(path), path, {"format": "pt"}),
    "undescribed": lambda path: save_file(load_file(path), path),
    "a policy": lambda path: shutil.copy(path.parents[1] / "policy.safetensors", path),
    "of no update": lambda path: save_file(load_file(path), path, {"format": OURS["format"]}),
    "of update two": lambda path: save_file(load_file(path), path, OURS | {"update": "two"}),
    "without key": lambda path: save_file(without(path, "key"), path, OURS),
    "with a stranger": lambda path: save_file(load_file(path) | {"stranger": np.zeros(1, np.float32)}, path, OURS),
    "of another size": lambda path: save_file(load_file(path) | {"theta": np.zeros(3, np.float32)}, path, OURS),
    "of another type": lambda path: save_file(load_file(path) | {"update": np.array(2, np.int16)}, path, OURS),
}


@pytest.mark.parametrize("damage", CHECKPOINT_DAMAGES)
def test_a_checkpoint_that_is_corrupt_or_foreign_is_refused(damage, run, refused):
    path = only_checkpoint(run)
    CHECKPOINT_DAMAGES[damage](path)
    said = refused("resume", run, "--updates", "3", "--quiet", names="checkpoint")
    assert path.name in said or "update 2 in 'run'" in said


def test_a_run_without_checkpoints_is_refused(run, refused):
    shutil.rmtree(run / "checkpoints")
    refused("resume", run, names="no checkpoint")


SPEC = {"kind": "gaussian", "obs_shape": [9], "action_size": 2, "hidden": [4], "activation": "tanh"}


def described(**change) -> dict[str, str]:
    given = {"format": "spacerl-policy-1", "spec": json.dumps(SPEC), "info": "{}"} | change
    return {key: text for key, text in given.items() if text is not None}


POLICY_DAMAGES = {
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "no safetensors": lambda path: path.write_bytes(b"PK\x03\x04 something else"),
    "foreign": lambda path: save_file(load_file(path), path, described(format="pt")),
    "undescribed": lambda path: save_file(load_file(path), path, described(spec=None)),
    "half described": lambda path: save_file(load_file(path), path, described(spec="{")),
    "of other sizes": lambda p: save_file(load_file(p), p, described(spec=json.dumps(SPEC | {"hidden": [5]}))),
    "incomplete": lambda path: save_file(without(path, "log_std"), path, described()),
}


@pytest.mark.parametrize("damage", POLICY_DAMAGES)
def test_a_policy_file_that_is_corrupt_or_foreign_is_refused(damage, run, refused):
    path = run / "policy.safetensors"
    POLICY_DAMAGES[damage](path)
    space = ["train", "point-circle", "--algorithm", "space", *TINY, "--out", "new"]
    refused(*space, "--baseline", path, names=str(path))
    refused(*space, "--baseline", run, names=str(path))
    refused("evaluate", run, names=str(path))
    refused("baseline", "show", path, names=str(path))


def test_a_folder_without_a_policy_is_no_baseline(refused):
    Path("empty").mkdir()
    arguments = ["train", "point-circle", "--baseline", "empty", *TINY]
    assert "policy.safetensors" in refused(*arguments, names="'empty'")


# ---------------------------------------------------------------- baselines that do not fit


def test_a_baseline_whose_shapes_do_not_match_is_refused(run, refused):
    said = refused("train", "point-gather", "--baseline", run, *TINY, "--out", "new", names="'run'")
    assert "(9,)" in said
    assert "(29,)" in said


@pytest.mark.parametrize(
    ("action", "told"), [(ActionSpace("box", 3), "3 box actions"), (ActionSpace("discrete", 2), "2 discrete actions")]
)
def test_a_baseline_with_other_actions_is_refused(action, told, refused):
    from spacerl.policies.files import save_policy

    family = PolicyFamily((9,), action, (4,))
    save_policy(Path("other.safetensors"), family, family.init(jax.random.PRNGKey(0)), {})
    said = refused("train", "point-circle", "--baseline", "other.safetensors", *TINY, names="'other.safetensors'")
    assert told in said
    assert "2 box actions" in said


BAD_FUNCTIONS = {
    "three of two": (lambda obs: np.zeros((len(obs), 3)), "actions of shape"),
    "nothing": (lambda obs: None, "returned NoneType: numbers are expected"),
    "too many actions": (lambda obs: (np.zeros((len(obs), 3)), np.ones((len(obs), 3))), "means of shape"),
    "too few rows": (lambda obs: (np.zeros((len(obs) + 1, 2)), np.ones((len(obs), 2))), "means of shape"),
    "words": (lambda obs: ("left", "right"), "numbers are expected"),
    "wrong deviations": (lambda obs: (np.zeros((len(obs), 2)), np.ones((len(obs), 3))), "deviations of shape"),
    "no deviation": (lambda obs: (np.zeros((len(obs), 2)), np.zeros((len(obs), 2))), "above 0"),
    "a negative deviation": (lambda obs: (np.zeros((len(obs), 2)), -np.ones((len(obs), 2))), "above 0"),
    "means that are no numbers": (lambda obs: (np.full((len(obs), 2), np.nan), np.ones((len(obs), 2))), "not finite"),
    "endless deviations": (lambda obs: (np.zeros((len(obs), 2)), np.full((len(obs), 2), np.inf)), "not finite"),
}


@pytest.mark.parametrize("name", BAD_FUNCTIONS)
def test_a_function_that_is_no_baseline_is_refused(name):
    function, complaint = BAD_FUNCTIONS[name]
    with pytest.raises(InputError, match=complaint):
        spacerl.train("point-circle", baseline=function, batch_size=100, updates=1, out="new", progress=False)
    assert tree() == {}


class Coin(Toy):
    """One decision between two choices, an episode."""

    name = "coin"
    action_space = ActionSpace("discrete", 2)
    cost_names = ("tails",)

    def step(self, state, action):
        return state, action.astype(jnp.float32), action.astype(jnp.float32)[None], jnp.array(True)


@pytest.mark.parametrize(
    ("probabilities", "complaint"),
    [([0.5, 0.6], "sum to 1"), ([1.5, -0.5], "negative"), ([0.2, 0.3, 0.5], "shape"), ([np.nan, 1.0], "not finite")],
)
def test_a_function_without_probabilities_is_no_baseline_for_choices(probabilities, complaint):
    def baseline(obs):
        return np.tile(probabilities, (len(obs), 1))

    with pytest.raises(InputError, match=complaint):
        spacerl.train(env=Coin(), baseline=baseline, cost_limit=0.5, batch_size=8, updates=1, out="new", progress=False)
    assert tree() == {}


def test_an_environment_of_ones_own_needs_a_cost_limit():
    with pytest.raises(InputError, match="cost-limit"):
        spacerl.train(env=Coin(), algorithm="pcpo", batch_size=8, updates=1, out="new", progress=False)
    assert tree() == {}


# ---------------------------------------------------------------- numbers that stop being finite


class Cliff(Toy):
    """Reward grows with the action until, beyond a point that only a trained policy reaches, it is no number."""

    name = "cliff"
    horizon = 2
    cost_names = ("none",)

    def step(self, state, action):
        reward = jnp.where(action[0] > 1.0, jnp.nan, action[0])
        return state, reward, jnp.zeros(1), jnp.array(False)


def test_a_run_that_is_stopped_keeps_its_last_good_state():
    settings = {"initial_std": 0.1, "delta": 0.5, "batch_size": 100, "hidden": (4,), "cost_limit": 1.0}
    settings |= {"algorithm": "pcpo", "updates": 60, "checkpoint_every": 100}
    with pytest.raises(
        RunStopped, match=r"finite in update \d+ of seed 0; the state before it is saved in 'new'"
    ) as stop:
        spacerl.train(env=Cliff(), out="new", progress=False, **settings)
    good = int(str(stop.value).split("update ")[1].split(" of seed")[0]) - 1
    assert good > 1, "the first updates must be good, or nothing is kept"

    rows = Path("new/metrics.csv").read_text().splitlines()[1:]
    assert len(rows) == good
    saved = load_file(f"new/checkpoints/update-{good:06d}.safetensors")
    assert max(Path("new/checkpoints").iterdir()).name == f"update-{good:06d}.safetensors"
    assert saved["update"] == good
    assert all(np.all(np.isfinite(array)) for name, array in saved.items() if "algorithm" not in name)
    policy = load_file("new/policy.safetensors")
    assert all(np.all(np.isfinite(array)) for array in policy.values())

    with pytest.raises(RunStopped, match=f"finite in update {good + 1} of seed 0;"):
        spacerl.resume("new", env=Cliff(), progress=False)
    assert Path("new/metrics.csv").read_text().splitlines()[1:] == rows


def test_a_sweep_that_is_stopped_keeps_its_last_good_states(capsys):
    sweep = ["sweep", "point-circle", "--algorithm", "pcpo", "--seeds", "0", "1", "--out", "sweep", *TINY]
    with pytest.raises(SystemExit) as stop:
        main([*sweep, "--delta", "1e30"])
    assert stop.value.code == 3
    assert "finite in update 2" in capsys.readouterr().err
    folders = [path for path in Path("sweep").iterdir() if path.is_dir()]
    assert len(folders) == 2
    for folder in folders:
        assert len((folder / "metrics.csv").read_text().splitlines()) == 2
        arrays = load_file(folder / "checkpoints" / "update-000001.safetensors")
        assert np.all(np.isfinite(arrays["theta"]))
