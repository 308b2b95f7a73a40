"""Pre-training then fine-tuning: imitate the baseline until its reward is reached, then PCPO.

Paper, appendix on pre-training: trust-region updates whose objective is the divergence, until J_R(pi^k) is about
J_R(pi_B), then updates whose objective is the reward. The second phase keeps the cost constraint, as the paper's curves
do; the first only imitates.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal, NamedTuple

import jax.numpy as jnp

from spacerl.algorithms.contract import Algorithm, AlgorithmEntry, Needs
from spacerl.algorithms.options import DivergenceOptions, ProjectionOptions
from spacerl.algorithms.pcpo import pcpo_proposal
from spacerl.runs.fields import Count, Positive, Range
from spacerl.types import Array, BaselineMeasurement, Measured, Proposal, StepInputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainOptions(ProjectionOptions, DivergenceOptions):
    pretrain_tolerance: Annotated[float, Range(lambda x: 0 <= x < 1, "a number from 0 to below 1")] = 0.05
    """Imitation ends when J_R is within this fraction of the baseline's."""
    pretrain_updates: Count = 100_000
    """Imitation ends after this many updates at the latest."""
    pretrain_delta: Positive | Literal["delta"] = "delta"
    """Trust-region radius of the imitation; its gradient is exact, so it may be far wider than that of the reward."""


class PretrainState(NamedTuple):
    imitating: Array  # () bool
    target: Array  # () J_R at which imitation ends
    updates_left: Array  # () int32, imitation ends at zero whatever the reward


def pretrain(options: PretrainOptions) -> Algorithm:
    def init(costs: int, baseline: BaselineMeasurement) -> PretrainState:
        # "About": within a fraction of its size, so that the sign of the reward does not matter.
        target = baseline.J_R - options.pretrain_tolerance * abs(baseline.J_R)
        return PretrainState(jnp.array(True), jnp.array(target, jnp.float32), jnp.array(options.pretrain_updates))

    def step(inputs: StepInputs, state: PretrainState) -> Proposal:
        objective = jnp.where(state.imitating, -inputs.a, inputs.g)
        if options.pretrain_delta != "delta":
            inputs = inputs._replace(delta=jnp.where(state.imitating, options.pretrain_delta, inputs.delta))
        return pcpo_proposal(inputs, objective, options, constrained=~state.imitating)

    def control(state: PretrainState, measured: Measured) -> PretrainState:
        left = jnp.maximum(state.updates_left - 1, 0)
        return PretrainState(state.imitating & (measured.J_R < state.target) & (left > 0), state.target, left)

    def weight(state: PretrainState) -> Array:
        return state.imitating.astype(jnp.float32)

    return Algorithm(
        Needs(cost=True, baseline=True, many_baselines=False),
        step,
        init,
        control=control,
        weight=weight,
        divergence_gradient=options.divergence_gradient,
    )


ENTRY = AlgorithmEntry("imitate the baseline until its reward is reached, then PCPO", PretrainOptions, pretrain)
