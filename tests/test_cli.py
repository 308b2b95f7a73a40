"""The command line: help made from the config, commands that do what they say, exit codes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import spacerl
from spacerl.algorithms import ALGORITHMS
from spacerl.cli import main
from spacerl.cli.main import COMMANDS as EVERY_COMMAND
from spacerl.envs.tasks import TASKS, preset_settings
from spacerl.runs.config import SETTINGS, MainSettings, RunConfig
from spacerl.runs.fields import defaults_of, names_of
from spacerl.runs.folder import RunFolder
from spacerl.training import baselines as making
from spacerl.training import loop
from spacerl.training import train as training
from spacerl.training.programs import Program
from spacerl.types import RunInterrupted

pytestmark = pytest.mark.usefixtures("quick_compilation")

HEAVY = {"jax", "jaxlib", "equinox", "matplotlib", "numpy", "gymnasium", "tensorboardX", "safetensors"}
# Options stand beside the update rules, and their defaults in the tasks: help on them may load what these import.
RULES = {"jax", "jaxlib", "numpy", "gymnasium"}
COMMANDS = ("train", "sweep", "resume", "evaluate", "report", "tasks", "algorithms", "baseline make", "baseline show")
TINY = ["--algorithm", "pcpo", "--batch-size", "100", "--hidden", "4", "--updates", "2"]


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch, tmp_path_factory):
    """Every test works in an empty folder; compiled programs are not kept in the home of who runs the tests."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "programs"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run made by the command line."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    main(["train", "point-circle", *TINY, "--out", str(folder), "--quiet"])
    return folder


@pytest.fixture
def run(workplace, trained):
    return shutil.copytree(trained, Path("run"))


