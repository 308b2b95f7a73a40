"""Figures as markup that stands inside an HTML page: no outside reference, colours from the page's theme."""

from __future__ import annotations

import base64
import html
import io
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from spacerl.reporting.palette import PAGE_COLOURS, RC

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST_SVG = 400_000  # characters; beyond this a PNG is lighter


def inline_svg(figure: Figure, prefix: str, description: str) -> str:
    """A figure as markup for an HTML page: no outside reference, ids unique by ``prefix``, colours from its theme.

    ``description`` is what a screen reader says. A drawing too large as SVG becomes an embedded PNG.
    """
    svg = _drawn(figure)
    spoken = html.escape(description, quote=True)
    if len(svg) > LARGEST_SVG:
        return f'<img class="plot" alt="{spoken}" src="data:image/png;base64,{_png(figure)}">'
    view_box = re.search(r'viewBox="[^"]*"', svg)
    assert view_box is not None
    points = html.escape(json.dumps(_points(figure), separators=(",", ":")), quote=True)
    opening = f'<svg class="plot" role="img" aria-label="{spoken}" data-curves="{points}" {view_box[0]}>'
    svg = _subscripts(_themed(_with_ids(svg, prefix)))
    return re.sub(r"<svg[^>]*>", lambda _: opening, svg, count=1)  # last: a description is not to be themed


def _points(figure: Figure) -> list[dict[str, Any]]:
    """Every mean curve: the number of its group, its values, and where they are in the drawing, for a pointer."""
    found, height = [], figure.get_figheight() * 72.0
    for axes in figure.axes:
        for line in axes.lines:
            number = re.fullmatch(r"curve(\d+)-line", line.get_gid() or "")
            if number is None:
                continue
            values = np.column_stack([np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)])
            values = values[np.isfinite(values).all(axis=1)]
            placed = axes.transData.transform(values) * 72.0 / figure.dpi
            points = {"x": values[:, 0], "y": values[:, 1], "px": placed[:, 0], "py": height - placed[:, 1]}
            rounded = {name: [float(f"{value:.5g}") for value in column] for name, column in points.items()}
            found.append({"curve": int(number[1]), **rounded})
    return found


def _drawn(figure: Figure) -> str:
    """The <svg> element that matplotlib makes, without the declarations and metadata of a file of its own."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context(RC):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    svg = buffer.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)


def _with_ids(svg: str, prefix: str) -> str:
    """Ids of one drawing, and the references to them, told from those of others on the page."""
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    return svg.replace('href="#', f'href="#{prefix}-').replace("url(#", f"url(#{prefix}-")


def _themed(svg: str) -> str:
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 var(--font)", svg)
    for fixed, themed in PAGE_COLOURS.items():
        svg = svg.replace(fixed, themed)
    return svg


def _subscripts(svg: str) -> str:
    """Set J_R, h_C and the like with a lowered index; the zero-width space carries the return to the baseline."""
    lowered = r'\1<tspan dy="2" style="font-size: 75%">\2</tspan><tspan dy="-2">&#8203;</tspan>'
    return re.sub(r"([Jh]|π)_([RCDB])", lowered, svg)


def _png(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=170, facecolor="white")
    return base64.b64encode(buffer.getvalue()).decode("ascii")
