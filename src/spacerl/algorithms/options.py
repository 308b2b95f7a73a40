"""Options that several update rules share. What belongs to one of them alone stands in its file."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from spacerl.runs.fields import Count, NotNegative, OpenUnitInterval, PositiveOrInf


@dataclasses.dataclass(frozen=True, kw_only=True)
class LineSearchOptions:
    backtrack_factor: OpenUnitInterval = 0.8
    """Line search: each try shrinks the step by this."""
    backtrack_tries: Count = 15
    """Line search: tries before a step is dropped."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProjectionOptions:
    projection: Literal["kl", "l2"] = "kl"
    """Metric of the projections: KL (the Fisher matrix of the reward step) or the 2-norm of the parameters."""
    projection_kl_bound: PositiveOrInf = math.inf
    """Most KL each projection may spend; inf leaves them unbounded, as printed. 0.01 for your own environment."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DivergenceOptions:
    divergence_gradient: Literal["full", "direct", "score"] = "full"
    """Gradient of J_D: direct term, score term (effect through the states visited), or both (full)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThresholdOptions:
    divergence_threshold: NotNegative = 5.0
    """Initial radius h_D around the baseline."""
    threshold_rule: Literal["lemma", "fixed"] = "lemma"
    """How h_D moves: the paper's lemma, or not at all."""
    threshold_constant: NotNegative = 10.0
    """The constant v of the lemma's rule h_D <- h_D + v (J_C - h_C)^2."""
