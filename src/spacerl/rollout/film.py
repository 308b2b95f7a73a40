"""Films of a run's policy at work, on a machine without a screen."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from spacerl.envs.host.in_process import InProcessEnvs
from spacerl.envs.host.single import BadStep, Recipe, parse_arguments
from spacerl.envs.make import is_instance, recipe_of_run
from spacerl.envs.tasks import TASKS, task_named
from spacerl.policies.loading import Loading, load_policy
from spacerl.rollout.host import sampling, ticks
from spacerl.rollout.video import Caption, annotated, side_by_side, video_writer
from spacerl.runs.config import OWN_PREFIX, RunConfig, is_own
from spacerl.types import RESET, BatchEnv, InputError, JaxEnv, Policy

USUAL_FPS = 30
SECONDS_AT_REST = 0.7  # the last frame of an episode stays


@dataclasses.dataclass(frozen=True)
class Film:
    """What is filmed of a run."""

    run: Path
    config: RunConfig
    episodes: int
    seed: int
    policy: Path  # its file
    beside_baseline: bool = False  # pi_B plays the same episodes to the left of the policy
    trust: bool = False  # load pi_B from a file that can run code when it is loaded
    env: Any = None
    cost: Any = None


def film_run(film: Film, out: Path) -> Path:
    """Film episodes of the newest, stochastic policy of a run into `out`, which appears whole or not at all."""
    write, config = video_writer(out), film.config
    if film.beside_baseline and not config.baseline:
        raise InputError(f"'{film.run}' has no baseline: there is none to film beside its policy")
    if film.beside_baseline and is_instance(film.env):
        raise InputError("env is one environment and two are filmed: pass a function that makes it")
    with _without_screen(), warnings.catch_warnings(), contextlib.ExitStack() as close:
        warnings.filterwarnings("ignore", module=r"gymnasium\..*|pygame\..*|pkg_resources")  # of no use to a viewer
        films, fps = [], float(USUAL_FPS)
        for name in [*config.baseline[:1], ""] if film.beside_baseline else [""]:
            env = filmed_env(film)
            close.callback(env.close)
            how = Loading(config.baseline_std, config.baseline_exploration, env.as_given, film.trust)
            policy = load_policy(name or str(film.policy), config.task, env.spec, how)
            title = "" if not film.beside_baseline else f"pi_B ({Path(name).name})" if name else "learned from it"
            fps = frames_per_second(env)
            films.append(frames(film, env, policy, title, fps))
        write(side_by_side(films), fps)
        return out


@contextlib.contextmanager
def _without_screen() -> Iterator[None]:
    """pygame and MuJoCo look for a screen unless they are told that there is none."""
    settings = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        settings["MUJOCO_GL"] = "egl"
    mine = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(mine)
    try:
        yield
    finally:
        for name in mine:
            os.environ.pop(name, None)


def filmed_env(film: Film) -> InProcessEnvs:
    """One environment that draws itself: the user's, or the task's as Gymnasium knows it."""
    task, env = film.config.task, film.env
    if isinstance(env, JaxEnv | BatchEnv):
        raise InputError(
            f"'{task}' cannot be filmed: {type(env).__name__} draws no images, a Gymnasium environment with "
            "render_mode='rgb_array' does"
        )
    if env is None and task.startswith(OWN_PREFIX):
        raise InputError(
            f"run of '{task}' needs your environment, which was an object: film it in Python, film(..., env=...)"
        )
    own = env is not None or is_own(task)
    recipe = recipe_of_run(task, film.config, env, film.cost) if own else _recipe_of_task(film.config)
    return InProcessEnvs(recipe, 1, render_mode="rgb_array")


def _recipe_of_task(config: RunConfig) -> Recipe:
    task = task_named(config.task)
    if task.gymnasium_id is None:
        drawn = ", ".join(each.name for each in TASKS.values() if each.gymnasium_id is not None)
        raise InputError(f"task '{task.name}' cannot be filmed: only {drawn} draw images")
    # Policies of our tasks act in their physical units, unless workers step them like a user's own environment.
    costs = tuple((name, "info") for name in task.cost_names())
    arguments = (("max_episode_steps", config.rollout_length), *parse_arguments(config.env_args))
    return Recipe(task.gymnasium_id, costs, arguments, scaled=task.hosted)


def frames_per_second(env: InProcessEnvs) -> float:
    fps = (getattr(env.singles[0].env, "metadata", None) or {}).get("render_fps")
    return float(fps) if fps else USUAL_FPS


def frames(film: Film, env: BatchEnv, policy: Policy, title: str, fps: float) -> Iterator[Image.Image]:
    """The images of all episodes with their captions, all of one size."""
    config, spec = film.config, env.spec
    act = sampling(policy, spec.action.size, env.lanes, film.seed)
    begun = Caption(
        episode=0,
        episodes=film.episodes,
        step=0,
        reward=0.0,
        costs=np.zeros(len(spec.cost_names)),
        cost_names=spec.cost_names,
        limits=config.cost_limit,
        title=title,
    )
    caption, size = begun, None
    try:
        for moment in ticks(env, act, film.seed, config.rollout_length, count=film.episodes, follow_at_once=False):
            if moment.command[0] == RESET:
                caption = dataclasses.replace(begun, episode=caption.episode + 1)
            else:
                reward = caption.reward + float(moment.result.reward[0])
                costs = caption.costs + moment.result.cost[0]
                caption = dataclasses.replace(caption, step=caption.step + 1, reward=reward, costs=costs)
            frame = annotated(_image(env, config.task), caption, size)
            size = frame.size
            yield frame
            if moment.ended[0]:
                yield from [frame] * round(SECONDS_AT_REST * fps)
    except BadStep as error:
        raise InputError(f"'{config.task}' cannot be filmed: {error}") from error


def _image(env: BatchEnv, task: str) -> np.ndarray:
    """(height, width, 3) uint8."""
    try:
        frame = env.render()
    except Exception as error:
        message = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
        raised = "its environment has no render()" if message == "NotImplementedError" else f"render raised {message}"
        raise InputError(f"'{task}' cannot be filmed: {raised}") from error
    if isinstance(frame, list) and frame:
        frame = frame[-1]
    array = None if frame is None or isinstance(frame, str | list) else np.asarray(frame)
    if array is not None and array.ndim == 2:
        array = np.repeat(array[..., None], 3, axis=-1)
    if array is None or array.ndim != 3 or array.shape[-1] not in (3, 4) or array.dtype.kind not in "uif":
        given = type(frame).__name__ if array is None else f"an array of shape {array.shape} and {array.dtype}"
        raise InputError(
            f"'{task}' cannot be filmed: render gave {given} and not an image; the environment must support "
            "render_mode='rgb_array', and a function that makes it must take render_mode and pass it on"
        )
    return np.clip(array[..., :3], 0, 255).astype(np.uint8)
