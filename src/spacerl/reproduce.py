"""The paper's comparisons as named experiments: each is a list of `spacerl sweep` commands, run side by side.

A command can be copied and run alone; the result is the same run folders.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from spacerl.config import InputError, unknown_name

KINDS = ("cost", "reward", "near")
BOUNDED = ("--divergence-gradient", "direct", "--projection-kl-bound", "0.005")


class Setting(NamedTuple):
    name: str
    options: tuple[str, ...]
    baselines: tuple[str, ...] = ()


def _point_settings() -> list[Setting]:
    """Every algorithm, SPACE in each of its forms, with every kind of pi_B where it takes one."""
    alone = [
        Setting("trpo", ("--algorithm", "trpo")),
        Setting("trpo-lagrangian", ("--algorithm", "trpo-lagrangian")),
        Setting("cpo", ("--algorithm", "cpo")),
        Setting("pcpo", ("--algorithm", "pcpo")),
        Setting("pcpo-l2", ("--algorithm", "pcpo", "--projection", "l2")),
    ]
    guided = [
        Setting(name, ("--algorithm", name, *options), KINDS)
        for name, options in (
            ("f-cpo", ()),
            ("f-pcpo", ()),
            ("d-cpo", ("--weight-schedule", "decay")),
            ("d-pcpo", ("--weight-schedule", "decay")),
            ("pretrain", ()),
        )
    ]
    space = [
        Setting(f"space-{name}", ("--algorithm", "space", *options), KINDS)
        for name, options in (
            ("printed", ("--combine", "printed")),
            ("printed-l2", ("--combine", "printed", "--projection", "l2")),
            ("printed-fixed", ("--combine", "printed", "--threshold-rule", "fixed")),
            ("sequential", ("--combine", "sequential")),
            ("joint", ("--combine", "joint")),
            ("joint-bounded", ("--combine", "joint", *BOUNDED)),
            ("guarded", ("--combine", "guarded")),
        )
    ]
    return alone + guided + space


EXPERIMENTS = {
    "point-circle": ("point-circle", _point_settings),
    "point-gather": ("point-gather", _point_settings),
}


def commands(experiment: str, out: Path, updates: int, seeds: Sequence[int]) -> list[list[str]]:
    """The `spacerl sweep` command of every setting of an experiment."""
    if experiment not in EXPERIMENTS:
        raise unknown_name("experiment", experiment, EXPERIMENTS)
    task, settings = EXPERIMENTS[experiment]
    common = ["--updates", str(updates), "--seeds", *map(str, seeds), "--quiet"]
    return [
        [
            "sweep",
            task,
            *options,
            *(("--baselines", *baselines) if baselines else ()),
            *common,
            "--out",
            str(out / task / name),
        ]
        for name, options, baselines in settings()
    ]


def reproduce(experiment: str, out: Path, updates: int, seeds: Sequence[int], jobs: int) -> list[Path]:
    """Run an experiment with `jobs` processes at a time. Settings that are already there are left alone."""
    pending = [line for line in commands(experiment, out, updates, seeds) if not Path(line[-1]).exists()]

    def run(line: list[str]) -> int:
        print("spacerl " + shlex.join(line), flush=True)
        return subprocess.run([sys.executable, "-m", "spacerl", *line], check=False).returncode

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        codes = list(pool.map(run, pending))
    failed = [shlex.join(line) for line, code in zip(pending, codes, strict=True) if code]
    if failed:
        raise InputError(f"{len(failed)} of {len(pending)} settings failed, first: spacerl {failed[0]}")
    return [Path(line[-1]) for line in pending]
