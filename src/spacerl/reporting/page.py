"""Run folders in, one self-contained HTML page out: no network, no other file, readable in light and dark.

Whatever comes from a file is escaped. The sentences at the top are made from the numbers, also when SPACE is behind.
"""

from __future__ import annotations

import html
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from spacerl.reporting import figures
from spacerl.reporting.reading import Group, Run, differing_settings, group_runs, read_runs, setting_text
from spacerl.reporting.statistics import (
    END_WINDOW,
    MILESTONES,
    Interval,
    SummaryRow,
    difference_interval,
    end_values,
    summary_table,
)

PathLike = str | os.PathLike[str]


def write_report(run_dirs: PathLike | Iterable[PathLike], out_path: PathLike, title: str | None = None) -> Path:
    """Write one HTML page about the given runs (or folders of runs) and return its path.

    The same folders give the same bytes. ``out_path`` may be a directory, which then receives ``report.html``.
    """
    reading = read_runs(run_dirs)
    groups = group_runs(reading.runs)
    out = Path(out_path)
    if out.is_dir():
        out = out / "report.html"
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_text(page(groups, title, reading.skipped), encoding="utf-8")
        os.replace(unfinished, out)  # a reader sees the old page or the new one, never half of one
    finally:
        unfinished.unlink(missing_ok=True)
    return out


def page(groups: Sequence[Group], title: str | None = None, skipped: Sequence[str] = ()) -> str:
    """The whole page as text."""
    tasks = by_task(groups)
    styles = figures.group_styles(groups)
    title = title or f"Report on {', '.join(tasks)}"
    sections = [_task_section(number, members, styles) for number, members in enumerate(tasks.values())]
    body = "\n".join([_header(title, tasks), *sections, _remarks(groups, skipped), _provenance(tasks), _READING_GUIDE])
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{_escape(title)}</title>\n'
        f"<style>{_css()}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def by_task(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Groups of each task, tasks in order of appearance."""
    tasks: dict[str, list[Group]] = {}
    for group in groups:
        tasks.setdefault(group.task, []).append(group)
    return tasks


# ---------------------------------------------------------------------------------------------- the sentence on top


def headline(groups: Sequence[Group]) -> str:
    """What the numbers of one task say, in plain words, at the last update that every group reached.

    One SPACE group is set against the comparison with the highest J_R; several are given as their range, never as
    the best of them alone.
    """
    if not groups:
        raise ValueError("there is nothing to say about no groups; give at least one")
    last = min(group.updates[-1] for group in groups)
    pairs = list(zip(groups, summary_table(groups, last), strict=True))
    measured = [pair for pair in pairs if math.isfinite(pair[1].reward_end.mean)]
    if not measured:
        return "None of these runs recorded a reward at its end."
    opening = f"After {min(row.updates for _, row in pairs)} updates"
    if any(group.updates[-1] > last for group in groups):
        opening += ", as far as all have run,"
    ours = [pair for pair in measured if pair[0].algorithm.lower() == "space"]
    others = sorted((p for p in measured if p not in ours), key=lambda p: -p[1].reward_end.mean)
    if len(ours) > 1:
        sentences = _several_sentences(opening, [row for _, row in ours], [row for _, row in others])
    elif ours:
        sentences = _versus_sentences(opening, ours[0], others, last)
    else:
        sentences = _versus_sentences(opening, others[0], others[1:], last)
    absent = [row.label for _, row in pairs if not math.isfinite(row.reward_end.mean)]
    if absent:
        sentences.append(f"{_listed(absent)} recorded no reward at the end.")
    return " ".join(sentences)


