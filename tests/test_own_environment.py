"""Training, resuming, evaluating and iterating in environments on the host, and what a run does when they fail."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import spacerl
from spacerl.cli import main
from spacerl.envs.host.costs import named_sources
from spacerl.envs.host.environment import HostedEnv
from spacerl.envs.host.single import Recipe
from spacerl.envs.host.spaces import actions_of
from spacerl.envs.make import make_env
from spacerl.policies.loading import Loading, load_policy
from spacerl.rollout import host
from spacerl.runs.config import RunConfig
from spacerl.training import programs
from spacerl.training import train as training
from spacerl.training.assemble import assemble
from spacerl.training.settings import resolve
from spacerl.training.update import initial_state
from spacerl.types import ActionSpace, DrawableEnv, EnvSpec, InputError, RunStopped
from support import environments as toys
from support.runs import (
    alive,
    assert_gone,
    assert_same,
    contents,
    newest,
    outcome,
    processes,
    rows_of,
    rows_written,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

TINY = {"batch_size": 48, "rollout_length": 8, "hidden": (8,), "filters": (2, 2), "cg_iterations": 2, "delta": 1e-3}
TINY |= {"environments": 3, "workers": 0, "progress": False, "cost_limit": 3.0}
PENDULUM = {**TINY, "env": "Pendulum-v1", "cost": "support.environments:effort"}
STEADY = {**TINY, "env": "support.environments:Faulty", "algorithm": "pcpo"}  # six steps an episode, faults where told


def plain(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """Without what is measured."""
    return [{key: value for key, value in row.items() if not key.startswith("seconds")} for row in rows]


def assert_sound(folder: Path, updates: int, baseline: bool) -> list[dict[str, float]]:
    rows = rows_of(folder)
    assert [row["update"] for row in rows] == list(range(updates))
    for row in rows:
        always = ("J_R", "J_C", "h_C", "kl", "entropy", "seconds_collect", "seconds_update", "worker_restarts")
        assert all(math.isfinite(row[name]) for name in always)
        assert math.isfinite(row["J_D"]) == baseline
        assert row["worker_restarts"] == 0
    return rows


# ---------------------------------------------------------------- every kind of space


def lean(obs):
    """CartPole: probabilities."""
    right = 1.0 / (1.0 + np.exp(-5.0 * obs[:, 2] - obs[:, 3]))
    return np.stack([1.0 - right, right], axis=-1)


def match(obs):
    """Choosing: whole numbers, for observations as the environment gives them."""
    assert obs.dtype.kind == "i"
    assert obs.shape[1:] == (2,)
    return obs


def by_kind(obs):
    """Mixed and Numbers: an action for every observation, which is a dictionary."""
    assert obs["place"].shape == (len(obs["kind"]), 2)
    return obs["kind"] - 1


def stay(obs):
    """Image: a mean and a deviation for images as the environment gives them."""
    assert obs.dtype == np.uint8
    assert obs.shape[1:] == (16, 16, 1)
    return np.zeros((len(obs), 1)), np.ones((len(obs), 1))


KINDS = {
    "continuous": ("Pendulum-v1", toys.brake, {"cost": toys.effort}),
    # Long enough for a pole to fall: where every episode earns the same there is nothing to learn.
    "discrete": (
        "CartPole-v1",
        lean,
        {"cost": lambda obs, action, next_obs, info: abs(next_obs[0]), "rollout_length": 200, "batch_size": 300},
    ),
    "multidiscrete": (toys.Choosing, match, {}),
    "dict": (toys.Numbers, by_kind, {"normalise_observations": True}),
    "image": (toys.Image, stay, {"bootstrap_truncation": True}),
    "image and numbers": (toys.Mixed, by_kind, {"normalise_observations": True}),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs by kind and algorithm, each made once."""
    made, folder = {}, tmp_path_factory.mktemp("kinds")

    def train(kind: str, algorithm: str) -> Path:
        if (kind, algorithm) not in made:
            env, baseline, settings = KINDS[kind]
            given = {"baseline": baseline} if algorithm == "space" else {}
            out = folder / f"{kind}-{algorithm}"
            result = spacerl.train(env=env, out=out, algorithm=algorithm, updates=2, **given, **(TINY | settings))
            made[kind, algorithm] = result.folder
        return made[kind, algorithm]

    return train


QUICK = [(kind, "space") for kind in KINDS if kind not in ("dict", "image")] + [("continuous", "pcpo")]
ALL = [(kind, algorithm) for kind in KINDS for algorithm in ("space", "pcpo")]


@pytest.mark.parametrize(
    ("kind", "algorithm"), [pytest.param(*each, marks=[] if each in QUICK else [pytest.mark.slow]) for each in ALL]
)
def test_every_kind_of_space_trains(kind, algorithm, trained):
    folder = trained(kind, algorithm)
    rows = assert_sound(folder, 2, baseline=algorithm == "space")
    assert rows[-1]["env_steps"] >= 2 * 48
    normalised = RunConfig.from_json((folder / "config.json").read_text()).normalise_observations
    if algorithm == "space" and json.loads((folder / "baseline.json").read_text())["start"]["chosen"] == "baseline":
        normalised = False  # the baseline's own episodes gave the statistics
        assert rows[-1]["env_steps"] >= 3 * 48
    assert [row["kl"] > 0.0 for row in rows] == [not normalised, True], "the policy must move; statistics come first"
    assert [row["step_scale"] > 0.0 for row in rows] == [not normalised, True]
    policy = spacerl.load_policy(folder)
    assert np.all(np.isfinite(policy.theta))
    assert policy.info["update"] == 2


