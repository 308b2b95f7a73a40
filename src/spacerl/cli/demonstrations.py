"""Commands about demonstrations: record them, look at them, learn a baseline from them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from spacerl.cli.looking import print_table
from spacerl.types import RunInterrupted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """Drive a task with the arrow keys, in a browser page or a window, and keep the episodes as a Minari dataset."""

    task: Positional[str]
    """Task to drive: car-racing, point-circle or point-gather."""
    out: Path | None = None
    """Folder of the dataset; by default demos/TASK."""
    append: bool = False
    """Add to a recording that is there, and pick up an episode that was not finished."""
    episodes: int | None = None
    """Episodes after which the recording ends; by default when you end it."""
    port: int = 0
    """Port of the page on this machine's loopback address; 0 takes one that is free."""
    window: bool = False
    """Drive in a window of this machine's screen instead of a browser."""
    fps: float | None = None
    """Steps a second; by default 50 of car-racing and 6 of the point tasks."""
    seed: int | None = None
    """Seed of the first episode; the following ones count up. By default another one each time."""
    driver: Literal["person", "scripted"] = "person"
    """Who drives: you, or a script that presses the page's keys. What it records is labelled as that."""

    def __call__(self) -> None:
        from spacerl.rollout.demos.record import HowToRecord, record

        folder = self.out or Path("demos") / self.task
        names = HowToRecord._fields
        done = record(self.task, folder, HowToRecord(**{name: getattr(self, name) for name in names}))
        if not done.episodes:
            print("nothing was driven: nothing is kept")
            return
        print(f"dataset: {done.folder} ({done.episodes} episodes, {done.newly} of them new)")
        number = getattr(done.interrupted, "number", 2)
        if done.interrupted is not None and number != 2:  # Ctrl-C is one of the ways to end a recording
            raise RunInterrupted(f"stopped; '{done.folder}' holds what was driven", number)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemosShow:
    """Say what a Minari dataset holds, and play an episode of it back as a video."""

    dataset: Positional[str]
    """Folder of a dataset, or the name of one where Minari keeps them."""
    video: Path | None = None
    """Write an episode as a video: an .mp4 or .gif file."""
    episode: int = 0
    """The episode of the video."""

    def __call__(self) -> None:
        from spacerl.rollout.demos.dataset import Demonstrations
        from spacerl.rollout.demos.showing import play_back, summary_of

        demos = Demonstrations(self.dataset)
        if self.video is not None:
            print(f"video: {play_back(demos, self.episode, self.video)}")
        rows, summaries = [], [summary_of(episode) for episode in demos]
        for number, each in enumerate(summaries):
            seed = "" if each.seed is None else str(each.seed)
            figures = (f"{each.episode_return:.2f}", f"{each.cost:g}")
            rows.append((str(number), f"{each.steps:,}", *figures, each.ended, seed, each.driver))
        count, steps = len(summaries), sum(each.steps for each in summaries)
        returns = sum(each.episode_return for each in summaries) / count
        costs = sum(each.cost for each in summaries) / count
        rows.append(("mean", f"{steps / count:,.1f}", f"{returns:.2f}", f"{costs:g}", "", "", ""))
        title = f"{self.dataset}: {count} episodes, {steps:,} steps" + (f" of {demos.task}" if demos.task else "")
        print_table(title, ("episode", "steps", "return", "cost", "ended", "seed", "driver"), rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaselineFromDemos:
    """Learn a baseline policy pi_B from a Minari dataset: by behaviour cloning, or by DDPG on the logged data alone."""

    dataset: Positional[str]
    """Folder of a dataset, or the name of one where Minari keeps them."""
    task: str | None = None
    """Task whose spaces the dataset has; by default the one that was recorded."""
    out: Path | None = None
    """Policy file to write; by default TASK-demos.safetensors here."""
    method: Literal["bc", "ddpg"] = "bc"
    """Behaviour cloning, or the paper's DDPG (actor 1e-4, critic 1e-3)."""
    updates: int = 3000
    """Gradient steps."""
    batch: int = 256
    """Steps of the dataset in each."""
    least_std: float = 0.1
    """Cloning learns a standard deviation, and keeps it above this."""
    std: float = 0.3
    """Standard deviation given to DDPG's actor, which has none."""
    seed: int = 0
    """Seed of the network and of the episodes that measure it."""
    episodes: int = 20
    """Episodes that measure J_R and J_C."""
    quiet: bool = False
    """No progress."""

    def __call__(self) -> None:
        from spacerl.training.imitation.baseline import HowToLearn, baseline_from_demos

        how = HowToLearn(**{name: getattr(self, name) for name in HowToLearn._fields})
        out = self.out or Path(f"{self.task or Path(self.dataset).name}-demos.safetensors")
        facts = baseline_from_demos(self.dataset, self.task, out, how, not self.quiet)
        figures = f"J_R {facts['J_R']:.3f}, J_C {facts['J_C']:.3f} (the task's h_C is {facts['task_h_C']:g})"
        print(f"{out}: {figures}, {facts['episodes']} episodes; demonstrated by: {facts['demonstrated_by']}")