def _versus_sentences(
    opening: str, us: tuple[Group, SummaryRow], others: Sequence[tuple[Group, SummaryRow]], last: float
) -> list[str]:
    row = us[1]
    mine = number_text(row.reward_end.mean)
    rival = others[0] if others else None
    behind = rival is not None and row.reward_end.mean < rival[1].reward_end.mean
    if rival is None:
        reward = f"{opening} {row.label} reaches J_R {mine}"
    else:
        name = f"{rival[1].label}, the best of {len(others)} others" if len(others) > 1 else rival[1].label
        verb = "is behind: J_R" if behind else "reaches J_R"
        reward = f"{opening} {row.label} {verb} {mine} against {number_text(rival[1].reward_end.mean)} for {name}"
    sentences = [f"{reward}{_cost_clause(row, behind)}."]
    if row.within_limit and row.seeds_over:
        sentences.append(f"In {row.seeds_over} of {row.seeds} seeds J_C ends above the limit.")
    if rival is None:
        sentences.append("There is no other algorithm here to compare with.")
        return sentences
    if rival[1].constrained and not rival[1].within_limit:
        sentences.append(f"{rival[1].label} is over the limit: J_C {_cost_text(rival[1])} allowed.")
        sentences += _safe_rival_sentence([row for _, row in others])
    if math.isfinite(row.violation.mean) and math.isfinite(rival[1].violation.mean):
        pair = f"{number_text(row.violation.mean)} against {number_text(rival[1].violation.mean)}"
        sentences.append(f"Cumulative violation: {pair}.")
    sentences.append(_chance_sentence(us[0], rival[0], last))
    return sentences


def _several_sentences(opening: str, ours: Sequence[SummaryRow], others: Sequence[SummaryRow]) -> list[str]:
    ranked = sorted(ours, key=lambda row: row.reward_end.mean)
    worst, best = ranked[0], ranked[-1]
    low, high = (f"{number_text(row.reward_end.mean)} with {row.label}" for row in (worst, best))
    sentences = [f"{opening} {len(ours)} settings of SPACE reach J_R from {low} to {high}."]
    if others:
        rival = others[0]
        ahead = sum(row.reward_end.mean > rival.reward_end.mean for row in ours)
        which = f", the best of {len(others)} others," if len(others) > 1 else ""
        them = f"{rival.label}{which} at {number_text(rival.reward_end.mean)}{_cost_clause(rival, behind=False)}"
        count = {0: "None of them is", len(ours): "All are"}.get(ahead, f"{ahead} of {len(ours)} are")
        sentences.append(f"{count} ahead of {them}.")
        sentences += _safe_rival_sentence(others) if rival.constrained and not rival.within_limit else []
    limited = [row for row in ours if row.constrained]
    over = [f"{row.label} at {_cost_text(row)} allowed" for row in limited if not row.within_limit]
    if over:
        sentences.append(f"Over the cost limit: {_listed(over)}.")
    elif limited:
        sentences.append(f"All {len(limited)} settings of SPACE keep J_C within its limit.")
    if max(row.seeds for row in ours) == 1:
        sentences.append("One seed each, so chance is not ruled out.")
    return sentences


def _safe_rival_sentence(others: Sequence[SummaryRow]) -> list[str]:
    """The best comparison that keeps the limit, for when the one with the highest reward does not."""
    safe = next((row for row in others if row.within_limit), None)
    if safe is None:
        return ["None of the others keeps it."] if len(others) > 1 else []
    return [f"The best other that keeps the limit is {safe.label}, J_R {number_text(safe.reward_end.mean)}."]


def _cost_clause(row: SummaryRow, behind: bool) -> str:
    if not row.constrained:
        return "; no cost limit was measured"
    if row.within_limit:
        return f"; J_C is {_cost_text(row)} allowed"
    joint = "and" if behind else "but"
    return f", {joint} it breaks the cost limit: J_C is {_cost_text(row)} allowed, {_excess_text(row)}"


def _chance_sentence(ours: Group, theirs: Group, last: float) -> str:
    gap = difference_interval(end_values(ours.curve("J_R", last)), end_values(theirs.curve("J_R", last)))
    if gap.n < 2:
        return "One seed is too few to rule out chance."
    seeds = f"{len(ours.runs)} and {len(theirs.runs)} seeds"
    reach = f"95 % interval {number_text(gap.low)} to {number_text(gap.high)}, {seeds}"
    if gap.low <= 0.0 <= gap.high:
        return f"The difference in J_R could be chance ({reach})."
    return f"The difference in J_R is {number_text(gap.mean)} ({reach})."


