"""Options of guarded SPACE, without a baseline and with one."""

from __future__ import annotations

import dataclasses
from typing import Literal

from spacerl.algorithms.options import DivergenceOptions, LineSearchOptions, ProjectionOptions, ThresholdOptions
from spacerl.runs.fields import Fraction, FromOne, NotNegative, Positive, PositiveOrInf


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuardOptions(LineSearchOptions, ProjectionOptions):
    projection_kl_bound: PositiveOrInf = 0.05
    """Most KL that the way back to a broken limit may spend in one update."""
    ascent_factor: FromOne = 10.0
    """Most by which the reward step is lengthened so that it spends delta after the projection onto the costs, as CPO's
    step does; 1 leaves it as PCPO has it."""
    earned_trust: bool = True
    """The trust region shrinks where a cost is above its limit and above what the step before promised, and grows back
    while costs come as promised."""
    cost_margin: NotNegative = 1.0
    """Safety margin below h_C, in standard errors of J_C."""
    margin_rate: Fraction = 0.1
    """Rate at which the margin learns how much cost its predictions leave out."""
    shrink_cost_gradients: bool = True
    """Of what a step against a cost takes away by that cost's gradient, count the share that is not the gradient's own
    noise, by the difference between two halves of the batch."""
    mean_cost_gradients: bool = True
    """Where the gradient of a cost is mostly noise, take the mean over the last batches, not the newest alone."""
    filter_costs: bool = True
    """Estimate J_C from all batches so far and what the steps between them promised, not from the newest one alone."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpaceOptions(GuardOptions, ThresholdOptions, DivergenceOptions):
    divergence_gradient: Literal["full", "direct", "score"] = "direct"
    """Gradient of J_D: direct term, score term (effect through the states visited), or both (full)."""
    pull_kl: Positive = 0.02
    """KL the first pull toward the baseline may spend; later ones follow what the pulls deliver."""
    pull_kl_max: Positive = 0.05
    """Most KL any pull may spend."""
    seek_baseline: bool = True
    """A baseline that was measured to earn more than the policy and to keep the constraint is followed even where the
    gradient sees no reward on the way."""
    promise_rate: Fraction = 0.3
    """Rate at which promised and measured gains of the pulls are averaged."""
