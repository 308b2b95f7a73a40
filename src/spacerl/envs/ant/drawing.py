"""Images of the ant tasks, drawn with Pillow: the arena from above, and beside it the ant from nearby.

MuJoCo's own renderer wants OpenGL, which a machine without a screen often lacks or has only in software. An ant is
thirteen capsules, which a pen draws as thick lines: these images look the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from spacerl.envs import drawing
from spacerl.envs.ant.model import KNEE_SIGN, LEG_X, LEG_Y, LIMB_RADIUS, SHIN, THIGH, TORSO_RADIUS
from spacerl.envs.drawing import GRID, MUTED, PAPER, SIZE, SUPERSAMPLING, Scene

BROWN, DARK = (176, 124, 72), (110, 74, 40)
SHADOW = (214, 216, 219)
INSET = 160  # pixels, width and height of the view from nearby
INSET_METRES = 3.2  # what it spans
TILT = np.radians(35.0)  # of its camera, above the horizon


def limbs(qpos: np.ndarray) -> np.ndarray:
    """Centre of the torso, hip, knee and foot of each leg in the world, (4, 4, 3) m."""
    hip, knee = qpos[7::2], KNEE_SIGN * qpos[8::2]
    direction = np.stack([LEG_X, LEG_Y], axis=1)
    turned = np.stack([LEG_X * np.cos(hip) - LEG_Y * np.sin(hip), LEG_X * np.sin(hip) + LEG_Y * np.cos(hip)], axis=1)
    points = np.zeros((4, 4, 3))
    points[:, 1, :2] = THIGH * direction
    points[:, 2, :2] = points[:, 1, :2] + THIGH * turned
    points[:, 3, :2] = points[:, 2, :2] + SHIN * np.cos(knee)[:, None] * turned
    points[:, 3, 2] = -np.sqrt(2.0) * SHIN * np.sin(knee)
    w, v = qpos[3], qpos[4:7]
    twice = 2.0 * np.cross(v, points)
    return qpos[:3] + points + w * twice + np.cross(v, twice)


def ant_frame(scene: Scene) -> np.ndarray:
    """The frame, (400, 560, 3) uint8; `scene` is what the point tasks draw, the ant takes the robot's place."""
    half_height, background = drawing.BACKGROUNDS[scene.arena["kind"]]
    canvas = drawing.Canvas.seeing(half_height(scene))
    for part in (drawing.draw_grid, background, drawing.draw_sensor, drawing.draw_objects, _trail, drawing.draw_header):
        part(canvas, scene)
    assert scene.pose is not None
    points = limbs(scene.pose)
    middle_x, middle_y = canvas.pixel((0.0, 0.0))
    scale = canvas.pixels_per_metre
    from_above = _View(middle_x, middle_y, scale, np.array([[1.0, 0, 0], [0, -1.0, 0]]), np.array([0, 0, 1.0]))
    _ant(canvas.pen, from_above, points, outline=1)
    frame = Image.new("RGB", ((SIZE + INSET) * SUPERSAMPLING, SIZE * SUPERSAMPLING), drawing.WHITE)
    frame.paste(canvas.image, (0, 0))
    frame.paste(_nearby(points), (SIZE * SUPERSAMPLING, drawing.HEADER * SUPERSAMPLING))
    return np.array(frame.resize((SIZE + INSET, SIZE), Image.Resampling.LANCZOS))


def _trail(canvas: drawing.Canvas, scene: Scene) -> None:
    """Where the ant has been; a step is a few centimetres, so no single one is marked."""
    for start, end, cost in zip(scene.trail[:-1], scene.trail[1:], scene.costs, strict=True):
        canvas.line(start, end, colour=drawing.RED if cost > 0 else drawing.BLUE, width=2)


@dataclass(frozen=True)
class _View:
    """A camera without perspective: metres to pixels."""

    left: float
    top: float
    scale: float
    axes: np.ndarray
    """(2, 3) what moves a point right and down in the image."""
    towards: np.ndarray
    """(3,) what moves it nearer to the camera."""

    def pixel(self, point: np.ndarray) -> tuple[float, float]:
        right, down = self.axes @ point
        return self.left + self.scale * right, self.top + self.scale * down


def _ant(pen: ImageDraw.ImageDraw, view: _View, points: np.ndarray, outline: float) -> None:
    """Capsules and the torso, far ones first; each has a dark rim, which tells them apart where they overlap."""
    parts = [(points[leg, i : i + 2], LIMB_RADIUS) for leg in range(4) for i in range(3)]
    parts.append((points[0, [0, 0]], TORSO_RADIUS))
    parts.sort(key=lambda part: float(np.mean(part[0] @ view.towards)))
    for ends, radius in parts:
        for extra, colour in ((outline * SUPERSAMPLING, DARK), (0.0, BROWN)):
            _capsule(pen, view.pixel(ends[0]), view.pixel(ends[1]), radius * view.scale + extra, colour)


def _capsule(pen: ImageDraw.ImageDraw, a: tuple[float, float], b: tuple[float, float], r: float, colour: tuple) -> None:
    pen.line([a, b], fill=colour, width=max(1, round(2 * r)))
    for x, y in (a, b):
        pen.ellipse([x - r, y - r, x + r, y + r], fill=colour)


def _nearby(points: np.ndarray) -> Image.Image:
    """The ant from the side and a little above, over its shadow."""
    size = INSET * SUPERSAMPLING
    inset = Image.new("RGB", (size, size), PAPER)
    pen = ImageDraw.Draw(inset)
    scale = size / INSET_METRES
    axes = np.array([[1.0, 0.0, 0.0], [0.0, -np.sin(TILT), -np.cos(TILT)]])
    towards = np.array([0.0, -np.cos(TILT), np.sin(TILT)])
    centre = points[0, 0] * [1.0, 1.0, 0.0]
    view = _View(size / 2, 0.66 * size, scale, axes, towards)
    near = points - centre
    for metre in np.arange(-4.0, 5.0) - centre[0] % 1.0:
        pen.line([view.pixel(np.array([metre, -9.0, 0])), view.pixel(np.array([metre, 9.0, 0]))], fill=GRID, width=3)
    for metre in np.arange(-4.0, 5.0) - centre[1] % 1.0:
        pen.line([view.pixel(np.array([-9.0, metre, 0])), view.pixel(np.array([9.0, metre, 0]))], fill=GRID, width=3)
    shadow = near * [1.0, 1.0, 0.0]
    for leg in shadow:
        for i in range(3):
            _capsule(pen, view.pixel(leg[i]), view.pixel(leg[i + 1]), 0.8 * LIMB_RADIUS * scale, SHADOW)
    _capsule(pen, view.pixel(shadow[0, 0]), view.pixel(shadow[0, 0]), 0.8 * TORSO_RADIUS * scale, SHADOW)
    _ant(pen, view, near, outline=1)
    pen.rectangle([0, 0, size - 1, size - 1], outline=MUTED, width=SUPERSAMPLING)
    return inset