def python(program: str) -> str:
    paths = os.pathsep.join(filter(None, [str(Path(spacerl.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "100"}
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment, timeout=60
    )
    return process.stdout


HELP = """
import sys
from spacerl.cli import main
from spacerl.cli.main import COMMANDS as EVERY_COMMAND
try:
    main({arguments})
except SystemExit as stop:
    assert stop.code == 0
print("LOADED", *{{name.split(".")[0] for name in sys.modules}})
"""


def help_of(*arguments: str, asking: str = "--help", allowed: set[str] = frozenset()) -> str:
    """Text of a help page; it must come without loading anything heavy, which is what keeps it fast."""
    text, loaded = python(HELP.format(arguments=[*arguments, asking])).split("LOADED")
    assert not set(loaded.split()) & (HEAVY - allowed)
    return text


def words_of(text: str) -> str:
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


def shown_as(value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_help_names_every_command_and_loads_nothing_heavy():
    text = help_of()
    assert all(command in text for command in COMMANDS)


@pytest.mark.parametrize("algorithm", ["space", "d-pcpo"])
def test_help_of_train_comes_from_the_config(algorithm):
    """With the real defaults of the task and the algorithm that are named."""
    asked = ("train", "point-gather", "--algorithm", algorithm)
    words = words_of(help_of(*asked, asking="--help-all", allowed=RULES))
    shown = {text.split()[0].strip(","): text for text in re.split(r" (?=--[a-z])", words) if text.startswith("--")}
    options = ALGORITHMS[algorithm].options
    defaults = defaults_of(RunConfig) | defaults_of(options) | preset_settings("point-gather", "spacerl")
    defaults |= {"algorithm": algorithm}
    for name in (*SETTINGS, *names_of(options)):
        if name == "task":  # the positional argument
            continue
        text, value = shown[f"--{name.replace('_', '-')}"], defaults[name]
        if value != () and not isinstance(value, bool):
            values = value if isinstance(value, tuple) else (value,)
            assert f"(default: {' '.join(map(shown_as, values))})" in text
    assert "Trust-region radius: mean KL of the reward step." in words  # the text under the field


def test_short_help_of_train_shows_the_main_options_alone():
    words = words_of(help_of("train", allowed=RULES))
    main_names = {*names_of(MainSettings), "cost"} - {"task"}  # a cost goes with --env
    shown = {name.replace("-", "_") for name in re.findall(r" --([a-z][a-z-]*)", words)}
    assert main_names <= shown
    assert not shown & ({*SETTINGS, *names_of(ALGORITHMS["space"].options)} - main_names)
    assert "--help-all" in words
    assert "Task to learn" in words


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_no_help_shows_what_only_python_means(command, capsys):
    """Objects that stand for "nothing given", signatures of classes, a letter for any kind of value."""
    with pytest.raises(SystemExit) as stop:
        main([*command.split(), "--help-all"])
    assert not stop.value.code
    text = words_of(capsys.readouterr().out)
    for word in ("MISSING", "None}", "Options(", "'Literal", " 0x", "--title N", "--task N", "--out N"):
        assert word not in text


def test_listing_tasks_loads_no_jax_and_algorithms_are_listed():
    listing = "from spacerl.cli.main import main; main(['tasks'])"
    listing += "; import sys; print('LOADED', 'jax' in sys.modules); main(['algorithms'])"
    tasks, algorithms = python(listing).split("LOADED")
    assert all(name in tasks for name in TASKS)
    assert all(re.search(rf"^{name} ", algorithms, re.MULTILINE) for name in ALGORITHMS)
    assert "50,000" in tasks
    assert algorithms.split()[0] == "False"


def test_run_folders_configs_and_reports_load_no_jax():
    text = python(
        "import sys, spacerl.runs.folder, spacerl.runs.config, spacerl.reporting; print('jax' in sys.modules)"
    )
    assert text.split() == ["False"]


def test_importing_the_package_loads_nothing_heavy_and_has_the_public_names():
    text = python("import sys, spacerl; print(*{n.split('.')[0] for n in sys.modules}); print('LOADED', *dir(spacerl))")
    assert not set(text.split("LOADED")[0].split()) & HEAVY
    for name in ("train", "resume", "evaluate", "load_policy", "make_env", "report"):
        assert callable(getattr(spacerl, name))
        assert name in spacerl.__all__
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = spacerl.nonsense


# ---------------------------------------------------------------- commands


def test_train_shows_progress_and_says_where_the_run_is(capsys, trained):
    main(["train", "point-circle", *TINY])
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert "pcpo on point-circle" in lines[0]
    assert re.match(r"update 1/2  J_R -?\d+\.\d+  J_C \d+\.\d+ / 5 ", lines[1])
    assert lines[-1] == "run folder: runs/point-circle-pcpo-none-seed0"
    metrics = Path("runs/point-circle-pcpo-none-seed0/metrics.csv")
    values = [line.split(",")[2:4] for line in metrics.read_text().splitlines()[1:]]
    assert values == [line.split(",")[2:4] for line in (trained / "metrics.csv").read_text().splitlines()[1:]]


def test_quiet_prints_the_folder_only(capsys, run):
    main(["resume", "run", "--updates", "3", "--quiet"])
    assert capsys.readouterr().out == "run folder: run\n"
    assert len(Path("run/metrics.csv").read_text().splitlines()) == 4


def interrupted(parts):
    """In the place of a program: the user presses Ctrl-C at once."""

    def step(state):
        raise KeyboardInterrupt

    return Program(step, lambda state: [state])


def test_options_of_the_command_line_are_the_config_of_the_run(monkeypatch):
    given = {"seed": 3, "delta": 0.25, "hidden": [4, 3], "cost_limit": [2.5], "critic": "linear"}
    options = "--seed 3 --delta 0.25 --hidden 4 3 --cost-limit 2.5 --critic linear --bootstrap-truncation"
    monkeypatch.setattr(training, "single_program", interrupted)
    with pytest.raises(SystemExit):
        main(["train", "point-gather", "--quiet", "--out", "run", *TINY, *options.split(" ")])
    config = json.loads(Path("run/config.json").read_text())
    assert {name: config[name] for name in given} == given
    assert config["bootstrap_truncation"] is True
    assert config["rollout_length"] == 15


def test_evaluate_prints_both_policies_with_intervals_and_the_limit(capsys, run):
    main(["evaluate", "run", "--episodes", "30"])
    printed = capsys.readouterr().out
    report = spacerl.evaluate("run", episodes=30)
    for mode in ("stochastic", "deterministic"):
        cost = report[mode]["J_C"]["outside_walls"]
        assert mode in printed
        assert f"{report[mode]['J_R']['mean']:.4f}" in printed
        assert f"{cost['mean']:.4f}" in printed
        assert f"± {cost['interval']:.4f}" in printed
        words = {"within": "within h_C = 5", "above": "above h_C = 5", "at": "at its limit h_C = 5"}
        assert words[cost["verdict"]] in printed


def test_evaluate_prints_and_writes_json_and_says_how_far_it_is(capsys, run):
    main(["evaluate", "run", "--episodes", "stochastic=30", "deterministic=3", "--json", "--out", "new/numbers.json"])
    printed, said = capsys.readouterr()
    report = json.loads(printed)
    assert report == json.loads(Path("new/numbers.json").read_text())
    assert report == spacerl.evaluate("run", episodes={"stochastic": 30, "deterministic": 3})
    assert (report["stochastic"]["episodes"], report["deterministic"]["episodes"]) == (30, 3)
    assert "stochastic: 30 episodes in one program" in said
    main(["evaluate", "run", "--episodes", "deterministic=1", "--json", "--quiet"])
    printed, said = capsys.readouterr()
    assert json.loads(printed)["deterministic"]["J_R"]["std"] is None  # JSON has no NaN
    assert "stochastic" not in json.loads(printed)
    assert not said


def test_evaluate_says_what_is_wrong_with_episodes(capsys, run):
    for given in ("many", "stochastic", "random=3", "stochastic=0", "0"):
        with pytest.raises(SystemExit):
            main(["evaluate", "run", "--episodes", given])
        assert "spacerl: " in capsys.readouterr().err


def test_report_writes_a_page_into_the_run_or_where_told(capsys, run):
    main(["report", "run"])
    assert capsys.readouterr().out == "report: run/report.html\n"
    main(["report", "run", "--out", "page.html", "--title", "Twice as far"])
    assert "Twice as far" in Path("page.html").read_text()
    assert Path("run/report.html").read_text().startswith("<!DOCTYPE html>")


def test_a_sweep_is_its_runs_side_by_side(capsys, monkeypatch):
    monkeypatch.setattr(loop, "write_trajectories", lambda *arguments: None)  # drawing compiles programs of its own
    # Well-conditioned on purpose: a batched product rounds differently, and only that may differ.
    setting = ["--algorithm", "f-pcpo", "--quiet", "--cg-damping", "0.1", "--fisher-subsample", "1"]
    lanes = ["--seeds", "1", "--baselines", "reward", "near"]
    main(["sweep", "point-circle", *TINY, *setting, *lanes, "--out", "sweep"])
    assert "2 run folders below sweep" in capsys.readouterr().out
    names = ["point-circle-f-pcpo-near-seed1", "point-circle-f-pcpo-reward-seed1"]
    assert sorted(path.name for path in Path("sweep").iterdir()) == [*names, "sweep.json"]
    assert json.loads(Path("sweep/sweep.json").read_text()) == {"programs": [names[::-1]]}

    main(["train", "point-circle", *TINY, *setting, "--seed", "1", "--baseline", "reward", "--out", "alone"])
    alone, together = RunFolder("alone"), RunFolder(Path("sweep", names[1]))
    assert alone.config() == together.config()
    assert len(alone.metrics()) == len(together.metrics()) == 2
    for one, other in zip(alone.metrics(), together.metrics(), strict=True):
        assert list(one) == list(other)
        for name in ("update", "env_steps", "J_R", "J_C", "J_D", "entropy"):
            assert one[name] == pytest.approx(other[name], rel=1e-3)
        assert one["kl"] == pytest.approx(other["kl"], rel=0.05)  # so small that it is mostly rounding
    assert RunFolder(Path("sweep", names[0])).metrics()[0]["J_D"] != alone.metrics()[0]["J_D"]


def test_interruption_has_its_own_exit_code(capsys, monkeypatch, run):
    monkeypatch.setattr(training, "single_program", interrupted)
    with pytest.raises(SystemExit) as stop:
        main(["resume", "run", "--updates", "5", "--quiet"])
    assert stop.value.code == 130
    assert "spacerl resume" in capsys.readouterr().err


def test_a_fault_of_ours_is_not_called_bad_input(monkeypatch, run):
    def faulty(parts):
        raise RuntimeError("a bug")

    monkeypatch.setattr(training, "single_program", faulty)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["resume", "run", "--updates", "5", "--quiet"])


# ---------------------------------------------------------------- baselines by command


def test_baseline_show_tells_what_is_known(capsys, run):
    main(["baseline", "show", "point-gather"])
    printed = capsys.readouterr().out
    for kind in ("cost", "reward", "near"):
        assert f"spacerl baseline make point-gather --kind {kind}" in printed
    assert "J_C" in printed
    main(["baseline", "show", "run"])
    assert "pcpo" in capsys.readouterr().out


def test_baseline_show_of_a_task_without_any_is_bad_input(capsys, monkeypatch):
    monkeypatch.setitem(TASKS, "car-racing", dataclasses.replace(TASKS["car-racing"], baselines=None))
    with pytest.raises(SystemExit) as stop:
        main(["baseline", "show", "car-racing"])
    assert stop.value.code == 2
    assert "spacerl baseline make car-racing" in capsys.readouterr().err


@pytest.mark.parametrize("when", ["while it trains", "while it is measured"])
def test_an_interrupted_baseline_make_keeps_what_was_trained(when, capsys, monkeypatch, tmp_path):
    task, done = TASKS["point-circle"], []
    small = dataclasses.replace(task, settings={**task.settings, "batch_size": 100, "hidden": (4,)})
    monkeypatch.setitem(TASKS, "point-circle", small)
    monkeypatch.setattr(making.tempfile, "tempdir", str(tmp_path))

    def interrupted(*given):
        if when == "while it is measured" or len(done) == 2:
            raise KeyboardInterrupt
        done.append(given)
        return real(*given)

    if when == "while it trains":
        real = loop.one_update
        monkeypatch.setattr(loop, "one_update", interrupted)
    else:
        monkeypatch.setattr(making, "_measured", interrupted)
    with pytest.raises((RunInterrupted, KeyboardInterrupt)):
        making.make_baseline("point-circle", "reward", tmp_path / "pi_B", {"updates": 4}, progress=False)
    told = capsys.readouterr().err
    (run,) = tmp_path.glob("spacerl-*/run")
    assert f"what was trained is in '{run}', which serves as a baseline too" in told
    assert RunFolder(run).newest_update() == (2 if done else 4)
    assert spacerl.load_policy(run).predict(np.zeros(9))[0].shape == (2,)


def test_baseline_make_writes_a_policy_with_its_facts(capsys, monkeypatch):
    task = TASKS["point-circle"]
    small = dataclasses.replace(task, settings={**task.settings, "batch_size": 100, "hidden": (4,)})
    monkeypatch.setitem(TASKS, "point-circle", small)
    monkeypatch.setattr(making, "EVALUATION_EPISODES", 40)
    main(["baseline", "make", "point-circle", "--kind", "reward", "--updates", "1", "--seed", "2", "--quiet"])
    printed = capsys.readouterr().out
    policy = spacerl.load_policy("point-circle-reward.safetensors")
    facts = policy.info
    assert facts["trained_h_C"] == 15.0  # three times the task's
    assert (facts["task"], facts["kind"], facts["seed"], facts["updates"]) == ("point-circle", "reward", 2, 1)
    assert f"J_R {facts['J_R']:.3f}, J_C {facts['J_C']:.3f}" in printed
    made_by = "spacerl baseline make point-circle --kind reward --updates 1 --delta 0.01 --seed 2 --cost-limit 15"
    assert facts["command"] == made_by
    assert not list(Path().glob("**/checkpoints"))
    with pytest.raises(SystemExit) as stop:  # a second time nothing is overwritten
        main(["baseline", "make", "point-circle", "--kind", "reward", "--updates", "1", "--quiet"])
    assert stop.value.code == 2