# ------------------------------------------------------------------------------------------------- numbers as text


def number_text(value: float) -> str:
    """About three significant digits without exponents for everyday sizes; a dash where nothing was measured."""
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if size == 0.0:
        return "0"
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.9995 else f"{value:#.3g}"


def interval_text(interval: Interval) -> str:
    """Mean, and half the width of the interval where there are seeds enough: "18.2 ± 1.4"."""
    mean = number_text(interval.mean)
    if interval.n < 2:
        return mean
    reach = (interval.high - interval.low) / 2
    decimals = len(mean.partition(".")[2]) if "e" not in mean else 3
    rounded = f"{reach:,.{decimals}f}"  # as many decimals as the mean: more would be noise about noise
    return f"{mean} ± {rounded if reach == 0.0 or float(rounded.replace(',', '')) else f'{reach:.1g}'}"


def _cost_text(row: SummaryRow) -> str:
    """ "4.90 of 5.00", with digits enough that being over the limit is never rounded away."""
    cost, limit = row.cost_end.mean, row.limit_end
    texts = [(number_text(cost), number_text(limit))] + [(f"{cost:.{d}g}", f"{limit:.{d}g}") for d in range(4, 16)]
    first = next((pair for pair in texts if cost == limit or pair[0] != pair[1]), texts[-1])
    return " of ".join(first)


def _excess_text(row: SummaryRow) -> str:
    excess = row.cost_end.mean - row.limit_end
    if row.limit_end <= 0:
        return f"over by {number_text(excess)}"
    percent = 100 * excess / row.limit_end
    return f"over by {percent:.0f} %" if percent >= 1 else "over by less than 1 %"


def _satisfied_text(row: SummaryRow) -> str:
    if not row.constrained:
        return "–"
    if row.satisfied_seeds == 0:
        return "never"
    text = f"{row.satisfied_from.mean:.0f}"
    return text if row.satisfied_seeds == row.seeds else f"{text} ({row.satisfied_seeds} of {row.seeds} seeds)"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


# ------------------------------------------------------------------------------------------------------ the tables


def end_cells(row: SummaryRow) -> dict[str, str]:
    """The numbers of one row at its end, as text by column heading."""
    limit = number_text(row.limit_end)
    return {
        "seeds": str(row.seeds),
        "updates": str(row.updates),
        "J_R at the end": interval_text(row.reward_end),
        "J_C at the end": interval_text(row.cost_end),
        "h_C": limit,
        "limit kept": "–" if not row.constrained else "yes" if row.within_limit else _excess_text(row),
        "cumulative violation": interval_text(row.violation),
        "updates over h_C": f"{100 * row.share_over.mean:.0f} %" if math.isfinite(row.share_over.mean) else "–",
        "within h_C from update": _satisfied_text(row),
        "s per update": number_text(row.seconds_per_update),
    }


def course_cells(row: SummaryRow, milestones: Sequence[int]) -> dict[str, str]:
    """J_R along the way, as text by column heading; the mean over all updates is the normalised area."""
    unmeasured = Interval(math.nan, math.nan, math.nan, math.nan, 0)
    cells = {f"J_R at {m}": interval_text(row.reward_at.get(m, unmeasured)) for m in milestones}
    return cells | {
        "J_R at the last": interval_text(row.reward_last),
        "J_C at the last": interval_text(row.cost_last),
        "J_R over all updates": interval_text(row.reward_area),
        "J_R interquartile": number_text(row.reward_iqm),
    }


def write_table_markdown(groups: Sequence[Group]) -> str:
    """The summary as a Markdown table, one row per group; ± is half the 95 % interval of the mean over seeds."""
    rows = summary_table(groups)
    milestones = _reached(rows)
    lines: list[str] = []
    for row in rows:
        cells = {"task": row.task, "algorithm": row.label} | end_cells(row)
        course = course_cells(row, milestones)
        cells |= {heading: course[heading] for heading in [*(f"J_R at {m}" for m in milestones), "J_R at the last"]}
        if not lines:
            lines = [_markdown_row(cells), _markdown_row(["---"] * len(cells))]
        lines.append(_markdown_row(cells.values()))
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _reached(rows: Sequence[SummaryRow]) -> list[int]:
    return [m for m in MILESTONES if any(m in row.reward_at for row in rows)]


