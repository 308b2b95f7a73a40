"""A policy that acts: `predict` on observations as environments give them, and the same from an exported file."""

from __future__ import annotations

import json
import runpy
import subprocess
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

import spacerl
import spacerl.envs
from spacerl.envs.host.description import described, space_of, spaces_of, spaces_of_spec
from spacerl.envs.host.spaces import Observations
from spacerl.types import ActionSpace, EnvSpec, InputError
from support.environments import Image, Line, Mixed
from support.runs import made

pytestmark = pytest.mark.usefixtures("quick_compilation")

EVERY_KIND = spaces.Dict(
    {
        "zebra": spaces.Box(-1.0, 2.0, (3,), np.float32),
        "apple": spaces.Box(0, 255, (3, 16, 16), np.uint8),
        "pair": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiDiscrete([2, 5], start=[1, 0])]),
        "bits": spaces.MultiBinary((2, 2)),
        "odd": spaces.Box(np.array([-1.0, 0.0]), np.array([np.inf, 3.0]), dtype=np.float64),
    }
)


class Kinds(gymnasium.Env):
    """Observes every kind of space there is; the action is nested and has offsets."""

    observation_space = EVERY_KIND
    action_space = spaces.Dict({"gear": spaces.Discrete(3, start=1), "switch": spaces.MultiBinary(2)})

    def __init__(self, render_mode=None):
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        return self.observation_space.sample(), 1.0, False, self.steps >= 5, {"cost": 0.0}


def run_of(folder: Path, env: str, **settings) -> Path:
    return made(folder / "run", task=f"env:{env}", cost_limit=1.0, **settings)


@pytest.mark.parametrize("space", EVERY_KIND.spaces.values())
def test_a_space_comes_back_from_its_description(space):
    again = space_of(json.loads(json.dumps(described(space))))
    assert again == space
    assert space_of(described(EVERY_KIND)) == EVERY_KIND
    assert list(space_of(described(EVERY_KIND)).spaces) == list(EVERY_KIND.spaces)


@pytest.mark.parametrize(
    "action",
    [
        ActionSpace("discrete", 4),
        ActionSpace("multidiscrete", 5, nvec=(2, 3)),
        ActionSpace("box", 2, (-1.0, -2.0), (1.0, 2.0), scaled=True),
        ActionSpace("box", 1),
    ],
)
def test_an_environment_in_jax_has_the_spaces_of_its_spec(action):
    observed, acted, scaled = spaces_of(spaces_of_spec(EnvSpec("x", (3,), action, 5)))
    assert observed == spaces.Box(-np.inf, np.inf, (3,), np.float32)
    assert acted.sample() in acted
    assert scaled == action.scaled
    if action.low:
        assert (acted.low.tolist(), acted.high.tolist()) == ([-1.0, -2.0], [1.0, 2.0])


def test_predict_acts_in_the_units_of_the_environment(tmp_path):
    policy = spacerl.load_policy(run_of(tmp_path, "support.environments:Line"), seed=3)
    env, rows = Line(), np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    means = 2.0 * np.asarray(policy.family.apply(policy.theta, rows).mode())  # [-1, 1] stands for [-2, 2]
    actions, state = policy.predict(rows, deterministic=True)
    assert state is None
    assert actions.shape == (50, 1)
    np.testing.assert_allclose(actions, np.clip(means, -2, 2), atol=1e-5)
    single, kept = policy.predict(rows[7], state="memory", deterministic=True)
    assert single in env.action_space
    assert single == pytest.approx(actions[7], abs=1e-6)
    assert kept == "memory"


def test_random_actions_have_the_spread_of_the_policy_and_follow_from_the_seed(tmp_path):
    run = run_of(tmp_path, "support.environments:Line", initial_std=0.1)
    policy, again = (spacerl.load_policy(run, seed=3) for _ in range(2))
    rows = np.zeros((4000, 3), np.float32)
    actions = policy.predict(rows)[0]
    assert actions.std() == pytest.approx(2.0 * 0.1, rel=0.06)
    np.testing.assert_array_equal(actions, again.predict(rows)[0])
    assert not np.array_equal(actions, policy.predict(rows)[0])
    policy.seed(3)
    np.testing.assert_array_equal(actions, policy.predict(rows)[0])


@pytest.mark.parametrize("env", [Mixed, Image, Kinds])
def test_dict_and_image_observations_are_taken_as_they_come(tmp_path, env):
    """A plain loop, and a batch of what it saw: the same actions as the network itself gives."""
    place = "support.environments" if env is not Kinds else "test_acting"
    policy = spacerl.load_policy(run_of(tmp_path, f"{place}:{env.__name__}"), seed=0)
    environment, seen, chosen = env(), [], []
    obs, _ = environment.reset(seed=1)
    for _ in range(4):
        action, _ = policy.predict(obs, deterministic=True)
        assert environment.action_space.contains(action), action
        seen.append(obs)
        chosen.append(action)
        obs = environment.step(policy.predict(obs)[0])[0]
    flat = np.stack([Observations(environment.observation_space).encode(each) for each in seen])
    rows = np.asarray(policy.family.apply(policy.theta, flat).mode())
    expected = [policy._actions.decode(row) for row in rows]
    batch = jax.tree.map(lambda *leaves: np.stack(leaves), *seen)
    together, _ = policy.predict(batch, deterministic=True)
    for i, (one, want) in enumerate(zip(chosen, expected, strict=True)):
        for mine, whole, theirs in zip(*map(jax.tree.leaves, (one, together, want)), strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-5)
            np.testing.assert_allclose(np.asarray(whole)[i], theirs, atol=1e-5)


