"""A script at the keys instead of a person: it looks at the frames that the page gets, and presses the page's keys.

It stands in for people where there are none, and whatever it records says so. It sees the road a moment late, judges it
imprecisely, taps keys for whole tenths of a second, and wants to stay on the road at a fair speed. It sees neither
reward nor cost, and brakes before bends like somebody whom nobody told that braking is counted.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any
from urllib.parse import urlsplit

import numpy as np

NAME = "scripted keyboard driver (not a person)"

CAR = (70, 48)  # row and column of the car's nose in a frame of 96 x 96
HORIZON = 14  # rows from the top where what can be seen of the road is too far to matter
BAR_COLUMNS, BAR_ROWS = slice(12, 15), slice(84, 96)  # of the frame: the white bar that shows the speed
PIXELS_PER_SPEED = 0.048 * 2.4 * 255  # brightness that one unit of speed adds to the bar

SEEN_AT_LEAST = 6  # rows of road ahead, below which the driver is lost and looks around
LOST_SPEED = 10.0

TURN = 8e-4  # rad that a tap of one frame turns the car by, for each unit of speed


class ScriptedDriver:
    """What a driver holds, frame by frame."""

    def __init__(self, seed: int):
        self._random = np.random.default_rng(seed)
        self.start()

    def start(self) -> None:
        """A new episode: another track, and not quite the same driver."""
        random = self._random
        self._delay = int(random.integers(7, 13))  # frames from seeing to acting: 140 to 240 ms at 50 a second
        self._cruise = random.uniform(24.0, 32.0)  # speed on a straight
        self._seen: deque[np.ndarray] = deque(maxlen=self._delay)
        self._frame = 0
        self._until = {"ArrowLeft": 0, "ArrowRight": 0, "ArrowUp": 0, "ArrowDown": 0}
        self._next_look = 50 + self._delay  # the view comes closer for a second first
        self._taps: deque[tuple[int, float]] = deque(maxlen=8)

    def held(self, picture: np.ndarray) -> list[str]:
        """The keys that are down during the next frame."""
        self._seen.append(picture)
        self._frame += 1
        if self._frame >= self._next_look and len(self._seen) == self._delay:
            self._decide(self._seen[0])
            self._next_look = self._frame + int(self._random.integers(4, 8))
        return [key for key, until in self._until.items() if self._frame < until]

    def _decide(self, picture: np.ndarray) -> None:
        middle = road_middle(picture)
        speed = max(0.0, speed_shown(picture) * self._random.normal(1.0, 0.1))
        ahead = int(np.clip(10 + 0.3 * speed, 8, 26))
        aim = middle[min(ahead, len(middle) - 1)] - CAR[1]
        angle = np.arctan2(aim, min(ahead, len(middle)) + 6) + self._random.normal(0.0, 0.03)
        wanted = self._cruise * float(np.clip(1.15 - 1.1 * _bend(middle), 0.45, 1.0))
        if len(middle) < SEEN_AT_LEAST:
            back = way_back(picture)
            angle, wanted = (float(np.clip(back, -1.2, 1.2)), LOST_SPEED) if back is not None else (0.0, 0.0)
        self._steer(float(angle), speed)
        self._pedal(speed, wanted)

    def _steer(self, angle: float, speed: float) -> None:
        """A tap, as long as experience says that the turn needs. What was tapped since the frame that is seen now will
        still turn the car, and counts."""
        left = angle - sum(turn for frame, turn in self._taps if frame > self._frame - self._delay)
        per_frame = TURN * max(speed, 5.0)  # the wheels go on turning while a key is held, so turns grow with squares
        frames = min(10, round(np.sqrt(abs(left) / per_frame) * self._random.normal(1.0, 0.15)))
        key, other = ("ArrowRight", "ArrowLeft") if left > 0 else ("ArrowLeft", "ArrowRight")
        self._until[other] = 0
        if frames >= 2:
            self._until[key] = self._frame + frames
            self._taps.append((self._frame, float(np.sign(left)) * per_frame * frames**2))

    def _pedal(self, speed: float, wanted: float) -> None:
        if speed > wanted + 12.0:
            self._until["ArrowUp"] = 0
            self._until["ArrowDown"] = self._frame + int(self._random.integers(3, 7))
        elif speed < wanted:
            self._until["ArrowDown"] = 0
            turning = max(self._until["ArrowLeft"], self._until["ArrowRight"]) > self._frame + 3
            if not turning:  # gas in a turn makes the car spin
                self._until["ArrowUp"] = self._frame + int(self._random.integers(4, 8))


def is_road(picture: np.ndarray) -> np.ndarray:
    """(rows, columns) True where a pixel is grey."""
    colour = picture.astype(np.int16)
    spread = colour.max(-1) - colour.min(-1)
    return (spread < 25) & (colour[..., 0] > 70) & (colour[..., 0] < 160)


def road_middle(picture: np.ndarray) -> np.ndarray:
    """Columns of the middle of the road, row by row upwards from the car to where it can be followed."""
    road, column = is_road(picture), float(CAR[1])
    found: list[float] = []
    for row in range(CAR[0] - 6, HORIZON, -1):
        columns = np.flatnonzero(road[row])
        if not columns.size:
            if len(found) > 3:
                break
            continue  # on the grass: the road is further on
        runs = np.split(columns, np.flatnonzero(np.diff(columns) > 3) + 1)
        nearest = min(runs, key=lambda run: float(np.abs(run - column).min()))
        if float(np.abs(nearest - column).min()) > 10 and len(found) > 3:
            break  # another piece of the track
        column = float(nearest.mean())
        found.append(column)
    return np.array(found or [float(CAR[1])])


def way_back(picture: np.ndarray) -> float | None:
    """Angle from straight ahead to the nearest piece of road in view, to the right above zero; None without any."""
    rows, columns = np.nonzero(is_road(picture[: BAR_ROWS.start]))
    ahead, aside = CAR[0] - rows, columns - CAR[1]
    other = (np.abs(ahead) > 8) | (np.abs(aside) > 6)  # not the car itself
    if not other.any():
        return None
    near = np.argsort(np.hypot(ahead[other], aside[other]))[:60]
    return float(np.arctan2(aside[other][near].mean(), ahead[other][near].mean()))


def _bend(middle: np.ndarray) -> float:
    """0 on a straight to about 1 before a hairpin."""
    far = middle[min(len(middle) - 1, 34)] - middle[0]
    short = max(0.0, 1.0 - len(middle) / 34)  # the road leaves the view at the side
    return float(np.clip(abs(far) / 40.0 + short, 0.0, 1.0))


def speed_shown(picture: np.ndarray) -> float:
    """What the bar at the bottom of the frame says."""
    bar = picture[BAR_ROWS, BAR_COLUMNS].min(-1).astype(float)
    return float(bar.sum() / PIXELS_PER_SPEED)


async def drive(address: str, seed: int) -> None:
    """Open the page's address as a browser would, and drive until the recording is finished."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import ConnectionClosed
    from websockets.typing import Origin

    from spacerl.rollout.demos.server import read_frame

    cookie = await _visit(address)
    place = urlsplit(address)
    headers, page = {"Cookie": cookie}, f"http://{place.netloc}"
    driver, episode = ScriptedDriver(seed), 0
    socket_of = connect(
        f"ws://{place.netloc}/drive",
        origin=Origin(page),
        additional_headers=headers,
        max_size=None,
        proxy=None,
        compression=None,
    )
    async with socket_of as socket:
        try:
            async for message in socket:
                if isinstance(message, str):
                    continue  # which keys there are
                status, picture = read_frame(message)
                if status["phase"] == "finished":
                    return
                if status["episode"] != episode:
                    episode = status["episode"]
                    driver.start()
                if status["phase"] in ("ready", "driving"):
                    await socket.send(json.dumps({"held": driver.held(picture)}))
        except ConnectionClosed:
            return


async def _visit(address: str) -> str:
    """The cookie that the address's token is exchanged for."""
    place = urlsplit(address)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        request = f"GET {place.path}?{place.query} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n\r\n"
        writer.write(request.encode())
        answer: Any = await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    for line in answer.decode(errors="replace").split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "set-cookie":
            return value.strip().partition(";")[0]
    raise ConnectionError(f"the page refused the address: {answer[:60]!r}")