def test_logged_numbers_are_those_of_the_episodes(trained):
    """Episodes of eight steps: what J_R, J_C and the steps can be, at the first update of a policy near zero."""
    rows = rows_of(trained("continuous", "pcpo"))
    assert [row["env_steps"] for row in rows] == [48, 96]
    assert all(row["episode_length"] == 8 for row in rows)
    assert all(-8 * 17 < row["J_R"] < 0 for row in rows)
    assert all(0 < row["J_C"] <= 8 * 4.0 for row in rows)  # the square of at most 2
    rows = rows_of(trained("multidiscrete", "space"))
    assert 8 * 0.1 < rows[0]["J_C"] < 8 * 0.5  # one action of four


def test_a_task_by_name_is_told_from_an_object(trained):
    config = RunConfig.from_json((trained("continuous", "space") / "config.json").read_text())
    assert (config.task, config.baseline, config.cost) == ("env:Pendulum-v1", ("function:brake",), ("effort=function",))
    config = RunConfig.from_json((trained("multidiscrete", "space") / "config.json").read_text())
    assert (config.task, config.cost) == ("own:Choosing", ())
    with pytest.raises(InputError, match="the cost 'effort' of this run is a Python function"):
        spacerl.evaluate(trained("continuous", "space"), episodes=2)
    with pytest.raises(InputError, match="needs your environment again, which was an object"):
        spacerl.resume(trained("multidiscrete", "space"), updates=3, progress=False)


# ---------------------------------------------------------------- environments in JAX


class Sliding(spacerl.JaxEnv):
    """A number that is pushed about."""

    spec = EnvSpec("sliding", (1,), ActionSpace("box", 1), horizon=8, cost_names=("push",))

    def reset(self, key):
        return jax.random.normal(key, (1,))

    def observe(self, state):
        return state

    def step(self, state, action):
        state = state + 0.1 * action
        return state, -jnp.abs(state[0]), jnp.abs(action), jnp.array(False)


class OnAPlane(Sliding, DrawableEnv):
    """The same, drawn as a robot."""

    def __init__(self, arena: dict):
        self._arena = arena

    def arena(self):
        return self._arena

    def position(self, state):
        return jnp.concatenate([state, state])

    def heading(self, state):
        return state[0]


def pull_back(obs):
    return -obs, 0.5


@pytest.mark.parametrize("taken", ["tick", "lanes", "arena"])
def test_an_environment_in_jax_may_call_its_methods_what_it_likes(taken, tmp_path):
    """Names that our own contracts use for something else."""
    env = type("Named", (Sliding,), {taken: lambda self, *given: pytest.fail("not ours to call")})()
    given = {"baseline": pull_back, "algorithm": "space"} if taken == "arena" else {"algorithm": "pcpo"}
    result = spacerl.train(env=env, out=tmp_path / "run", updates=2, **given, **TINY)
    rows = rows_of(result.folder)
    assert [row["env_steps"] for row in rows] == [48, 96]
    assert all(math.isfinite(row["J_R"]) and row["kl"] > 0.0 for row in rows)
    assert "worker_restarts" not in rows[0]
    report = spacerl.evaluate(result.folder, episodes=20, env=env)
    assert list(report["stochastic"]["J_C"]) == ["push"]
    assert math.isfinite(report["deterministic"]["J_R"]["mean"])
    page = spacerl.report([result.folder]).read_text()
    assert "own:sliding" in page
    assert not (result.folder / "trajectories.json").exists()


def test_an_environment_that_can_be_drawn_is_drawn(tmp_path):
    env = OnAPlane({"kind": "circle", "radius": 2.0, "x_limit": 1})
    folder = spacerl.train(env=env, out=tmp_path / "run", updates=1, algorithm="pcpo", **TINY).folder
    drawn = json.loads((folder / "trajectories.json").read_text())
    assert (drawn["arena"], [each["name"] for each in drawn["policies"]]) == (env.arena(), ["learned"])
    x, y = np.array(drawn["policies"][0]["episodes"][0]["xy"]).T
    assert len(x) == 8
    assert np.array_equal(x, y)
    assert spacerl.report([folder]).is_file()


@pytest.mark.parametrize(
    "arena",
    [
        {"kind": "maze", "width": 3.0},
        {"width": 3.0},
        {"kind": "circle", "radius": 2.0},
        {"kind": "gather", "half_width": 6.0, "catch_range": "near"},
    ],
)
def test_an_arena_nobody_can_draw_is_one_sentence_before_anything_is_trained(arena, tmp_path):
    known = "circle with radius and x_limit; gather with half_width and catch_range"
    with pytest.raises(
        InputError, match=f"arena of 'sliding' is .*: allowed is one that can be drawn .{known}"
    ) as stop:
        spacerl.train(env=OnAPlane(arena), out=tmp_path / "run", updates=1, algorithm="pcpo", **TINY)
    assert "\n" not in str(stop.value)
    assert str(arena) in str(stop.value)
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- baselines


def policy_of(function, width: int, action: ActionSpace, **how):
    """A function as a baseline for observations of `width` numbers."""
    return load_policy(function, "x", EnvSpec("x", (width,), action, 1), Loading(**how))


def test_a_baseline_in_physical_units_is_the_same_policy_as_in_the_policys_units():
    space = gymnasium.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
    actions = actions_of(space)
    random = np.random.default_rng(0)
    mean, std = random.uniform([-2, 0], [2, 10], (50, 2)), random.uniform(0.1, 1.0, (50, 2))
    baseline = policy_of(lambda obs: (mean[: len(obs)], std[: len(obs)]), 3, actions.space)
    dist = baseline(np.zeros((50, 3), np.float32))
    assert np.max(np.abs(dist.mean)) <= 1.0 + 1e-6
    for row, m in zip(dist.mean, mean, strict=True):
        assert actions.decode(row) == pytest.approx(m, abs=1e-5)
    half = np.array([2.0, 5.0])
    assert np.exp(dist.log_std) == pytest.approx(std / half, rel=1e-5)