def test_what_is_not_an_observation_is_one_sentence(tmp_path):
    policy = spacerl.load_policy(run_of(tmp_path, "support.environments:Line"))
    for wrong in (np.zeros(4), np.zeros((2, 2, 3)), {"a": 1}, None):
        with pytest.raises(InputError, match="is not in the space of policy"):
            policy.predict(wrong)


def test_a_dictionary_that_lacks_a_part_is_told_which(tmp_path):
    policy = spacerl.load_policy(run_of(tmp_path, "support.environments:Mixed"))
    observation = policy.observation_space.sample()
    (one, *_) = observation
    with pytest.raises(InputError, match=rf"it has no {one}, and a dictionary of .*{one}.* is expected"):
        policy.predict({key: value for key, value in observation.items() if key != one})
    with pytest.raises(InputError, match="it is ndarray, and a dictionary of"):
        policy.predict(np.zeros(3))


def test_a_shipped_policy_acts_in_gymnasium_as_it_does_in_its_task():
    policy = spacerl.load_policy("near", task="point-gather", seed=0)
    env = gymnasium.make("spacerl/PointGather-v0")
    obs, _ = env.reset(seed=0)
    action, _ = policy.predict(obs, deterministic=True)
    assert action == pytest.approx(np.asarray(policy(obs[None]).mode())[0], abs=1e-5)
    assert env.step(action)[0].shape == obs.shape
    assert repr(policy).startswith("Policy('near', Box(")


def test_the_policy_of_a_result_acts():
    result = spacerl.train(
        env="CartPole-v1", cost="none", algorithm="trpo", updates=1, batch_size=40, hidden=(4,), workers=0,
        environments=2, progress=False, out=Path("run"),
    )  # fmt: skip
    assert result.policy.predict(np.zeros(4, np.float32))[0] in gymnasium.make("CartPole-v1").action_space
    loaded = spacerl.load_policy("run")
    assert (loaded.spaces, loaded.action_space) == (result.policy.spaces, spaces.Discrete(2))


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# ---------------------------------------------------------------- exported files


@pytest.mark.parametrize("env", [Line, Mixed, Image, Kinds])
def test_an_exported_file_predicts_as_the_policy_does(tmp_path, env):
    place = "support.environments" if env is not Kinds else "test_acting"
    run = run_of(tmp_path, f"{place}:{env.__name__}")
    spacerl.export(run, tmp_path / "policy.py")
    policy, file = spacerl.load_policy(run), runpy.run_path(str(tmp_path / "policy.py"))
    environment, seen = env(), []
    obs, _ = environment.reset(seed=1)
    for _ in range(3):
        action, state = file["predict"](obs, state=1, deterministic=True)
        assert state == 1
        assert environment.action_space.contains(jax.tree.map(lambda leaf: leaf, action)), action
        expected = policy.predict(obs, deterministic=True)[0]
        for mine, theirs in zip(*map(jax.tree.leaves, (action, expected)), strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-4)
        seen.append(obs)
        obs = environment.step(file["predict"](obs)[0])[0]
    batch = jax.tree.map(lambda *leaves: np.stack(leaves), *seen)
    both = (each(batch, deterministic=True)[0] for each in (file["predict"], policy.predict))
    for mine, theirs in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)
    flat = np.stack([Observations(environment.observation_space).encode(each) for each in seen])
    np.testing.assert_allclose(file["act"](flat), file["act"](batch), atol=1e-5)


def test_an_exported_file_states_the_order_of_its_keys(tmp_path):
    spacerl.export(run_of(tmp_path, "test_acting:Kinds"), tmp_path / "policy.py")
    words = " ".join((tmp_path / "policy.py").read_text().partition('"""\n\nfrom')[0].split())
    stated = {
        "zebra": "zebra (3)",
        "apple": "apple (3 x 16 x 16, its channels moved to the end)",
        "pair": "pair.0 (one-hot, 3 values from -1 on); pair.1 (one-hot, 2 + 5 values from 1, 0 on)",
        "bits": "bits (2 x 2)",
        "odd": "odd (2)",
    }
    assert "one after the other: " + "; ".join(stated[key] for key in EVERY_KIND.spaces) + ". Actions:" in words
    ruff = pytest.importorskip("ruff.__main__", reason="ruff is not installed").find_ruff_bin()
    settings = Path(__file__).parent.parent / "pyproject.toml"
    for command in (("check",), ("format", "--check")):
        subprocess.run([ruff, *command, "--no-cache", "--config", settings, "policy.py"], check=True)
