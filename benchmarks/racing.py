"""Car racing: how fast it is, how far its images are from Gymnasium's, and the algorithms from the shipped baseline.

    python benchmarks/racing.py speed [--steps 2000] [--lanes 10] [--workers 1 2]
    python benchmarks/racing.py images [--tracks 5] [--steps 400]
    python benchmarks/racing.py run --out DIR [--seeds 0 1] [--updates 60] [--batch-size 10000] [--part 0/10]
    python benchmarks/racing.py table --out DIR        # Markdown
    python benchmarks/racing.py figure --out DIR --figures DIR
    python benchmarks/racing.py pack --out DIR --data FILE.npz

`run` goes on where it was stopped: a finished run is left alone, one that was killed is resumed. With --round 20 all
algorithms make 20 updates from a seed before the first one makes more. --part k/n takes every n-th of the runs from the
k-th on, so that several processes share the work.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import spacerl
from spacerl.envs.tasks import DEMONSTRATED
from spacerl.runs.folder import RunFolder

sys.path.insert(0, str(Path(__file__).parent))

from shared.cores import core_seconds
from shared.curves import at_end, curves_of, kept_in_words, with_interval

COLUMNS = ("J_R", "J_C", "J_D", "h_D", "cumulative_violation", "episode_return")
LIMIT = 5.0


class Row(NamedTuple):
    algorithm: str
    baseline: str | None
    options: dict[str, Any] = {}  # noqa: RUF012  never written to

    @property
    def label(self) -> str:
        return self.algorithm + (f" from {self.baseline}" if self.baseline else "")


DECAY = {"weight_schedule": "decay"}  # as printed the weight stays at 1, which is f-CPO and f-PCPO
ROWS = (
    Row("space", DEMONSTRATED),
    Row("pcpo", None),
    Row("d-pcpo", DEMONSTRATED, DECAY),
    Row("f-pcpo", DEMONSTRATED),
    Row("d-cpo", DEMONSTRATED, DECAY),
    Row("space-printed", DEMONSTRATED),
    Row("f-cpo", DEMONSTRATED),
)
USUAL = 5  # rows that are run unless others are named


# Runs -----------------------------------------------------------------------------------------------------------------


def folder(options: argparse.Namespace, row: Row, seed: int) -> Path:
    return options.out / f"car-racing.{row.algorithm}.{row.baseline or 'none'}.{seed}"


def run(options: argparse.Namespace) -> None:
    import jax

    jax.config.update("jax_compilation_cache_dir", str(options.out / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    part, parts = (int(each) for each in options.part.split("/"))
    runs = [(seed, row) for seed in options.seeds for row in options.rows][part::parts]
    least = options.round or options.updates
    ends = [*range(least, options.updates, least), options.updates]
    work = [(seed, end, row) for this in options.seeds for end in ends for seed, row in runs if seed == this]
    for seed, end, row in work:
        out, began = folder(options, row, seed), time.time()
        if (out / "config.json").exists():
            if RunFolder.open(out).newest_update() >= end:
                continue
            spacerl.resume(out, updates=end, progress=False)
        else:
            spacerl.train(
                "car-racing",
                algorithm=row.algorithm,
                baseline=options.baseline if row.baseline and options.baseline else row.baseline,
                seed=seed,
                updates=end,
                out=out,
                progress=False,
                log=(),
                **row.options,
                **settings(options),
            )
        print(f"{out.name}: {end} updates, {time.time() - began:.0f} s", flush=True)


def settings(options: argparse.Namespace) -> dict[str, Any]:
    length = options.rollout_length or 1000
    given = {
        "preset": options.preset,
        "batch_size": options.batch_size,
        "rollout_length": length,
        "environments": options.environments or -(-options.batch_size // length),
        "workers": options.workers[0],
        "delta": options.delta,
        "fisher_subsample": options.fisher_subsample,
        "checkpoint_every": options.checkpoint_every,
    }
    return {name: value for name, value in given.items() if value is not None}


# Showing --------------------------------------------------------------------------------------------------------------


def curves(options: argparse.Namespace, row: Row) -> np.ndarray | None:
    """(seeds, updates, columns) of the runs that have all their updates."""
    return curves_of([folder(options, row, seed) for seed in options.seeds], options.updates, COLUMNS)


def table(options: argparse.Namespace) -> None:
    names = ("algorithm", "seeds", "J_R first", "J_R last", "J_C first", "J_C last", f"at or below {LIMIT:g} from")
    names += ("J_D first", "J_D last", "h_D last", "sum of violations", "sum until J_R is 40")
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for row in options.rows:
        found = curves(options, row)
        if found is None:
            continue
        J_R, J_C, J_D, h_D, violation = (found[..., i] for i in range(5))
        cells = [row.label, str(len(found)), f"{J_R[:, 0].mean():.4g}", with_interval(at_end(J_R))]
        cells += [f"{J_C[:, 0].mean():.4g}", with_interval(at_end(J_C)), kept_in_words(J_C, LIMIT)]
        cells += [f"{J_D[:, 0].mean():.4g}", with_interval(at_end(J_D)), with_interval(at_end(h_D))]
        cells += [with_interval(violation[:, -1])]
        cells += [" ".join(until(J, each, 40.0) for J, each in zip(J_R, violation, strict=True))]
        print("| " + " | ".join(cells) + " |")


def until(J_R: np.ndarray, violation: np.ndarray, reward: float) -> str:
    """The sum of violations when a reward is first reached."""
    reached = np.flatnonzero(J_R >= reward)
    return f"{violation[reached[0]]:.4g}" if len(reached) else "never"


def figure(options: argparse.Namespace) -> None:
    from matplotlib.figure import Figure

    options.figures.mkdir(parents=True, exist_ok=True)
    canvas = Figure(figsize=(10.0, 7.0), layout="constrained")
    reward, cost, divergence, both = canvas.subplots(2, 2).ravel()
    for i, row in enumerate(options.rows):
        found = curves(options, row)
        if found is None:
            continue
        mean, thick = found.mean(axis=0), {"color": f"C{i}", "linewidth": 2.2}
        thin = {"color": f"C{i}", "linewidth": 0.7, "alpha": 0.5}
        for each, style in [(mean, thick | {"label": row.label}), *((seed, thin) for seed in found)]:
            J_R, J_C, _, _, violation = each.T[:5]
            reward.plot(J_R, **style)
            cost.plot(J_C, **style)
            both.plot(violation, J_R, **style)
        divergence.plot(mean[:, 2], **thick)
        if row.algorithm.startswith("space"):
            divergence.plot(mean[:, 3], linestyle=":", label=f"h_D of {row.algorithm}", **thick)
    cost.axhline(LIMIT, color="0.4", linestyle="--", linewidth=0.9)
    reward.set(xlabel="update", ylabel="J_R; thin: each seed")
    cost.set(xlabel="update", ylabel="J_C; dashed: h_C", ylim=(-0.2, None))
    cost.set_yscale("symlog", linthresh=LIMIT, linscale=1.0)  # linear as far as the limit
    divergence.set(xlabel="update", ylabel="J_D; dotted: h_D", yscale="symlog")
    both.set(xlabel="sum of violations so far", ylabel="J_R")
    reward.legend(fontsize=7, frameon=False)
    if divergence.get_legend_handles_labels()[0]:
        divergence.legend(fontsize=7, frameon=False)
    canvas.savefig(options.figures / "car-racing.png", dpi=140)


def pack(options: argparse.Namespace) -> None:
    found = {row.label: curves(options, row) for row in options.rows}
    np.savez_compressed(options.data, **{name: each for name, each in found.items() if each is not None})


# Speed ----------------------------------------------------------------------------------------------------------------


class Speed(NamedTuple):
    """Steps of the environment for each second of the clock, and of the time of this process's core."""

    clock: float
    core: float


