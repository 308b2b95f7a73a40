"""Lagrangian TRPO on a toy where the best safe action is known."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from spacerl.types import UNMEASURED, Measured
from support.learners import Toy, algorithm_of, make_config, make_learner, train


class Dear(Toy):
    """One step; the reward is highest at action 1, and the action is what it costs."""

    def step(self, state, action):
        return state, -((action[0] - 1.0) ** 2), action, jnp.array(True)


def test_multipliers_follow_the_violation_and_never_turn_negative():
    algorithm = algorithm_of(make_config("trpo-lagrangian", multiplier_rate=0.5, cost_limit=1.0))
    state = algorithm.init(2, UNMEASURED)
    h_C = jnp.ones(2)
    state = algorithm.control(state, Measured(jnp.array(0.0), jnp.array([3.0, 0.0]), h_C, jnp.array(0.0)))
    np.testing.assert_allclose(state.multipliers, [1.0, 0.0])
    state = algorithm.control(state, Measured(jnp.array(0.0), jnp.array([0.0, 2.0]), h_C, jnp.array(0.0)))
    np.testing.assert_allclose(state.multipliers, [0.5, 0.5])


def test_the_cost_settles_at_its_limit():
    """Without the multiplier the action would go to 1; a multiplier of 1.4 holds its mean at 0.3."""
    config = make_config("trpo-lagrangian", delta=0.01, discount=1.0, cost_limit=0.3, multiplier_rate=0.2)
    env = Dear()
    _, metrics = train(make_learner(env, config), env, 1000, 120)
    assert abs(metrics["J_C"][-60:].mean() - 0.3) < 0.1
    assert abs(metrics["multiplier"][-60:].mean() - 1.4) < 0.4
