"""What a dataset of demonstrations holds: a table, and an episode played back as a video."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from spacerl.envs.tasks import TASKS
from spacerl.rollout.demos.dataset import Demonstrations
from spacerl.rollout.demos.episode import Episode
from spacerl.rollout.demos.keys import KEY_MAPS
from spacerl.rollout.demos.recorder import task_env
from spacerl.rollout.video import Caption, annotated, video_writer
from spacerl.types import InputError

USUAL_FPS = 30.0
DIFFERENCE = 1e-4  # of an observation that is played again: the same arithmetic on another machine


class Summary(NamedTuple):
    """One row of the table."""

    steps: int
    episode_return: float
    cost: float
    ended: str
    seed: int | None
    driver: str


def summary_of(episode: Episode) -> Summary:
    ended = "terminated" if episode.terminated else "cut"
    total, cost = float(episode.rewards.sum()), float(episode.costs.sum())
    return Summary(episode.steps, total, cost, ended, episode.seed, episode.driver)


def play_back(demos: Demonstrations, number: int, out: Path) -> Path:
    """Write an episode as a video: the images it observed, or, of a task of ours, its drawing played again."""
    write = video_writer(out)
    episode = demos.episode(number)
    made = demos.metadata.get("spacerl")
    fps = made.get("steps_per_second") if isinstance(made, dict) else None
    if not isinstance(fps, int | float) or not 0 < fps <= 1000:
        fps = USUAL_FPS
    write(_frames(demos, episode), float(fps))
    return out


def _frames(demos: Demonstrations, episode: Episode) -> Iterator[Image.Image]:
    limit = float(TASKS[demos.task].settings["cost_limit"]) if demos.task in TASKS else float("inf")
    costs, rewards = np.cumsum(episode.costs), np.cumsum(episode.rewards)
    size = None
    for step, picture in enumerate(_pictures(demos, episode)):
        reward = float(rewards[step - 1]) if step else 0.0
        cost = costs[step - 1 : step] if step else np.zeros(1)
        frame = annotated(picture, Caption(1, 1, step, reward, cost, ("cost",), (limit,), episode.driver), size)
        size = frame.size
        yield frame


def _pictures(demos: Demonstrations, episode: Episode) -> Iterator[np.ndarray]:
    seen = episode.observations
    if seen.ndim == 4 and seen.dtype == np.uint8 and seen.shape[-1] == 3:
        yield from seen
        return
    if demos.task not in KEY_MAPS or episode.seed is None:
        raise InputError(
            f"dataset '{demos.name}' holds no images and is no recording of {', '.join(KEY_MAPS)}: it cannot be drawn"
        )
    yield from _played_again(demos, episode)


def _played_again(demos: Demonstrations, episode: Episode) -> Iterator[np.ndarray]:
    """The drawing of a task of ours, from the seed and the actions of an episode."""
    assert demos.task is not None
    env = task_env(demos.task)
    try:
        observation, _ = env.reset(seed=episode.seed)
        yield np.asarray(env.render(), np.uint8)
        for step, action in enumerate(episode.actions):
            observation, *_ = env.step(action)
            if not np.allclose(observation, episode.observations[step + 1], rtol=DIFFERENCE, atol=DIFFERENCE):
                raise InputError(
                    f"dataset '{demos.name}' was recorded with another version of '{demos.task}': step {step + 1} is "
                    "not what it was, so it cannot be drawn"
                )
            yield np.asarray(env.render(), np.uint8)
    finally:
        env.close()