def keys(steps: int, seed: int) -> Iterator[np.ndarray]:
    """Somebody who changes the keys four times a second, mostly with gas."""
    random, action = np.random.default_rng(seed), np.zeros(3, np.float32)
    for step in range(steps):
        if step % 12 == 0:
            choices = ((-1, 0, 1), (-1, 1, 1), (-1, -1, -1, 1))
            action = np.array([random.choice(each) for each in choices], np.float32)
        yield action


def timed(step: Any, count: int, each: int = 1) -> Speed:
    began, core = time.perf_counter(), time.process_time()
    for _ in range(count):
        step()
    return Speed(count * each / (time.perf_counter() - began), count * each / max(time.process_time() - core, 1e-9))


def gymnasiums(steps: int, draws: bool) -> Speed:
    """Gymnasium's own environment, and the same without drawing. Episodes of a thousand steps, resets included."""
    from spacerl.envs.racing.gymnasium import driven, original

    env = original.CarRacing(lap_complete_percent=0.95)
    if not draws:
        env._render = lambda mode: None  # type: ignore[assignment, method-assign]
    return episodes(env, steps, driven)


def ours(steps: int) -> Speed:
    from spacerl.envs.racing.gymnasium import CarRacingEnv

    return episodes(CarRacingEnv(), steps, lambda action: action)


def episodes(env: Any, steps: int, translate: Any) -> Speed:
    env.reset(seed=0)  # what is made once in a process is made
    actions, played = keys(steps, 0), iter(range(steps))

    def step() -> None:
        ended = env.step(np.array(translate(next(actions))))[2]
        if ended or (next(played) + 1) % 1000 == 0:
            env.reset()

    env.reset(seed=1)
    return timed(step, steps)


