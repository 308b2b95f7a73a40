"""The traffic tasks: every algorithm of the comparison from the near baseline, and how much of the time SUMO takes.

    python benchmarks/traffic.py run --out DIR [--tasks grid bottleneck] [--seeds 0 1 2] [--updates 60 30] [--jobs 16]
    python benchmarks/traffic.py table --out DIR       # Markdown, for every task
    python benchmarks/traffic.py figure --out DIR --figures DIR
    python benchmarks/traffic.py pack --out DIR --data FILE.npz
    python benchmarks/traffic.py speed [--tasks grid] [--repeats 3]

`run` goes on where it was stopped: a finished run is left alone, one that was killed is resumed. With --jobs there are
so many runs at a time, each in a process of its own on a core of its own; --minutes stops them all in time, between
two updates. Settings are those of the paper's table (preset "paper").
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # as in a worker
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import spacerl
from spacerl.envs.tasks import TASKS as TASK_ROWS
from spacerl.runs.folder import RunFolder

sys.path.insert(0, str(Path(__file__).parent))

from shared.cores import core_seconds
from shared.curves import at_end, curves_of, kept_in_words, with_interval

TASKS = ("grid", "bottleneck")
PAPER_BATCH = {"grid": 10_000, "bottleneck": 25_000}
# Mean costs per episode up to which a limit of zero counts as kept.
TOLERANCE = {task: TASK_ROWS[task].settings["cost_tolerance"] for task in TASKS}
COLUMNS = ("J_R", "J_C", "J_D", "cumulative_violation")


class Row(NamedTuple):
    algorithm: str
    baseline: str | None
    projection: str | None = None  # that of the preset, the 2-norm, unless it is given
    delta: float | None = None  # that of the preset, the paper's, unless it is given
    start: str | None = None  # where the limit decides it unless it is given

    @property
    def label(self) -> str:
        source = f" from {self.baseline}" if self.baseline else ""
        return ", ".join([self.algorithm + source, *(f"{name} {value}" for name, value in self.others.items())])

    @property
    def others(self) -> dict[str, Any]:
        """Settings that are not the preset's."""
        return {name: value for name in ("projection", "delta", "start") if (value := getattr(self, name)) is not None}


ROWS = (
    Row("space", "near"),
    Row("pcpo", None),
    Row("space-printed", "near"),
    Row("cpo", None),
    Row("pcpo", None, delta=1e-2),
    Row("cpo", None, delta=1e-2),
    Row("space", "near", delta=1e-2),
    Row("space", "near", start="baseline"),
    Row("space", "rule"),
    Row("space", "rule", delta=1e-2),
    Row("space-printed", "near", "kl"),
    Row("f-pcpo", "near"),
    Row("f-cpo", "near"),
    Row("space", "near", "kl"),
    Row("pcpo", None, "kl"),
    Row("d-pcpo", "near"),
    Row("d-cpo", "near"),
)


def folder(options: argparse.Namespace, task: str, row: Row, seed: int) -> Path:
    others = "".join(f".{value}" for value in row.others.values())
    return options.out / f"{task}.{row.algorithm}.{row.baseline or 'none'}{others}.{seed}"


class Work(NamedTuple):
    """One run."""

    task: str
    row: Row
    seed: int
    updates: int
    batch: int


def planned(options: argparse.Namespace) -> list[Work]:
    """The runs: all seeds of a row before the next row, the longer task first, since what is begun last ends last."""
    settings = {task: (options.updates[i], options.batch_sizes[i]) for i, task in enumerate(options.tasks)}
    longest = sorted(options.tasks, key=lambda task: -settings[task][0] * settings[task][1])
    return [
        Work(task, row, seed, *settings[task]) for row in options.rows for task in longest for seed in options.seeds
    ]