def test_actions_alone_get_the_stated_deviation():
    scaled = ActionSpace("box", 1, (-2.0,), (2.0,), scaled=True)
    baseline = policy_of(toys.full_power, 3, scaled, std=0.4)
    dist = baseline(np.zeros((4, 3), np.float32))
    assert dist.mean.tolist() == [[1.0]] * 4
    assert np.exp(dist.log_std) == pytest.approx(0.4)  # of half the action's range
    assert "standard deviation 0.4 of half the action range" in baseline.stated_spread()
    assert policy_of(toys.brake, 3, scaled).stated_spread() is None

    discrete = ActionSpace("multidiscrete", 7, nvec=(3, 4))
    baseline = policy_of(lambda obs: np.array([[2, 0]] * len(obs)), 2, discrete, exploration=0.2)
    (first, second) = baseline(np.zeros((1, 2), np.float32)).lists()
    assert np.exp(first.logits)[0] == pytest.approx([0.2 / 3, 0.2 / 3, 0.8 + 0.2 / 3])
    assert np.exp(second.logits)[0] == pytest.approx([0.85, 0.05, 0.05, 0.05])
    assert "probability 0.2" in baseline.stated_spread()


def test_what_was_given_to_a_baseline_is_said_and_kept(tmp_path, monkeypatch, capsys):
    def stop(parts):
        raise InterruptedError

    monkeypatch.setattr(training, "single_program", stop)
    settings = {**PENDULUM, "baseline": toys.full_power, "baseline_std": 0.7, "progress": True}
    with pytest.raises(InterruptedError):
        spacerl.train(out=tmp_path / "run", **settings)
    assert "baseline 'full_power' states actions only: it gets a standard deviation 0.7" in capsys.readouterr().err
    kept = json.loads((tmp_path / "run" / "baseline.json").read_text())
    assert "standard deviation 0.7" in kept["given"]
    assert kept["J_C"] > 8 * 2.0  # full power, 4 a step but for the deviation's cuts


def test_what_a_baseline_costs_is_kept_by_name_with_each_limit(tmp_path, monkeypatch):
    def stop(parts):
        raise InterruptedError

    monkeypatch.setattr(training, "single_program", stop)
    costs = {"torque": toys.effort, "always": lambda obs, action, next_obs, info: 1.0}
    settings = {**PENDULUM, "cost": costs, "cost_limit": {"torque": 30.0, "always": 7.0}, "baseline": toys.full_power}
    with pytest.raises(InterruptedError):
        spacerl.train(out=tmp_path / "run", **settings)
    kept = json.loads((tmp_path / "run" / "baseline.json").read_text())
    assert {name: cost["h_C"] for name, cost in kept["costs"].items()} == {"torque": 30.0, "always": 7.0}
    assert kept["costs"]["always"]["J_C"] == pytest.approx(kept["episode_length"])
    assert (kept["J_C"], kept["h_C"]) == (kept["costs"]["always"]["J_C"], 7.0)  # the one that is worst for its limit


def test_the_learners_own_policy_in_the_environments_units_is_no_distance_away(trained, tmp_path):
    """KL 0 in the first update: observations decoded, actions scaled, both ways right."""
    given = {"task": "env:Pendulum-v1", "algorithm": "pcpo", "cost": ("none",), **train_only(TINY)}
    start = assemble(resolve(given))
    with start.env:
        theta = initial_state(start.learner, 0).theta
        family = start.learner.family

    def myself(obs):
        dist = family.apply(theta, obs)
        return 2.0 * np.asarray(dist.mean), 2.0 * np.exp(np.asarray(dist.log_std))

    settings = {**PENDULUM, "cost": toys.effort, "algorithm": "space"}
    result = spacerl.train(out=tmp_path / "run", updates=1, baseline=myself, **settings)
    assert result.metrics[0]["J_D"] == pytest.approx(0.0, abs=1e-4)
    other = rows_of(trained("continuous", "space"))
    assert other[0]["J_R"] == result.metrics[0]["J_R"], "the same seed, the same first batch"
    assert other[0]["J_D"] > 0.1


def train_only(settings: dict) -> dict:
    return {key: value for key, value in settings.items() if key not in ("progress", "env", "cost")}


