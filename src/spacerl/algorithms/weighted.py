"""f-CPO, f-PCPO, d-CPO, d-PCPO: the divergence from the baseline as a weighted part of the objective.

The objective is J_R - lambda J_D, both per episode. The paper prints g + lambda a, which would maximise the divergence;
its text ("add the divergence objective in the reward function") and its curves ask for the difference.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from spacerl.algorithms.common import absent, line_search, take_full_step
from spacerl.algorithms.cpo import cpo_proposal
from spacerl.algorithms.pcpo import pcpo_proposal
from spacerl.core.thresholds import next_weight
from spacerl.types import Algorithm, Array, Evaluation, Needs, Proposal, StepInputs, Worth


class WeightState(NamedTuple):
    weight: Array  # () lambda


def _weighted(config, schedule: str, base: str) -> Algorithm:
    def init(costs: int, worth: Worth) -> WeightState:
        return WeightState(jnp.array(config.divergence_weight, jnp.float32))

    def step(inputs: StepInputs, state: WeightState) -> Proposal:
        gradient = inputs.g - state.weight * inputs.a
        if base == "cpo":
            return cpo_proposal(inputs, gradient)
        return pcpo_proposal(inputs, gradient, config)

    def objective(trial: Evaluation, state: WeightState) -> Array:
        return trial.reward - state.weight * trial.divergence

    def control(state: WeightState, J_R: Array, J_C: Array, h_C: Array, J_D: Array) -> WeightState:
        return WeightState(next_weight(state.weight, config.weight_decay, schedule))

    search = line_search(objective, True, config.backtrack_factor, config.backtrack_tries)
    accept = search if base == "cpo" else take_full_step
    needs = Needs(cost=True, baseline=True, many_costs=base != "cpo")
    return Algorithm(needs, init, step, accept, control, absent, lambda state: state.weight)


def f_cpo(config) -> Algorithm:
    return _weighted(config, "fixed", "cpo")


def f_pcpo(config) -> Algorithm:
    return _weighted(config, "fixed", "pcpo")


def d_cpo(config) -> Algorithm:
    return _weighted(config, config.weight_schedule, "cpo")


def d_pcpo(config) -> Algorithm:
    return _weighted(config, config.weight_schedule, "pcpo")
