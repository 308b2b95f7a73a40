"""What Gymnasium's CarRacing shows, 96 x 96 pixels of it, drawn in a fraction of the time.

Gymnasium draws every polygon in a window of 1000 x 800 pixels and shrinks that. Here the ground is looked up in an
image of the track, four points for a pixel. The car and the bar of indicators are Gymnasium's own drawings, in windows
that are no larger than they are. docs/results/car-racing.md says how far the images differ.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pygame
from gymnasium.envs.box2d import car_dynamics as dynamics
from gymnasium.envs.box2d import car_racing as original

from spacerl.envs.racing.world import EDGE, LEVELS, SIDE, TEXEL, World, grass

PIXELS = original.STATE_W
WINDOW = (original.WINDOW_W, original.WINDOW_H)
BAR = 12  # rows of pixels that indicators take
BAR_WINDOW = (0, 700, 1000, 100)  # the same in Gymnasium's window
CAR_ROWS, CAR_COLUMNS = slice(66, 78), slice(36, 60)  # pixels that the car is within
CAR_WINDOW = (375, 150, 250, 100)  # the same in Gymnasium's window, before it is turned upside down
CAR_PLACE = (WINDOW[0] / 2 - CAR_WINDOW[0], WINDOW[1] / 4 - CAR_WINDOW[1])  # of its middle
POINTS = 2  # that are looked up for a pixel, in each direction
SCORE_PLACE = (60, 750)  # in Gymnasium's window
LOST = 2  # levels of brightness that pygame's shrinking takes off everything
FIXED = 1 << 16  # places in the image of the track are whole numbers of this part of a texel


class View:
    """The images of one environment, episode after episode."""

    def __init__(self) -> None:
        self._world = World()
        self._bar = pygame.Surface(WINDOW)
        self._car = pygame.Surface(CAR_WINDOW[2:], pygame.SRCALPHA)
        columns = (np.arange(POINTS * PIXELS) + 0.5) * WINDOW[0] / (POINTS * PIXELS)
        rows = (np.arange(POINTS * (PIXELS - BAR)) + 0.5) * WINDOW[1] / (POINTS * PIXELS)
        self._x, self._y = (
            columns - WINDOW[0] / 2,
            WINDOW[1] - rows - WINDOW[1] / 4,
        )  # from the car
        self._index = np.empty((len(rows), len(columns)), np.int32)
        self._row = np.empty_like(self._index)
        self._found = np.empty(self._index.shape, np.uint32)

    def begin(self, env: Any) -> None:
        """A new track."""
        colours = shrunk(env.bg_color), shrunk(env.grass_color)
        self._world.begin(grass(original.PLAYFIELD, original.GRASS_DIM, *colours))
        for quad, colour in env.road_poly:
            self._world.cover(quad, shrunk(colour))
        self._world.finish()
        self._driven: set[int] = set()
        self._quads = [quad for quad, colour in env.road_poly if not isinstance(colour, tuple)]  # those of borders are
        self._road = int(env.road_color[0])

    def observe(self, env: Any) -> np.ndarray:
        """(96, 96, 3) bytes."""
        self._note_driven(env.car)
        zoom = 0.1 * original.SCALE * max(1 - env.t, 0) + original.ZOOM * original.SCALE * min(env.t, 1)
        image = np.empty((PIXELS, PIXELS, 3), np.uint8)
        self._draw_ground(image, env.car.hull, zoom)
        self._draw_car(image, env.car, zoom)
        self._draw_bar(image, env)
        return image

    def _note_driven(self, car: Any) -> None:
        """Gymnasium's tiles have one of three shades, and lose it when they are touched."""
        for wheel in car.wheels:
            for tile in wheel.tiles:
                if tile.idx not in self._driven:
                    self._driven.add(tile.idx)
                    shade = int(self._road + 0.01 * (tile.idx % 3) * 255) - self._road
                    if shade:
                        self._world.darken(self._quads[tile.idx], shade)

    def _draw_ground(self, image: np.ndarray, hull: Any, zoom: float) -> None:
        apart = WINDOW[1] / PIXELS / POINTS / zoom  # between points, in units of the track
        level = min(max(round(math.log2(apart / TEXEL)), 0), LEVELS - 1)
        side = SIDE >> level
        unit = FIXED / (TEXEL * 2**level)
        cos, sin = math.cos(hull.angle) / zoom * unit, math.sin(hull.angle) / zoom * unit
        x, y = (hull.position[0] + EDGE) * unit, (hull.position[1] + EDGE) * unit
        self._places(x, cos * self._x, -sin * self._y, side, self._index)
        self._places(y, sin * self._x, cos * self._y, side, self._row)
        self._row *= side
        self._index += self._row
        np.take(self._world.levels[level].ravel(), self._index, out=self._found, mode="clip")
        pairs = self._found[0::2] + self._found[1::2]
        total = pairs[:, 0::2] + pairs[:, 1::2] + np.uint32(2 * (1 | 1 << 10 | 1 << 20))
        ground = image[: PIXELS - BAR]
        for channel in range(3):
            np.copyto(ground[..., channel], total >> (10 * channel + 2) & 255, casting="unsafe")

    def _places(self, start: float, along: np.ndarray, down: np.ndarray, side: int, out: np.ndarray) -> None:
        """Rows or columns of texels under all points."""
        first, second = (along + start).astype(np.int32), down.astype(np.int32)
        np.add(first, second[:, None], out=out)
        out >>= 16
        least = min(first[0], first[-1]) + min(second[0], second[-1])
        most = max(first[0], first[-1]) + max(second[0], second[-1])
        if least < 0 or most >= side * FIXED:
            np.clip(out, 0, side - 1, out=out)

    def _draw_car(self, image: np.ndarray, car: Any, zoom: float) -> None:
        """The view turns with the car: its hull is always the same image, and wheels move a little."""
        hull = hull_at(zoom)
        self._car.fill((0, 0, 0, 0))
        position, cos, sin = car.hull.position, math.cos(car.hull.angle), math.sin(car.hull.angle)
        for wheel in car.wheels:
            x, y = wheel.position[0] - position[0], wheel.position[1] - position[1]
            place = cos * x + sin * y, cos * y - sin * x
            self._draw_wheel(place, wheel.angle - car.hull.angle, wheel.phase, zoom)
        self._car.blit(hull, (0, 0))
        flipped = pygame.transform.flip(self._car, False, True)
        rows, columns = CAR_ROWS.stop - CAR_ROWS.start, CAR_COLUMNS.stop - CAR_COLUMNS.start
        small = pygame.transform.smoothscale(flipped, (columns, rows))
        pixels = np.frombuffer(pygame.image.tobytes(small, "RGBA"), np.uint8).reshape(rows, columns, 4)
        window, left = image[CAR_ROWS, CAR_COLUMNS], (255 - LOST) - pixels[..., 3:].astype(np.uint16)
        window[...] = (window * left + 127) // (255 - LOST) + pixels[..., :3]

    def _draw_wheel(self, place: tuple[float, float], angle: float, phase: float, zoom: float) -> None:
        wide, long = dynamics.WHEEL_W * dynamics.SIZE * zoom, dynamics.WHEEL_R * dynamics.SIZE * zoom
        x, y = CAR_PLACE[0] + place[0] * zoom, CAR_PLACE[1] + place[1] * zoom
        cos, sin = math.cos(angle), math.sin(angle)

        def band(first: float, last: float) -> list[tuple[float, float]]:
            corners = ((-wide, first), (wide, first), (wide, last), (-wide, last))
            return [(x + cos * a - sin * b, y + sin * a + cos * b) for a, b in corners]

        pygame.draw.polygon(self._car, dynamics.WHEEL_COLOR, band(long, -long))
        white = white_band(phase)
        if white is not None:
            pygame.draw.polygon(self._car, dynamics.WHEEL_WHITE, band(long * white[0], long * white[1]))

    def _draw_bar(self, image: np.ndarray, env: Any) -> None:
        env.surf = self._bar
        env._render_indicators(*WINDOW)
        small = pygame.transform.smoothscale(self._bar.subsurface(BAR_WINDOW), (PIXELS, BAR))
        image[PIXELS - BAR :] = np.frombuffer(pygame.image.tobytes(small, "RGB"), np.uint8).reshape(BAR, PIXELS, 3)
        digits = score(f"{env.reward:04.0f}")
        image[PIXELS - BAR :, : digits.shape[1]] = digits


