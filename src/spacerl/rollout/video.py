"""Video files from images: a caption below each, and .mp4 through ffmpeg or .gif through Pillow alone."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from spacerl.runs.folder import replacing
from spacerl.runs.lock import require_new_file
from spacerl.types import InputError

LEAST_WIDTH = 320  # pixels; smaller images are enlarged, so that the text below them can be read
LINE = 22  # pixels of a line of text
GIF_FPS = 25  # more frames a second than this make a file large and are shown slower by browsers
PAPER, INK, RED = (250, 250, 248), (38, 42, 51), (209, 73, 91)

Frames = Iterator[Image.Image]


# Frames --------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Caption:
    """What is written below an image: where an episode stands."""

    episode: int
    episodes: int
    step: int
    reward: float
    costs: np.ndarray
    cost_names: tuple[str, ...]
    limits: tuple[float, ...]
    title: str = ""

    def lines(self) -> list[tuple[str, tuple[int, int, int]]]:
        """Texts and their colours; a cost above its limit is red."""
        which = f"episode {self.episode} of {self.episodes}, " if self.episodes > 1 else ""
        rows = [(self.title, INK)] if self.title else []
        rows += [(f"{which}step {self.step}", INK), (f"reward {self.reward:.2f}", INK)]
        for name, cost, limit in zip(self.cost_names, self.costs, self.limits, strict=True):
            called = name.replace("_", " ") if "cost" in name else f"cost {name.replace('_', ' ')}"
            rows.append((f"{called} {cost:.4g}, limit {limit:g}", RED if cost > limit else INK))
        return rows


def annotated(pixels: np.ndarray, caption: Caption, size: tuple[int, int] | None = None) -> Image.Image:
    """The image (H, W, 3) with its caption below, of the given size, or of even sides, which video formats ask for."""
    image = Image.fromarray(pixels)
    scale = max(1, -(-LEAST_WIDTH // image.width))
    image = image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    lines = caption.lines()
    height = image.height + LINE * len(lines) + 10
    width, height = size or (image.width + image.width % 2, height + height % 2)
    frame = Image.new("RGB", (width, height), PAPER)
    top = height - LINE * len(lines) - 8
    if size is not None and (image.width > width or image.height > top):  # a window that changed its size
        image.thumbnail((width, top))
    frame.paste(image, ((width - image.width) // 2, 0))
    pen, font = ImageDraw.Draw(frame), ImageFont.load_default(15)
    for row, (text, colour) in enumerate(lines):
        pen.text((10, top + LINE * row + 2), text, fill=colour, font=font)
    return frame


def side_by_side(films: list[Frames]) -> Frames:
    """Several films as one. Where one has ended its last frame stays."""
    last: list[Image.Image] = []
    for frames in itertools.zip_longest(*films):
        last = [new or old for new, old in zip(frames, last or frames, strict=True)]
        yield last[0] if len(last) == 1 else _joined(last)


def _joined(frames: list[Image.Image]) -> Image.Image:
    width, height = sum(each.width for each in frames), max(each.height for each in frames)
    joined, left = Image.new("RGB", (width, height), PAPER), 0
    for each in frames:
        joined.paste(each, (left, 0))
        left += each.width
    return joined


# Files ---------------------------------------------------------------------------------------------------------------


def video_writer(out: Path) -> Callable[[Frames, float], None]:
    """What writes frames, so many a second, to `out`, which appears whole or not at all.

    A file that cannot be written is refused here, before anything is played.
    """
    write = _format_writer(out)

    def write_whole(frames: Frames, fps: float) -> None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out, out.suffix.lower()) as (handle, path):
            os.close(handle)
            write(path, frames, fps)

    return write_whole


def _format_writer(out: Path) -> Callable[[Path, Frames, float], None]:
    if out.suffix.lower() not in (".mp4", ".gif"):
        raise InputError(f"video '{out}' is of no known kind: allowed are .mp4 and .gif")
    if out.is_dir():
        raise InputError(f"video '{out}' is a folder: give the name of a file")
    require_new_file(out)
    if out.suffix.lower() == ".gif":
        return _write_gif
    if _ffmpeg() is None:
        raise InputError(
            f"video '{out}' needs ffmpeg, which `pip install 'spacerl[video]'` brings; a .gif works without it"
        )
    return _write_mp4


def _write_gif(path: Path, frames: Frames, fps: float) -> None:
    every = max(1, round(fps / GIF_FPS))
    kept = [frame.quantize(128) for index, frame in enumerate(frames) if index % every == 0]
    milliseconds = max(20, round(100.0 * every / fps) * 10)  # the format counts hundredths of a second
    kept[0].save(path, save_all=True, append_images=kept[1:], duration=milliseconds, loop=0, optimize=False)


def _write_mp4(path: Path, frames: Frames, fps: float) -> None:
    """H.264 with the pixel format and the index at the front that browsers want."""
    first, program = next(frames), _ffmpeg()
    assert program is not None
    source = f"-f rawvideo -pix_fmt rgb24 -s {first.width}x{first.height} -r {fps:g} -i -".split()
    target = ["-an", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "20", "-movflags", "+faststart", "-f", "mp4"]
    _pipe_to([program, "-y", "-loglevel", "error", *source, *target, str(path)], itertools.chain([first], frames))


def _pipe_to(command: list[str], frames: Frames) -> None:
    """ffmpeg is started here and not by imageio-ffmpeg, which forks in a way that can hang beside JAX's threads."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said, process_group=0)
        assert process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # it says itself why it gave up
                for frame in frames:
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


def _ffmpeg() -> str | None:
    """The program that comes with the extra, or one that is installed."""
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        return shutil.which("ffmpeg")
    import imageio_ffmpeg  # type: ignore[import-not-found]

    return imageio_ffmpeg.get_ffmpeg_exe()