def pool(steps: int, lanes: int, workers: int) -> Speed:
    """Our worker processes: ticks of all lanes at once, as a run makes them."""
    from spacerl.envs.racing.host import car_racing
    from spacerl.types import RESET, STEP

    env = car_racing(lanes, workers)
    try:
        never, seeds = np.zeros(lanes, bool), np.arange(lanes)
        env.tick(np.full(lanes, RESET), np.zeros((lanes, 3), np.float32), never, seeds)
        drivers = [keys(steps, seed) for seed in range(lanes)]

        def tick() -> None:
            actions = np.stack([next(driver) for driver in drivers])
            env.tick(np.full(lanes, STEP), actions, never, seeds + lanes)

        pids = [os.getpid(), *env.processes()]
        began, count = core_seconds(pids), max(1, steps // lanes)
        found = timed(tick, count, lanes)
        return found._replace(core=count * lanes / max(core_seconds(pids) - began, 1e-9))
    finally:
        env.close()


def speed(options: argparse.Namespace) -> None:
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} of others\n")
    print("| what | steps/s by the clock | steps/s of a core |\n|---|---|---|")
    few = max(1, options.steps // 10)

    def tell(what: str, found: Speed) -> None:
        print(f"| {what} | {found.clock:,.0f} | {found.core:,.0f} |", flush=True)

    tell("Gymnasium", gymnasiums(few, draws=True))
    tell("Gymnasium without drawing", gymnasiums(options.steps, draws=False))
    tell("ours, in one process", ours(options.steps))
    for workers in options.workers:
        tell(f"ours, {options.lanes} lanes, {workers} workers", pool(options.steps, options.lanes, workers))


# Images ---------------------------------------------------------------------------------------------------------------


def differences(track: int, steps: int) -> np.ndarray:
    """(steps, 96, 96) largest difference of the colours of every pixel, and its mean over colours, as two arrays."""
    from spacerl.envs.racing.gymnasium import CarRacingEnv, driven, original

    theirs, mine = original.CarRacing(lap_complete_percent=0.95), CarRacingEnv()
    theirs.reset(seed=track)
    mine.reset(seed=track)
    found = []
    for action in keys(steps, track):
        image, _, ended, _, _ = theirs.step(np.array(driven(action)))
        off = np.abs(image.astype(np.int16) - mine.step(action)[0])
        found.append((off.max(-1), off.mean(-1)))
        if ended:
            break
    return np.array(found)


def images(options: argparse.Namespace) -> None:
    names = ("track", "mean", "worst frame", "off by more than 16", "more than 32", "more than 64", "bar", "first 50")
    print("Levels of 0 to 255, and shares of pixels.\n")
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for track in range(options.tracks):
        worst, mean = differences(track, options.steps).swapaxes(0, 1)
        cells = [str(track), f"{mean.mean():.3f}", f"{mean.mean(axis=(1, 2)).max():.2f}"]
        cells += [f"{100 * (worst > level).mean():.3f} %" for level in (16, 32, 64)]
        cells += [f"{mean[:, 84:].mean():.4f}", f"{mean[:50].mean():.3f}"]
        print("| " + " | ".join(cells) + " |", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"speed": speed, "images": images, "run": run, "table": table, "figure": figure, "pack": pack}
    parser.add_argument("what", choices=parts)
    parser.add_argument("--out", type=Path, default=Path("runs/car-racing"))
    parser.add_argument("--only", nargs="+", help="labels of rows, such as 'space from demos'")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=10_000)
    parser.add_argument("--rollout-length", type=int, help="steps of an episode; the task's by default")
    parser.add_argument("--environments", type=int, help="of a run; one for every episode by default")
    parser.add_argument("--baseline", help="a policy file in place of the shipped baseline")
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--delta", type=float)
    parser.add_argument("--fisher-subsample", type=float)
    parser.add_argument("--checkpoint-every", type=int)
    parser.add_argument("--part", default="0/1", help="run: every n-th of the runs from the k-th on, as k/n")
    parser.add_argument("--round", type=int, help="run: so many updates of each algorithm, then as many more of each")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2], help="run: the first; speed: all")
    parser.add_argument("--lanes", type=int, default=10)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--tracks", type=int, default=5)
    parser.add_argument("--figures", type=Path, default=Path("docs/images"))
    parser.add_argument("--data", type=Path, default=Path("docs/results/data/car-racing.npz"))
    options = parser.parse_args(arguments)
    usual = ROWS[:USUAL]
    options.rows = [row for row in ROWS if row.label in options.only] if options.only else list(usual)
    parts[options.what](options)


if __name__ == "__main__":
    main()