# ------------------------------------------------------------------------------------------------- pieces of markup


def _escape(text: object) -> str:
    return html.escape(str(text), quote=True)


def _prose(text: str) -> str:
    """Escaped text with J_R, h_C and the like set as symbols."""
    return re.sub(r"\b([Jh])_([RCD])\b", r"<i>\1</i><sub>\2</sub>", _escape(text))


def _header(title: str, tasks: Mapping[str, Sequence[Group]]) -> str:
    lines = []
    for number, (task, groups) in enumerate(tasks.items()):
        where = f'<a class="task" href="#task-{number}">{_escape(task)}</a> ' if len(tasks) > 1 else ""
        lines.append(f'<p class="headline">{where}{_prose(headline(groups))}</p>')
    runs = sum(len(group.runs) for groups in tasks.values() for group in groups)
    settings = sum(map(len, tasks.values()))
    counts = [_counted(runs, "run"), _counted(settings, "setting"), _counted(len(tasks), "task")]
    note = " · ".join([*counts, f"end values are means of the last {END_WINDOW} updates"])
    return f'<header>\n<h1>{_escape(title)}</h1>\n{"".join(lines)}\n<p class="quiet">{note}</p>\n</header>'


def _task_section(number: int, groups: Sequence[Group], styles: Mapping[str, figures.Style]) -> str:
    rows = summary_table(groups)
    cards = "".join(_card(row, styles[row.label]) for row in rows)
    drawn = figures.task_figures(groups, styles)
    plots = "".join(
        _figure(figures.inline_svg(figure, f"t{number}f{i}", f"{name} on {groups[0].task}"), name)
        for i, (name, figure) in enumerate(drawn.items())
    )
    milestones = _reached(rows)
    best = _best_safe(rows)
    tables = _table("At the end", rows, [end_cells(row) for row in rows], styles, best)
    tables += _table("Along the way", rows, [course_cells(row, milestones) for row in rows], styles, best)
    parts = [
        f'<h2>{_escape(groups[0].task)}</h2>\n<div class="cards">{cards}</div>',
        f'<div class="legend">{_legend(groups, styles)}</div>\n<div class="plots">{plots}</div>',
        f'{tables}<p class="quiet">± is half the 95 % interval of the mean over seeds (Student\'s t). '
        f"Bold: highest {_prose('J_R')} of those that keep the limit.</p>",
        _trajectory_block(number, groups, styles),
    ]
    return f'<section id="task-{number}">\n' + "\n".join(parts) + "\n</section>"


def _best_safe(rows: Sequence[SummaryRow]) -> str | None:
    safe = [row for row in rows if row.within_limit and math.isfinite(row.reward_end.mean)]
    return max(safe, key=lambda row: row.reward_end.mean).label if len(rows) > 1 and safe else None


def _card(row: SummaryRow, style: figures.Style) -> str:
    state = "unmeasured" if not row.constrained else "kept" if row.within_limit else "broken"
    chip = {"unmeasured": "no limit measured", "kept": "✓ limit kept", "broken": f"✕ {_excess_text(row)}"}[state]
    cost = f"{_prose('J_C')} <b>{_escape(_cost_text(row))}</b> allowed" if row.constrained else ""
    seeds = f"{row.seeds_over} of {row.seeds} seeds over at the end" if row.seeds_over else _counted(row.seeds, "seed")
    reward, _, reach = interval_text(row.reward_end).partition(" ± ")
    spread = f"<small> ± {reach}</small>" if reach else ""
    return (
        f'<article class="card" style="--own: {_css_colour(style[0])}"><h3>{_escape(row.label)}</h3>'
        f'<p class="big"><span>{_prose("J_R")}</span> {reward}{spread}</p>'
        f'{_meter(row)}<p class="cost">{cost} <span class="chip {state}">{_escape(chip)}</span></p>'
        f'<p class="quiet">violation {number_text(row.violation.mean)} in {row.updates} updates<br>{seeds}</p>'
        "</article>\n"
    )


