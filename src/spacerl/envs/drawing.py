"""Images of the point tasks, drawn with Pillow from plain arrays; imports neither jax nor a task.

World coordinates are metres with y upwards. Everything is drawn `SUPERSAMPLING` times larger and reduced, which smooths
the edges Pillow leaves jagged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

SIZE = 400  # pixels, width and height of a frame
HEADER = 44  # pixels of it for the text on top
SUPERSAMPLING = 3

PAPER = (250, 250, 248)
INK = (38, 42, 51)
MUTED = (120, 126, 138)
GRID = (228, 229, 231)
OUTLINE = (150, 156, 168)
RED = (209, 73, 91)
GREEN = (47, 158, 91)
BLUE = (42, 111, 187)
WHITE = (255, 255, 255)
UNSAFE = (*RED, 38)
SENSOR, SENSOR_EDGE = (*BLUE, 22), (*BLUE, 60)
OBJECT_RADIUS = 0.42  # m, as drawn; what counts is the catch range
ROBOT_RADIUS = 0.5  # m, the sphere of the robot model
ROBOT_NOSE = 1.1  # m, the tip of the box that points ahead


@dataclass(frozen=True)
class Scene:
    """What one frame shows."""

    arena: dict[str, Any]
    """As in trajectories.json: {"kind": "circle", "radius", "x_limit"} or {"kind": "gather", "half_width", ...}."""
    trail: np.ndarray
    """(steps + 1, 2) positions from the reset to now, m."""
    costs: np.ndarray
    """(steps,) cost of each step; a step with a cost is drawn in red."""
    heading: float
    """rad, counter-clockwise from +x."""
    title: str = ""
    reward: float = 0.0
    """Sum of rewards so far."""
    objects: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))
    """(objects, 2) m, apples first."""
    alive: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    """(objects,) False for what has been picked up."""
    n_apples: int = 0
    sensor: tuple[float, float] | None = None
    """Range in m and field of view in rad of the sector ahead in which the robot senses objects; None draws none."""
    pose: np.ndarray | None = None
    """Joints of a robot that has some, as its drawing wants them."""


@dataclass(frozen=True)
class Canvas:
    """An image with a camera above the origin: shapes in metres in, pixels out."""

    image: Image.Image
    pen: ImageDraw.ImageDraw
    pixels_per_metre: float

    @staticmethod
    def seeing(half_height: float) -> Canvas:
        plot_height = (SIZE - HEADER) * SUPERSAMPLING
        image = Image.new("RGB", (SIZE * SUPERSAMPLING, SIZE * SUPERSAMPLING), PAPER)
        # A pen in RGBA mode on an RGB image mixes translucent colours with what is there.
        return Canvas(image, ImageDraw.Draw(image, "RGBA"), plot_height / (2 * half_height))

    def pixel(self, point: Any) -> tuple[float, float]:
        middle_x, middle_y = SIZE * SUPERSAMPLING / 2, (SIZE + HEADER) * SUPERSAMPLING / 2
        return middle_x + point[0] * self.pixels_per_metre, middle_y - point[1] * self.pixels_per_metre

    def box(self, low: Any, high: Any) -> list[float]:
        (left, bottom), (right, top) = self.pixel(low), self.pixel(high)
        return [left, top, right, bottom]

    def line(self, *points: Any, colour: tuple[int, ...], width: float) -> None:
        """A line through points in m, `width` in pixels of the finished frame."""
        self.pen.line([self.pixel(point) for point in points], fill=colour, width=round(width * SUPERSAMPLING))

    def disc(self, centre: Any, radius: float, **style: Any) -> None:
        x, y = self.pixel(centre)
        r = radius * self.pixels_per_metre
        self.pen.ellipse([x - r, y - r, x + r, y + r], **style)


def point_frame(scene: Scene) -> np.ndarray:
    """The frame, (400, 400, 3) uint8."""
    half_height, background = BACKGROUNDS[scene.arena["kind"]]
    canvas = Canvas.seeing(half_height(scene))
    for part in (draw_grid, background, draw_sensor, draw_objects, draw_trail, draw_robot, draw_header):
        part(canvas, scene)
    return np.array(canvas.image.resize((SIZE, SIZE), Image.Resampling.LANCZOS))


def draw_grid(canvas: Canvas, scene: Scene) -> None:
    far = SIZE * SUPERSAMPLING / canvas.pixels_per_metre
    step = 2.0 if far < 40 else 10.0
    for at in step * np.arange(-(far // step), far // step + 1):
        canvas.line((at, -far), (at, far), colour=GRID, width=1)
        canvas.line((-far, at), (far, at), colour=GRID, width=1)


def _circle_half_height(scene: Scene) -> float:
    # The robot may run away; the camera then steps back to keep it in the image.
    return max(1.4 * scene.arena["radius"], 1.1 * float(np.abs(scene.trail).max()) + 1.0)


def _circle_background(canvas: Canvas, scene: Scene) -> None:
    wall, far = scene.arena["x_limit"], SIZE * SUPERSAMPLING / canvas.pixels_per_metre
    for side in (-1, 1):
        edges = sorted((side * wall, side * far))
        canvas.pen.rectangle(canvas.box((edges[0], -far), (edges[1], far)), fill=UNSAFE)
        canvas.line((side * wall, -far), (side * wall, far), colour=RED, width=2)
    canvas.disc((0, 0), scene.arena["radius"], outline=OUTLINE, width=2 * SUPERSAMPLING)


def _gather_half_height(scene: Scene) -> float:
    return scene.arena["half_width"] + 1.3


def _gather_background(canvas: Canvas, scene: Scene) -> None:
    corner = np.full(2, scene.arena["half_width"])
    canvas.pen.rectangle(canvas.box(-corner, corner), outline=OUTLINE, width=2 * SUPERSAMPLING)


# kind of arena -> half the height the camera sees in m, and what lies below the robot
BACKGROUNDS = {
    "circle": (_circle_half_height, _circle_background),
    "gather": (_gather_half_height, _gather_background),
}


def draw_sensor(canvas: Canvas, scene: Scene) -> None:
    if scene.sensor is None:
        return
    reach, half_span = scene.sensor[0], np.degrees(scene.sensor[1]) / 2
    middle = -np.degrees(scene.heading)  # Pillow's angles run clockwise
    box = canvas.box(scene.trail[-1] - reach, scene.trail[-1] + reach)
    start, end = middle - half_span, middle + half_span
    canvas.pen.pieslice(box, start, end, fill=SENSOR, outline=SENSOR_EDGE, width=SUPERSAMPLING)


def draw_objects(canvas: Canvas, scene: Scene) -> None:
    for index, (place, there) in enumerate(zip(scene.objects, scene.alive, strict=True)):
        is_apple = index < scene.n_apples
        colour = GREEN if is_apple else RED
        if not there:
            canvas.disc(place, OBJECT_RADIUS, outline=(*colour, 150), width=2 * SUPERSAMPLING)
            continue
        canvas.disc(place, OBJECT_RADIUS, fill=colour)
        if is_apple:
            canvas.line(place + [0, 0.3], place + [0.12, 0.62], colour=INK, width=2)
        else:  # a cross, for those who cannot tell red from green
            canvas.line(place + [-0.16, -0.16], place + [0.16, 0.16], colour=WHITE, width=2)
            canvas.line(place + [-0.16, 0.16], place + [0.16, -0.16], colour=WHITE, width=2)


def draw_trail(canvas: Canvas, scene: Scene) -> None:
    colours = [RED if cost > 0 else BLUE for cost in scene.costs]
    for start, end, colour in zip(scene.trail[:-1], scene.trail[1:], colours, strict=True):
        canvas.line(start, end, colour=(*colour, 200), width=3)
    for point, colour in zip(scene.trail[:-1], colours, strict=True):
        canvas.disc(point, 3.2 * SUPERSAMPLING / canvas.pixels_per_metre, fill=colour)


def draw_robot(canvas: Canvas, scene: Scene) -> None:
    ahead = np.array([np.cos(scene.heading), np.sin(scene.heading)])
    left = np.array([-ahead[1], ahead[0]])
    centre = scene.trail[-1]
    # Seen from far away the robot would vanish; it is then drawn larger than it is.
    scale = max(1.0, 9 * SUPERSAMPLING / (ROBOT_RADIUS * canvas.pixels_per_metre))
    corners = (ROBOT_NOSE * ahead, 0.42 * left + 0.25 * ahead, -0.42 * left + 0.25 * ahead)
    canvas.pen.polygon([canvas.pixel(centre + scale * corner) for corner in corners], fill=INK)
    canvas.disc(centre, scale * ROBOT_RADIUS, fill=BLUE, outline=WHITE, width=2 * SUPERSAMPLING)


def draw_header(canvas: Canvas, scene: Scene) -> None:
    pen, width, height = canvas.pen, SIZE * SUPERSAMPLING, HEADER * SUPERSAMPLING
    pen.rectangle([0, 0, width, height], fill=WHITE)
    pen.line([(0, height), (width, height)], fill=GRID, width=SUPERSAMPLING)
    cost = float(np.sum(scene.costs))
    columns = (
        (12, scene.title, f"step {len(scene.costs)}", INK),
        (200, "reward", f"{scene.reward:.1f}", INK),
        (310, "cost", f"{cost:g}", RED if cost > 0 else INK),
    )
    for left, label, value, colour in columns:
        pen.text((left * SUPERSAMPLING, 6 * SUPERSAMPLING), label, fill=MUTED, font=_font(11))
        pen.text((left * SUPERSAMPLING, 20 * SUPERSAMPLING), value, fill=colour, font=_font(16))


@lru_cache
def _font(size: int) -> Any:
    return ImageFont.load_default(size * SUPERSAMPLING)
