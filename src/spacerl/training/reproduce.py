"""The paper's comparisons as named experiments: each is a list of `spacerl sweep` commands, run side by side.

A command can be copied and run alone; the result is the same run folders.
"""

from __future__ import annotations

import math
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from spacerl.envs.tasks import KINDS
from spacerl.reporting import mean_interval
from spacerl.runs.folder import RunFolder, write_atomically
from spacerl.runs.lock import sole_writer
from spacerl.training.signals import number_of
from spacerl.types import InputError, unknown_name

DIRECT = ("--divergence-gradient", "direct")
BOUNDED = (*DIRECT, "--projection-kl-bound", "0.005")


AT = "@"  # between a setting and its trust region


class Setting(NamedTuple):
    name: str
    options: tuple[str, ...]
    baselines: tuple[str, ...] = ()


POINT_DELTAS = ("0.0001", "0.001", "0.01")  # the paper's, and two with which others go farther than at the paper's


def _point_settings() -> list[Setting]:
    """Every algorithm, SPACE in each of its forms, with every kind of pi_B where it takes one, at three trust regions:
    who is compared at one that suits another is not compared at its best."""
    alone = [
        Setting("trpo", ("--algorithm", "trpo")),
        Setting("trpo-lagrangian", ("--algorithm", "trpo-lagrangian")),
        Setting("trpo-pid", ("--algorithm", "trpo-pid")),
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
        Setting(f"space-{name}", ("--algorithm", *options), KINDS)
        for name, options in (
            ("printed", ("space-printed",)),
            ("printed-l2", ("space-printed", "--projection", "l2")),
            ("printed-fixed", ("space-printed", "--threshold-rule", "fixed")),
            ("sequential", ("space-sequential",)),
            ("joint", ("space-joint",)),
            ("joint-bounded", ("space-joint", *BOUNDED)),
            ("guarded", ("space",)),
        )
    ]
    return [
        Setting(f"{setting.name}{AT}{delta}", (*setting.options, "--delta", delta), setting.baselines)
        for setting in alone + guided + space
        for delta in POINT_DELTAS
    ]


# 2,500 steps of KL 1e-4, the paper's training of the ants, lead about as far as 250 of 1e-2: KL grows with the square
# of the distance. Ants are slow, so they take the wider steps, all algorithms alike.
ANT_DELTA = ("--delta", "0.01")


def _ant_settings() -> list[Setting]:
    """PCPO, both forms of SPACE with every kind of pi_B, and what two claims about the ants compare: a fixed h_D, and
    pre-training."""
    return [
        Setting("pcpo", ("--algorithm", "pcpo", *ANT_DELTA)),
        Setting("space-printed", ("--algorithm", "space-printed", *ANT_DELTA), KINDS),
        Setting("space-guarded", ("--algorithm", "space", *ANT_DELTA), KINDS),
        Setting(
            "space-printed-fixed",
            ("--algorithm", "space-printed", "--threshold-rule", "fixed", *ANT_DELTA),
            ("near",),
        ),
        Setting("pretrain", ("--algorithm", "pretrain", *ANT_DELTA), ("near",)),
        # The full gradient also looks for states in which pi_B is easy to imitate; this one only imitates.
        Setting("pretrain-direct", ("--algorithm", "pretrain", *DIRECT, *ANT_DELTA), ("near",)),
    ]


EXPERIMENTS = {
    "point-circle": ("point-circle", _point_settings),
    "point-gather": ("point-gather", _point_settings),
    "ant-circle": ("ant-circle", _ant_settings),
    "ant-gather": ("ant-gather", _ant_settings),
}


def commands(
    experiment: str, out: Path, updates: int, seeds: Sequence[int], batch_size: int | None = None
) -> list[list[str]]:
    """The `spacerl sweep` command of every setting of an experiment; its folder is the last word."""
    if experiment not in EXPERIMENTS:
        raise unknown_name("experiment", experiment, EXPERIMENTS)
    task, settings = EXPERIMENTS[experiment]
    batch = () if batch_size is None else ("--batch-size", str(batch_size))
    common = ["--preset", "paper", *batch, "--updates", str(updates), "--seeds", *map(str, seeds), "--quiet"]
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