def _meter(row: SummaryRow) -> str:
    """A bar of J_C whose mark at two thirds is h_C."""
    if not row.constrained or row.limit_end <= 0:
        return ""
    width = 100 * min(max(row.cost_end.mean / row.limit_end / 1.5, 0.0), 1.0)
    state = "kept" if row.within_limit else "broken"
    return f'<div class="meter"><div class="{state}" style="width: {width:.1f}%"></div><i></i></div>'


def _css_colour(colour: str) -> str:
    return figures.PAGE_COLOURS[colour]


def _swatch(style: figures.Style) -> str:
    colour, dash = style
    pattern = "" if dash == "-" else f' stroke-dasharray="{" ".join(str(2 * length) for length in dash[1])}"'
    return (
        '<svg class="swatch" viewBox="0 0 26 8" aria-hidden="true"><path d="M1 4H25" '
        f'stroke="{_css_colour(colour)}" stroke-width="3.5"{pattern}/></svg>'
    )


def _legend(groups: Sequence[Group], styles: Mapping[str, figures.Style]) -> str:
    entries = [f"<span>{_swatch(styles[group.label])}{_escape(group.label)}</span>" for group in groups]
    if any(len(group.runs) > 1 for group in groups):
        entries.append('<span class="quiet">line: mean over seeds, band: ± one standard deviation</span>')
    return "".join(entries)


_CAPTIONS = {
    "reward": ("Reward", "J_R over updates. Dotted: what the baseline itself earns."),
    "cost": ("Cost", "J_C over updates. Dashed: the limit h_C; the tinted zone above it is a violation."),
    "violation": ("Cumulative violation", "Sum of max(0, J_C − h_C) so far. Flat is good."),
    "reward against violation": ("Reward against violation", "What each reward cost. Up and to the left is better."),
    "divergence": ("Distance from the baseline", "J_D per episode; short dashes: its threshold h_D."),
    "entropy": ("Entropy", "How undecided the policy still is."),
}


def _figure(plot: str, name: str) -> str:
    kind = name if name in _CAPTIONS else name.split(" ")[0]
    heading, caption = _CAPTIONS[kind]
    heading = heading if kind == name else f"{heading}: {name.removeprefix(kind).strip()}"
    return f"<figure><h3>{_prose(heading)}</h3>{plot}<figcaption>{_prose(caption)}</figcaption></figure>\n"


def _table(
    heading: str, rows: Sequence[SummaryRow], cells: Sequence[Mapping[str, str]],
    styles: Mapping[str, figures.Style], best: str | None,
) -> str:  # fmt: skip
    head = "".join(f"<th>{_prose(name)}</th>" for name in cells[0])
    lines = []
    for row, texts in zip(rows, cells, strict=True):
        label = f'<th scope="row">{_swatch(styles[row.label])}{_escape(row.label)}</th>'
        values = "".join(f"<td{_cell_class(name, text)}>{_escape(text)}</td>" for name, text in texts.items())
        lines.append(f"<tr{' class=best' if row.label == best else ''}>{label}{values}</tr>\n")
    return (
        f'<h3>{heading}</h3><div class="scroll"><table><thead><tr><th>algorithm</th>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>\n"
    )


def _cell_class(name: str, text: str) -> str:
    if name != "limit kept" or text == "–":
        return ""
    return ' class="good"' if text == "yes" else ' class="bad"'


def _trajectory_block(number: int, groups: Sequence[Group], styles: Mapping[str, figures.Style]) -> str:
    """For each group the trajectories of its lowest seed that has any, so that nobody picks the prettiest."""
    shown = []
    for i, group in enumerate(groups):
        run = next((run for run in group.runs if run.trajectories is not None), None)
        if run is None or run.trajectories is None or not run.trajectories.policies:
            continue
        figure = figures.trajectory_figure(run.trajectories, styles[group.label][0])
        plot = figures.inline_svg(figure, f"t{number}p{i}", f"trajectories of {group.label} on {group.task}")
        heading = f"{_swatch(styles[group.label])}{_escape(group.label)}, seed {run.seed}"
        wide = " wide" if run.trajectories.arena["kind"] == "gather" else ""
        shown.append(f'<figure class="paths{wide}"><h3>{heading}</h3>{plot}</figure>\n')
    if not shown:
        return ""
    caption = "Red marks are steps that cost; the tint is where they do. Each episode starts at its dot."
    return f'<h3>Where the policies go</h3><p class="quiet">{caption}</p><div class="plots">{"".join(shown)}</div>'


