"""An update from pixels: seconds of each of its parts and the memory it takes, on a stand-in for a simulator.

    python benchmarks/images.py [--batch-size 10000] [--algorithm space] [--settings critic_steps=1]
    python benchmarks/images.py --device [--batch-size 10000]    # does an accelerator agree with the CPU, and how fast

The stand-in draws a bright square that says what its cost and its reward are; it takes no time, so what is measured is
ours. Its frames are those of car racing, 96 x 96 x 3 bytes, and so are the settings. Seconds of processor time stand
beside those of the clock, which say little on a machine that others use. Memory is the largest this process ever had
resident, with the frames.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from spacerl.envs.tasks import TASKS
from spacerl.training.assemble import Given, Parts, assemble
from spacerl.training.loop import device_name
from spacerl.training.programs import make_collector, update_step
from spacerl.training.settings import resolve
from spacerl.training.surrogates import judge_of, surrogate_gradients
from spacerl.training.update import initial_state, make_batch, step_inputs, subsample_rows, with_policy
from spacerl.types import Rollout, TrainState

SIDE = 96
TAKEN = ("discount", "gae_lambda", "divergence_gae_lambda", "hidden", "cg_damping", "fisher_subsample", "critic")


class Square(gymnasium.Env):
    """A square on noise, moved by the actions: its height pays, its place to the right costs."""

    observation_space = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
    action_space = spaces.Box(-1.0, 1.0, (3,), np.float32)

    def __init__(self, render_mode: str | None = None):
        self.noise = np.random.default_rng(0).integers(0, 60, (SIDE, SIDE, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.place = self.np_random.uniform(0, SIDE - 16, 2)
        return self.look(), {}

    def look(self) -> np.ndarray:
        frame = self.noise.copy()
        row, column = self.place.astype(int)
        frame[row : row + 16, column : column + 16] = 255
        return frame

    def step(self, action):
        drift = self.np_random.normal(size=2)
        self.place = np.clip(self.place + 2.0 * np.asarray(action[:2]) + drift, 0, SIDE - 16)
        row, column = self.place / (SIDE - 16)
        return self.look(), float(row), False, False, {"cost": float(column > 0.8)}


def parts_of(options: argparse.Namespace) -> Parts:
    racing = {name: TASKS["car-racing"].settings[name] for name in TAKEN}
    own = {name: json.loads(value) for name, value in (pair.split("=") for pair in options.settings)}
    length = min(options.length, options.batch_size)
    settings = {
        **racing,
        "task": "env:square",
        "algorithm": options.algorithm,
        "baseline": "given",
        "batch_size": options.batch_size,
        "rollout_length": length,
        "environments": max(1, options.batch_size // length),
        "workers": options.workers,
        "cost_limit": 5.0,
        **own,
    }
    return assemble(resolve(settings), Given(env=Square, baseline=still))


def still(obs: np.ndarray) -> np.ndarray:
    """A baseline: it keeps the square where it is."""
    return np.zeros((len(obs), 3), np.float32)


def peak() -> float:
    """GiB resident at the most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def clocked(function: Callable, *arguments: Any) -> tuple[Any, tuple[float, float]]:
    """What it gives, and seconds by the clock and of the processor."""
    before = time.perf_counter(), time.process_time()
    result = jax.block_until_ready(function(*arguments))
    return result, (time.perf_counter() - before[0], time.process_time() - before[1])


def tell(name: str, seconds: tuple[float, float], note: str = "") -> None:
    print(f"{name:34s} {seconds[0]:8.2f} s {seconds[1]:8.2f} s of the processor  {note}", flush=True)


def whole_updates(parts: Parts, options: argparse.Namespace) -> tuple[TrainState, Rollout]:
    """Collected and updated as a run does it, with the memory that took; the last state and its rollout."""
    collect = make_collector(parts)
    learn = jax.jit(lambda state, rollout, dists: update_step(parts, state, rollout, ((),), dists))
    state, rollout = initial_state(parts.learner, 0), None
    for number in range(options.updates + 1):
        (state, rollout, _), collecting = clocked(collect, state)
        tell(f"update {number}: collection", collecting)
        dists = (parts.baselines[0](np.asarray(rollout.obs)),)
        (state, metrics), updating = clocked(learn, state, rollout, dists)
        explained = ", ".join(f"{k} {float(v):.2f}" for k, v in metrics.items() if k.startswith("explained"))
        note = "with compilation" if number == 0 else explained
        tell(f"update {number}: the update", updating, f"{note}; peak {peak():.2f} GiB")
        assert metrics["finite"] == 1.0
    assert rollout is not None
    return state, rollout