def reproduce(
    experiment: str, out: Path, updates: int, seeds: Sequence[int], jobs: int, batch_size: int | None = None
) -> list[Path]:
    """Run an experiment with `jobs` processes at a time. Settings that are finished are left alone, the others are
    continued."""
    lines = commands(experiment, out, updates, seeds, batch_size)
    settings = EXPERIMENTS[experiment][1]()
    pending = [
        line
        for line, setting in zip(lines, settings, strict=True)
        if not _is_finished(Path(line[-1]), updates, len(seeds) * max(1, len(setting.baselines)))
    ]

    with sole_writer(out / EXPERIMENTS[experiment][0]):
        codes = run_side_by_side(pending, jobs, _begun)
    failed = [shlex.join(line) for line, code in zip(pending, codes, strict=True) if code]
    if failed:
        raise InputError(f"{len(failed)} of {len(pending)} settings failed, first: spacerl {failed[0]}")
    return [Path(line[-1]) for line in pending]


def _begun(line: list[str]) -> subprocess.Popen:
    print("spacerl " + shlex.join(line), flush=True)
    return subprocess.Popen([sys.executable, "-m", "spacerl", *line])


def run_side_by_side(
    lines: Sequence[list[str]], jobs: int, begun: Callable[[list[str]], subprocess.Popen]
) -> list[int]:
    """Exit codes of commands, `jobs` of them at a time. A signal that stops this process is passed on to theirs, which
    save what they have; no other is begun."""
    running: list[subprocess.Popen] = []
    beginning, stopped = threading.Lock(), threading.Event()

    def run(line: list[str]) -> int:
        with beginning:
            if stopped.is_set():
                return 0
            running.append(begun(line))
            process = running[-1]
        return process.wait()

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        try:
            return list(pool.map(run, lines))
        except KeyboardInterrupt as interrupt:
            stopped.set()
            with beginning:
                for process in running:
                    process.send_signal(number_of(interrupt))  # nothing happens to one that has ended
            raise


def _is_finished(folder: Path, updates: int, runs: int) -> bool:
    there = [RunFolder(path.parent) for path in folder.glob("*/config.json")]
    return len(there) == runs and all(run.config().updates == updates and run.is_finished() for run in there)


SHOWN = (10, 25, 50, 100, 200)
COLUMNS = ("J_R", "J_C", "cumulative_violation", "entropy", "J_D", "h_D")


def collected(folder: Path) -> dict[tuple[str, str], np.ndarray]:
    """(setting, pi_B) -> curves (seeds, updates, COLUMNS) of an experiment's folder, settings in alphabetic order."""
    runs: dict[tuple[str, str], list] = {}
    for path in sorted(folder.glob("*/*/metrics.csv")):
        run = RunFolder(path.parent)
        key = (path.parent.parent.name, "+".join(run.config().baseline) or "none")
        runs.setdefault(key, []).append([[row.get(name, math.nan) for name in COLUMNS] for row in run.metrics()])
    return {key: np.array(values) for key, values in runs.items()}


