"""Films of a run's policy at work, on a machine without a screen: .mp4 through ffmpeg, .gif through Pillow alone."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import itertools
import os
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from spacerl.baselines import load_baseline
from spacerl.config import InputError, RunConfig, is_own
from spacerl.environments import environment, is_hosted, is_native, recipe_of_run
from spacerl.envs import GYMNASIUM_IDS
from spacerl.evaluation import policy_of
from spacerl.hosted.single import BadStep, Single
from spacerl.runs import replacing
from spacerl.types import ActionSpace

USUAL_FPS = 30
LEAST_WIDTH = 320  # pixels; smaller pictures are enlarged, so that the text below them can be read
LINE = 22  # pixels of a line of text
GIF_FPS = 25  # more pictures a second than this make a file large and are shown slower by browsers
SECONDS_AT_REST = 0.7  # the last picture of an episode stays
PAPER, INK, RED = (250, 250, 248), (38, 42, 51), (209, 73, 91)


@dataclasses.dataclass(frozen=True)
class Stage:
    """An environment in front of the camera. Actions are as the policy gives them."""

    obs_shape: tuple[int, ...]
    action_space: ActionSpace
    cost_names: tuple[str, ...]
    fps: float
    reset: Callable[[int], np.ndarray]
    step: Callable[[np.ndarray], tuple[np.ndarray, float, np.ndarray, bool, bool]]
    render: Callable[[], Any]
    close: Callable[[], None]
    raw: Callable[[np.ndarray], Any] | None = None  # flat observations as the environment gives them


def film_run(
    run: Path, config: RunConfig, out: Path, episodes: int, seed: int, env: Any, cost: Any, beside: bool = False
) -> Path:
    """Film episodes of the newest, stochastic policy of a run into `out`, which appears whole or not at all.

    With `beside`, pi_B plays the same episodes to the left of it.
    """
    write = _writer(out)
    if beside and not config.baselines:
        raise InputError(f"'{run}' has no baseline: there is none to film beside its policy")
    if beside and hasattr(env, "step"):
        raise InputError("env is one environment and two are filmed: pass a function that makes it")
    with _without_screen(), warnings.catch_warnings(), contextlib.ExitStack() as close:
        warnings.filterwarnings("ignore", module=r"gymnasium\..*|pygame\..*|pkg_resources")  # of no use to a viewer
        shots = []
        for name in [*config.baselines[:1], ""] if beside else [""]:
            stage = _stage(config, env, cost)
            close.callback(stage.close)
            policy, compiled = _player(name or str(run), config, stage)
            title = "" if not beside else f"pi_B ({Path(name).name})" if name else "learned from it"
            shots.append(_frames(stage, policy, config, episodes, seed, title, compiled))
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out, out.suffix.lower()) as (handle, path):
            os.close(handle)
            write(path, _side_by_side(shots), stage.fps)
        return out


def _player(name: str, config: RunConfig, stage: Stage) -> tuple[Any, bool]:
    """A policy by name, and whether it can be compiled."""
    settings = {"std": config.baseline_std, "exploration": config.baseline_exploration, "raw": stage.raw}
    policy = load_baseline(name, config.task, stage.obs_shape, stage.action_space, **settings)  # type: ignore[arg-type]
    assert policy is not None
    return policy_of(policy, stage.action_space)


def _side_by_side(shots: list[Iterator[Image.Image]]) -> Iterator[Image.Image]:
    """Several films as one. Where one has ended its last picture stays."""
    last: list[Image.Image] = []
    for pictures in itertools.zip_longest(*shots):
        last = [new or old for new, old in zip(pictures, last or pictures, strict=True)]
        if len(last) == 1:
            yield last[0]
            continue
        sheet = Image.new("RGB", (sum(each.width for each in last), max(each.height for each in last)), PAPER)
        for i, each in enumerate(last):
            sheet.paste(each, (sum(other.width for other in last[:i]), 0))
        yield sheet


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


# The environment -----------------------------------------------------------------------------------------------------


def _stage(config: RunConfig, env: Any, cost: Any) -> Stage:
    if env is None and not is_own(config.task):
        return _native_stage(config)
    if env is not None and (is_native(env) or is_hosted(env)):
        raise InputError(
            f"'{config.task}' cannot be filmed: {type(env).__name__} draws no pictures, a Gymnasium environment with "
            "render_mode='rgb_array' does"
        )
    return _hosted_stage(config, env, cost)


def gymnasium_id(task: str) -> str:
    """The Gymnasium id of a native task: point-circle is spacerl/PointCircle-v0."""
    names = {}
    for known in GYMNASIUM_IDS:
        bare = known.partition("/")[2].rpartition("-")[0]
        names[re.sub(r"(?<!^)(?=[A-Z])", "-", bare).lower()] = known
    if task not in names:
        raise InputError(f"task '{task}' cannot be filmed: only {', '.join(names)} draw pictures")
    return names[task]


def _native_stage(config: RunConfig) -> Stage:
    task, length = environment(config, lanes=1), config.rollout_length
    if is_hosted(task):  # only its shapes are asked for
        task.close()
    env = gymnasium.make(
        gymnasium_id(config.task), render_mode="rgb_array", max_episode_steps=length, disable_env_checker=True
    )

    def step(action: np.ndarray) -> tuple[np.ndarray, float, np.ndarray, bool, bool]:
        obs, reward, terminated, truncated, info = env.step(action)
        return obs, float(reward), np.atleast_1d(info["cost"]), terminated, truncated

    return Stage(
        tuple(task.obs_shape),
        task.action_space,
        tuple(task.cost_names),
        _fps(env),
        lambda seed: env.reset(seed=seed)[0],
        step,
        env.render,
        env.close,
    )


def _hosted_stage(config: RunConfig, env: Any, cost: Any) -> Stage:
    if env is None and config.task.startswith("own:"):
        raise InputError(f"run of '{config.task}' needs your environment again: pass it as env=")
    single = Single(recipe_of_run(config, env, cost), render_mode="rgb_array")
    return Stage(
        single.observations.shape,
        single.actions.space,
        single.cost_names,
        _fps(single.env),
        single.reset,
        single.step,
        single.render,
        single.close,
        single.observations.decode,
    )


def _fps(env: Any) -> float:
    fps = (getattr(env, "metadata", None) or {}).get("render_fps")
    return float(fps) if fps else USUAL_FPS


# The pictures --------------------------------------------------------------------------------------------------------


def _frames(
    stage: Stage, policy: Any, config: RunConfig, episodes: int, seed: int, title: str = "", compiled: bool = True
) -> Iterator[Image.Image]:
    """The pictures of all episodes, all of one size."""
    key, draw = jax.random.PRNGKey(seed), np.random.default_rng(seed)

    def sample(obs: Any, count: int) -> jax.Array:
        dist = policy(obs)
        return dist.sample(dist.noise(jax.random.fold_in(key, count), (1, stage.action_space.size)))[0]

    act = jax.jit(sample) if compiled else sample
    limits: Any = config.cost_limit
    size: tuple[int, int] | None = None
    count, steps = 0, range(1, config.rollout_length + 1)  # type: ignore[operator]
    for episode in range(1, episodes + 1):
        obs = _asked(config, lambda: stage.reset(int(draw.integers(0, 2**31))))
        told = Told(episode, episodes, 0, 0.0, np.zeros(len(stage.cost_names)), stage.cost_names, limits, title)
        frame = annotated(_picture(stage, config), told, size)
        size = frame.size
        yield frame
        for step in steps:
            action = np.asarray(act(np.asarray(obs)[None], count))
            count += 1
            obs, reward, cost, terminated, truncated = _asked(config, lambda action=action: stage.step(action))
            told = dataclasses.replace(told, step=step, reward=told.reward + reward, costs=told.costs + cost)
            frame = annotated(_picture(stage, config), told, size)
            yield frame
            if terminated or truncated:
                break
        for _ in range(round(SECONDS_AT_REST * stage.fps)):
            yield frame


def _asked(config: RunConfig, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except BadStep as error:
        raise InputError(f"'{config.task}' cannot be filmed: {error}") from error


def _picture(stage: Stage, config: RunConfig) -> np.ndarray:
    """(height, width, 3) uint8."""
    try:
        frame = stage.render()
    except Exception as error:
        said = " ".join(str(error).split())
        raise InputError(f"'{config.task}' cannot be filmed: render raised {type(error).__name__}: {said}") from error
    if isinstance(frame, list) and frame:
        frame = frame[-1]
    array = None if frame is None or isinstance(frame, str | list) else np.asarray(frame)
    if array is not None and array.ndim == 2:
        array = np.repeat(array[..., None], 3, axis=-1)
    if array is None or array.ndim != 3 or array.shape[-1] not in (3, 4) or array.dtype.kind not in "uif":
        given = type(frame).__name__ if array is None else f"an array of shape {array.shape} and {array.dtype}"
        raise InputError(
            f"'{config.task}' cannot be filmed: render gave {given} and not a picture; the environment must support "
            "render_mode='rgb_array', and a function that makes it must take render_mode and pass it on"
        )
    return np.clip(array[..., :3], 0, 255).astype(np.uint8)


@dataclasses.dataclass(frozen=True)
class Told:
    """What is written below a picture."""

    episode: int
    episodes: int
    step: int
    reward: float
    costs: np.ndarray
    cost_names: tuple[str, ...]
    limits: tuple[float, ...]
    title: str = ""

    def lines(self) -> list[tuple[str, tuple[int, int, int]]]:
        which = f"episode {self.episode} of {self.episodes}, " if self.episodes > 1 else ""
        rows = [(self.title, INK)] if self.title else []
        rows += [(f"{which}step {self.step}", INK), (f"reward {self.reward:.2f}", INK)]
        for name, cost, limit in zip(self.cost_names, self.costs, self.limits, strict=True):
            called = name.replace("_", " ") if "cost" in name else f"cost {name.replace('_', ' ')}"
            rows.append((f"{called} {cost:.4g}, limit {limit:g}", RED if cost > limit else INK))
        return rows


def annotated(picture: np.ndarray, told: Told, size: tuple[int, int] | None = None) -> Image.Image:
    """The picture with lines of text below it, of the given size, or of even sides, which video formats ask for."""
    image = Image.fromarray(picture)
    scale = max(1, -(-LEAST_WIDTH // image.width))
    image = image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    lines = told.lines()
    height = image.height + LINE * len(lines) + 10
    width, height = size or (image.width + image.width % 2, height + height % 2)
    sheet = Image.new("RGB", (width, height), PAPER)
    top = height - LINE * len(lines) - 8
    if size is not None and (image.width > width or image.height > top):  # a window that changed its size
        image.thumbnail((width, top))
    sheet.paste(image, ((width - image.width) // 2, 0))
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(15)
    for row, (text, colour) in enumerate(lines):
        pen.text((10, top + LINE * row + 2), text, fill=colour, font=font)
    return sheet


# The file ------------------------------------------------------------------------------------------------------------


def _writer(out: Path) -> Callable[[Path, Iterator[Image.Image], float], None]:
    """What writes such a file; complains before anything is played."""
    if out.suffix.lower() not in (".mp4", ".gif"):
        raise InputError(f"video '{out}' is of no known kind: allowed are .mp4 and .gif")
    if out.is_dir():
        raise InputError(f"video '{out}' is a folder: give the name of a file")
    if out.suffix.lower() == ".gif":
        return _write_gif
    if _ffmpeg() is None:
        raise InputError(
            f"video '{out}' needs ffmpeg, which `pip install 'spacerl[video]'` brings; a .gif works without it"
        )
    return _write_mp4


def _ffmpeg() -> str | None:
    """The program that comes with the extra, or one that is installed."""
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        return shutil.which("ffmpeg")
    import imageio_ffmpeg  # type: ignore[import-not-found]

    return imageio_ffmpeg.get_ffmpeg_exe()


def _write_mp4(path: Path, frames: Iterator[Image.Image], fps: float) -> None:
    """H.264 with the pixel format and the index at the front that browsers want.

    ffmpeg is started here and not by imageio-ffmpeg, which forks in a way that can hang beside JAX's threads.
    """
    first, program = next(frames), _ffmpeg()
    assert program is not None
    pictures = f"-f rawvideo -pix_fmt rgb24 -s {first.width}x{first.height} -r {fps:g} -i -".split()
    film = ["-an", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "20", "-movflags", "+faststart", "-f", "mp4"]
    with tempfile.TemporaryFile() as said:
        command = [program, "-y", "-loglevel", "error", *pictures, *film, str(path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said, process_group=0)
        assert process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # it says itself why it gave up
                for frame in itertools.chain([first], frames):
                    pipe.write(frame.tobytes())
        except BaseException:
            process.kill()
            raise
        finally:
            code = process.wait()
        if code:
            said.seek(0)
            reason = " ".join(said.read().decode(errors="replace").split())
            raise InputError(
                f"video cannot be written: ffmpeg ended with code {code}: {reason}; a .gif works without it"
            )


def _write_gif(path: Path, frames: Iterator[Image.Image], fps: float) -> None:
    every = max(1, round(fps / GIF_FPS))
    kept = [frame.quantize(128) for index, frame in enumerate(frames) if index % every == 0]
    milliseconds = max(20, round(100.0 * every / fps) * 10)  # the format counts hundredths of a second
    kept[0].save(path, save_all=True, append_images=kept[1:], duration=milliseconds, loop=0, optimize=False)