def run(options: argparse.Namespace) -> None:
    if options.jobs > 1:
        run_side_by_side(options)
        return
    import jax

    jax.config.update("jax_compilation_cache_dir", str(options.out / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    until = options.until or (time.time() + 60.0 * options.minutes)
    for work in planned(options):
        run_one(options, work, until)


def run_one(options: argparse.Namespace, work: Work, until: float) -> None:
    out, began = folder(options, work.task, work.row, work.seed), time.time()
    watching: dict[str, Any] = {"progress": False, "on_update": lambda row: time.time() > until, "log": ()}
    if began > until:
        return
    if (out / "config.json").exists():
        if RunFolder.open(out).newest_update() >= work.updates:
            return
        spacerl.resume(out, updates=work.updates, **watching)
    else:
        length = options.rollout_length or horizon(work.task)
        settings: dict[str, Any] = {"batch_size": work.batch, "environments": options.environments, **work.row.others}
        if options.rollout_length:
            settings["rollout_length"] = length
        spacerl.train(
            work.task,
            algorithm=work.row.algorithm,
            baseline=work.row.baseline,
            preset=options.preset,
            seed=work.seed,
            updates=work.updates,
            out=out,
            **watching,
            **settings,
        )
    done = RunFolder.open(out).newest_update()
    print(f"{out.name}: {done} of {work.updates} updates, {time.time() - began:.0f} s", flush=True)


def run_side_by_side(options: argparse.Namespace) -> None:
    """A queue of runs, each a process that has one core and one thread."""
    until = time.time() + 60.0 * options.minutes
    cores = sorted(os.sched_getaffinity(0))
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    threads["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    waiting, busy = planned(options), {}
    while (waiting and time.time() < until) or busy:
        for slot in set(range(options.jobs)) - set(busy) if time.time() < until else ():
            if waiting:
                command = [sys.executable, __file__, *arguments_of(options, waiting.pop(0), until)]
                busy[slot] = subprocess.Popen(command, env={**os.environ, **threads})
                os.sched_setaffinity(busy[slot].pid, {cores[slot % len(cores)]})
        time.sleep(0.2)
        busy = {slot: process for slot, process in busy.items() if process.poll() is None}


def arguments_of(options: argparse.Namespace, work: Work, until: float) -> list[str]:
    """Of the process that makes one run."""
    given = {
        "--out": options.out,
        "--tasks": work.task,
        "--only": work.row.label,
        "--seeds": work.seed,
        "--updates": work.updates,
        "--batch-sizes": work.batch,
        "--environments": options.environments,
        "--preset": options.preset,
        "--until": until,
    }
    length = ["--rollout-length", str(options.rollout_length)] if options.rollout_length else []
    return ["run", *(text for name, value in given.items() for text in (name, str(value))), *length]


def horizon(task: str) -> int:
    return TASK_ROWS[task].settings["rollout_length"]


# Showing --------------------------------------------------------------------------------------------------------------


def curves(options: argparse.Namespace, task: str, row: Row) -> np.ndarray | None:
    """(seeds, updates, columns) of the runs that have all their updates."""
    folders = [folder(options, task, row, seed) for seed in options.seeds]
    return curves_of(folders, options.updates[options.tasks.index(task)], COLUMNS)


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
            cells = [row.label, str(len(found)), f"{J_R[:, 0].mean():.4g}", with_interval(at_end(J_R))]
            cells += [f"{J_C[:, 0].mean():.4g}", with_interval(at_end(J_C)), kept_in_words(J_C, limit)]
            print("| " + " | ".join(cells) + " |")


def figure(options: argparse.Namespace) -> None:
    from matplotlib.figure import Figure

    options.figures.mkdir(parents=True, exist_ok=True)
    for task in options.tasks:
        canvas = Figure(figsize=(11.0, 3.6), layout="constrained")
        left, right = canvas.subplots(1, 2)
        for i, row in enumerate(options.rows):
            found = curves(options, task, row)
            if found is None:
                continue
            style: dict[str, Any] = {"color": f"C{i}", "linewidth": 2.2 if row.algorithm == "space" else 1.2}
            style["linestyle"] = ("-", "--")[i // 10 % 2]  # there are ten colours
            left.plot(found[..., 0].mean(axis=0), label=row.label, **style)
            right.plot(found[..., 1].mean(axis=0), **style)
        right.axhline(TOLERANCE[task], color="0.4", linestyle="--", linewidth=0.9)
        right.set(yscale="symlog", ylabel="J_C per episode; dashed: tolerance", xlabel="update")
        right.set_ylim(bottom=0.0)
        left.set(ylabel="J_R", xlabel="update", title=task)
        canvas.legend(fontsize=7, frameon=False, loc="outside right upper")
        canvas.savefig(options.figures / f"traffic-{task}.png", dpi=140)


def pack(options: argparse.Namespace) -> None:
    found = {f"{task}|{row.label}": curves(options, task, row) for task in options.tasks for row in options.rows}
    arrays: dict[str, Any] = {name: each for name, each in found.items() if each is not None}
    np.savez_compressed(options.data, **arrays)


# Speed ----------------------------------------------------------------------------------------------------------------


def environments(task: str) -> Any:
    """One environment in this process, as a worker has it."""
    from spacerl.envs.host.in_process import InProcessEnvs
    from spacerl.envs.host.single import Recipe
    from spacerl.envs.tasks import imported

    return InProcessEnvs(Recipe(imported(TASK_ROWS[task].gymnasium_env or ""), (("cost", "info"),)), 1)


def bare(task: str, steps: int) -> float:
    """Microseconds that the simulator alone takes for a step that nothing interrupts: no reads, no commands."""
    envs = environments(task)
    try:
        envs.singles[0].reset(1)
        simulation, moments = envs.singles[0].env.scenario.simulation, [time.perf_counter()]
        for _ in range(steps):
            simulation.step()
            moments.append(time.perf_counter())
        every = 1e6 * np.diff(moments)
        return float(every[every < 1.5 * np.median(every)].mean())
    finally:
        envs.close()


class Share(NamedTuple):
    """Where the time of an episode went, µs of a core for each of its steps."""

    step: float  # SUMO's step
    read: float  # reading all vehicles and telling new ones how to drive, conversion to Python's numbers included
    command: float  # its lights and speed limits set
    load: float  # the new episode that SUMO loads
    all: float  # everything from one episode to the next

    @property
    def simulator(self) -> float:
        return self.step + self.read + self.command + self.load


def single(task: str, length: int, hidden: tuple[int, ...], seed: int) -> Share:
    """An episode of an untrained policy, as a worker plays it.

    Parts are those of the clock, since asking for a core's time can take as long as SUMO's step; what interrupts an
    episode takes the same part of everything. The few calls left (who collided, who arrived) count as not SUMO.
    """
    envs, rng = environments(task), np.random.default_rng(seed)
    replaced: list[tuple[Any, str, Any]] = []
    try:
        scenario, sizes = envs.singles[0].env.scenario, (*envs.spec.obs_shape, *hidden, envs.spec.action.size)
        spent: dict[str, float] = dict.fromkeys(("step", "read", "command", "load"), 0.0)

        def timed(owner: Any, name: str, part: str) -> None:
            function = getattr(owner, name)

            def call(*arguments: Any) -> Any:
                began = time.perf_counter()
                result = function(*arguments)
                spent[part] += time.perf_counter() - began
                return result

            setattr(owner, name, call)
            replaced.append((owner, name, function))

        act, noises = untrained(sizes, rng), rng.normal(size=(2, 1, length, sizes[-1])).astype(np.float32)
        envs.play(act, [seed], noises[0])
        timed(scenario.simulation, "step", "step")
        timed(scenario.simulation, "begin", "load")
        timed(scenario, "vehicles", "read")
        timed(scenario, "instruct", "read")
        timed(scenario.api.trafficlight, "setRedYellowGreenState", "command")
        timed(scenario.api.vehicle, "setMaxSpeed", "command")
        began = time.perf_counter(), time.thread_time()
        (episode,) = envs.play(act, [seed + 1], noises[1])
        clock, core = time.perf_counter() - began[0], time.thread_time() - began[1]
        per_step = 1e6 * core / len(episode.reward)
        step, read, command, load = (per_step * part / clock for part in spent.values())
        return Share(step, read, command, load, per_step)
    finally:
        for owner, name, function in replaced:
            setattr(owner, name, function)
        envs.close()


def untrained(sizes: tuple[int, ...], rng: np.random.Generator) -> Any:
    """A policy as workers get it."""
    from spacerl.policies.sampler import Sampler

    weights = [rng.normal(size=pair).astype(np.float32) / pair[0] ** 0.5 for pair in itertools.pairwise(sizes)]
    layers = tuple((weight, np.zeros(weight.shape[1], np.float32)) for weight in weights)
    return Sampler(layers, np.ones(sizes[-1], np.float32))


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
    """What bare SUMO takes, what it takes within an episode, and its share of an episode and of an update: the part of
    an episode times the part of the cores' time that an update spends on episodes."""
    names = ("task", "bare step", "step", "reading", "commands", "loading", "all", "share")
    names += ("an update", "of cores", "of the clock")
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for task in options.tasks:
        settings, length = TASK_ROWS[task].settings, horizon(task)
        batch = options.batch_sizes[options.tasks.index(task)] if options.small else PAPER_BATCH[task]
        alone = statistics.median(bare(task, length) for _ in range(options.repeats))
        shares = [single(task, length, settings["hidden"], seed) for seed in range(options.repeats)]
        share = statistics.median(each.simulator / each.all for each in shares)
        update = training(task, batch, options.lanes)
        inside, both = share * update.workers, max(update.workers + update.own, 1e-9)
        cells = [f"{alone:.0f} µs"]
        cells += [f"{statistics.median(getattr(each, name) for each in shares):.0f} µs" for name in Share._fields]
        said = f"{update.steps:,} steps: cores {update.workers:.2f} s in workers and {update.own:.2f} s in the run"
        cells += [f"{100 * share:.0f} %", f"{said}; clock {update.collecting:.1f} + {update.rest:.1f} s"]
        # On so many free cores, where the run waits for its workers and the workers for the run.
        cells += [
            f"{100 * part:.0f} %"
            for part in (inside / both, inside / max(both + (options.lanes - 1) * update.own, 1e-9))
        ]
        print("| " + " | ".join([task, *cells]) + " |", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table", "figure", "pack", "speed"))
    parser.add_argument("--out", type=Path, default=Path("runs/traffic"))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--only", nargs="+", help="labels of rows, such as 'space from near'")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--updates", nargs="+", type=int, default=[60, 30], help="for each task")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[10_000, 25_000], help="for each task")
    parser.add_argument("--environments", type=int, default=1, help="simulations of a run")
    parser.add_argument("--jobs", type=int, default=1, help="run: so many runs at a time")
    parser.add_argument("--minutes", type=float, default=1e6, help="run: stop after so long")
    parser.add_argument("--until", type=float, help="run: stop at this time, in seconds since 1970")
    parser.add_argument("--rollout-length", type=int, help="steps of an episode; the task's by default")
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--figures", type=Path, default=Path("docs/images"))
    parser.add_argument("--data", type=Path, default=Path("docs/results/data/traffic.npz"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--lanes", type=int, default=2, help="speed: simulations")
    parser.add_argument("--small", action="store_true", help="speed: the batches of --batch-sizes, not the paper's")
    options = parser.parse_args(arguments)
    options.rows = [row for row in ROWS if not options.only or row.label in options.only]
    {"run": run, "table": table, "figure": figure, "pack": pack, "speed": speed}[options.what](options)


if __name__ == "__main__":
    main()