# ------------------------------------------------------------------------------------------ what was run, and doubts


def remarks(groups: Sequence[Group]) -> list[str]:
    """Everything about the runs that a careful reader should know before trusting a difference."""
    found = [f"{_where(run)}: {remark}." for group in groups for run in group.runs for remark in run.remarks]
    for group in groups:
        who = f"{group.label} on {group.task}"
        lengths = sorted({int(run.updates[-1]) for run in group.runs})
        if len(lengths) > 1:
            listed = ", ".join(map(str, lengths))
            found.append(f"{who}: seeds end at different updates ({listed}); its numbers stop where the shortest does.")
        repeated = sorted({seed for seed in group.seeds if group.seeds.count(seed) > 1})
        if repeated:
            found.append(f"{who}: seed {_listed(list(map(str, repeated)))} appears more than once, "
                         "so its interval is narrower than it should be.")  # fmt: skip
        lost = [run.seed for run in group.runs if not np.isfinite(run.column("J_R")[-END_WINDOW:]).all()]
        if lost:
            seeds = _listed(list(map(str, lost)))
            found.append(f"{who}: J_R is not a number in some of the last {END_WINDOW} updates of seed {seeds}.")
        commits = sorted({str(run.versions["commit"])[:10] for run in group.runs if run.versions.get("commit")})
        if len(commits) > 1:
            found.append(f"{who}: its seeds come from different commits ({', '.join(commits)}).")
    single = [group.label for group in groups if len(group.runs) == 1]
    if single:
        found.append(f"One seed only, so no interval: {', '.join(dict.fromkeys(single))}.")
    return found


def _where(run: Run) -> str:
    return "/".join(run.folder.parts[-2:])


def _remarks(groups: Sequence[Group], skipped: Sequence[str]) -> str:
    found = [*remarks(groups), *(f"Left out: {sentence}." for sentence in skipped)]
    if not found:
        return ""
    items = "".join(f"<li>{_prose(sentence)}</li>" for sentence in found)
    return f"<section><h2>Before trusting a difference</h2><ul>{items}</ul></section>"


def _provenance(tasks: Mapping[str, Sequence[Group]]) -> str:
    blocks = []
    for task, groups in tasks.items():
        blocks.append(f"<h3>{_escape(task)}</h3>{_made_with(groups)}{_differences(groups)}")
        blocks.extend(_full_config(group) for group in groups)
    return f'<section id="what-was-run"><h2>What was run</h2>{"".join(blocks)}</section>'


def _plain_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    headings = "".join(f"<th>{_escape(cell)}</th>" for cell in head)
    body = "".join(
        f'<tr><th scope="row">{_escape(line[0])}</th>{"".join(f"<td>{_escape(cell)}</td>" for cell in line[1:])}</tr>'
        for line in lines
    )
    table = f'<table class="plain"><thead><tr>{headings}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def _made_with(groups: Sequence[Group]) -> str:
    lines = []
    for group in groups:
        told = {key: _told(group, key) for key in ("commit", "hardware", "started")}
        libraries = [key for key in group.runs[0].versions if key not in told]
        versions = ", ".join(f"{key} {_told(group, key)}" for key in libraries)
        seeds, updates = ", ".join(map(str, group.seeds)), f"{len(group.updates)}"
        lines.append([group.label, seeds, updates, told["commit"], told["hardware"], told["started"], versions or "–"])
    return _plain_table(["algorithm", "seeds", "updates", "commit", "hardware", "started", "versions"], lines)


