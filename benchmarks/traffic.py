"""The traffic tasks: every algorithm of the comparison from the near baseline, and how much of the time SUMO takes.

    python benchmarks/traffic.py run --out DIR [--tasks grid bottleneck] [--seeds 0 1 2] [--updates 60 30] [--part 0/8]
    python benchmarks/traffic.py table --out DIR       # Markdown, for every task
    python benchmarks/traffic.py figure --out DIR --figures DIR
    python benchmarks/traffic.py pack --out DIR --data FILE.npz
    python benchmarks/traffic.py speed [--tasks grid] [--repeats 3]

`run` goes on where it was stopped: a finished run is left alone, one that was killed is resumed. Settings are those of
the paper's table (preset "paper") but for the batch, which --batch-sizes gives.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

import spacerl
from spacerl.reporting import mean_interval
from spacerl.runs.folder import RunFolder

TASKS = ("grid", "bottleneck")
PAPER_BATCH = {"grid": 10_000, "bottleneck": 25_000}
# Mean costs per episode up to which a limit of zero is taken to be kept; docs/tasks.md says why.
TOLERANCE = {"grid": 16.0, "bottleneck": 150.0}
COLUMNS = ("J_R", "J_C", "J_D", "cumulative_violation")


class Row(NamedTuple):
    algorithm: str
    baseline: str | None
    projection: str | None = None  # that of the preset, the 2-norm, unless it is given

    @property
    def label(self) -> str:
        projection = f", {self.projection}" if self.projection else ""
        return self.algorithm + (f" from {self.baseline}" if self.baseline else "") + projection


ROWS = (
    Row("space", "near"),
    Row("pcpo", None),
    Row("space-printed", "near"),
    Row("cpo", None),
    Row("space", "rule"),
    Row("f-pcpo", "near"),
    Row("f-cpo", "near"),
    Row("space-printed", "near", "kl"),
    Row("space", "near", "kl"),
    Row("pcpo", None, "kl"),
    Row("d-pcpo", "near"),
    Row("d-cpo", "near"),
)


def folder(options: argparse.Namespace, task: str, row: Row, seed: int) -> Path:
    projection = f".{row.projection}" if row.projection else ""
    return options.out / f"{task}.{row.algorithm}.{row.baseline or 'none'}{projection}.{seed}"


def run(options: argparse.Namespace) -> None:
    import jax

    jax.config.update("jax_compilation_cache_dir", str(options.out / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    part, parts = (int(each) for each in options.part.split("/"))
    work = [(i, seed, row) for i in range(len(options.tasks)) for seed in options.seeds for row in options.rows]
    for i, seed, row in work[part::parts]:
        task, out, began = options.tasks[i], folder(options, options.tasks[i], row, seed), time.time()
        updates = options.updates[i]
        if (out / "config.json").exists():
            if RunFolder.open(out).newest_update() >= updates:
                continue
            spacerl.resume(out, updates=updates, progress=False)
        else:
            batch = options.batch_sizes[i]
            length = options.rollout_length or horizon(task)
            settings: dict[str, Any] = {
                "batch_size": batch,
                "environments": options.environments or -(-batch // length),
            }
            if row.projection:
                settings["projection"] = row.projection
            if options.rollout_length:
                settings["rollout_length"] = options.rollout_length
            spacerl.train(
                task,
                algorithm=row.algorithm,
                baseline=row.baseline,
                preset=options.preset,
                seed=seed,
                updates=updates,
                out=out,
                progress=False,
                log=(),
                **settings,
            )
        print(f"{out.name}: {time.time() - began:.0f} s", flush=True)


def horizon(task: str) -> int:
    from spacerl.envs.tasks import TASKS as rows

    return rows[task].settings["rollout_length"]


# Showing --------------------------------------------------------------------------------------------------------------


def curves(options: argparse.Namespace, task: str, row: Row) -> np.ndarray | None:
    """(seeds, updates, columns) of the runs that have all their updates."""
    updates = options.updates[options.tasks.index(task)]
    found = []
    for seed in options.seeds:
        path = folder(options, task, row, seed)
        if not (path / "metrics.csv").exists():
            continue
        rows = RunFolder.open(path).metrics()
        if len(rows) >= updates:
            found.append([[float(each.get(name, np.nan)) for name in COLUMNS] for each in rows[:updates]])
    return np.array(found) if found else None


def end(values: np.ndarray) -> np.ndarray:
    """(seeds,) means over the last tenth of the updates."""
    return values[:, -max(1, values.shape[1] // 10) :].mean(axis=1)


def kept_from(cost: np.ndarray, limit: float) -> float:
    """First update from which on a curve stays at or below the limit; infinite where its end is above."""
    over = np.flatnonzero(cost > limit)
    first = 0 if not len(over) else over[-1] + 1
    return float(first) if first < len(cost) else np.inf


def text(values: np.ndarray) -> str:
    interval = mean_interval(values)
    half = (interval.high - interval.low) / 2
    return f"{values.mean():.4g}" + (f" ± {half:.2g}" if np.isfinite(half) else "")


def table(options: argparse.Namespace) -> None:
    for task in options.tasks:
        limit = TOLERANCE[task]
        print(f"\n**{task}**: satisfied means a mean cost of at most {limit:g} per episode\n")
        print(
            f"| algorithm | seeds | J_R first | J_R last | J_C first | J_C last | at or below {limit:g} from update |"
        )
        print("|" + "---|" * 7)
        for row in options.rows:
            found = curves(options, task, row)
            if found is None:
                continue
            J_R, J_C = found[..., 0], found[..., 1]
            kept = [kept_from(each, limit) for each in J_C]
            said = " ".join("never" if np.isinf(each) else f"{each:.0f}" for each in kept)
            cells = [row.label, str(len(found)), f"{J_R[:, 0].mean():.4g}", text(end(J_R))]
            cells += [f"{J_C[:, 0].mean():.4g}", text(end(J_C)), said]
            print("| " + " | ".join(cells) + " |")


def figure(options: argparse.Namespace) -> None:
    from matplotlib.figure import Figure

    options.figures.mkdir(parents=True, exist_ok=True)
    for task in options.tasks:
        canvas = Figure(figsize=(9.0, 3.4), layout="constrained")
        left, right = canvas.subplots(1, 2)
        for i, row in enumerate(options.rows):
            found = curves(options, task, row)
            if found is None:
                continue
            style: dict[str, Any] = {"color": f"C{i}", "linewidth": 2.2 if row.algorithm == "space" else 1.2}
            left.plot(found[..., 0].mean(axis=0), label=row.label, **style)
            right.plot(found[..., 1].mean(axis=0), **style)
        right.axhline(TOLERANCE[task], color="0.4", linestyle="--", linewidth=0.9)
        right.set(yscale="symlog", ylabel="J_C per episode; dashed: tolerance", xlabel="update")
        left.set(ylabel="J_R", xlabel="update", title=task)
        left.legend(fontsize=6.5, frameon=False)
        canvas.savefig(options.figures / f"traffic-{task}.png", dpi=140)


def pack(options: argparse.Namespace) -> None:
    found = {f"{task}|{row.label}": curves(options, task, row) for task in options.tasks for row in options.rows}
    np.savez_compressed(options.data, **{name: each for name, each in found.items() if each is not None})


# Speed ----------------------------------------------------------------------------------------------------------------


def bare(task: str, steps: int) -> float:
    """Microseconds of a core that the simulator alone takes for a step: no reads, no commands."""
    from spacerl.envs.tasks import TASKS as rows
    from spacerl.envs.tasks import imported

    env = imported(rows[task].gymnasium_env or "")()
    try:
        env.reset(seed=1)
        simulation = env.scenario.simulation
        before = simulation.seconds
        for _ in range(steps):
            simulation.step()
        return 1e6 * (simulation.seconds - before) / steps
    finally:
        env.close()


class Share(NamedTuple):
    """Where the time of a core went, µs per step of the environment."""

    simulator: float  # inside SUMO: its steps, loading, and what is read from it
    all: float  # everything in the worker processes
    steps: int


def single(task: str, steps: int) -> Share:
    """One environment in this process, random actions: what a worker does, without its messages."""
    from spacerl.envs.host.in_process import InProcessEnvs
    from spacerl.envs.host.single import Recipe
    from spacerl.envs.tasks import TASKS as rows
    from spacerl.envs.tasks import imported
    from spacerl.types import RESET, STEP

    envs = InProcessEnvs(Recipe(imported(rows[task].gymnasium_env or ""), (("cost", "info"),)), 1)
    try:
        size = envs.spec.action.size
        actions = np.random.default_rng(0).normal(size=(steps, 1, size)).astype(np.float32)
        never, no_seed = np.zeros(1, bool), np.full(1, -1)
        scenario = envs.singles[0].env.scenario
        inside, began = scenario.simulator_seconds, time.thread_time()
        envs.tick(np.array([RESET]), actions[0], never, np.ones(1, int))
        for action in actions:
            envs.tick(np.array([STEP]), action, never, no_seed)
        spent = time.thread_time() - began
        return Share(1e6 * (scenario.simulator_seconds - inside) / steps, 1e6 * spent / steps, steps)
    finally:
        envs.close()


def core_seconds(pids: list[int]) -> float:
    """Time of cores that these processes have used so far (Linux)."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class Update(NamedTuple):
    """One whole update at a batch: time of cores in the workers and in the run's own process, and of the clock."""

    workers: float
    own: float
    collecting: float
    rest: float
    steps: int


