"""The recorder in a window of this machine's own screen, drawn by pygame."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from spacerl.rollout.demos.recorder import Recorder
from spacerl.types import InputError

SIDE = 640  # pixels of the picture
LINE = 26  # pixels of a line of text below it
COMMAND_KEYS = {"space": "pause", "return": "save", "delete": "discard", "backspace": "discard", "escape": "finish"}
DRIVING_KEYS = {"up": "ArrowUp", "down": "ArrowDown", "left": "ArrowLeft", "right": "ArrowRight"} | {
    letter: f"Key{letter.upper()}" for letter in "wasd"
}
HINTS = {
    "ready": "press an arrow key to start",
    "driving": "space: pause   enter: save here   delete: discard   escape: finish",
    "paused": "paused: space goes on, enter saves what you have driven, delete throws it away",
    "saving": "saving",
    "finished": "finished",
}


def record_in_window(recorder: Recorder) -> None:
    """Drive until the window is closed or the recording is finished."""
    try:
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        import pygame
    except ImportError as error:
        raise InputError(
            "--window needs pygame, which is not installed: pip install 'spacerl[record]', or leave --window out and "
            "drive in a browser"
        ) from error
    pygame.display.init()
    pygame.font.init()
    try:
        screen = pygame.display.set_mode((SIDE, SIDE + 3 * LINE))
    except pygame.error as error:
        raise InputError(f"--window finds no screen here ({error}): leave it out and drive in a browser") from error
    try:
        pygame.display.set_caption(f"spacerl record {recorder.task}")
        font, held, due = pygame.font.Font(None, 24), [], time.monotonic()
        while recorder.phase != "finished":
            held = _listen(pygame, recorder, held)
            recorder.step()
            if recorder.ended:
                recorder.keep()
            _draw(pygame, screen, font, recorder)
            due = max(due + 1.0 / recorder.fps, time.monotonic() - 0.25)
            time.sleep(max(0.0, due - time.monotonic()))
    finally:
        pygame.quit()


def _listen(pygame: Any, recorder: Recorder, held: list[str]) -> list[str]:
    """What happened at the keys since the last frame; those that are held now."""
    for event in pygame.event.get():
        if event.type == pygame.QUIT:
            recorder.do("finish")
        elif event.type == pygame.WINDOWFOCUSLOST:
            held = []
        elif event.type in (pygame.KEYDOWN, pygame.KEYUP):
            name = pygame.key.name(event.key)
            code = DRIVING_KEYS.get(name)
            if code is not None:
                held = [key for key in held if key != code] + ([code] if event.type == pygame.KEYDOWN else [])
            elif event.type == pygame.KEYDOWN and name in COMMAND_KEYS:
                recorder.do(COMMAND_KEYS[name])
    recorder.press(held)
    return held


def _draw(pygame: Any, screen: Any, font: Any, recorder: Recorder) -> None:
    status = recorder.status()
    picture = pygame.surfarray.make_surface(np.swapaxes(recorder.picture(), 0, 1))
    screen.fill((20, 23, 30))
    screen.blit(pygame.transform.smoothscale(picture, (SIDE, SIDE)), (0, 0))
    lap = "" if status["lap"] is None else f"   lap {100 * status['lap']:.0f} %"
    figures = f"reward {status['reward']:.1f}   cost {status['cost']:g} (limit {status['limit']:g}){lap}"
    lines = [
        f"episode {status['episode']}   {status['seconds']:.1f} s   {figures}",
        f"{status['rate']:.0f} frames a second   {status['saved']} saved   {status['message']}",
        HINTS[status["phase"]],
    ]
    for row, text in enumerate(lines):
        screen.blit(font.render(text, True, (232, 234, 240)), (10, SIDE + 5 + LINE * row))
    pygame.display.flip()
