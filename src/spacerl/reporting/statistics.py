"""Scores in, intervals out; nothing here draws. SciPy is imported where a number is asked for, for it is slow to load.

A *score* is one number per seed, (S,). Values that are not finite mean "not measured": they are left out, and the
number of seeds that remain is part of every answer.

Definitions used throughout a report:

- *end value*: mean over the last `END_WINDOW` updates of a run (all of them if it is shorter);
- *cumulative violation*: sum over updates of max(0, J_C - h_C);
- *within the limit from*: first update from which J_C <= h_C holds at every later update as well.

Where the runs have a `cost_tolerance`, a limit counts as kept up to h_C plus it; violations are above h_C all the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from spacerl.reporting.groups import Group

END_WINDOW = 10
MILESTONES = (10, 25, 50, 100)
CONFIDENCE = 0.95
BOOTSTRAP_RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """Mean over seeds with the sample standard deviation (n - 1) and the ends of a confidence interval of the mean.

    With one seed the spread is unknown, so ``std``, ``low`` and ``high`` are NaN; with none, ``mean`` is too.
    """

    mean: float
    std: float
    low: float
    high: float
    n: int

    def __post_init__(self) -> None:
        if self.n < 0 or (self.n >= 2 and not self.low <= self.mean <= self.high):
            raise ValueError(f"not an interval: {self.low} <= {self.mean} <= {self.high} over {self.n} scores")


UNMEASURED = Interval(math.nan, math.nan, math.nan, math.nan, 0)


@dataclass(frozen=True)
class CostEnd:
    """One cost at the end of a group: its name ("" for the only one), its interval over seeds, and its own limit; and
    at the very last shared update."""

    name: str
    end: Interval
    limit: float
    last: Interval

    @property
    def measured(self) -> bool:
        return math.isfinite(self.end.mean) and math.isfinite(self.limit)

    @property
    def excess(self) -> float:
        """How far above its limit, in parts of it; of a limit of zero, in units of the cost."""
        over = self.end.mean - self.limit
        return over / self.limit if self.limit > 0 else over


@dataclass(frozen=True)
class SummaryRow:
    """One group in numbers. Intervals are over seeds; the module's docstring defines every quantity."""

    task: str
    label: str
    seeds: int
    updates: int  # recorded by every seed
    end_window: int  # updates behind the end values
    reward_end: Interval
    reward_iqm: float  # interquartile mean of the end values of J_R
    cost_end: Interval  # of the cost that is farthest above its limit
    limit_end: float  # its h_C, mean of the same updates
    seeds_over: int  # seeds of which the end value of some cost is above its limit
    reward_last: Interval  # at the very last shared update
    cost_last: Interval
    violation: Interval
    share_over: Interval  # fraction of updates with J_C > h_C
    satisfied_from: Interval  # over the seeds that got there
    satisfied_seeds: int
    reward_area: Interval  # J_R averaged over updates, the normalised area under its curve
    seconds_per_update: float  # median, collecting and updating together
    reward_at: Mapping[int, Interval] = field(default_factory=dict)  # J_R at update 10, 25, 50, 100 where reached
    costs: tuple[CostEnd, ...] = ()  # every cost
    tolerance: float = 0.0  # above h_C, up to which a limit counts as kept
    return_end: Interval = UNMEASURED  # undiscounted
    length_end: Interval = UNMEASURED  # steps of an episode

    @property
    def constrained(self) -> bool:
        """Whether a cost and its limit were measured at the end."""
        return math.isfinite(self.cost_end.mean) and math.isfinite(self.limit_end)

    @property
    def within_limit(self) -> bool:
        """Whether the mean end value of every J_C is at most its h_C, and the tolerance where there is one."""
        return self.constrained and self.cost_end.mean <= self.limit_end + self.tolerance


def finite(scores: Sequence[float] | np.ndarray) -> np.ndarray:
    """The scores that were measured."""
    values = np.asarray(scores, dtype=float).reshape(-1)
    return values[np.isfinite(values)]


def mean(scores: Sequence[float] | np.ndarray) -> float:
    """Mean of the finite scores; NaN when there is none."""
    values = finite(scores)
    return float(values.mean()) if len(values) else math.nan


def standard_deviation(scores: Sequence[float] | np.ndarray) -> float:
    """Sample standard deviation (n - 1) of the finite scores; NaN below two."""
    values = finite(scores)
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan


