"""Runs judged and drawn: statistics, figures, and one self-contained page. Reads run folders only, without jax."""

from spacerl.reporting.groups import Group, group_runs
from spacerl.reporting.headline import headline
from spacerl.reporting.page import write_report
from spacerl.reporting.statistics import (
    Interval,
    SummaryRow,
    difference_interval,
    interquartile_mean,
    mean_interval,
    summary_table,
)
from spacerl.reporting.tables import write_table_markdown
from spacerl.runs.records import Reading, Run, read_run, read_runs

__all__ = [
    "Group",
    "Interval",
    "Reading",
    "Run",
    "SummaryRow",
    "difference_interval",
    "group_runs",
    "headline",
    "interquartile_mean",
    "mean_interval",
    "read_run",
    "read_runs",
    "summary_table",
    "write_report",
    "write_table_markdown",
]