def parts_alone(parts: Parts, state: TrainState, rollout: Rollout, repeats: int) -> None:
    """Every part of an update as a program of its own."""
    learner = parts.learner
    baseline = parts.baselines[0](np.asarray(rollout.obs))
    prepare = jax.jit(lambda s, r, d: make_batch(learner, s, with_policy(learner, s, r), d))
    batch = prepare(state, rollout, baseline)
    rows = subsample_rows(state.key, batch.weight.shape[0], learner.config.fisher_subsample)
    vectors = jnp.stack([state.theta] * 4)
    fit = learner.critic.fit
    programs: dict[str, tuple[Callable, tuple]] = {
        "policy, values and returns": (prepare, (state, rollout, baseline)),
        "gradients of all surrogates": (
            jax.jit(lambda s, b: surrogate_gradients(learner, b, s.theta)),
            (state, batch),
        ),
        f"F v, 4 vectors, {len(rows):,} rows": (
            jax.jit(lambda s, b, r, v: step_inputs(learner, b, s, r).fisher(v)),
            (state, batch, rows, vectors),
        ),
        "F^-1 v, 4 vectors": (
            jax.jit(lambda s, b, r, v: step_inputs(learner, b, s, r).solve(v)),
            (state, batch, rows, vectors),
        ),
        "judging one step": (
            jax.jit(lambda s, b: judge_of(learner, b, s.theta, 1e-3 * s.theta)(jnp.array(1.0))),
            (state, batch),
        ),
        "critics' fit": (
            jax.jit(lambda s, b, r: fit(s.critics, b.obs, b.step_index, b.targets, b.weight, r)),
            (state, batch, rows),
        ),
    }
    for name, (program, arguments) in programs.items():
        jax.block_until_ready(program(*arguments))
        times = [clocked(program, *arguments)[1] for _ in range(repeats)]
        tell(name, min(times))


def device_agrees(parts: Parts, state: TrainState, options: argparse.Namespace) -> None:
    """One update on the default device and on the CPU, from the same rollout of random frames."""
    rng = np.random.default_rng(0)
    length = parts.config.rollout_length
    lead = (length, options.batch_size // length)
    frames = np.broadcast_to(Square().noise, (*lead, SIDE, SIDE, 3)).copy()
    bright = rng.integers(0, 200, (*lead, 1, 1, 1), np.uint8)
    frames += bright  # so that values and advantages have something to see
    ended = np.zeros(lead, bool)
    ended[-1] = True
    seen = bright[..., 0, 0, 0] / 200.0
    played: dict[str, Any] = dict(
        obs=frames,
        action=rng.normal(size=(*lead, 3)).astype(np.float32),
        log_prob=None,
        dist=None,
        reward=seen.astype(np.float32),
        cost=(seen > 0.8).astype(np.float32)[..., None],
        next_obs=frames,
        terminated=np.zeros(lead, bool),
        truncated=ended,
        valid=np.ones(lead, bool),
    )
    rollout = Rollout(**played)
    dists = (parts.baselines[0](frames),)
    found = {}
    for kind in dict.fromkeys((jax.default_backend(), "cpu")):
        if kind == "cpu" and found and options.device_only:
            continue
        # Which arrangement of loops suits is chosen by the default backend; on the CPU it is only slower.
        with jax.default_device(jax.devices(kind)[0]):
            where = jax.device_put((state, rollout, dists), jax.devices(kind)[0])
            learn = jax.jit(lambda s, r, d: update_step(parts, s, r, ((),), d))
            _, first = clocked(learn, *where)
            (following, metrics), second = clocked(learn, *where)
            tell(f"{kind}: an update, compiled", first)
            tell(f"{kind}: an update", second)
            statistics = jax.devices(kind)[0].memory_stats() or {}
            print(f"{kind}: peak on the device {statistics.get('peak_bytes_in_use', 0) / 2**30:.2f} GiB")
            found[kind] = jax.device_get((following.theta - where[0].theta, metrics))
    if len(found) == 2:
        (one, its), (other, others) = found.values()
        apart = np.linalg.norm(one - other) / np.linalg.norm(other)
        print(f"steps differ by {apart:.1e} of their length")
        for name in ("J_R", "J_C", "J_D", "kl", "explained_reward", "explained_cost"):
            print(f"{name:20s} {float(its[name]):.6g} {float(others[name]):.6g}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=10_000)
    parser.add_argument("--length", type=int, default=1000, help="steps of an episode")
    parser.add_argument("--algorithm", default="space")
    parser.add_argument("--updates", type=int, default=2, help="after the one that compiles")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", action="store_true", help="compare an accelerator with the CPU")
    parser.add_argument("--device-only", action="store_true", help="time the accelerator alone")
    parser.add_argument("--settings", nargs="*", default=[], help="NAME=VALUE")
    options = parser.parse_args(arguments)
    if options.device:
        options.workers = 0
    print(f"batch of {options.batch_size:,} frames, {options.algorithm}, {device_name()}, jax {jax.__version__}")
    parts = parts_of(options)
    try:
        if options.device:
            device_agrees(parts, initial_state(parts.learner, 0), options)
        else:
            parts_alone(parts, *whole_updates(parts, options), options.repeats)
    finally:
        parts.close()


if __name__ == "__main__":
    main()