def markdown_table(curves: dict[tuple[str, str], np.ndarray]) -> str:
    """Means over seeds; at the end, the mean of the last ten updates with half its 95 % interval over seeds."""
    head = ["setting", "pi_B", "seeds", *(f"J_R@{k}" for k in SHOWN), "J_R end", "J_C end", "violations"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for (setting, baseline), values in curves.items():
        ends = [values[:, -10:, 0].mean(1), values[:, -10:, 1].mean(1), values[:, -1, 2]]
        cells = [setting, baseline, str(len(values))]
        cells += [f"{values[:, k, 0].mean():.2f}" if k < values.shape[1] else "" for k in SHOWN]
        lines.append("| " + " | ".join(cells + [_with_interval(end) for end in ends]) + " |")
    return "\n".join(lines) + "\n"


def _with_interval(values: np.ndarray) -> str:
    """Mean over seeds and half its 95 % interval, where there is more than one seed."""
    interval = mean_interval(values)
    if values.size < 2:
        return _figure(interval.mean)
    return f"{_figure(interval.mean)} ± {_figure((interval.high - interval.low) / 2, 2)}"


def _figure(value: float, digits: int = 3) -> str:
    """Significant digits, never an exponent."""
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:#.{digits}g}".rstrip(".")


FIGURE_SETTINGS = (
    "pcpo", "cpo", "trpo-pid", "f-pcpo", "d-pcpo", "pretrain", "pretrain-direct", "space-printed",
    "space-printed-fixed", "space-guarded",
)  # fmt: skip
COLOURS = ("#555555", "#b0b0b0", "#0072b2", "#e69f00", "#56b4e9", "#cc79a7", "#8c5a9e", "#d55e00", "#f0a080", "#009e73")


def best_of(curves: dict[tuple[str, str], np.ndarray], setting: str, kind: str, h_C: float) -> str | None:
    """The name of a setting with the trust region at which it earns most at the end of those that keep the limit, as
    far as the seeds can tell; where none does, the one of least cost."""
    own = {name: values for (name, pi_B), values in curves.items() if pi_B == kind and name.split(AT)[0] == setting}
    kept = {name: v for name, v in own.items() if mean_interval(v[:, -10:, 1].mean(1)).low <= h_C}
    if kept:
        return max(kept, key=lambda name: kept[name][:, -10:, 0].mean())
    return min(own, key=lambda name: own[name][:, -10:, 1].mean(), default=None)


def draw_curves(curves: dict[tuple[str, str], np.ndarray], h_C: float, path: Path) -> None:
    """J_R and J_C over updates, a column per kind of pi_B; mean and standard deviation over seeds, every setting at the
    trust region that is best for it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 6.5), layout="constrained")
    axes = figure.subplots(2, len(KINDS), sharex=True, sharey="row")
    shown = dict(zip(FIGURE_SETTINGS, COLOURS, strict=True))
    for column, kind in enumerate(KINDS):
        for setting, colour in shown.items():
            pi_B = kind if best_of(curves, setting, kind, h_C) else "none"
            if (name := best_of(curves, setting, pi_B, h_C)) is None:
                continue
            values = curves[name, pi_B]
            for row in (0, 1):
                mean, std = values[..., row].mean(0), values[..., row].std(0, ddof=min(1, len(values) - 1))
                axes[row, column].plot(mean, color=colour, label=setting, lw=1.6)
                axes[row, column].fill_between(range(mean.size), mean - std, mean + std, color=colour, alpha=0.12, lw=0)
        axes[1, column].axhline(h_C, color="black", ls="--", lw=1)
        axes[0, column].set_title(f"pi_B: {kind}")
        axes[1, column].set_xlabel("update")
    # Most of what is shown; a curve that is far above h_C for most of its time widens the axis.
    highest = [
        np.percentile(values[..., 1].mean(0), 60) for (name, _), values in curves.items() if name.split(AT)[0] in shown
    ]
    axes[1, 0].set_ylim(0.0, max([3.0 * h_C, *(1.2 * each for each in highest)]))
    axes[0, 0].set_ylabel("J_R")
    axes[1, 0].set_ylabel("J_C (dashed: h_C)")
    named = {label: line for axis in axes[0] for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    axes[0, 0].legend(named.values(), named.keys(), fontsize=8, frameon=False)
    figure.savefig(path, dpi=80)


def summarise(experiment: str, out: Path) -> tuple[Path, Path]:
    """Write table.md and curves.png beside an experiment's runs."""
    folder = out / EXPERIMENTS[experiment][0]
    curves = collected(folder)
    if not curves:
        raise InputError(f"'{folder}' holds no runs: make them with `spacerl reproduce {experiment}`")
    h_C = RunFolder(next(folder.glob("*/*/metrics.csv")).parent).metrics()[0]["h_C"]
    write_atomically(folder / "table.md", markdown_table(curves))
    draw_curves(curves, h_C, folder / "curves.png")
    return folder / "table.md", folder / "curves.png"
