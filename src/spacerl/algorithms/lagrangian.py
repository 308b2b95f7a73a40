"""Lagrangian TRPO: the trust-region step for reward less multipliers times costs, which a controller raises while a
limit is broken. Plain (the multipliers integrate the error) and PID (Stooke, Achiam and Abbeel, 2020).

Not in the paper; what practitioners use, and so a comparison users expect.

Nothing here has units. The step follows g/|g| - sum_k m_k c_k/|c_k|, lengths in the metric of the trust region, so a
multiplier of 1 weighs a cost like the reward; where one cost alone holds the reward back, the two gradients are
parallel and 1 is what its multiplier settles at. Errors are parts of the limit. The multipliers of a step have
already seen the batch it is made from.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp

from spacerl.algorithms.contract import Algorithm, AlgorithmEntry, Judge, Needs
from spacerl.algorithms.line_search import line_search
from spacerl.algorithms.optimality import optimality
from spacerl.algorithms.options import LineSearchOptions
from spacerl.core.steps import TINY, natural_step
from spacerl.core.thresholds import relative_excess
from spacerl.runs.fields import NotNegative, Positive
from spacerl.types import Array, BaselineMeasurement, Proposal, StepInputs, Trial


@dataclasses.dataclass(frozen=True, kw_only=True)
class LagrangianOptions(LineSearchOptions):
    multiplier_rate: Positive = 1.0
    """Growth of a multiplier per update at the largest violation. At 1 a cost weighs as much as the reward."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PIDOptions(LineSearchOptions):
    proportional_gain: NotNegative = 2.0
    """Multipliers: weight of the violation, from -1 to 1 as a part of the limit. At 1 a cost weighs like the reward."""
    integral_gain: NotNegative = 0.2
    """Multipliers: weight of the sum of all violations so far, which never falls below zero."""
    derivative_gain: NotNegative = 0.0
    """Multipliers: weight of the violation's rise since the last update; a fall counts as none."""


class Gains(NamedTuple):
    """Of the controller that sets the multipliers."""

    proportional: float
    integral: float
    derivative: float


class MultiplierState(NamedTuple):
    multipliers: Array  # (K,) of the last step
    integral: Array  # (K,) part of them that accumulates
    error: Array  # (K,) in the batch of the last step
    weights: Array  # (1 + K,) of J_R and -J_C in the objective of the last step, for its line search


def relative_violation(d: Array, h_C: Array | float) -> Array:
    """(K,) J_C - h_C as a part of the larger of the two, from -1 to 1: of the limit while it is kept; 1 is far away."""
    return jnp.clip(relative_excess(d + h_C, jnp.asarray(h_C)), -1.0, 1.0)


def next_multipliers(state: MultiplierState, error: Array, gains: Gains) -> MultiplierState:
    """The controller's answer to the newest error (K,)."""
    integral = jnp.maximum(state.integral + gains.integral * error, 0.0)
    rise = jnp.maximum(error - state.error, 0.0)
    multipliers = gains.proportional * error + integral + gains.derivative * rise
    return state._replace(multipliers=jnp.maximum(multipliers, 0.0), integral=integral, error=error)


def lagrangian(gains: Gains, options: LineSearchOptions) -> Algorithm:
    def init(costs: int, baseline: BaselineMeasurement) -> MultiplierState:
        # From the largest error nothing rises: the first batch has no predecessor.
        return MultiplierState(jnp.zeros(costs), jnp.zeros(costs), jnp.ones(costs), jnp.zeros(1 + costs))

    def step(inputs: StepInputs, state: MultiplierState) -> Proposal:
        state = next_multipliers(state, relative_violation(inputs.d, inputs.h_C), gains)
        gradients = jnp.concatenate([inputs.g[None], -inputs.c])
        solved = inputs.solve(gradients)
        squared = jnp.sum(gradients * solved, axis=-1)
        # What vanishes weighs nothing. Dividing the reward by |g|, and not multiplying the costs by it, leaves a way
        # back to the limits where there is no reward to follow.
        per_unit = jnp.where(squared > TINY, 1.0 / jnp.sqrt(jnp.where(squared > TINY, squared, 1.0)), 0.0)
        weights = per_unit * jnp.concatenate([jnp.ones(1), state.multipliers])
        ascent = natural_step(inputs.g, solved[0], inputs.delta)
        info = {"multiplier": jnp.max(state.multipliers)}
        info |= optimality(inputs, ascent, inputs.c, -solved[1:], inputs.d)
        step = natural_step(weights @ gradients, weights @ solved, inputs.delta)
        return Proposal(step, info=info, memory=state._replace(weights=weights))

    def objective(trial: Trial, state: MultiplierState) -> Array:
        return jnp.dot(state.weights, jnp.concatenate([trial.reward[None], -trial.cost]))

    search = line_search(objective, False, options)

    def accept(judge: Judge, inputs: StepInputs, proposal: Proposal, state: MultiplierState) -> Array:
        """Judged by the weights that the step was made with, not by those of the step before."""
        return search(judge, inputs, proposal, proposal.memory)

    return Algorithm(Needs(cost=True, baseline=False), step, init, accept)


def trpo_lagrangian(options: LagrangianOptions) -> Algorithm:
    return lagrangian(Gains(0.0, options.multiplier_rate, 0.0), options)


def trpo_pid(options: PIDOptions) -> Algorithm:
    return lagrangian(Gains(options.proportional_gain, options.integral_gain, options.derivative_gain), options)


ENTRY = AlgorithmEntry(
    "trust-region step for reward minus multipliers times cost, which grow with the violation",
    LagrangianOptions,
    trpo_lagrangian,
)
PID = AlgorithmEntry(
    "the same with multipliers that also follow the violation itself and its rise (PID control)", PIDOptions, trpo_pid
)
