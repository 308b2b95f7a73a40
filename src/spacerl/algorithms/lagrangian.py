"""Lagrangian TRPO: the trust-region step for J_R - sum_k lambda_k J_C_k, multipliers by ascent on the violation.

Not in the paper; what practitioners use, and so a comparison users expect.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp

from spacerl.algorithms.contract import Algorithm, AlgorithmEntry, Needs
from spacerl.algorithms.line_search import line_search
from spacerl.algorithms.options import LineSearchOptions
from spacerl.core.steps import natural_step
from spacerl.runs.fields import Positive
from spacerl.types import Array, BaselineMeasurement, Measured, Proposal, StepInputs, Trial


@dataclasses.dataclass(frozen=True, kw_only=True)
class LagrangianOptions(LineSearchOptions):
    multiplier_rate: Positive = 0.05
    """Step of the multipliers, in reward per squared unit of cost."""


class MultiplierState(NamedTuple):
    multipliers: Array  # (K,) reward per unit of cost


def trpo_lagrangian(options: LagrangianOptions) -> Algorithm:
    def init(costs: int, baseline: BaselineMeasurement) -> MultiplierState:
        return MultiplierState(jnp.zeros(costs))

    def step(inputs: StepInputs, state: MultiplierState) -> Proposal:
        gradient = inputs.g - state.multipliers @ inputs.c
        x = inputs.solve(gradient[None])[0]
        return Proposal(
            natural_step(gradient, x, inputs.delta),
            info={"multiplier": jnp.max(state.multipliers)},
        )

    def objective(trial: Trial, state: MultiplierState) -> Array:
        return trial.reward - jnp.dot(state.multipliers, trial.cost)

    def control(state: MultiplierState, measured: Measured) -> MultiplierState:
        raised = state.multipliers + options.multiplier_rate * (measured.J_C - measured.h_C)
        return MultiplierState(jnp.maximum(raised, 0.0))

    needs = Needs(cost=True, baseline=False)
    return Algorithm(needs, step, init, accept=line_search(objective, False, options), control=control)


ENTRY = AlgorithmEntry(
    "trust-region step for reward minus multipliers times cost, which grow with the violation",
    LagrangianOptions,
    trpo_lagrangian,
)
