"""Lagrangian TRPO: the trust-region step for J_R - sum_k lambda_k J_C_k, multipliers by ascent on the violation.

Not in the paper; what practitioners use, and so a comparison users expect.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from spacerl.algorithms.common import absent, line_search
from spacerl.core.steps import natural_step
from spacerl.types import Algorithm, Array, Evaluation, Needs, Proposal, StepInputs, Worth


class MultiplierState(NamedTuple):
    multipliers: Array  # (K,) reward per unit of cost


def trpo_lagrangian(config) -> Algorithm:
    def init(costs: int, worth: Worth) -> MultiplierState:
        return MultiplierState(jnp.zeros(costs))

    def step(inputs: StepInputs, state: MultiplierState) -> Proposal:
        gradient = inputs.g - state.multipliers @ inputs.c
        x = inputs.solve(gradient[None])[0]
        info = {"multiplier": jnp.max(state.multipliers)}
        return Proposal(natural_step(gradient, x, inputs.delta), jnp.array(False), info)

    def objective(trial: Evaluation, state: MultiplierState) -> Array:
        return trial.reward - jnp.dot(state.multipliers, trial.cost)

    def control(state: MultiplierState, J_R: Array, J_C: Array, h_C: Array, J_D: Array) -> MultiplierState:
        return MultiplierState(jnp.maximum(state.multipliers + config.multiplier_rate * (J_C - h_C), 0.0))

    accept = line_search(objective, False, config.backtrack_factor, config.backtrack_tries)
    return Algorithm(Needs(cost=True, baseline=False), init, step, accept, control, absent, absent)