# The nearest baseline is still too far away, so that it pulls.
PULLED = {**PENDULUM, "cost": toys.effort, "divergence_threshold": 1.0}


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Three baselines, the nearest in the middle."""
    out = tmp_path_factory.mktemp("several") / "run"
    return spacerl.train(out=out, updates=2, baseline=[toys.accelerate, toys.brake, toys.full_power], **PULLED).folder


def test_of_several_baselines_each_update_takes_the_nearest(several):
    for row in rows_of(several):
        distances = [row[name] for name in row if name.startswith("J_D_")]
        assert len(distances) == 3
        assert row["baseline"] == np.argmin(distances) == 1
        assert row["J_D"] == pytest.approx(min(distances), rel=1e-5)
    config = RunConfig.from_json((several / "config.json").read_text())
    assert config.baseline == ("function:accelerate", "function:brake", "function:full_power")
    kept = json.loads((several / "baseline.json").read_text())
    assert [each["name"] for each in kept["all"]] == ["accelerate", "brake", "full_power"]


def test_baselines_that_are_never_nearest_change_nothing(several, tmp_path):
    alone = plain(rows_of(spacerl.train(out=tmp_path / "run", updates=2, baseline=toys.brake, **PULLED).folder))
    beside = plain(rows_of(several))
    assert any(row["follows"] for row in alone)
    for one, other in zip(alone, beside, strict=True):
        assert one == pytest.approx({key: other[key] for key in one}, rel=1e-4, abs=1e-6, nan_ok=True)


def test_a_sweep_outside_of_a_program_is_its_runs_one_after_the_other_and_goes_on_where_it_was(tmp_path):
    settings = {**PENDULUM, "algorithm": "pcpo", "updates": 2}
    alone = spacerl.train(out=tmp_path / "alone", seed=1, **settings)
    # Of seed 0 one update is there, as if the first call had been killed; seed 1 is not there.
    begun = spacerl.sweep(seeds=[0], out=tmp_path / "runs", **(settings | {"updates": 1}))[0]
    (begun / "config.json").write_text((begun / "config.json").read_text().replace('"updates": 1', '"updates": 2'))
    first = (begun / "metrics.csv").read_text()
    folders = spacerl.sweep(seeds=[0, 1], out=tmp_path / "runs", **settings)
    assert [folder.name[-5:] for folder in folders] == ["seed0", "seed1"]
    assert_same(folders[1], alone.folder)
    assert (begun / "metrics.csv").read_text().startswith(first)
    assert [row["update"] for row in rows_of(begun)] == [0, 1]
    # Once more: everything is there, and stays as it is.
    written = [newest(folder).stat().st_mtime_ns for folder in folders]
    assert spacerl.sweep(seeds=[0, 1], out=tmp_path / "runs", **settings) == folders
    assert [newest(folder).stat().st_mtime_ns for folder in folders] == written
    with pytest.raises(InputError, match=r"is a run with delta 0\.001 and 0\.5 was asked for: give a new --out"):
        spacerl.sweep(seeds=[0], out=tmp_path / "runs", **(settings | {"delta": 0.5}))


def test_a_baseline_that_does_not_fit_is_one_sentence_and_makes_nothing(tmp_path):
    def two_actions(obs):
        return np.zeros((len(obs), 2))

    with pytest.raises(InputError, match=r"'two_actions' gave .* of shape \(., 2\) for . observations: \(., 1\) is"):
        spacerl.train(out=tmp_path / "run", updates=1, baseline=two_actions, **PENDULUM)
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- the statistics of observations

NORMALISED = {**PENDULUM, "algorithm": "pcpo", "normalise_observations": True, "checkpoint_every": 3}
NORMALISED |= {"initial_std": 0.02}  # actions show their means


@pytest.fixture(scope="module")
def normalised(tmp_path_factory):
    """Four updates, all observations they saw, and what the last of them did."""
    seen, actions, packed = [], [], programs.pack

    def watched(*arguments):
        rollout = packed(*arguments)
        seen.append(rollout.obs[rollout.valid])
        actions.append(rollout.action[rollout.valid])
        return rollout

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "pack", watched)
        folder = spacerl.train(out=tmp_path_factory.mktemp("normalised") / "run", updates=4, **NORMALISED).folder
    return folder, np.concatenate(seen).astype(np.float64), actions[-1]


def test_statistics_are_those_of_all_observations_and_part_of_the_checkpoint(normalised):
    folder, seen, _ = normalised
    arrays = load_file(newest(folder))
    assert arrays["normaliser.count"] == len(seen) == 4 * 48
    assert arrays["normaliser.mean"] == pytest.approx(seen.mean(0), abs=1e-4)
    assert arrays["normaliser.var"] == pytest.approx(seen.var(0), rel=1e-3)
    assert not np.allclose(arrays["normaliser.var"], 1.0, atol=0.2), "or nothing is normalised"


def forward(folder: Path, obs: np.ndarray) -> np.ndarray:
    """Means of a policy file, in NumPy, on observations as they are."""
    arrays = load_file(folder / "policy.safetensors")
    x, layers = obs.astype(np.float64), sorted(name for name in arrays if name.endswith(".weight"))
    for i in range(len(layers)):
        x = x @ arrays[f"layers.{i}.weight"] + arrays[f"layers.{i}.bias"]
        x = np.tanh(x) if i < len(layers) - 1 else x
    return x


def test_the_policy_file_acts_on_raw_observations_as_in_training(normalised):
    folder, seen, _ = normalised
    arrays = load_file(newest(folder))
    scaled = (seen - arrays["normaliser.mean"]) / np.sqrt(arrays["normaliser.var"])
    policy = spacerl.load_policy(folder)
    inside = policy.family.apply(arrays["theta"], scaled.astype(np.float32)).mean
    outside = policy.family.apply(policy.theta, seen.astype(np.float32)).mean
    assert np.asarray(outside) == pytest.approx(np.asarray(inside), abs=2e-5)
    assert np.asarray(outside) == pytest.approx(forward(folder, seen), abs=2e-5)


def test_a_normalised_run_acts_by_the_policy_it_learns(normalised):
    """The last batch, by the policy of the checkpoint before it, on normalised observations."""
    folder, seen, actions = normalised
    arrays = load_file(folder / "checkpoints" / "update-000003.safetensors")
    scaled = (seen[-48:] - arrays["normaliser.mean"]) / np.sqrt(arrays["normaliser.var"])
    dist = spacerl.load_policy(folder).family.apply(arrays["theta"], scaled.astype(np.float32))
    assert np.max(np.exp(dist.log_std)) < 0.04
    assert actions == pytest.approx(np.asarray(dist.mean), abs=0.15)
    assert np.std(dist.mean) > 0.15, "means must differ, or nothing is compared"


def test_evaluating_a_normalised_policy_is_playing_its_file(normalised):
    folder = normalised[0]
    report = spacerl.evaluate(folder, episodes=5, seed=3)
    with HostedEnv(Recipe("Pendulum-v1", named_sources("support.environments:effort")), 3) as env:
        played = host.episodes(env, lambda obs, tick: forward(folder, obs).astype(np.float32), 3, 8, count=5)
    rewards = [0.99 ** np.arange(8) @ played.reward[start:stop, lane] for lane, start, stop in played.episodes]
    costs = [played.cost[start:stop, lane].sum() for lane, start, stop in played.episodes]
    assert report["deterministic"]["J_R"]["mean"] == pytest.approx(np.mean(rewards), rel=1e-4)
    assert report["deterministic"]["J_C"]["effort"]["mean"] == pytest.approx(np.mean(costs), rel=1e-3)


# ---------------------------------------------------------------- stopping and going on


def interrupt_at(monkeypatch, updates: int, error: type[BaseException] = KeyboardInterrupt) -> None:
    made = training.single_program

    def interrupted(parts):
        program = made(parts)

        def step(state):
            if int(state.update) == updates:
                raise error
            return program.step(state)

        return program._replace(step=step)

    monkeypatch.setattr(training, "single_program", interrupted)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupted_run_goes_on_bit_by_bit_with_its_statistics(error, normalised, tmp_path, monkeypatch):
    """Also where the user's own code raised something: no update is lost."""
    with monkeypatch.context() as patch:
        interrupt_at(patch, 2, error)
        with pytest.raises(error):
            spacerl.train(out=tmp_path / "run", updates=4, **NORMALISED)
    assert newest(tmp_path / "run").name == "update-000002.safetensors"
    assert rows_written(tmp_path / "run") == 2
    spacerl.resume(tmp_path / "run", progress=False)
    assert_same(tmp_path / "run", normalised[0])


