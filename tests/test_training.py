"""Training as a whole: every algorithm and option runs, run folders hold what they promise, own environments work."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import struct
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import spacerl
from spacerl.algorithms import ALGORITHMS
from spacerl.runs.config import SETTINGS, RunConfig
from spacerl.runs.fields import names_of
from spacerl.runs.folder import RunFolder
from spacerl.training import loop
from spacerl.training import train as training
from spacerl.training.memory import observation_bytes
from spacerl.training.settings import read_config, resolve
from spacerl.types import ActionSpace, EnvSpec, ImageSpec, InputError
from support.learners import Toy, make_config
from support.runs import rows_of
from support.settings import CHOICES, NEED_BASELINE

pytestmark = pytest.mark.usefixtures("quick_compilation")

COLUMNS = ["update", "env_steps", "J_R", "J_C", "J_D", "h_C", "h_D", "cumulative_violation", "kl", "entropy"]
COLUMNS += ["seconds_collect", "seconds_update"]
TINY = {"batch_size": 100, "hidden": (4,), "progress": False}


def assert_sound(result, updates: int, steps: int) -> list[dict[str, float]]:
    """What holds for every run, whatever the algorithm."""
    rows = rows_of(result.folder)
    assert len(rows) == updates
    assert [row["update"] for row in rows] == list(range(updates))
    assert [row["env_steps"] for row in rows] == [steps * (k + 1) for k in range(updates)]
    for row in rows:
        always = (
            row[name] for name in ("J_R", "J_C", "h_C", "cumulative_violation", "kl", "entropy", "seconds_update")
        )
        assert all(math.isfinite(value) for value in always)
        assert row["kl"] >= -1e-6
    assert np.all(np.isfinite(result.policy.theta))
    return rows


# ---------------------------------------------------------------- every algorithm, every option

TASKS = ("point-circle", "point-gather")
# Each choice of every option occurs at least once; a test below keeps it so.
OPTIONS = {
    ("point-circle", "space-printed"): {"projection": "kl", "divergence_gradient": "full"},
    ("point-gather", "space-sequential"): {"projection": "l2", "divergence_gradient": "direct"},
    ("point-circle", "space-joint"): {
        "divergence_gradient": "score",
        "threshold_rule": "fixed",
        "projection_kl_bound": 0.01,
    },
    ("point-circle", "f-pcpo"): {"cg_damping": 0.1, "fisher_subsample": 1.0},
    ("point-gather", "pcpo"): {"critic": "linear", "projection": "l2", "bootstrap_truncation": True},
    ("point-circle", "d-pcpo"): {"weight_schedule": "printed"},
    ("point-circle", "d-cpo"): {"weight_schedule": "decay"},
    ("point-gather", "pretrain"): {"pretrain_updates": 1},
    # Of no effect on tasks that are simulated in one place only; test_ant runs them where they have one.
    ("point-gather", "trpo"): {"simulator": "host"},
    ("point-gather", "cpo"): {"simulator": "device"},
}
RUNS = {(task, algorithm): {} for task in TASKS for algorithm in ALGORITHMS} | OPTIONS
# Every algorithm on one of the tasks, and all that differ in kind on both.
QUICK = [key for key in RUNS if key[0] == "point-circle" or key[1] in ("space", "cpo", "trpo", "pretrain")]


@pytest.mark.parametrize(
    "key", [pytest.param(key, marks=[] if key in QUICK else [pytest.mark.slow], id="-".join(key)) for key in RUNS]
)
def test_every_algorithm_runs_on_both_tasks(key, tmp_path, monkeypatch):
    task, algorithm = key
    if algorithm != "space":  # drawing compiles programs of its own
        monkeypatch.setattr(loop, "write_trajectories", lambda *arguments: None)
    baseline = "reward" if algorithm in NEED_BASELINE else None
    settings = {"algorithm": algorithm, "baseline": baseline, "start": "fresh", **TINY, **RUNS[key]}
    result = spacerl.train(task, updates=2, out=tmp_path / "run", **settings)
    steps = {"point-circle": 100, "point-gather": 105}[task]  # whole episodes, of 50 and of 15 steps
    rows = assert_sound(result, 2, steps)
    assert all(math.isnan(row["J_D"]) == (baseline is None) for row in rows)
    assert all(math.isnan(row["h_D"]) != (algorithm.startswith("space") and algorithm != "space-alone") for row in rows)
    weighted = algorithm[:2] in ("f-", "d-") or algorithm == "pretrain"
    assert all(math.isnan(row["divergence_weight"]) != weighted for row in rows)


def test_every_choice_of_every_option_is_run():
    drafts = [
        resolve({"task": task, "algorithm": algorithm, "baseline": "near", **options})
        for (task, algorithm), options in RUNS.items()
    ]
    run = [{**draft.values, **draft.options} for draft in drafts]
    for name, choices in CHOICES.items():
        if name in (
            "start",
            "preset",
            "evaluation_mode",
        ):  # no part of an update: test_start, test_config, test_best_policy
            continue
        assert {settings[name] for settings in run if name in settings} == set(choices), name
    assert {settings["algorithm"] for settings in run} == set(ALGORITHMS)


# ---------------------------------------------------------------- the run folder


@pytest.fixture(scope="module")
def space_run(tmp_path_factory):
    """Seven updates of SPACE with few checkpoints kept."""
    settings = {"algorithm": "space-printed", "baseline": "reward", "checkpoint_every": 2, "keep_checkpoints": 2}
    settings |= {"divergence_gradient": "full"}
    out = tmp_path_factory.mktemp("folder") / "run"
    return spacerl.train("point-circle", updates=7, out=out, **settings, **TINY)


def test_the_folder_holds_these_files_and_no_others(space_run):
    folder = space_run.folder
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    events = {name for name in files if name.startswith("events/events.out.tfevents.")}
    assert len(events) == 1
    # Checkpoints: every second update and the last; the newest two are kept.
    kept = {"checkpoints/update-000006.safetensors", "checkpoints/update-000007.safetensors"}
    texts = {
        "config.json",
        "config.toml",
        "versions.json",
        "environment.json",
        "metrics.csv",
        "baseline.json",
        "trajectories.json",
    }
    assert files - events == kept | texts | {"policy.safetensors"}


def test_no_file_of_the_folder_can_run_code(space_run):
    for path in space_run.folder.rglob("*"):
        if path.is_file() and path.suffix == ".safetensors":
            size = struct.unpack("<Q", path.read_bytes()[:8])[0]
            json.loads(path.read_bytes()[8 : 8 + size])  # a plain header, then numbers
        elif path.is_file() and "events" not in path.name:
            path.read_text()


def test_metrics_have_the_promised_columns_and_agree_with_themselves(space_run):
    lines = (space_run.folder / "metrics.csv").read_text().splitlines()
    assert lines[0].split(",")[: len(COLUMNS)] == COLUMNS
    rows = assert_sound(space_run, 7, 100)
    assert repr(rows) == repr(space_run.metrics)
    violations = np.cumsum([max(row["J_C"] - row["h_C"], 0.0) for row in rows])
    assert [row["cumulative_violation"] for row in rows] == pytest.approx(violations.tolist(), rel=1e-5)
    assert violations[-1] > 0.0
    assert all(math.isnan(row["seconds_collect"]) for row in rows)  # one program: collection cannot be timed apart


def test_the_radius_moves_by_the_lemma(space_run):
    """h_D grows by 10 (J_C - h_C)^2 when the cost rose or the reward fell since the update before, else stays."""
    rows = rows_of(space_run.folder)
    expected, moved = [5.0, 5.0], 0
    for before, now in itertools.pairwise(rows):
        worse = now["J_C"] > before["J_C"] or now["J_R"] < before["J_R"]
        moved += worse
        expected.append(expected[-1] + (10.0 * (now["J_C"] - now["h_C"]) ** 2 if worse else 0.0))
    assert [row["h_D"] for row in rows] == pytest.approx(expected[: len(rows)], rel=1e-5)
    assert 0 < moved < len(rows) - 1, "both cases must occur"


def test_the_config_of_the_folder_is_the_whole_config(space_run):
    stored = RunConfig.from_json((space_run.folder / "config.json").read_text())
    assert stored == resolve(stored.settings()).config(spacerl.make_env("point-circle").spec)
    assert stored == read_config(RunFolder(space_run.folder))[0]
    named = (stored.task, stored.algorithm, stored.baseline, stored.updates)
    assert named == ("point-circle", "space-printed", ("reward",), 7)
    assert (stored.hidden, stored.cost_limit, stored.delta) == ((4,), (5.0,), 1e-2)
    written = json.loads((space_run.folder / "config.json").read_text())
    assert written.keys() == {"format", *SETTINGS, *names_of(ALGORITHMS["space-printed"].options)}


def test_versions_say_what_is_needed_to_repeat_the_run(space_run):
    versions = json.loads((space_run.folder / "versions.json").read_text())
    assert versions["jax"] == jax.__version__
    assert versions["numpy"] == np.__version__
    assert {"spacerl", "python", "commit", "hardware", "started", "device"} <= versions.keys()


def test_policy_checkpoint_and_result_are_one_policy(space_run):
    policy = spacerl.load_policy(space_run.folder)
    checkpoint = load_file(space_run.folder / "checkpoints" / "update-000007.safetensors")
    assert np.array_equal(policy.theta, space_run.policy.theta)
    assert np.array_equal(policy.theta, checkpoint["theta"])
    assert checkpoint["update"] == 7
    assert checkpoint["env_steps"] == 700
    assert policy.info["update"] == 7


def test_trajectories_and_baseline_are_kept_for_the_report(space_run):
    drawn = json.loads((space_run.folder / "trajectories.json").read_text())
    assert [policy["name"] for policy in drawn["policies"]] == ["baseline", "learned"]
    for policy in drawn["policies"]:
        for episode in policy["episodes"]:
            assert len(episode["xy"]) == len(episode["cost"]) == 50
    baseline = json.loads((space_run.folder / "baseline.json").read_text())
    assert (baseline["name"], baseline["h_C"]) == ("reward", 5.0)
    assert math.isfinite(baseline["J_R"])
    assert math.isfinite(baseline["J_C"])


def events_of(folder: Path) -> dict[tuple[str, int], float]:
    """Scalars of all TensorBoard files: records of length, checksum, protocol buffer, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    scalars = {}
    for path in sorted((folder / "events").iterdir()):
        data, start = path.read_bytes(), 0
        while start < len(data):
            (size,) = struct.unpack_from("<Q", data, start)
            event = Event.FromString(data[start + 12 : start + 12 + size])
            scalars |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
            start += 12 + size + 4
    return scalars


