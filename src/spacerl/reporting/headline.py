"""What the numbers of one task say, in plain words; made from the numbers, also when SPACE is behind."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spacerl.reporting.groups import Group
from spacerl.reporting.statistics import SummaryRow, difference_interval, end_values, summary_table
from spacerl.reporting.text import cost_text, excess_text, listed, number_text


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
    further = any(group.updates[-1] > last for group in groups)
    opening = f"After {min(row.updates for _, row in pairs)} updates{', as far as all have run,' if further else ''}"
    ours = [pair for pair in measured if pair[0].is_space]
    others = sorted((p for p in measured if not p[0].is_space), key=lambda p: -p[1].reward_end.mean)
    if len(ours) > 1:
        sentences = _several_sentences(opening, [row for _, row in ours], [row for _, row in others])
    elif ours:
        sentences = _versus_sentences(opening, ours[0], others, last)
    else:
        sentences = _versus_sentences(opening, others[0], others[1:], last)
    absent = [row.label for _, row in pairs if not math.isfinite(row.reward_end.mean)]
    if absent:
        sentences.append(f"{listed(absent)} recorded no reward at the end.")
    return " ".join(sentences)


def _versus_sentences(
    opening: str, us: tuple[Group, SummaryRow], others: Sequence[tuple[Group, SummaryRow]], last: float
) -> list[str]:
    row, rows = us[1], [row for _, row in others]
    sentences = [_reward_sentence(opening, row, rows)]
    if row.within_limit and row.seeds_over:
        sentences.append(f"In {row.seeds_over} of {row.seeds} seeds J_C ends above the limit.")
    if not others:
        return [*sentences, "There is no other algorithm here to compare with."]
    rival = rows[0]
    if rival.constrained and not rival.within_limit:
        sentences.append(f"{rival.label} is over the limit: J_C {cost_text(rival)} allowed.")
        sentences += _safe_rival_sentence(rows)
    if math.isfinite(row.violation.mean) and math.isfinite(rival.violation.mean):
        pair = f"{number_text(row.violation.mean)} against {number_text(rival.violation.mean)}"
        sentences.append(f"Cumulative violation: {pair}.")
    return [*sentences, _chance_sentence(us[0], others[0][0], last)]


def _reward_sentence(opening: str, row: SummaryRow, others: Sequence[SummaryRow]) -> str:
    mine = number_text(row.reward_end.mean)
    if not others:
        return f"{opening} {row.label} reaches J_R {mine}{_cost_clause(row, behind=False)}."
    rival = others[0]
    behind = row.reward_end.mean < rival.reward_end.mean
    name = f"{rival.label}, the best of {len(others)} others" if len(others) > 1 else rival.label
    verb = "is behind: J_R" if behind else "reaches J_R"
    against = f"against {number_text(rival.reward_end.mean)} for {name}"
    return f"{opening} {row.label} {verb} {mine} {against}{_cost_clause(row, behind)}."


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
    over = [f"{row.label} at {cost_text(row)} allowed" for row in limited if not row.within_limit]
    if over:
        sentences.append(f"Over the cost limit: {listed(over)}.")
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
        return f"; J_C is {cost_text(row)} allowed"
    joint = "and" if behind else "but"
    return f", {joint} it breaks the cost limit: J_C is {cost_text(row)} allowed, {excess_text(row)}"


def _chance_sentence(ours: Group, theirs: Group, last: float) -> str:
    gap = difference_interval(end_values(ours.curve("J_R", last)), end_values(theirs.curve("J_R", last)))
    if gap.n < 2:
        return "One seed is too few to rule out chance."
    seeds = f"{len(ours.runs)} and {len(theirs.runs)} seeds"
    reach = f"95 % interval {number_text(gap.low)} to {number_text(gap.high)}, {seeds}"
    if gap.low <= 0.0 <= gap.high:
        return f"The difference in J_R could be chance ({reach})."
    return f"The difference in J_R is {number_text(gap.mean)} ({reach})."