def _told(group: Group, key: str) -> str:
    """What versions.json says of this key, over all seeds; starting times as their range."""
    values = sorted({str(run.versions[key]) for run in group.runs if run.versions.get(key)})
    if key == "commit":
        values = sorted({value[:10] for value in values})
    if key == "started" and len(values) > 1:
        return f"{values[0]} to {values[-1]}"
    return " / ".join(values) or "–"


def _differences(groups: Sequence[Group]) -> str:
    differing = differing_settings([group.runs[0].config for group in groups])
    if len(groups) < 2 or not differing[0]:
        return ""
    lines = [[key, *(setting_text(own[key]) for own in differing)] for key in differing[0]]
    table = _plain_table(["setting", *(group.label for group in groups)], lines)
    return f"<p>Settings that differ between them; all others are equal.</p>{table}"


def _full_config(group: Group) -> str:
    folders = ", ".join(_where(run) for run in group.runs)
    config = json.dumps(dict(group.runs[0].config), indent=2, default=str, ensure_ascii=False)
    return (
        f"<details><summary>Full configuration of {_escape(group.label)}</summary>"
        f'<p class="quiet">As recorded for seed {group.runs[0].seed}; folders: {_escape(folders)}</p>'
        f"<pre>{_escape(config)}</pre></details>\n"
    )


_READING_GUIDE = f"""<section><h2>How to read this page</h2><dl>
<dt>{_prose("J_R")}</dt><dd>discounted reward of an episode.</dd>
<dt>{_prose("J_C")}, {_prose("h_C")}</dt><dd>undiscounted cost of an episode, and the most it may be on average.</dd>
<dt>{_prose("J_D")}, {_prose("h_D")}</dt><dd>divergence KL(π ‖ π<sub>B</sub>) summed over an episode, and its threshold;
empty for algorithms that do not look at a baseline.</dd>
<dt>baseline π<sub>B</sub></dt><dd>the policy to learn from; a dotted line shows what it achieves by itself.</dd>
<dt>update</dt><dd>one policy update. A run is one seed.</dd>
<dt>at the end</dt><dd>mean of the last {END_WINDOW} updates; “at the last” is the last update alone.</dd>
<dt>limit kept</dt><dd>the mean over seeds of {_prose("J_C")} at the end is at most {_prose("h_C")}; no tolerance.</dd>
<dt>cumulative violation</dt><dd>sum over updates of max(0, {_prose("J_C")} − {_prose("h_C")}).</dd>
<dt>within {_prose("h_C")} from update</dt><dd>first update from which {_prose("J_C")} stays there.</dd>
<dt>interquartile</dt><dd>mean over the middle half of the seeds.</dd>
</dl></section>"""


def _css() -> str:
    light = "".join(f"--series-{i}: {pair[0]}; " for i, pair in enumerate(figures.SERIES))
    dark = "".join(f"--series-{i}: {pair[1]}; " for i, pair in enumerate(figures.SERIES))
    return _STYLE.replace("/*light*/", light).replace("/*dark*/", dark)


