"""Roads from above, drawn with Pillow: vehicles of human drivers and autonomous ones in two colours, and the lights."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from spacerl.envs.drawing import BLUE, GREEN, GRID, INK, MUTED, PAPER, RED, SUPERSAMPLING, WHITE
from spacerl.envs.traffic.scenario import Moment

HEADER, MARGIN = 44, 16  # pixels
ROAD, LANE_EDGE = (222, 224, 228), (200, 203, 209)
AUTONOMOUS = (232, 119, 34)
YELLOW = (240, 184, 0)
LIGHTS = {"r": RED, "y": YELLOW, "G": GREEN, "g": GREEN}
NARROW = 4.0  # a network so many times longer than wide is drawn stretched across


class Scene(NamedTuple):
    """What one frame shows."""

    title: str
    roads: tuple[tuple[np.ndarray, float], ...]  # lanes: points (n, 2) and width, m
    moment: Moment
    steps: int
    reward: float  # sum so far
    cost: float  # sum so far


class View(NamedTuple):
    """From metres to pixels. A long road is stretched across, so that its lanes can be told apart; elsewhere vehicles
    are moved to their side of the road, which is narrower than a pixel."""

    corner: np.ndarray  # (2,) m, lower left
    scale: np.ndarray  # (2,) pixels per m
    size: tuple[int, int]  # pixels
    aside: float  # pixels

    def pixels(self, points: Any) -> np.ndarray:
        """(..., 2) m to pixels."""
        at = (np.asarray(points, float) - self.corner) * self.scale
        flipped = np.stack([at[..., 0], self.size[1] / SUPERSAMPLING - MARGIN - at[..., 1]], -1)
        return (flipped + np.array([MARGIN, 0.0])) * SUPERSAMPLING

    def direction(self, angle: Any) -> np.ndarray:
        """(..., 2) unit vectors on the image of directions in rad."""
        vector = np.stack([np.cos(angle) * self.scale[0], -np.sin(angle) * self.scale[1]], -1)
        return vector / np.maximum(np.linalg.norm(vector, axis=-1, keepdims=True), 1e-9)


def traffic_frame(scene: Scene) -> np.ndarray:
    """The frame, (height, width, 3) uint8."""
    view = _view(scene.roads)
    image = Image.new("RGB", view.size, PAPER)
    pen = ImageDraw.Draw(image, "RGBA")
    _draw_roads(pen, view, scene.roads)
    _draw_lights(pen, view, scene.moment)
    _draw_vehicles(pen, view, scene.moment)
    _draw_header(pen, view, scene)
    width, height = (side // SUPERSAMPLING for side in view.size)
    return np.array(image.resize((width, height), Image.Resampling.LANCZOS))


def _view(roads: tuple[tuple[np.ndarray, float], ...]) -> View:
    points = np.concatenate([shape for shape, _ in roads])
    low, high = points.min(0) - 4.0, points.max(0) + 4.0
    extent = high - low
    if extent[0] > NARROW * extent[1]:
        width, height = 760, HEADER + 150
        room = np.array([width, height - HEADER]) - 2 * MARGIN
        scale, aside = room / extent, 0.0
    else:
        side = 480
        scale = np.full(2, (side - 2 * MARGIN) / extent.max())
        width, height, aside = side, HEADER + round(extent[1] * scale[1]) + 2 * MARGIN, 4.5
    return View(low, scale, (width * SUPERSAMPLING, height * SUPERSAMPLING), aside)


def _draw_roads(pen: ImageDraw.ImageDraw, view: View, roads: tuple[tuple[np.ndarray, float], ...]) -> None:
    for grown, colour in ((2, LANE_EDGE), (0, ROAD)):
        for shape, width in roads:
            across = max(width * view.scale[1], 4 * view.aside)
            line = [tuple(point) for point in view.pixels(shape)]
            pen.line(line, fill=colour, width=round((across + grown) * SUPERSAMPLING))
    if view.aside:
        return
    for shape, width in roads:  # where lanes can be told apart, they are
        for side in (-0.5, 0.5):
            edge = [tuple(point) for point in view.pixels(shape + np.array([0.0, side * width]))]
            pen.line(edge, fill=LANE_EDGE, width=SUPERSAMPLING)


def _draw_vehicles(pen: ImageDraw.ImageDraw, view: View, moment: Moment) -> None:
    if not len(moment.position):
        return
    ahead = view.direction(moment.angle)
    right = np.stack([-ahead[:, 1], ahead[:, 0]], -1)
    front = view.pixels(moment.position) + view.aside * SUPERSAMPLING * right
    long, wide = 8.0 * SUPERSAMPLING, (2.4 if view.aside else 3.2) * SUPERSAMPLING
    for tip, along, across, autonomous in zip(front, ahead, right, moment.autonomous, strict=True):
        corners = [tip - wide * across, tip + wide * across]
        corners += [corners[1] - long * along, corners[0] - long * along]
        pen.polygon([tuple(corner) for corner in corners], fill=AUTONOMOUS if autonomous else BLUE)


def _draw_lights(pen: ImageDraw.ImageDraw, view: View, moment: Moment) -> None:
    for place, angle, state in moment.lights:
        ahead = view.direction(np.array(angle))
        right = np.array([-ahead[1], ahead[0]])
        x, y = view.pixels(place) + 2.6 * view.aside * SUPERSAMPLING * right
        r = 4.0 * SUPERSAMPLING
        pen.ellipse([x - r, y - r, x + r, y + r], fill=LIGHTS.get(state, MUTED), outline=INK, width=SUPERSAMPLING)


def _draw_header(pen: ImageDraw.ImageDraw, view: View, scene: Scene) -> None:
    width, height = view.size[0], HEADER * SUPERSAMPLING
    pen.rectangle([0, 0, width, height], fill=WHITE)
    pen.line([(0, height), (width, height)], fill=GRID, width=SUPERSAMPLING)
    speeds = scene.moment.speed
    mean = f"{speeds.mean():.1f} m/s" if len(speeds) else "none"
    columns = (
        (scene.title, f"{scene.moment.time:g} s", INK),
        ("vehicles", str(len(speeds)), INK),
        ("mean speed", mean, INK),
        ("reward", f"{scene.reward:.1f}", INK),
        ("cost", f"{scene.cost:g}", RED if scene.cost > 0 else INK),
    )
    for i, (label, value, colour) in enumerate(columns):
        left = 12 * SUPERSAMPLING + i * (width - 12 * SUPERSAMPLING) // len(columns)
        pen.text((left, 6 * SUPERSAMPLING), label, fill=MUTED, font=_font(11))
        pen.text((left, 20 * SUPERSAMPLING), value, fill=colour, font=_font(16))


@lru_cache
def _font(size: int) -> Any:
    return ImageFont.load_default(size * SUPERSAMPLING)
