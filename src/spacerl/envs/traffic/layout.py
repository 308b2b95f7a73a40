"""The roads of the grid: what they are called, where they are and who drives along them."""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

from spacerl.envs.traffic.networks import PlainNetwork, element

INNER, ENTRY, EXIT = 300.0, 300.0, 100.0  # m
SPEED_LIMIT = 35.0  # m/s


class Crossing(NamedTuple):
    """One traffic light and the edges that lead to it: from west, south, east and north."""

    name: str
    approaches: tuple[str, str, str, str]


class Layout:
    """Names and places of a grid of crossings, as Flow has them: crossings from the south-west, row by row; `bot` leads
    east, `top` west, `right` north and `left` south."""

    def __init__(self, rows: int, columns: int):
        self.rows, self.columns = rows, columns
        across = [(kind, r, c) for r in range(rows) for c in range(columns + 1) for kind in ("bot", "top")]
        up = [(kind, r, c) for r in range(rows + 1) for c in range(columns) for kind in ("left", "right")]
        named = {f"{kind}{r}_{c}": (kind, r, c) for kind, r, c in across + up}
        self._place = named
        self.edges = tuple(sorted(named, key=self.number))
        self.lengths = [self.length(name) for name in self.edges]

    def number(self, edge: str) -> int:
        """Of an edge, counted as in Flow."""
        kind, r, c = self._place[edge]
        below = 2 * (self.columns + 1) * r + 2 * self.columns * r
        if kind in ("bot", "top"):
            return below + 2 * self.columns + 2 * c + 1 + (kind == "top")
        return below + 2 * c + 1 + (kind == "right")

    @property
    def numbered(self) -> int:
        """How many numbers Flow has for edges; it counts both directions twice."""
        return 4 * ((self.columns + 1) * self.rows + self.columns)

    @functools.cached_property
    def crossings(self) -> tuple[Crossing, ...]:
        return tuple(
            Crossing(self._centre(r, c), (f"bot{r}_{c}", f"right{r}_{c}", f"top{r}_{c + 1}", f"left{r + 1}_{c}"))
            for r in range(self.rows)
            for c in range(self.columns)
        )

    def _centre(self, r: int, c: int) -> str:
        return f"center{r * self.columns + c}"

    def ends(self, edge: str) -> tuple[str, str]:
        """Nodes that an edge leads from and to."""
        kind, r, c = self._place[edge]
        if kind in ("bot", "top"):
            west = self._centre(r, c - 1) if c > 0 else f"west{r}"
            east = self._centre(r, c) if c < self.columns else f"east{r}"
            return self._directed((west, east) if kind == "bot" else (east, west))
        south = self._centre(r - 1, c) if r > 0 else f"south{c}"
        north = self._centre(r, c) if r < self.rows else f"north{c}"
        return self._directed((south, north) if kind == "right" else (north, south))

    @staticmethod
    def _directed(ends: tuple[str, str]) -> tuple[str, str]:
        """Vehicles enter at another node than they leave at: entries are longer."""
        start, end = ends
        inner = "center"
        return (
            start if start.startswith(inner) else f"{start}_in",
            end if end.startswith(inner) else f"{end}_out",
        )

    def length(self, edge: str) -> float:
        start, end = self.ends(edge)
        return ENTRY if start.endswith("_in") else EXIT if end.endswith("_out") else INNER

    def routes(self) -> dict[str, tuple[str, ...]]:
        """Straight on from every entry, by the entry's name."""
        rows, columns = self.rows, self.columns
        routes = []
        for r in range(rows):
            routes.append(tuple(f"bot{r}_{c}" for c in range(columns + 1)))
            routes.append(tuple(f"top{r}_{c}" for c in reversed(range(columns + 1))))
        for c in range(columns):
            routes.append(tuple(f"right{r}_{c}" for r in range(rows + 1)))
            routes.append(tuple(f"left{r}_{c}" for r in reversed(range(rows + 1))))
        return {route[0]: route for route in routes}

    def plain_network(self, radius: float) -> PlainNetwork:
        nodes = []
        for r in range(self.rows):
            for c in range(self.columns):
                place = {"x": c * INNER, "y": r * INNER}
                nodes.append(element("node", id=self._centre(r, c), **place, type="traffic_light", radius=radius))
        width, height = (self.columns - 1) * INNER, (self.rows - 1) * INNER
        for way, away in (("in", ENTRY), ("out", EXIT)):
            for c in range(self.columns):
                nodes.append(element("node", id=f"south{c}_{way}", x=c * INNER, y=-away, type="priority"))
                nodes.append(element("node", id=f"north{c}_{way}", x=c * INNER, y=height + away, type="priority"))
            for r in range(self.rows):
                nodes.append(element("node", id=f"west{r}_{way}", x=-away, y=r * INNER, type="priority"))
                nodes.append(element("node", id=f"east{r}_{way}", x=width + away, y=r * INNER, type="priority"))
        edges = []
        for name in self.edges:
            start, end = self.ends(name)
            shape = {"numLanes": 1, "speed": SPEED_LIMIT, "priority": 78, "length": self.length(name)}
            edges.append(element("edge", id=name, from_=start, to=end, **shape))
        straight = [pair for route in self.routes().values() for pair in itertools.pairwise(route)]
        connections = [element("connection", from_=a, to=b, fromLane=0, toLane=0) for a, b in straight]
        return PlainNetwork("grid", tuple(nodes), tuple(edges), tuple(connections))