@pytest.mark.parametrize("workers", [1, 2])
def test_who_steps_the_environments_changes_no_bit_of_a_run(workers, normalised, tmp_path):
    assert NORMALISED["workers"] == 0
    folder = spacerl.train(out=tmp_path / "run", updates=4, **{**NORMALISED, "workers": workers}).folder
    mine, other = outcome(folder), outcome(normalised[0])
    for part in ("metrics", "checkpoint", "policy"):
        assert mine[part] == other[part]


def descendants(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def wait_for(condition, seconds: float = 90.0) -> None:
    patience = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < patience
        time.sleep(0.005)


@pytest.fixture
def start(tmp_path, quick_environment):
    """Real commands, each the head of a group of processes, as in a terminal."""
    paths = os.pathsep.join([str(Path(__file__).parent), quick_environment["PYTHONPATH"]])
    env = {**quick_environment, "PYTHONPATH": paths}

    def begin(arguments: str) -> subprocess.Popen:
        call = [sys.executable, "-m", "spacerl", *arguments.split(), "--quiet"]
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        return subprocess.Popen(call, env=env, text=True, cwd=tmp_path, start_new_session=True, **pipes)

    return begin


REAL = (
    "train --env support.environments:Geometric --algorithm pcpo --cost-limit 1 --batch-size 60 --rollout-length 60 "
    "--hidden 4 --cg-iterations 2 --environments 4 --workers 2 --checkpoint-every 7"
)
# Of a few milliseconds each: a run that is to be stopped must not be over before a busy machine gets to it.
ENDLESS, LONG = f"{REAL} --updates 100000", f"{REAL} --updates 60"


def assert_ends_by(process: subprocess.Popen, stop, code: int) -> str:
    """What a process with two workers says when it is stopped; none of the three is left."""
    workers = descendants(process.pid)
    stop()
    said = process.communicate(timeout=60)[1]
    assert process.returncode == code, said
    assert len(workers) == 2
    wait_for(lambda: not any(map(alive, workers)), 10.0)
    return said


def interrupted(process: subprocess.Popen, folder: Path) -> None:
    wait_for(lambda: rows_written(folder) >= 3 or process.poll() is not None)
    # As a terminal does it: to the workers as well. The row was written just now, in the midst of the bookkeeping.
    said = assert_ends_by(process, lambda: os.killpg(process.pid, signal.SIGINT), 130)
    assert said.count("\n") == 1, said
    done = int(newest(folder).stem.rpartition("-")[2])
    assert f"interrupted; the state after update {done} is saved" in said
    assert rows_written(folder) == done


def test_ctrl_c_ends_a_run_at_once_with_its_state_and_its_workers(start, tmp_path):
    interrupted(start(f"{ENDLESS} --out run"), tmp_path / "run")


def test_workers_of_a_run_that_was_killed_end_by_themselves(start, tmp_path):
    process = start(f"{ENDLESS} --out run")
    wait_for(lambda: len(descendants(process.pid)) == 2 or process.poll() is not None)
    assert_ends_by(process, process.kill, -signal.SIGKILL)


STUCK = """
import ctypes
from pathlib import Path
from support.environments import Line

class Stuck(Line):
    def step(self, action):
        if self.steps == 3 and Path("begun").exists():
            Path(f"stuck-{id(self)}").touch()
            ctypes.PyDLL(None).sleep(600)  # in a library that keeps Python's lock
        return super().step(action)
"""


def test_workers_stuck_in_a_step_are_gone_as_soon_as_their_run_is_stopped(start, tmp_path):
    """Four of them, none of which ever answers: they are not waited for one after the other."""
    (tmp_path / "stuck.py").write_text(STUCK)
    command = REAL.replace("support.environments:Geometric", "stuck.py:Stuck").replace("--workers 2", "--workers 4")
    process = start(f"{command} --cost none --updates 100000 --out run")
    wait_for(lambda: rows_written(tmp_path / "run") >= 1 or process.poll() is not None)
    (tmp_path / "begun").touch()
    wait_for(lambda: list(tmp_path.glob("stuck-*")) or process.poll() is not None)
    workers = descendants(process.pid)
    assert len(workers) == 4
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: not any(map(alive, workers)), 10.0)
    assert time.monotonic() - began < 2.5, "half a second where nothing else takes the machine"
    assert "is saved, continue with" in process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.slow
