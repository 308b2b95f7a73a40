"""Statistics of the report: worked by hand, and against SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from spacerl.reporting import statistics as stats
from spacerl.reporting.text import cost_text
from support.run_folders import groups_in, write_run


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 29, 200])
def test_t_quantile_equals_scipy(freedom):
    from scipy.stats import t

    for probability in (0.6, 0.9, 0.975, 0.995, 0.1):
        assert stats.t_quantile(probability, freedom) == pytest.approx(t.ppf(probability, freedom), rel=1e-8)


def test_mean_interval_worked_by_hand():
    # 1..5: mean 3, variance 10/4 = 2.5, t(0.975, 4) = 2.776445
    interval = stats.mean_interval([1, 2, 3, 4, 5])
    reach = 2.776445 * math.sqrt(2.5) / math.sqrt(5)
    assert (interval.mean, interval.n) == (3.0, 5)
    assert interval.std == pytest.approx(math.sqrt(2.5))
    assert (interval.low, interval.high) == pytest.approx((3 - reach, 3 + reach), rel=1e-6)


def test_difference_interval_is_welchs():
    from scipy.stats import t

    ours, theirs = [3.0, 4.0, 5.0, 8.0], [1.0, 2.0, 2.5]
    gap = stats.difference_interval(ours, theirs)
    parts = [np.var(side, ddof=1) / len(side) for side in (ours, theirs)]
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 2)
    reach = t.ppf(0.975, math.floor(freedom)) * math.sqrt(sum(parts))
    assert gap.mean == pytest.approx(5.0 - 5.5 / 3)
    assert (gap.low, gap.high) == pytest.approx((gap.mean - reach, gap.mean + reach))


def test_interquartile_mean_equals_scipy():
    from scipy.stats import trim_mean

    assert stats.interquartile_mean([100, 1, 2, 3, -50]) == 2.0
    scores = np.random.default_rng(0).standard_normal(23)
    assert stats.interquartile_mean(scores) == pytest.approx(trim_mean(scores, 0.25))


def test_not_measured_scores_are_left_out_and_counted():
    interval = stats.mean_interval([1.0, math.nan, 3.0, math.inf])
    assert (interval.mean, interval.n) == (2.0, 2)
    alone = stats.mean_interval([math.nan, 4.0])
    assert (alone.mean, alone.n) == (4.0, 1)
    assert math.isnan(alone.low)
    assert math.isnan(stats.mean_interval([math.nan]).mean)


def test_bootstrap_is_repeatable_and_brackets_the_mean():
    scores = np.random.default_rng(3).standard_normal(30)
    one, two = (stats.mean_interval(scores, method="bootstrap") for _ in range(2))
    assert one == two
    by_t = stats.mean_interval(scores)
    assert one.low == pytest.approx(by_t.low, abs=0.08)
    assert one.high == pytest.approx(by_t.high, abs=0.08)
    with pytest.raises(ValueError, match="expected 't' or 'bootstrap'"):
        stats.mean_interval(scores, method="jackknife")


@pytest.mark.parametrize(
    ("cost", "expected"),
    [([9, 4, 6, 5, 4], 13), ([1, 1, 1, 1, 1], 10), ([1, 1, 1, 1, 6], math.nan), ([9, math.nan, 4, 4, 4], 12)],
)
def test_satisfied_from_means_for_good(cost, expected):
    found = stats.satisfied_from(np.arange(10.0, 15.0), np.array(cost, float), np.full(5, 5.0))
    assert found == pytest.approx(expected, nan_ok=True)


def test_mean_over_updates_is_the_normalised_area():
    assert stats.mean_over_updates(np.array([0.0, 1.0, 3.0]), np.array([0.0, 2.0, 2.0])) == pytest.approx(5 / 3)


def test_summary_row_worked_by_hand(tmp_path):
    k = np.arange(60.0)
    cost = np.where(k < 20, 7.0, 4.0)
    for seed, offset in enumerate((0.0, 2.0)):
        columns = {"J_R": k + offset, "J_C": cost, "cumulative_violation": np.cumsum(np.maximum(0, cost - 5))}
        write_run(tmp_path / str(seed), seed=seed, updates=60, columns=columns)
    (row,) = stats.summary_table(groups_in(tmp_path))
    assert (row.seeds, row.updates, row.end_window) == (2, 60, 10)
    assert row.reward_end.mean == pytest.approx(54.5 + 1)  # updates 50..59, seeds two apart
    assert row.reward_last.mean == pytest.approx(60.0)
    assert {m: r.mean for m, r in row.reward_at.items()} == {10: 11.0, 25: 26.0, 50: 51.0}
    assert row.violation.mean == pytest.approx(40.0)
    assert row.satisfied_from.mean == 20
    assert row.share_over.mean == pytest.approx(1 / 3)
    assert row.seconds_per_update == pytest.approx(0.75)
    assert row.within_limit
    assert row.seeds_over == 0


def test_a_tolerance_decides_what_counts_as_kept_and_leaves_violations_as_they_are(tmp_path):
    """Costs fall from 30 to 12 at update 20, with a limit of zero."""
    cost = np.where(np.arange(40.0) < 20, 30.0, 12.0)
    rows = {}
    for tolerance in (0.0, 11.9, 12.0):
        folder = tmp_path / str(tolerance)
        violation = {"J_C": cost, "cumulative_violation": np.cumsum(cost)}
        write_run(folder, updates=40, limit=0.0, columns=violation, cost_tolerance=tolerance)
        (rows[tolerance],) = stats.summary_table(groups_in(folder))
    for tolerance, row in rows.items():
        kept = tolerance == 12.0
        assert (row.within_limit, row.seeds_over, row.satisfied_seeds) == (kept, int(not kept), int(kept))
        assert row.violation.mean == cost.sum()
        assert row.share_over.mean == 1.0
    assert rows[12.0].satisfied_from.mean == 20
    assert cost_text(rows[0.0]) == "12.0 of 0"
    assert cost_text(rows[12.0]) == "12.0 of 0 (tolerance 12)"
