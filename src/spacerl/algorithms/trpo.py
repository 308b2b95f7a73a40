"""TRPO: the trust-region step for reward, blind to costs and to the baseline."""

from __future__ import annotations

import jax.numpy as jnp

from spacerl.algorithms.common import absent, line_search, reward_objective, stateless, unchanged
from spacerl.core.steps import natural_step
from spacerl.types import Algorithm, Needs, Proposal, StepInputs


def trpo(config) -> Algorithm:
    def step(inputs: StepInputs, state) -> Proposal:
        x_g = inputs.solve(inputs.g[None])[0]
        return Proposal(natural_step(inputs.g, x_g, inputs.delta), jnp.array(False), {})

    accept = line_search(reward_objective, False, config.backtrack_factor, config.backtrack_tries)
    return Algorithm(Needs(cost=False, baseline=False), stateless, step, accept, unchanged, absent, absent)
