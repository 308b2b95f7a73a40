"""Pre-training then fine-tuning: imitate the baseline until its reward is reached, then PCPO.

Paper, appendix on pre-training: trust-region updates whose objective is the divergence, until J_R(pi^k) is about
J_R(pi_B), then updates whose objective is the reward. The second phase keeps the cost constraint, as the paper's curves
do; the first only imitates.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from spacerl.algorithms.common import absent, take_full_step
from spacerl.algorithms.pcpo import pcpo_proposal
from spacerl.types import Algorithm, Array, Needs, Proposal, StepInputs, Worth


class PretrainState(NamedTuple):
    imitating: Array  # () bool
    target: Array  # () J_R at which imitation ends
    updates_left: Array  # () int32, imitation ends at zero whatever the reward


def pretrain(config) -> Algorithm:
    def init(costs: int, worth: Worth) -> PretrainState:
        # "About": within a fraction of its size, so that the sign of the reward does not matter.
        target = worth.J_R - config.pretrain_tolerance * abs(worth.J_R)
        return PretrainState(jnp.array(True), jnp.array(target, jnp.float32), jnp.array(config.pretrain_updates))

    def step(inputs: StepInputs, state: PretrainState) -> Proposal:
        objective = jnp.where(state.imitating, -inputs.a, inputs.g)
        if config.pretrain_delta is not None:
            inputs = inputs._replace(delta=jnp.where(state.imitating, config.pretrain_delta, inputs.delta))
        return pcpo_proposal(inputs, objective, config, constrained=~state.imitating)

    def control(state: PretrainState, J_R: Array, J_C: Array, h_C: Array, J_D: Array) -> PretrainState:
        left = jnp.maximum(state.updates_left - 1, 0)
        return PretrainState(state.imitating & (J_R < state.target) & (left > 0), state.target, left)

    def weight(state: PretrainState) -> Array:
        return state.imitating.astype(jnp.float32)

    return Algorithm(Needs(cost=True, baseline=True), init, step, take_full_step, control, absent, weight)
