"""f-CPO, f-PCPO, d-CPO, d-PCPO: the divergence from the baseline as a weighted part of the objective.

The objective is J_R - lambda J_D, both per episode. The paper prints g + lambda a, which would maximise the divergence;
its text ("add the divergence objective in the reward function") and its curves ask for the difference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp

from spacerl.algorithms.contract import Algorithm, AlgorithmEntry, Needs, take_full_step
from spacerl.algorithms.cpo import cpo_proposal
from spacerl.algorithms.line_search import line_search
from spacerl.algorithms.options import DivergenceOptions, LineSearchOptions, ProjectionOptions
from spacerl.algorithms.pcpo import pcpo_proposal
from spacerl.core.thresholds import next_weight
from spacerl.runs.fields import NotNegative, OpenUnitInterval
from spacerl.types import Array, BaselineMeasurement, Measured, Proposal, StepInputs, Trial


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedWeightOptions(DivergenceOptions):
    divergence_weight: NotNegative = 1.0
    """Initial weight lambda of the divergence in the objective."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduledWeightOptions(FixedWeightOptions):
    weight_schedule: Literal["printed", "decay"] = "printed"
    """lambda <- lambda^beta as printed (which stays at 1), or lambda <- beta lambda."""
    weight_decay: OpenUnitInterval = 0.95
    """beta of that schedule."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedCpoOptions(FixedWeightOptions, LineSearchOptions): ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedPcpoOptions(FixedWeightOptions, ProjectionOptions): ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduledCpoOptions(ScheduledWeightOptions, LineSearchOptions): ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduledPcpoOptions(ScheduledWeightOptions, ProjectionOptions): ...


class WeightState(NamedTuple):
    weight: Array  # () lambda


def _weighted(options: FixedWeightOptions, many_costs: bool, propose: Callable, accept: Callable) -> Algorithm:
    def init(costs: int, baseline: BaselineMeasurement) -> WeightState:
        return WeightState(jnp.array(options.divergence_weight, jnp.float32))

    def step(inputs: StepInputs, state: WeightState) -> Proposal:
        return propose(inputs, inputs.g - state.weight * inputs.a)

    def control(state: WeightState, measured: Measured) -> WeightState:
        if not isinstance(options, ScheduledWeightOptions):
            return state
        return WeightState(next_weight(state.weight, options.weight_decay, options.weight_schedule))

    return Algorithm(
        Needs(cost=True, baseline=True, many_costs=many_costs),
        step,
        init,
        accept,
        control,
        weight=lambda state: state.weight,
        divergence_gradient=options.divergence_gradient,
    )


def _objective(trial: Trial, state: WeightState) -> Array:
    return trial.reward - state.weight * trial.divergence


def weighted_cpo(options: Any) -> Algorithm:
    return _weighted(options, False, cpo_proposal, line_search(_objective, True, options))


def weighted_pcpo(options: Any) -> Algorithm:
    return _weighted(options, True, lambda inputs, g: pcpo_proposal(inputs, g, options), take_full_step)


F_CPO = AlgorithmEntry(
    "CPO on reward minus a fixed weight times the divergence from the baseline", FixedCpoOptions, weighted_cpo
)
F_PCPO = AlgorithmEntry(
    "PCPO on reward minus a fixed weight times the divergence from the baseline", FixedPcpoOptions, weighted_pcpo
)
D_CPO = AlgorithmEntry("f-CPO with a weight that follows a schedule", ScheduledCpoOptions, weighted_cpo)
D_PCPO = AlgorithmEntry("f-PCPO with a weight that follows a schedule", ScheduledPcpoOptions, weighted_pcpo)