def test_a_real_run_interrupted_and_killed_ends_like_one_never_stopped(start, tmp_path):
    interrupted(start(f"{LONG} --out stopped"), tmp_path / "stopped")
    process, done = start("resume stopped"), rows_written(tmp_path / "stopped")
    wait_for(lambda: rows_written(tmp_path / "stopped") >= done + 3 or process.poll() is not None)
    assert_ends_by(process, process.kill, -signal.SIGKILL)
    for arguments in ("resume stopped", f"{LONG} --out whole"):
        process = start(arguments)
        said = process.communicate(timeout=120)[1]
        assert process.returncode == 0, said
        assert said == ""
    assert_same(tmp_path / "stopped", tmp_path / "whole")
    assert len({row["episode_length"] for row in outcome(tmp_path / "whole")["metrics"]}) > 5


# ---------------------------------------------------------------- environments that fail during a run


def steady(folder: Path, kind: str = "exception", times: int = 0) -> dict:
    return {**STEADY, "env_args": (f"kind={kind}", f"folder={folder}", f"times={times}")}


@pytest.mark.parametrize("kind", ["exception", "kill"])
def test_a_run_survives_its_workers(kind, tmp_path):
    (tmp_path / "faults").mkdir()
    settings = {**steady(tmp_path / "faults", kind, times=3), "workers": 2, "environments": 4}
    result = spacerl.train(out=tmp_path / "run", updates=2, **settings)
    rows = rows_of(result.folder)
    assert [row["env_steps"] for row in rows] == [48, 96], "batches are whole"
    assert all(row["episode_length"] == 6 for row in rows)
    assert 2 <= sum(row["worker_restarts"] for row in rows) <= 3  # the first may fall into the look before the run
    kept = (result.folder / "faults.log").read_text()
    assert kept.count("is replaced") == sum(row["worker_restarts"] for row in rows)
    for text in {"exception": ["Traceback", "ZeroDivisionError: the wheel came off"], "kill": ["SIGKILL"]}[kind]:
        assert text in kept
    assert_gone(tmp_path / "faults")


def test_an_environment_that_fails_for_good_ends_the_run_which_goes_on_once_it_is_fixed(tmp_path):
    faults = tmp_path / "faults"
    faults.mkdir()
    (faults / "well").touch()
    settings = {**steady(faults, times=1000), "workers": 1}
    folder = spacerl.train(out=tmp_path / "run", updates=2, checkpoint_every=5, **settings).folder
    whole = spacerl.train(out=tmp_path / "whole", updates=4, checkpoint_every=5, **settings).folder
    before = contents(newest(folder))

    (faults / "well").unlink()
    with pytest.raises(RunStopped, match="failed 4 times without completing an episode") as stop:
        spacerl.resume(folder, updates=4, progress=False)
    assert "\n" not in str(stop.value)
    assert "the wheel came off" in str(stop.value)
    assert f"spacerl resume {folder}" in str(stop.value)
    assert contents(newest(folder)) == before
    assert rows_written(folder) == 2
    assert "ZeroDivisionError" in (folder / "faults.log").read_text()
    assert_gone(faults)

    (faults / "well").touch()
    spacerl.resume(folder, progress=False)
    assert_same(folder, whole)