def training(task: str, batch: int, lanes: int) -> Update:
    from spacerl.envs.traffic.host import TrafficHost
    from spacerl.training.assemble import assemble
    from spacerl.training.programs import single_program
    from spacerl.training.settings import resolve
    from spacerl.training.update import initial_state

    given = {"task": task, "algorithm": "pcpo", "batch_size": batch, "environments": lanes, "preset": "paper"}
    parts = assemble(resolve(given))
    try:
        assert isinstance(parts.env, TrafficHost)
        state, stepper = initial_state(parts.learner, 0), single_program(parts).step
        state = stepper(state).state  # compiles
        workers, own = parts.env.processes(), [os.getpid()]
        before, began = int(state.env_steps), (core_seconds(workers), core_seconds(own))
        stepped = stepper(state)
        steps = int(stepped.state.env_steps) - before
        spent = core_seconds(workers) - began[0], core_seconds(own) - began[1]
        return Update(*spent, stepped[2], stepped[3], steps)
    finally:
        parts.close()


def speed(options: argparse.Namespace) -> None:
    """Shares are of the time of cores, which a busy machine changes little; the clock says how busy it was."""
    names = ("task", "bare SUMO", "SUMO in an environment", "environment", "share", "an update", "share of it in SUMO")
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for task in options.tasks:
        length = horizon(task)
        batch = options.batch_sizes[options.tasks.index(task)] if options.small else PAPER_BATCH[task]
        alone = statistics.median(bare(task, length) for _ in range(options.repeats))
        shares = [single(task, length) for _ in range(options.repeats)]
        share = statistics.median(each.simulator / each.all for each in shares)
        inside = statistics.median(each.simulator for each in shares)
        update = training(task, batch, options.lanes)
        used = update.steps * inside * 1e-6 / max(update.workers + update.own, 1e-9)
        cells = [task, f"{alone:.0f} µs", f"{inside:.0f} µs", f"{inside / share:.0f} µs", f"{100 * share:.0f} %"]
        said = f"{update.steps:,} steps: cores {update.workers:.1f} s in workers and {update.own:.1f} s in the run"
        cells += [f"{said}; clock {update.collecting:.1f} + {update.rest:.1f} s", f"{100 * used:.0f} %"]
        print("| " + " | ".join(cells) + " |", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table", "figure", "pack", "speed"))
    parser.add_argument("--out", type=Path, default=Path("runs/traffic"))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--only", nargs="+", help="labels of rows, such as 'space from near'")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--updates", nargs="+", type=int, default=[60, 30], help="for each task")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[4000, 5000], help="for each task")
    parser.add_argument("--environments", type=int, help="simulations of a run; one for every episode by default")
    parser.add_argument("--part", default="0/1", help="run: every n-th of the runs from the k-th on, as k/n")
    parser.add_argument("--rollout-length", type=int, help="steps of an episode; the task's by default")
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--figures", type=Path, default=Path("docs/images"))
    parser.add_argument("--data", type=Path, default=Path("docs/results/data/traffic.npz"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--lanes", type=int, default=13)
    parser.add_argument("--small", action="store_true", help="speed: the batches of --batch-sizes, not the paper's")
    options = parser.parse_args(arguments)
    options.rows = [row for row in ROWS if not options.only or row.label in options.only]
    {"run": run, "table": table, "figure": figure, "pack": pack, "speed": speed}[options.what](options)


if __name__ == "__main__":
    main()