def test_tensorboard_shows_the_same_numbers(space_run):
    scalars = events_of(space_run.folder)
    rows = rows_of(space_run.folder)
    shown = {(name, int(row["update"])): value for row in rows for name, value in row.items() if name != "update"}
    shown = {key: value for key, value in shown.items() if not math.isnan(value)}
    assert scalars.keys() == shown.keys()
    assert all(scalars[key] == pytest.approx(value, rel=1e-6) for key, value in shown.items())


# ---------------------------------------------------------------- environments of one's own


class TwoCosts(Toy):
    """A point on a line; being right of 0.5 costs, and so does every push, each with its own limit."""

    name = "two-costs"
    horizon = 4
    cost_names = ("right", "push")

    def reset(self, key):
        return jax.random.normal(key, ())

    def observe(self, x):
        return x[None]

    def step(self, x, action):
        x = x + 0.3 * action[0]
        return x, x, jnp.stack([(x > 0.5).astype(jnp.float32), jnp.abs(action[0])]), jnp.array(False)


def stay(obs: np.ndarray):
    return np.zeros((len(obs), 1)), np.ones((len(obs), 1))


@pytest.mark.parametrize("algorithm", ["pcpo", "space"])
def test_several_costs_are_logged_by_name_and_the_worst_leads(algorithm, tmp_path):
    settings = {**TINY, "algorithm": algorithm, "cost_limit": (1.0, 3.0), "delta": 1e-3}
    settings |= {"baseline": stay} if algorithm == "space" else {}
    result = spacerl.train(env=TwoCosts(), out=tmp_path / "run", updates=2, **settings)
    rows = assert_sound(result, 2, 100)
    for row in rows:
        assert (row["h_C_right"], row["h_C_push"]) == (1.0, 3.0)
        gaps = {name: row[f"J_C_{name}"] - row[f"h_C_{name}"] for name in ("right", "push")}
        worst = max(gaps, key=gaps.get)
        assert (row["J_C"], row["h_C"]) == (row[f"J_C_{worst}"], row[f"h_C_{worst}"])
    total = sum(max(row[f"J_C_{name}"] - row[f"h_C_{name}"], 0.0) for row in rows for name in ("right", "push"))
    assert rows[-1]["cumulative_violation"] == pytest.approx(total, rel=1e-5)
    assert RunConfig.from_json((result.folder / "config.json").read_text()).cost_limit == (1.0, 3.0)
    report = spacerl.evaluate(result.folder, episodes=50, env=TwoCosts())
    assert report["stochastic"]["J_C"].keys() == {"right", "push"}
    assert report["stochastic"]["J_C"]["push"]["limit"] == 3.0
    with pytest.raises(InputError, match="use it in Python"):
        spacerl.evaluate(result.folder)