_STYLE = """
:root { color-scheme: light dark; --font: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  --page: #f5f6f8; --sheet: #ffffff; --ink: #1c2024; --quiet: #59626b; --faint: #8a929a; --line: #dfe3e8;
  --unsafe: #c8102e; --apple: #3c8d2f; --good: #1a7f4b; --good-tint: #e3f4ea; --bad-tint: #fdeaec; /*light*/ }
@media (prefers-color-scheme: dark) { :root {
  --page: #14171a; --sheet: #1d2125; --ink: #e8eaed; --quiet: #a3acb5; --faint: #8a929a; --line: #343a40;
  --unsafe: #ff6b7d; --apple: #7fce6e; --good: #5fd39a; --good-tint: #17362a; --bad-tint: #42202a; /*dark*/ } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 var(--font); }
main { max-width: 1240px; margin: 0 auto; padding: 2rem clamp(1rem, 3vw, 2.5rem) 4rem; }
h1 { font-size: clamp(1.6rem, 3.5vw, 2.3rem); line-height: 1.2; margin: 0 0 .8rem; letter-spacing: -.015em; }
h2 { font-size: 1.45rem; margin: 3rem 0 1rem; padding-top: 1.2rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.02rem; margin: 1.6rem 0 .5rem; }
sub { line-height: 0; font-size: .72em; }
.headline { font-size: clamp(1.05rem, 1.8vw, 1.25rem); max-width: 62em; margin: .5rem 0; text-wrap: pretty; }
.headline .task { display: inline-block; margin-right: .35em; padding: 0 .55em; border-radius: .4em;
  background: var(--line); color: inherit; font-size: .82em; text-decoration: none; }
.quiet, figcaption { color: var(--quiet); font-size: .88rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(218px, 100%), 1fr)); gap: 1rem; }
.card, figure, .scroll, pre { background: var(--sheet); border: 1px solid var(--line); border-radius: .7rem; }
.card, figure { margin: 0; padding: 1rem 1.1rem; }
.card { border-top: 4px solid var(--own); overflow-wrap: anywhere; }
.card h3 { margin: 0; font-size: .98rem; }
.card p { margin: .45rem 0 0; }
.card .big { font-size: 1.95rem; font-weight: 650; line-height: 1.2; font-variant-numeric: tabular-nums; }
.card .big span { font-size: 1.05rem; font-weight: 400; color: var(--quiet); }
.card .big small { font-size: 1rem; font-weight: 400; color: var(--quiet); }
.card .cost { font-size: .93rem; }
.chip { display: inline-block; padding: .05em .6em; border-radius: 1em; font-size: .84em; font-weight: 600; }
.chip.kept { color: var(--good); background: var(--good-tint); }
.chip.broken { color: var(--unsafe); background: var(--bad-tint); }
.chip.unmeasured { color: var(--quiet); background: var(--line); }
.meter { position: relative; height: .5rem; margin-top: .8rem; border-radius: .25rem; background: var(--line); }
.meter div { height: 100%; border-radius: .25rem; }
.meter .kept { background: var(--good); }
.meter .broken { background: var(--unsafe); }
.meter i { position: absolute; left: 66.7%; top: -.2rem; height: .9rem; width: 2px; background: var(--ink); }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; align-items: center; margin-top: 1.6rem; padding: .6rem 0;
  background: var(--page); font-size: .95rem; }
@media (min-width: 900px) and (min-height: 500px) { .legend { position: sticky; top: 0; z-index: 2; } }
.swatch { width: 1.7em; height: .55em; margin-right: .45em; vertical-align: .08em; flex: none; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(430px, 100%), 1fr)); gap: 1rem; }
figure { min-width: 0; }
figure h3 { margin: 0 0 .4rem; }
figcaption { margin-top: .4rem; }
.plot { display: block; width: 100%; height: auto; }
.paths .plot { max-width: 640px; max-height: 460px; margin: 0 auto; }
img.plot { background: #fff; border-radius: .4rem; }
.scroll { overflow-x: auto; margin: .5rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .87rem; font-variant-numeric: tabular-nums; }
th, td { padding: .5rem .6rem; text-align: right; white-space: nowrap; border-top: 1px solid var(--line); }
thead th { border-top: 0; color: var(--quiet); font-weight: 500; white-space: normal; vertical-align: bottom; }
thead th { min-width: 5em; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--sheet); }
tbody th { font-weight: 500; white-space: normal; min-width: 12em; max-width: 18em; }
.best td, .best th { font-weight: 700; }
td.good { color: var(--good); }
td.bad { color: var(--unsafe); }
.plain td, .plain th { text-align: left; }
.plain td { white-space: normal; min-width: 5em; overflow-wrap: anywhere; }
@media (max-width: 600px) { th:first-child { position: static; } }
details { margin: .5rem 0; }
summary { cursor: pointer; padding: .25rem 0; }
pre { overflow-x: auto; padding: 1rem; font-size: .82rem; }
ul { padding-left: 1.2rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .35rem 1.2rem; margin: 0; font-size: .93rem; }
dt { font-weight: 600; }
dd { margin: 0; }
@media (max-width: 600px) { dl { grid-template-columns: 1fr; gap: .1rem; } dd { margin-bottom: .5rem; } }
@media print { .legend { position: static; } .card, figure { break-inside: avoid; } }
"""
