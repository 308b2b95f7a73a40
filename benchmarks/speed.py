"""Time and memory of an update, as ratios measured in one run. `make bench` prints the table.

    python benchmarks/speed.py [--task point-circle] [--repeats 15] [--seeds 5]

Every figure is a median over repeats of a compiled program on fresh input. The ratio to the bare rollout is what to
compare between machines; absolute times on shared machines are not.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time

import jax
import jax.numpy as jnp

from spacerl.training.assemble import assemble
from spacerl.training.loop import device_name
from spacerl.training.programs import baseline_parameters, collect_step, fused_step, vmapped_step
from spacerl.training.settings import resolve
from spacerl.training.update import initial_state

SETTINGS = {
    "trpo": {"algorithm": "trpo"},
    "cpo": {"algorithm": "cpo"},
    "pcpo": {"algorithm": "pcpo"},
    "f-cpo": {"algorithm": "f-cpo", "baseline": "reward"},
    "f-pcpo": {"algorithm": "f-pcpo", "baseline": "reward"},
    "d-cpo": {"algorithm": "d-cpo", "baseline": "reward"},
    "d-pcpo": {"algorithm": "d-pcpo", "baseline": "reward"},
    "pretrain": {"algorithm": "pretrain", "baseline": "reward"},
    "space (printed)": {"algorithm": "space-printed", "baseline": "reward"},
    "space (guarded)": {"algorithm": "space", "baseline": "reward"},
}


def first_call(program, arguments) -> float:
    """Seconds of the first run, which compiles."""
    started = time.perf_counter()
    jax.block_until_ready(program(*arguments))
    return time.perf_counter() - started


def side_by_side(programs, repeats: int) -> list[float]:
    """Median seconds of each (program, arguments), run in turns so that a busy machine slows all of them alike."""
    times = [[] for _ in programs]
    for _ in range(repeats):
        for record, (program, arguments) in zip(times, programs, strict=True):
            started = time.perf_counter()
            jax.block_until_ready(program(*arguments))
            record.append(time.perf_counter() - started)
    return [statistics.median(record) for record in times]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", default="point-circle")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=5, help="seeds in one program; 0 leaves that part out")
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--batch-size", type=int, default=None, help="environment steps per update; the paper's")
    options = parser.parse_args(arguments)
    batch = "the paper's batch" if options.batch_size is None else f"a batch of {options.batch_size:,}"
    print(f"{options.task} at {batch}, {device_name()}, jax {jax.__version__}")
    header = f"{'':32s} {'median':>10s} {'over rollout':>13s} {'first call':>11s}"
    print(header)
    for name, settings in SETTINGS.items():
        if options.only and settings["algorithm"] not in options.only:
            continue
        parts = assemble(resolve({"task": options.task, "batch_size": options.batch_size, **settings}))
        thetas = baseline_parameters(parts)
        state = initial_state(parts.learner, 0)
        rollout = (jax.jit(lambda s, p=parts: collect_step(p, s)), (state,))
        update = (jax.jit(lambda s, t, p=parts: fused_step(p, s, t)), (state, thetas))
        firsts = [first_call(*rollout), first_call(*update)]
        medians = side_by_side([rollout, update], options.repeats)
        print(f"{'bare rollout':32s} {1e3 * medians[0]:7.1f} ms {1.0:13.1f} {firsts[0]:9.1f} s")
        print(f"{name:32s} {1e3 * medians[1]:7.1f} ms {medians[1] / medians[0]:13.1f} {firsts[1]:9.1f} s")
        if options.seeds and settings["algorithm"].startswith("space"):
            seeds = jnp.arange(options.seeds)
            states = jax.vmap(lambda seed, p=parts: initial_state(p.learner, seed))(seeds)
            thetas = jax.tree.map(lambda theta: jnp.stack([theta] * options.seeds), thetas)
            several_seeds = (vmapped_step(parts), (states, thetas))
            first = first_call(*several_seeds)
            one, several = side_by_side([update, several_seeds], max(3, options.repeats // 3))
            label = f"  {options.seeds} seeds, one program"
            print(f"{label:32s} {1e3 * several:7.1f} ms {several / one:9.2f} x 1 {first:9.1f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory of this process: {peak:.2f} GiB")


if __name__ == "__main__":
    main()