class Choices(Toy):
    """Three choices a step: the last pays and costs, the first ends the episode."""

    name = "choices"
    obs_shape = (2,)
    action_space = ActionSpace("discrete", 3)
    horizon = 5
    cost_names = ("greed",)

    def reset(self, key):
        return jax.random.uniform(key, (2,))

    def observe(self, state):
        return state

    def step(self, state, action):
        greedy = (action == 2).astype(jnp.float32)
        return state, greedy, greedy[None], action == 0


def even(obs: np.ndarray):
    return np.full((len(obs), 3), 1.0 / 3.0)


@pytest.mark.parametrize("algorithm", ["cpo", "space"])
def test_discrete_actions_and_episodes_that_end_early(algorithm, tmp_path):
    settings = {**TINY, "algorithm": algorithm, "cost_limit": 1.0, "delta": 1e-3}
    settings |= {"baseline": even} if algorithm == "space" else {}
    result = spacerl.train(env=Choices(), out=tmp_path / "run", updates=2, **settings)
    rows = rows_of(result.folder)
    assert len(rows) == 2
    assert rows[0]["J_R"] <= rows[0]["J_C"]  # the same sum, discounted and not
    assert rows[0]["J_R"] == pytest.approx(rows[0]["J_C"], rel=0.05)
    assert 1.0 < rows[0]["episode_length"] < 5.0
    # 20 episodes of at most 5 steps: what was padded after an early end is not counted as experience.
    assert [row["env_steps"] for row in rows] == pytest.approx(
        [20 * rows[0]["episode_length"], 20 * (rows[0]["episode_length"] + rows[1]["episode_length"])]
    )
    assert 0.0 < rows[0]["entropy"] <= math.log(3.0) + 1e-6
    again = spacerl.load_policy(result.folder)
    assert np.array_equal(again.theta, result.policy.theta)


