"""The report room: reads run folders, judges and draws them, writes one page. Imports no other room, and no jax."""

from spacerl.reporting.page import headline, write_report, write_table_markdown
from spacerl.reporting.reading import Group, Reading, Run, group_runs, read_run, read_runs
from spacerl.reporting.statistics import (
    Interval,
    SummaryRow,
    difference_interval,
    interquartile_mean,
    mean_interval,
    summary_table,
)

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