@pytest.mark.parametrize(("what", "workers"), [("reward", 0), ("reward", 1), ("obs", 1), ("cost", 0), ("missing", 1)])
def test_a_step_that_is_no_step_stops_the_run_with_its_state_saved(what, workers, tmp_path):
    """The first batch of 16 steps a lane is fine, the second one is not."""
    arguments = (f"what={what}", "after=20")
    settings = {
        **TINY,
        "env": "support.environments:Odd",
        "env_args": arguments,
        "algorithm": "pcpo",
        "workers": workers,
    }
    with pytest.raises(RunStopped) as stop:
        spacerl.train(out=tmp_path / "run", updates=3, checkpoint_every=10, **settings)
    said = str(stop.value)
    assert "\n" not in said
    assert "the state before update 2 is saved" in said
    assert f"spacerl resume {tmp_path / 'run'}" in said
    sentence = {"missing": "info['cost'] is missing", "obs": "an observation with a number that is not finite"}
    assert sentence.get(what, f"gave the {what} nan, which is not finite") in said
    assert newest(tmp_path / "run").name == "update-000001.safetensors"
    assert rows_written(tmp_path / "run") == 1
    assert (tmp_path / "run" / "policy.safetensors").is_file()


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """The command line with bad input: exit code 2, one sentence, nothing made."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "programs"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def call(*arguments: str, names: str, code: int = 2) -> None:
        with pytest.raises(SystemExit) as stop:
            main(["train", *arguments, "--environments", "2", "--updates", "1", "--quiet", "--out", "run"])
        printed = capsys.readouterr()
        assert stop.value.code == code
        assert printed.out == ""
        assert printed.err.count("\n") == 1, printed.err
        assert names in printed.err
        assert list(Path().iterdir()) == []

    return call


PCPO = ("--algorithm", "pcpo")
LINE = ("--env", "support.environments:line", *PCPO)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_bad_environments_are_one_sentence_on_the_command_line(workers, refused):
    cases = {
        "did you mean 'CartPole-v1'": ("--env", "CartPol-v1", *PCPO, "--cost-limit", "1"),
        "info['cost'] is missing": ("--env", "Pendulum-v1", *PCPO, "--cost-limit", "1"),
        "unknown cost in cost-limit 'csot'": (*LINE, "--cost-limit", "csot=1"),
        "says nothing about 'push'": (*LINE, "--cost", "info", "info:push", "--cost-limit", "cost=1"),
        "2 cost limits were given": (*LINE, "--cost-limit", "1", "2"),
        "cost-limit was not given": LINE,
        "no map called 'nowhere'": ("--env", "support.environments:broken_factory", *PCPO, "--cost-limit", "1"),
        "cost 'inof' is unknown": (*LINE, "--cost", "inof", "--cost-limit", "1"),
        "is not NAME=VALUE": (*LINE, "--env-args", "edge", "--cost-limit", "1"),
        "both a task ('point-circle') and --env": ("point-circle", *LINE, "--cost-limit", "1"),
    }  # fmt: skip
    for named, arguments in cases.items():
        refused(*arguments, "--workers", workers, names=named)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_rewards_that_are_never_finite_stop_the_run(workers, tmp_path, monkeypatch, capsys):
    """A line for each episode that is left out, and one sentence when there are too many."""
    monkeypatch.chdir(tmp_path)
    odd = ("--env", "support.environments:Odd", "--env-args", "what=reward", "at=1", *PCPO, "--cost-limit", "1")
    with pytest.raises(SystemExit) as stop:
        main(["train", *odd, "--workers", workers, "--environments", "2", "--updates", "1", "--quiet", "--out", "run"])
    assert stop.value.code == 3
    *left_out, sentence = capsys.readouterr().err.strip().splitlines()
    assert all(line.endswith("gave the reward nan, which is not finite: its episode is left out") for line in left_out)
    assert "gave the reward nan" in sentence
    assert "continue with `spacerl resume run`" in sentence


def test_an_environment_that_kills_its_workers_before_the_run_is_one_sentence(tmp_path, refused, capsys):
    """Baselines are looked at before the run folder is there."""
    (tmp_path / "faults").mkdir()
    arguments = ("--env", "support.environments:Faulty", "--env-args", "kind=exit", f"folder={tmp_path / 'faults'}")
    arguments += ("times=1000", "at=1", "--baseline", "support.environments:full_power", "--cost-limit", "1", "--quiet")
    arguments += ("--environments", "2", "--workers", "1", "--rollout-length", "6", "--out", "run")
    with pytest.raises(SystemExit) as stop:
        main(["train", *arguments])
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert "failed 4 times without completing an episode; the last time: it exited with code 7" in printed.err
    assert "Traceback" not in printed.err
    assert list(Path().iterdir()) == []
    assert_gone(tmp_path / "faults")


# ---------------------------------------------------------------- several costs


@pytest.fixture(scope="module")
def several_costs(tmp_path_factory):
    """Three costs by name; hardly any step, so that all batches are of one policy."""
    out = tmp_path_factory.mktemp("costs") / "run"
    cost = {"far": "info", "push": "info:push", "steps": toys.steps_gone}
    limits = {"steps": 9.0, "far": 2.0, "push": 3.0}
    settings = {**TINY, "env": toys.Line, "cost": cost, "cost_limit": limits, "algorithm": "trpo", "delta": 1e-12}
    return cost, spacerl.train(out=out, updates=2, **{**settings, "batch_size": 400, "environments": 8}).folder


def test_several_costs_with_limits_by_name(several_costs):
    _, folder = several_costs
    assert RunConfig.from_json((folder / "config.json").read_text()).cost_limit == (2.0, 3.0, 9.0)
    for row in rows_of(folder):
        assert [row[f"h_C_{name}"] for name in ("far", "push", "steps")] == [2.0, 3.0, 9.0]
        assert row["J_C_steps"] == pytest.approx(row["episode_length"], rel=1e-6)
        worst = max(("far", "push", "steps"), key=lambda name: row[f"J_C_{name}"] - row[f"h_C_{name}"])
        assert row["J_C"] == row[f"J_C_{worst}"]


def test_evaluated_costs_are_the_logged_ones(several_costs, monkeypatch):
    """The same environment, counted in the same way: means of one policy agree within their errors."""
    cost, folder = several_costs
    closed, close = [], HostedEnv.close
    monkeypatch.setattr(HostedEnv, "close", lambda self: (closed.append(self), close(self))[1])
    report = spacerl.evaluate(folder, episodes=150, env=toys.Line, cost=cost, seed=5)
    assert len(closed) == 1
    rows = rows_of(folder)
    for name, limit in (("far", 2.0), ("push", 3.0), ("steps", 9.0)):
        value = report["stochastic"]["J_C"][name]
        assert value["limit"] == limit
        for row in rows:  # about 50 episodes each
            error = value["std"] * math.sqrt(1 / 150 + row["episode_length"] / 400)
            assert abs(row[f"J_C_{name}"] - value["mean"]) < 4.0 * error
        assert value["interval"] == pytest.approx(1.976 * value["std"] / math.sqrt(150), rel=1e-3)
    value = report["stochastic"]["J_R"]
    assert abs(rows[0]["J_R"] - value["mean"]) < 4.0 * value["std"] * math.sqrt(1 / 150 + 8 / 400)
    with pytest.raises(InputError, match="'steps' of this run is a Python function: use it in Python"):
        spacerl.evaluate(folder, episodes=2, env=toys.Line)


def test_the_environment_of_a_config_is_always_the_same_one():
    """Whoever builds it: two of them, commanded alike, give the same numbers."""
    given = {"task": "env:support.environments:line", "algorithm": "pcpo", "cost_limit": 1.0}
    draft = resolve({**given, "env_args": ("edge=2.5",), "workers": 0, "environments": 2})
    recordings = []
    for _ in range(2):
        with make_env(draft.task, draft.env_settings()) as env:
            assert env.spec.obs_shape == (3,)
            recordings.append(host.episodes(env, lambda obs, tick: np.full((2, 1), 0.5), 4, 10, steps=40))
    assert recordings[0].episodes == recordings[1].episodes
    assert np.array_equal(recordings[0].obs, recordings[1].obs)


def test_evaluating_leaves_no_worker_behind(tmp_path):
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "well").touch()
    folder = spacerl.train(out=tmp_path / "run", updates=1, **steady(tmp_path / "faults") | {"workers": 2}).folder
    before = set(processes(tmp_path / "faults"))
    report = spacerl.evaluate(folder, episodes=4)
    assert len(set(processes(tmp_path / "faults")) - before) == 2
    assert_gone(tmp_path / "faults")
    assert report["episodes"] == 4


# ---------------------------------------------------------------- again and again


def test_iterated_rounds_learn_from_the_round_before_and_go_on(tmp_path):
    settings, baseline = {**PENDULUM, "updates": 1}, "support.environments:brake"
    folders = spacerl.iterate(2, out=tmp_path / "all", baseline=baseline, **settings)
    assert [folder.name for folder in folders] == ["round-1", "round-2"]
    configs = [RunConfig.from_json((folder / "config.json").read_text()) for folder in folders]
    assert [config.baseline for config in configs] == [(baseline,), (str(folders[0]),)]
    assert {config.algorithm for config in configs} == {"space"}
    # Each round starts afresh: its first batch is the same, its distance is that to another baseline.
    first, second = (rows_of(folder)[0] for folder in folders)
    assert first["J_R"] == pytest.approx(second["J_R"], rel=1e-4)
    assert second["J_D"] < first["J_D"]  # one update away from where it began
    kept = {folder: contents(folder / "policy.safetensors") for folder in folders}

    again = spacerl.iterate(3, out=tmp_path / "all", baseline=baseline, **settings)
    assert again[:2] == folders
    assert {folder: contents(folder / "policy.safetensors") for folder in folders} == kept
    assert RunConfig.from_json((again[2] / "config.json").read_text()).baseline == (str(folders[1]),)
    assert rows_written(again[2]) == 1

    with pytest.raises(InputError, match="is a run with seed 0 and 1 was asked for"):
        spacerl.iterate(3, out=tmp_path / "all", baseline=baseline, seed=1, **settings)
    with pytest.raises(InputError, match="rounds is 0"):
        spacerl.iterate(0, out=tmp_path / "none", baseline=baseline, **settings)
    with pytest.raises(InputError, match="learns from no baseline"):
        spacerl.iterate(2, out=tmp_path / "none", **(settings | {"algorithm": "pcpo"}))
    assert not (tmp_path / "none").exists()


def test_rounds_from_several_baselines_are_the_same_call_twice(tmp_path, monkeypatch):
    """Lists, tuples and a list of one: what is written in the first call's config is what the second compares with."""
    import spacerl.training.iterate as module

    calls = []
    monkeypatch.setattr(module, "resume_run", lambda folder, *given, **named: calls.append(folder))

    def stop(parts):
        raise InterruptedError

    monkeypatch.setattr(training, "single_program", stop)
    for number, given in enumerate((["support.environments:brake", "support.environments:accelerate"],
                                    ("support.environments:brake",), ["support.environments:brake"])):  # fmt: skip
        with pytest.raises(InterruptedError):
            spacerl.iterate(1, out=tmp_path / str(number), baseline=given, **PENDULUM)
        spacerl.iterate(1, out=tmp_path / str(number), baseline=given, **PENDULUM)
    assert len(calls) == 3


