"""pi_B from every source: shipped with the package, a file, a run folder, a Python function."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

import spacerl
from spacerl.envs.tasks import KINDS, TASKS
from spacerl.policies.family import PolicyFamily
from spacerl.policies.files import save_policy
from spacerl.policies.loading import load_policy
from spacerl.policies.policy import FunctionPolicy, NetworkPolicy
from spacerl.rollout.evaluate import Play, episode_returns
from spacerl.runs.folder import RunFolder
from spacerl.types import ActionSpace, EnvSpec, InputError

pytestmark = pytest.mark.usefixtures("quick_compilation")

ANTS = ("ant-circle", "ant-gather")
READY = ("point-circle", "point-gather", *ANTS)
EPISODES, ANT_EPISODES = 4000, 100


# ---------------------------------------------------------------- shipped with the package


@pytest.mark.parametrize("task", READY)
def test_three_kinds_are_shipped_for_every_ready_task(task):
    assert set(TASKS[task].shipped()) == set(KINDS) == {"cost", "reward", "near"}
    env = spacerl.make_env(task)
    for kind in KINDS:
        baseline = load_policy(kind, task, env.spec)
        assert isinstance(baseline, NetworkPolicy)
        assert baseline.compiles
        assert (baseline.info["task"], baseline.info["kind"]) == (task, kind)
        assert baseline.info["command"].startswith(f"spacerl baseline make {task} --kind {kind} ")
        assert np.all(np.isfinite(baseline.theta))


def test_tasks_without_an_environment_ship_none():
    assert all(not row.shipped() for row in TASKS.values() if not row.available)


@pytest.fixture(scope="module", params=READY)
def measured(request):
    """J_R and J_C of fresh episodes of each kind, as arrays over episodes; one program for all kinds of a task."""
    task = request.param
    kinds = {kind: spacerl.load_policy(kind, task=task) for kind in KINDS}
    if task in ANTS:
        pytest.importorskip("mujoco")
    env = TASKS[task].make_batch_env(ANT_EPISODES, None) if task in ANTS else spacerl.make_env(task)
    settings = TASKS[task].settings
    play = Play(ANT_EPISODES if task in ANTS else EPISODES, settings["rollout_length"], seed=77)
    returns = {kind: episode_returns(env, policy, settings["discount"], play) for kind, policy in kinds.items()}
    if task in ANTS:
        env.close()
    return task, {kind: (kinds[kind].info, J_R, J_C[:, 0]) for kind, (J_R, J_C) in returns.items()}


def test_shipped_baselines_earn_and_cost_what_their_files_say(measured):
    """Five standard errors of the difference between this mean and the recorded one, which has its own episodes."""
    _, kinds = measured
    for info, J_R, J_C in kinds.values():
        share = math.sqrt(1 / len(J_R) + 1 / info["episodes"])
        assert abs(J_R.mean() - info["J_R"]) < 5 * J_R.std() * share + 1e-4
        assert abs(J_C.mean() - info["J_C"]) < 5 * J_C.std() * share + 1e-4


# How far above its limit a baseline that is called near it may be. The ants' were made when nothing better was at hand.
NEAR = {"point-circle": (0.95, 1.02), "point-gather": (0.95, 1.02), "ant-circle": (0.5, 1.5), "ant-gather": (0.5, 1.5)}
CLEARLY = 1.25  # times as much reward


def assert_of_their_kind(task: str, J_R: dict[str, float], J_C: dict[str, float], slack: float = 0.0) -> None:
    """One safe and poor, one at the limit and better, one that breaks it and earns most."""
    limit = TASKS[task].settings["cost_limit"]
    low, high = NEAR[task]
    assert J_C["cost"] < 0.5 * limit or (task in ANTS and J_C["cost"] < 0.75 * limit)
    assert (low - slack) * limit < J_C["near"] <= (high + slack) * limit
    assert J_C["reward"] > 2.0 * limit
    assert CLEARLY * J_R["cost"] < J_R["near"] < J_R["reward"]


def test_shipped_baselines_are_of_their_kind(measured):
    task, kinds = measured
    J_R, J_C = ({kind: found[0][name] for kind, found in kinds.items()} for name in ("J_R", "J_C"))
    assert_of_their_kind(task, J_R, J_C)
    if task not in ANTS:  # few episodes of an ant say little; the test above finds out whether its file is right
        J_R, J_C = ({kind: found[column].mean() for kind, found in kinds.items()} for column in (1, 2))
        assert_of_their_kind(task, J_R, J_C, slack=0.05)


LIMIT_OF_ZERO = [name for name, row in TASKS.items() if row.shipped() and row.settings["cost_limit"] == 0]


@pytest.mark.parametrize("task", LIMIT_OF_ZERO)
def test_with_a_limit_of_zero_only_one_kind_breaks_it_by_far(task):
    """Nothing is near a limit of zero but what keeps it: in traffic, cost and near differ in their making."""
    J_C = {kind: spacerl.load_policy(kind, task=task).info["J_C"] for kind in KINDS}
    assert J_C["reward"] > 2.0 * max(J_C["cost"], J_C["near"])


@pytest.mark.slow
def test_quickstart_ends_above_every_safe_baseline(tmp_path):
    """In a process of its own, which compiles as it does for a user."""
    words = ["--algorithm", "space", "--baseline", "reward", "--delta", "0.01", "--updates", "80", "--quiet", "--out"]
    plain = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-m", "spacerl", "train", "point-circle", *words, str(tmp_path / "run")]
    subprocess.run(command, check=True, env=plain, timeout=600)
    end = RunFolder(tmp_path / "run").metrics()[-10:]
    limit = TASKS["point-circle"].settings["cost_limit"]
    infos = [spacerl.load_policy(kind, task="point-circle").info for kind in KINDS]
    safe = [info["J_R"] for info in infos if info["J_C"] <= 1.02 * limit]
    assert len(safe) == 2
    assert np.mean([row["J_R"] for row in end]) > max(safe)
    assert np.mean([row["J_C"] for row in end]) <= limit


# ---------------------------------------------------------------- files and run folders


@pytest.mark.parametrize("action", [ActionSpace("box", 2), ActionSpace("discrete", 3)])
@pytest.mark.parametrize("hidden", [(5,), (7, 3, 2)])
def test_a_policy_written_and_read_is_the_same_to_the_bit(action, hidden, tmp_path):
    family = PolicyFamily((4,), action, hidden, 0.3)
    theta = family.init(jax.random.PRNGKey(8)) + 0.1
    info = {"task": "mine", "J_R": 1 / 3, "list": [1, "two"]}
    save_policy(tmp_path / "policy.safetensors", family, theta, info)
    read = spacerl.load_policy(tmp_path / "policy.safetensors")
    assert np.asarray(read.theta).tobytes() == np.asarray(theta).tobytes()
    assert read.info == info
    assert read.family.spec() == family.spec()
    obs = jax.random.normal(jax.random.PRNGKey(9), (6, 4))
    ours, theirs = family.apply(theta, obs), read(obs)
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


SETTINGS = {"algorithm": "space-joint", "batch_size": 500, "hidden": (4,), "updates": 2, "progress": False}
# Well-conditioned on purpose: programs that round differently must not drift apart.
SETTINGS |= {"cg_damping": 0.1, "fisher_subsample": 1.0, "projection_kl_bound": 0.01}


@pytest.fixture(scope="module")
def network_run(tmp_path_factory):
    """SPACE from a shipped baseline, which is evaluated inside the compiled program."""
    return spacerl.train("point-circle", baseline="near", out=tmp_path_factory.mktemp("network") / "run", **SETTINGS)


def metrics_of(folder) -> list[dict[str, float]]:
    timed = ("seconds_collect", "seconds_update")
    return [{k: v for k, v in row.items() if k not in timed} for row in RunFolder(folder).metrics()]


def test_a_name_a_file_and_a_loaded_policy_are_the_same_baseline(network_run, tmp_path):
    path = TASKS["point-circle"].shipped()["near"]
    for number, baseline in enumerate((str(path), spacerl.load_policy("near", task="point-circle"))):
        again = spacerl.train("point-circle", baseline=baseline, out=tmp_path / str(number), **SETTINGS)
        assert repr(metrics_of(again.folder)) == repr(metrics_of(network_run.folder))


def test_a_run_folder_is_a_baseline(network_run):
    env = spacerl.make_env("point-circle")
    baseline = load_policy(str(network_run.folder), "point-circle", env.spec)
    assert np.array_equal(baseline.theta, network_run.policy.theta)
    assert baseline.info["algorithm"] == "space-joint"


# ---------------------------------------------------------------- Python functions


def test_a_function_learns_like_the_network_it_stands_for(network_run, tmp_path):
    policy = spacerl.load_policy("near", task="point-circle")
    calls = []

    def near(obs):
        assert isinstance(obs, np.ndarray)
        calls.append(obs.shape)
        dist = policy(obs)
        return np.asarray(dist.mean), np.exp(np.asarray(dist.log_std))

    result = spacerl.train("point-circle", baseline=near, out=tmp_path / "run", **SETTINGS)
    assert calls.count((500, 9)) == 2  # once per batch
    compared = ("update", "env_steps", "J_R", "J_C", "J_D", "h_D", "cumulative_violation", "entropy")
    for mine, theirs in zip(metrics_of(result.folder), metrics_of(network_run.folder), strict=True):
        assert list(mine) == list(theirs)
        for name in compared:
            assert mine[name] == pytest.approx(theirs[name], rel=2e-3, abs=0.01)
    rows = RunFolder(result.folder).metrics()
    assert all(row["seconds_collect"] > 0.0 for row in rows)  # two programs: collection is timed apart
    written = json.loads((result.folder / "config.json").read_text())
    assert written["baseline"] == ["function:near"]
    mine, theirs = (json.loads((r.folder / "baseline.json").read_text()) for r in (result, network_run))
    assert (mine["J_R"], mine["J_C"]) == pytest.approx((theirs["J_R"], theirs["J_C"]), rel=1e-3)


BOX, DISCRETE = ActionSpace("box", 2), ActionSpace("discrete", 3)


def spec_of(obs_shape: tuple[int, ...], action: ActionSpace = BOX) -> EnvSpec:
    return EnvSpec("mine", obs_shape, action, 10)


def test_a_function_gets_one_flat_batch_and_its_answer_gets_the_shape_back():
    obs = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
    dist = FunctionPolicy(lambda x: (x[:, :2], 2.0 * np.ones((6, 2))), BOX, obs_rank=1)(obs)
    assert np.array_equal(dist.mean, obs[..., :2])
    assert dist.log_std == pytest.approx(np.full((2, 3, 2), math.log(2.0)))


def test_a_function_may_give_one_deviation_for_all():
    dist = FunctionPolicy(lambda x: (np.zeros((len(x), 2)), 0.5), BOX, obs_rank=1)(np.zeros((4, 9), np.float32))
    assert dist.log_std == pytest.approx(np.full((4, 2), math.log(0.5)))


def test_a_function_for_discrete_actions_gives_probabilities():
    chances = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    dist = FunctionPolicy(lambda x: chances, DISCRETE, obs_rank=1)(np.zeros((2, 9), np.float32))
    assert np.exp(jax.nn.log_softmax(dist.logits)) == pytest.approx(chances, abs=1e-6)
    assert np.all(np.isfinite(dist.logits))  # certainty must not make divergences infinite


def test_images_reach_a_function_unflattened():
    seen = []

    def policy(obs):
        seen.append(obs.shape)
        return np.zeros((len(obs), 2)), np.ones((len(obs), 2))

    load_policy(policy, "own:pixels", spec_of((8, 8, 3)))
    assert {shape[1:] for shape in seen} == {(8, 8, 3)}


def test_shapes_are_checked_whatever_the_source():
    family = PolicyFamily((4,), BOX, (3,))
    other = NetworkPolicy(family, np.zeros(family.parameters, np.float32), "mine")
    with pytest.raises(InputError, match=r"baseline 'mine' takes observations of shape \(4,\)"):
        load_policy(other, "point-circle", spec_of((9,)))
    with pytest.raises(InputError, match=r"shape \(3,\)|2 observations"):
        load_policy(lambda obs: (np.zeros((3, 2)), np.ones((3, 2))), "point-circle", spec_of((9,)))
