"""Numbers and lists as words of a sentence or cells of a table."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from spacerl.reporting.statistics import Interval, SummaryRow


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


def cost_text(row: SummaryRow) -> str:
    """ "4.90 of 5.00", with digits enough that being over the limit is never rounded away; several costs by name."""
    if len(row.costs) > 1:
        text = ", ".join(f"{each.name} {_of_limit(each.end.mean, each.limit)}" for each in row.costs)
    else:
        text = _of_limit(row.cost_end.mean, row.limit_end)
    return f"{text} (tolerance {row.tolerance:g})" if row.tolerance else text


def _of_limit(cost: float, limit: float) -> str:
    texts = [(number_text(cost), number_text(limit))] + [(f"{cost:.{d}g}", f"{limit:.{d}g}") for d in range(4, 16)]
    first = next((pair for pair in texts if cost == limit or pair[0] != pair[1]), texts[-1])
    return " of ".join(first)


def excess_text(row: SummaryRow) -> str:
    excess = row.cost_end.mean - row.limit_end
    if row.limit_end <= 0:
        return f"over by {number_text(excess)}"
    percent = 100 * excess / row.limit_end
    return f"over by {percent:.0f} %" if percent >= 1 else "over by less than 1 %"


def satisfied_text(row: SummaryRow) -> str:
    if not row.constrained:
        return "–"
    if row.satisfied_seeds == 0:
        return "never"
    text = f"{row.satisfied_from.mean:.0f}"
    return text if row.satisfied_seeds == row.seeds else f"{text} ({row.satisfied_seeds} of {row.seeds} seeds)"


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def symbols(text: str) -> list[tuple[str, str, str]]:
    """Text cut at J_R, h_C and the like: (plain text, letter, index) each; the last has neither letter nor index."""
    pieces = [*re.split(r"\b([Jh])_([RCD])\b", text), "", ""]
    return list(zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True))