def interquartile_mean(scores: Sequence[float] | np.ndarray) -> float:
    """Mean of the finite scores after dropping floor(n / 4) of the lowest and as many of the highest."""
    from scipy.stats import trim_mean

    values = finite(scores)
    return float(trim_mean(values, 0.25)) if len(values) else math.nan


def mean_interval(scores: Sequence[float] | np.ndarray, confidence: float = CONFIDENCE, method: str = "t") -> Interval:
    """Mean with a confidence interval: Student's t ("t"), or percentiles of resampled means ("bootstrap").

    The bootstrap draws from a generator with a fixed seed, so the same scores always give the same interval.
    """
    if method not in ("t", "bootstrap"):
        raise ValueError(f"unknown method {method!r}; expected 't' or 'bootstrap'")
    values = finite(scores)
    if len(values) < 2:
        return Interval(mean(values), math.nan, math.nan, math.nan, len(values))
    centre, spread = mean(values), standard_deviation(values)
    if method == "t":
        reach = t_quantile(0.5 + confidence / 2, len(values) - 1) * spread / math.sqrt(len(values))
        return Interval(centre, spread, centre - reach, centre + reach, len(values))
    low, high = _bootstrap_ends(values, confidence)
    # rounding must not push the mean of equal scores outside its own interval
    return Interval(centre, spread, min(low, centre), max(high, centre), len(values))


