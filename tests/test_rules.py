"""Rule-based baselines: what they are worth, and that they can be learned from."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

import spacerl
from spacerl.api import make_env
from spacerl.envs.point.rules import circle_follower, nearest_apple
from spacerl.envs.tasks import TASKS
from spacerl.policies.policy import RulePolicy
from spacerl.rollout.evaluate import Play, episode_returns

OPTIMISED = True  # two programs that are to agree after two updates


@pytest.mark.parametrize(("task", "least_J_R", "least_J_C"), [("point-circle", 45.0, 20.0), ("point-gather", 9.0, 0.6)])
def test_rules_earn_reward_and_break_the_constraint(task, least_J_R, least_J_C):
    """Each rule ignores (circle) or only half minds (gather) the cost: useful, and unsafe."""
    env = make_env(task)
    policy = RulePolicy(TASKS[task].rule("rule"))
    J_R, J_C = episode_returns(env, policy, 0.995, Play(episodes=1000, length=env.spec.horizon, seed=0))
    assert J_R.mean() > least_J_R
    assert J_C.mean() > least_J_C


@pytest.mark.parametrize(("position", "heading", "turn"), [((5.0, 0.0), math.pi / 2, 0.0), ((5.0, 0.0), 0.0, 0.25)])
def test_the_follower_keeps_to_the_tangent(position, heading, turn):
    obs = jnp.zeros(9).at[:3].set(jnp.array([*position, heading]))
    assert circle_follower(obs).mean[1] == pytest.approx(turn, abs=1e-5)


def test_the_collector_turns_to_an_apple_and_away_from_a_nearer_bomb():
    apple = jnp.zeros(29).at[9 + 7].set(0.5)
    assert nearest_apple(apple).mean[1] == pytest.approx(2.5 * math.pi / 10)
    guarded = apple.at[19 + 7].set(0.9).at[9 + 2].set(0.3)
    assert nearest_apple(guarded).mean[1] == pytest.approx(-2.5 * math.pi / 10)


@pytest.mark.slow
def test_a_rule_by_name_learns_like_the_same_rule_as_a_function(tmp_path):
    def rule(obs):
        dist = circle_follower(jnp.asarray(obs))
        return np.asarray(dist.mean), np.exp(np.asarray(dist.log_std))

    settings = {"batch_size": 500, "updates": 2, "progress": False}
    named = spacerl.train("point-circle", baseline="rule", out=tmp_path / "named", **settings)
    called = spacerl.train("point-circle", baseline=rule, out=tmp_path / "called", **settings)
    assert named.metrics[1]["J_D"] > 0.0
    for column in ("J_R", "J_C", "J_D", "kl"):
        assert named.metrics[1][column] == pytest.approx(called.metrics[1][column], rel=1e-3)