def test_an_own_environment_takes_its_horizon_unless_told_otherwise(tmp_path, monkeypatch):
    def stop(parts):
        raise InterruptedError

    monkeypatch.setattr(training, "single_program", stop)
    settings = {**TINY, "env": TwoCosts(), "algorithm": "pcpo", "cost_limit": (1.0, 3.0)}
    for out, length in (("default", 4), ("told", 2)):
        told = {"rollout_length": length} if out == "told" else {}
        with pytest.raises(InterruptedError):
            spacerl.train(out=tmp_path / out, **settings, **told)
        config = RunConfig.from_json((tmp_path / out / "config.json").read_text())
        assert (config.task, config.rollout_length) == ("own:two-costs", length)


def test_images_of_bytes_are_counted_as_bytes():
    """And those after each step only where something is to follow a truncation."""
    box = ActionSpace("box", 3)
    frames = {"obs_dtype": "uint8", "images": (ImageSpec(0, (96, 96, 3), 1 / 255),)}
    racing, numbers = EnvSpec("racing", (96, 96, 3), box, 1000, **frames), EnvSpec("numbers", (5,), box, 1000)
    config = make_config()
    assert observation_bytes(config, numbers) == 2 * 5 * 4
    assert observation_bytes(config, racing) == 2 * 96 * 96 * 3
    follows = dataclasses.replace(config, bootstrap_truncation=True)
    assert observation_bytes(follows, racing) == 4 * 96 * 96 * 3