def _bootstrap_ends(values: np.ndarray, confidence: float) -> tuple[float, float]:
    from scipy.stats import bootstrap

    resampled = bootstrap(
        (values,),
        np.mean,
        n_resamples=BOOTSTRAP_RESAMPLES,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    return float(resampled.confidence_interval.low), float(resampled.confidence_interval.high)


def difference_interval(
    ours: Sequence[float] | np.ndarray, theirs: Sequence[float] | np.ndarray, confidence: float = CONFIDENCE
) -> Interval:
    """mean(ours) - mean(theirs) with Welch's interval, its degrees of freedom rounded down.

    ``std`` is then the standard error of the difference and ``n`` the smaller number of seeds. Written out because
    SciPy's `ttest_ind` does not round them, which makes intervals of few seeds narrower.
    """
    a, b = mean_interval(ours, confidence), mean_interval(theirs, confidence)
    n, gap = min(a.n, b.n), a.mean - b.mean
    if n < 2:
        return Interval(gap, math.nan, math.nan, math.nan, n)
    share_a, share_b = a.std**2 / a.n, b.std**2 / b.n
    error = math.sqrt(share_a + share_b)
    if error == 0.0:
        return Interval(gap, 0.0, gap, gap, n)
    freedom = (share_a + share_b) ** 2 / (share_a**2 / (a.n - 1) + share_b**2 / (b.n - 1))
    reach = t_quantile(0.5 + confidence / 2, max(1, math.floor(freedom + 1e-9))) * error
    return Interval(gap, error, gap - reach, gap + reach, n)


def t_quantile(probability: float, freedom: float) -> float:
    """Quantile of Student's t with this many degrees of freedom."""
    from scipy.special import stdtrit

    if not 0.0 < probability < 1.0 or freedom < 1:
        raise ValueError(f"expected 0 < probability < 1 and freedom >= 1, got {probability} and {freedom}")
    return float(stdtrit(freedom, probability))


def end_values(curves: np.ndarray, window: int = END_WINDOW) -> np.ndarray:
    """Per seed, the mean of the finite values among the last ``window`` updates: (S, U) -> (S,)."""
    return np.array([mean(curve[-window:]) for curve in np.atleast_2d(curves)])


def mean_over_updates(updates: np.ndarray, curve: np.ndarray) -> float:
    """Area under one curve by the trapezoid rule, divided by its width: (U,), (U,) -> J_R averaged over updates."""
    measured = np.isfinite(curve)
    x, y = np.asarray(updates)[measured], np.asarray(curve)[measured]
    return float(np.trapezoid(y, x) / (x[-1] - x[0])) if len(x) > 1 else mean(y)


def satisfied_from(updates: np.ndarray, cost: np.ndarray, limit: np.ndarray) -> float:
    """First update from which cost <= limit at every later measured update as well; NaN if the last one is above."""
    measured = np.isfinite(cost) & np.isfinite(limit)
    updates, over = np.asarray(updates)[measured], (cost > limit)[measured]
    after_last_violation = int(np.flatnonzero(over)[-1]) + 1 if over.any() else 0
    return float(updates[after_last_violation]) if after_last_violation < len(updates) else math.nan


def share_over(cost: np.ndarray, limit: np.ndarray) -> float:
    """Fraction of the measured updates with cost > limit."""
    measured = np.isfinite(cost) & np.isfinite(limit)
    return float((cost > limit)[measured].mean()) if measured.any() else math.nan


def value_at(updates: np.ndarray, curves: np.ndarray, update: float) -> np.ndarray:
    """Per seed, the value at exactly this update, (S,); NaN where it was not recorded."""
    position = np.flatnonzero(np.asarray(updates) == update)
    return curves[:, position[0]] if len(position) else np.full(len(curves), np.nan)


def seconds_per_update(group: Group, last_update: float = math.inf) -> float:
    """Median over seeds and updates of collecting and updating together; NaN where not measured."""
    # Tasks in JAX collect inside the compiled update and cannot time it apart: their seconds_collect is NaN.
    collecting = np.nan_to_num(group.curve("seconds_collect", last_update))
    seconds = finite(collecting + group.curve("seconds_update", last_update))
    return float(np.median(seconds)) if len(seconds) else math.nan


def summary_row(group: Group, last_update: float = math.inf) -> SummaryRow:
    """Every number of one group, looking no further than ``last_update``."""
    updates = group.updates[group.updates <= last_update]
    reward, cost, limit = (group.curve(name, last_update) for name in ("J_R", "J_C", "h_C"))
    violation = group.curve("cumulative_violation", last_update)
    costs, seeds_over, worst = _cost_ends(group, last_update)
    satisfied = [satisfied_from(updates, c, h + group.tolerance) for c, h in zip(cost, limit, strict=True)]
    shares = [share_over(c, h) for c, h in zip(cost, limit, strict=True)]
    return SummaryRow(
        task=group.task,
        label=group.label,
        seeds=len(group.runs),
        updates=len(updates),
        end_window=min(END_WINDOW, len(updates)),
        reward_end=mean_interval(end_values(reward)),
        reward_iqm=interquartile_mean(end_values(reward)),
        cost_end=costs[worst].end,
        limit_end=costs[worst].limit,
        seeds_over=seeds_over,
        reward_last=mean_interval(reward[:, -1]),
        cost_last=mean_interval(group.curve(group.cost_columns[worst][1], last_update)[:, -1]),
        violation=mean_interval([finite(v)[-1] if len(finite(v)) else math.nan for v in violation]),
        share_over=mean_interval(shares),
        satisfied_from=mean_interval(satisfied),
        satisfied_seeds=len(finite(satisfied)),
        reward_area=mean_interval([mean_over_updates(updates, curve) for curve in reward]),
        seconds_per_update=seconds_per_update(group, last_update),
        reward_at={m: mean_interval(value_at(updates, reward, m)) for m in MILESTONES if m in updates},
        costs=costs,
        tolerance=group.tolerance,
        return_end=mean_interval(end_values(group.curve("episode_return", last_update))),
        length_end=mean_interval(end_values(group.curve("episode_length", last_update))),
    )


def _cost_ends(group: Group, last_update: float) -> tuple[tuple[CostEnd, ...], int, int]:
    """Every cost at the end, how many seeds are above some limit, and which cost is farthest above its own."""
    costs, over = [], np.zeros(len(group.runs), bool)
    for name, value, limit in group.cost_columns:
        curve = group.curve(value, last_update)
        ends, limits = end_values(curve), end_values(group.curve(limit, last_update))
        costs.append(CostEnd(name, mean_interval(ends), mean(limits), mean_interval(curve[:, -1])))
        over |= ends > limits + group.tolerance
    excesses = [each.excess if each.measured else -math.inf for each in costs]
    return tuple(costs), int(over.sum()), int(np.argmax(excesses))


def summary_table(groups: Sequence[Group], last_update: float = math.inf) -> list[SummaryRow]:
    """One `SummaryRow` per group, in the groups' order, each over its own updates up to ``last_update``."""
    return [summary_row(group, last_update) for group in groups]