def shrunk(colour: Any) -> tuple[int, ...]:
    """A colour as it is after pygame has shrunk an image of it."""
    return tuple(max(int(part) - LOST, 0) for part in colour)


def white_band(phase: float) -> tuple[float, float] | None:
    """Where the white part of a turned wheel begins and ends, from -1 to 1; None where it is below."""
    last = phase + 1.2
    hidden = math.sin(phase) > 0, math.sin(last) > 0
    if all(hidden):
        return None
    first, second = math.cos(phase), math.cos(last)
    return math.copysign(1.0, first) if hidden[0] else first, math.copysign(1.0, second) if hidden[1] else second


@functools.lru_cache(maxsize=64)
def hull_at(zoom: float) -> pygame.Surface:
    surface = pygame.Surface(CAR_WINDOW[2:], pygame.SRCALPHA)
    size = dynamics.SIZE * zoom
    for polygon in (dynamics.HULL_POLY1, dynamics.HULL_POLY2, dynamics.HULL_POLY3, dynamics.HULL_POLY4):
        corners = [(CAR_PLACE[0] + x * size, CAR_PLACE[1] + y * size) for x, y in polygon]
        pygame.draw.polygon(surface, (204, 0, 0), corners)
    return surface


@functools.lru_cache(maxsize=4096)
def score(text: str) -> np.ndarray:
    """The pixels of the lower left corner, where the score is."""
    corner = pygame.Surface((125, BAR_WINDOW[3]))
    digits = font().render(text, True, (255, 255, 255), (0, 0, 0))
    place = digits.get_rect()
    place.center = SCORE_PLACE[0], SCORE_PLACE[1] - BAR_WINDOW[1]
    corner.blit(digits, place)
    return pygame.surfarray.array3d(pygame.transform.smoothscale(corner, (12, BAR))).swapaxes(0, 1)


@functools.cache
def font() -> pygame.font.Font:
    pygame.font.init()
    return pygame.font.Font(pygame.font.get_default_font(), 42)
