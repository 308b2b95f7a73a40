"""One task of the page as records that the templates set: cards, figures, tables, drawings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spacerl.reporting.advice import advice
from spacerl.reporting.arenas import ARENAS, TRAFFIC, trajectory_figure, undrawable
from spacerl.reporting.data import Video, csv_link, videos_of
from spacerl.reporting.figures import AXES, task_figures
from spacerl.reporting.groups import Group
from spacerl.reporting.headline import headline
from spacerl.reporting.palette import PAGE_COLOURS, Style
from spacerl.reporting.statistics import SummaryRow, summary_table
from spacerl.reporting.tables import best_safe, course_cells, end_cells, evaluation_cells, reached_milestones
from spacerl.reporting.text import cost_text, counted, excess_text, interval_text, number_text

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

FIRST_AXIS = "update"
CAPTIONS = {
    "reward": ("Reward", "J_R. Dotted: what the baseline itself earns."),
    "return": ("Return", "Undiscounted reward of an episode, as other libraries count it. Dotted: the baseline's."),
    "cost": (
        "Cost",
        "J_C. Dashed: the limit h_C, and what is tolerated above it; the zone beyond is tinted.",
    ),
    "violation": ("Cumulative violation", "Sum of max(0, J_C − h_C) so far. Flat is good."),
    "reward against violation": ("Reward against violation", "What each reward cost. Up and to the left is better."),
    "divergence": ("Distance from the baseline", "J_D per episode; short dashes: its threshold h_D."),
    "stationarity": (
        "How far from a stationary point",
        "rho: what the algorithm's constraints leave of the reward step. 0: nothing, the policy is stationary; "
        "1, dotted: all of it; above 1: a constraint is broken and needs more.",
    ),
    "predicted gain": (
        "What a step may still gain",
        "Change of J_R that this step promises, to first order. Below zero: keeping the constraints costs reward.",
    ),
    "entropy": ("Entropy", "How undecided the policy still is."),
}

Draw = Callable[["Figure", str, str], "Markup"]  # figure, prefix of its ids, description -> what stands in the page


@dataclass(frozen=True)
class Line:
    """How a group is drawn, in terms of the stylesheet."""

    colour: str
    dashes: str  # lengths of an SVG dash pattern; empty for a solid line


@dataclass(frozen=True)
class Entry:
    """A group in the legend."""

    label: str
    line: Line


@dataclass(frozen=True)
class Card:
    """A group in a glance. ``state`` is kept, broken or unmeasured; ``meter`` the length of its bar in percent."""

    label: str
    line: Line
    reward: str
    reach: str
    cost: str
    state: str
    verdict: str
    meter: str | None
    violation: str
    updates: int
    seeds: str


@dataclass(frozen=True)
class Plot:
    """A figure of curves with its words."""

    heading: str
    caption: str
    markup: Markup
    axis: str = ""  # what it is drawn over, where there are several of it; the first is shown

    @property
    def shown(self) -> bool:
        return self.axis in ("", FIRST_AXIS)


@dataclass(frozen=True)
class Cell:
    """A cell of a table, marked good or bad or not at all."""

    text: str
    mark: str = ""


@dataclass(frozen=True)
class TableRow:
    """A group in a table."""

    label: str
    line: Line
    best: bool
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """Numbers of every group of a task."""

    heading: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]


@dataclass(frozen=True)
class Drawing:
    """Trajectories of one run of a group."""

    label: str
    line: Line
    seed: int
    wide: bool
    traffic: bool
    markup: Markup


@dataclass(frozen=True)
class TaskSection:
    """Everything that the page says of one task."""

    anchor: str
    name: str
    headline: str
    cards: tuple[Card, ...]
    legend: tuple[Entry, ...]
    has_bands: bool
    plots: tuple[Plot, ...]
    tables: tuple[Table, ...]
    drawings: tuple[Drawing, ...]
    axes: tuple[tuple[str, str], ...]  # column and name of what curves can be drawn over
    advice: tuple[str, ...]
    csv: str
    videos: tuple[Video, ...]


def task_section(
    number: int, name: str, groups: Sequence[Group], styles: Mapping[str, Style], draw: Draw
) -> TaskSection:
    """The section of groups that are compared; ``draw`` turns figures into markup."""
    lines = {group.label: _line(styles[group.label]) for group in groups}
    rows = summary_table(groups)
    milestones = reached_milestones(rows)
    plots = _plots(number, groups, styles, draw)
    return TaskSection(
        anchor=f"task-{number}",
        name=name,
        headline=headline(groups),
        cards=tuple(_card(row, lines[row.label]) for row in rows),
        legend=tuple(Entry(group.label, lines[group.label]) for group in groups),
        has_bands=any(len(group.runs) > 1 for group in groups),
        plots=plots,
        tables=(
            _table("At the end", rows, [end_cells(row) for row in rows], lines),
            _table("Along the way", rows, [course_cells(row, milestones) for row in rows], lines),
            *_evaluation_table(groups, rows, lines),
        ),
        drawings=_drawings(number, groups, styles, draw),
        axes=tuple((axis, words) for axis, words in AXES.items() if any(plot.axis == axis for plot in plots)),
        advice=tuple(advice(groups, rows)),
        csv=csv_link(groups),
        videos=videos_of(groups),
    )


def _evaluation_table(groups: Sequence[Group], rows: Sequence[SummaryRow], lines: Mapping[str, Line]) -> list[Table]:
    """The best policy and the last one of those groups that were evaluated."""
    cells = [(row, evaluation_cells(group)) for group, row in zip(groups, rows, strict=True)]
    shown = [(row, each) for row, each in cells if each is not None]
    if not shown:
        return []
    heading = "Best and last policy, as evaluated while learning"
    return [_table(heading, [row for row, _ in shown], [each for _, each in shown], lines)]


def _line(style: Style) -> Line:
    colour, dash = style
    dashes = "" if dash == "-" else " ".join(str(2 * length) for length in dash[1])
    return Line(PAGE_COLOURS[colour], dashes)


def _card(row: SummaryRow, line: Line) -> Card:
    state = "unmeasured" if not row.constrained else "kept" if row.within_limit else "broken"
    verdicts = {"unmeasured": "no limit measured", "kept": "✓ limit kept", "broken": f"✕ {excess_text(row)}"}
    reward, _, reach = interval_text(row.reward_end).partition(" ± ")
    seeds = f"{row.seeds_over} of {row.seeds} seeds over at the end" if row.seeds_over else counted(row.seeds, "seed")
    return Card(
        label=row.label,
        line=line,
        reward=reward,
        reach=reach,
        cost=cost_text(row) if row.constrained else "",
        state=state,
        verdict=verdicts[state],
        meter=_meter(row),
        violation=number_text(row.violation.mean),
        updates=row.updates,
        seeds=seeds,
    )


def _meter(row: SummaryRow) -> str | None:
    """Length of a bar of J_C, in percent, that reaches two thirds at h_C."""
    if not row.constrained or row.limit_end <= 0:
        return None
    return f"{100 * min(max(row.cost_end.mean / row.limit_end / 1.5, 0.0), 1.0):.1f}"


def _plots(number: int, groups: Sequence[Group], styles: Mapping[str, Style], draw: Draw) -> tuple[Plot, ...]:
    figures = task_figures(groups, styles)
    plots = []
    for i, (name, figure) in enumerate(figures.items()):
        plain, _, other = name.rpartition(" by ")
        axis = other if other in AXES else FIRST_AXIS if f"{name} by env_steps" in figures else ""
        words = _words(plain if other in AXES else name)
        plots.append(Plot(*words, draw(figure, f"t{number}f{i}", f"{name} on {groups[0].task}"), axis))
    return tuple(plots)


def _words(name: str) -> tuple[str, str]:
    """Heading and caption of a figure; "cost NAME" is a figure of one of several costs."""
    kind = name if name in CAPTIONS else name.split(" ")[0]
    heading, caption = CAPTIONS[kind]
    return heading if kind == name else f"{heading}: {name.removeprefix(kind).strip()}", caption


def _table(
    heading: str, rows: Sequence[SummaryRow], cells: Sequence[Mapping[str, str]], lines: Mapping[str, Line]
) -> Table:
    best = best_safe(rows)
    made = [
        TableRow(
            label=row.label,
            line=lines[row.label],
            best=row.label == best,
            cells=tuple(Cell(text, _mark(name, text)) for name, text in texts.items()),
        )
        for row, texts in zip(rows, cells, strict=True)
    ]
    return Table(heading, tuple(cells[0]), tuple(made))


def _mark(column: str, text: str) -> str:
    if column != "limit kept" or text == "–":
        return ""
    return "good" if text == "yes" else "bad"


def _drawings(number: int, groups: Sequence[Group], styles: Mapping[str, Style], draw: Draw) -> tuple[Drawing, ...]:
    """For each group the trajectories of its lowest seed that has any, so that nobody picks the prettiest."""
    drawings = []
    for i, group in enumerate(groups):
        run = next((run for run in group.runs if run.trajectories and not undrawable(run.trajectories)), None)
        if run is None or run.trajectories is None or not run.trajectories.policies:
            continue
        style = styles[group.label]
        figure = trajectory_figure(run.trajectories, style[0])
        markup = draw(figure, f"t{number}p{i}", f"trajectories of {group.label} on {group.task}")
        kind = run.trajectories.arena["kind"]
        wide = not ARENAS[kind].overlaid
        drawings.append(Drawing(group.label, _line(style), run.seed, wide, kind == TRAFFIC, markup))
    return tuple(drawings)
