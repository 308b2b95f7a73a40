"""Numbers as words of a line."""

from __future__ import annotations

LARGE = 1e5


def number_text(value: float, decimals: int) -> str:
    """With so many decimals, but for what these would hide or drown: what is too small for them keeps its digits, and
    what is large has none."""
    size = abs(value)
    if size >= LARGE:
        return f"{value:,.0f}" if size < 1e12 else f"{value:.4g}"
    return f"{value:.{decimals}f}" if value == 0 or size >= 10.0 ** (1 - decimals) else f"{value:.{decimals}g}"