# ---------------------------------------------------------------- learning


@pytest.mark.slow
def test_pendulum_with_an_effort_limit_improves_and_keeps_its_limit(tmp_path):
    settings = {"env": "Pendulum-v1", "cost": toys.effort, "cost_limit": 100.0, "algorithm": "pcpo", "updates": 60}
    settings |= {
        "batch_size": 4000,
        "delta": 0.02,
        "hidden": (32, 32),
        "normalise_observations": True,
        "discount": 0.97,
    }
    result = spacerl.train(out=tmp_path / "run", progress=False, environments=20, workers=2, **settings)
    rows = rows_of(result.folder)
    first, last = rows[:5], rows[-5:]
    assert np.mean([row["J_C"] for row in first]) > 150.0, "the limit must bind"
    assert np.mean([row["J_C"] for row in last]) < 110.0
    assert np.mean([row["J_R"] for row in last]) > np.mean([row["J_R"] for row in first])


@pytest.mark.slow
def test_cartpole_learns_from_a_baseline_and_stays_in_the_middle(tmp_path):
    def off_centre(obs, action, next_obs, info):
        return abs(next_obs[0])

    settings = {"env": "CartPole-v1", "cost": off_centre, "cost_limit": 20.0, "algorithm": "space", "baseline": lean}
    settings |= {"batch_size": 4000, "delta": 0.01, "hidden": (32,), "updates": 40, "rollout_length": 200}
    result = spacerl.train(out=tmp_path / "run", progress=False, environments=16, workers=2, **settings)
    rows = rows_of(result.folder)
    assert np.mean([row["J_R"] for row in rows[-5:]]) > 2.5 * rows[0]["J_R"]
    assert np.mean([row["episode_length"] for row in rows[-5:]]) > 3.0 * rows[0]["episode_length"]
    assert np.mean([row["J_C"] for row in rows[-5:]]) < 22.0
