"""How near the ant tasks come to the bare simulator, as ratios measured in one run.

    python benchmarks/ant.py [--parts bare host train gymnasium envpool device] [--lanes 200] [--repeats 3]

All parts that step this ant play the same kind of actions, drawn before the clock starts (small Gaussian ones, under
which no ant falls), so that no policy is timed. Parts on the CPU run in turns, repeat by repeat, so that a busy machine
slows all of them alike; figures are medians. The ratio to the bare simulator is what to compare between machines.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from spacerl.envs.ant.host import AntHost
from spacerl.envs.ant.model import MAX_TORQUE, ant_model
from spacerl.envs.ant.robot import AntCircle, AntGather, start
from spacerl.types import RESET, STEP

TASKS = {"ant-circle": AntCircle(), "ant-gather": AntGather()}
PARTS = ("bare", "host", "train", "gymnasium", "envpool", "device")
SPREAD = 0.3  # standard deviation of the actions, as a part of the largest torque
Timing = tuple[float, float, str]  # environment steps per second, share of the time inside MuJoCo (or nan), remark


def drawn_actions(steps: int, lanes: int) -> np.ndarray:
    return (SPREAD * np.random.default_rng(0).normal(size=(steps, lanes, 8))).astype(np.float32)


def bare(lanes: int, steps: int, threads: int) -> Callable[[], Timing]:
    """`mujoco.rollout`, all steps of all lanes in one call: nothing but the simulator."""
    import mujoco
    from mujoco import rollout

    model = ant_model()
    data = [mujoco.MjData(model) for _ in range(threads)]
    qpos, qvel = start(np, np.random.default_rng(1).normal(size=(lanes, 29)))
    state = np.concatenate([np.zeros((lanes, 1)), qpos, qvel], axis=1)
    control = MAX_TORQUE * np.clip(drawn_actions(steps, lanes), -1, 1).transpose(1, 0, 2).astype(np.float64)
    pool = rollout.Rollout(nthread=threads)

    def run() -> Timing:
        began = time.perf_counter()
        pool.rollout(model, data, state, control)
        return lanes * steps / (time.perf_counter() - began), 1.0, f"{threads} threads"

    return run


def host(name: str, lanes: int, steps: int, threads: int) -> Callable[[], Timing]:
    """Ticks of the host environment: simulator, observations, rewards, costs, ends and resets."""
    env = AntHost(TASKS[name], lanes, threads)
    actions = drawn_actions(steps, lanes)
    command, never = np.full(lanes, STEP), np.zeros(lanes, bool)

    def run() -> Timing:
        env.tick(np.full(lanes, RESET), actions[0], never, np.arange(lanes))
        inside, began = env.simulator_seconds, time.perf_counter()
        for t, action in enumerate(actions):
            env.tick(command, action, never, np.arange(lanes) + (t + 1) * lanes)
        seconds = time.perf_counter() - began
        inside = env.simulator_seconds - inside
        overhead = 1e6 * (seconds - inside) / steps
        return lanes * steps / seconds, inside / seconds, f"{overhead:.0f} us a tick outside the simulator"

    return run


# A fresh policy lets ants stand for all 500 steps, as a trained one does. Under one with standard deviation 1 they fall
# after 190 on average, so that a batch ends with few of them left in each tick.
BEGINNINGS: dict[str, dict[str, Any]] = {"standing": {}, "falling": {"initial_std": 1.0, "initial_gain": 1.0}}


def training(name: str, algorithm: str, beginning: str, batch: int | None) -> Callable[[], Timing]:
    """Whole updates at the paper's batch, collected on the host: policy, simulator, books, gradients and critics."""
    from spacerl.training.assemble import assemble
    from spacerl.training.programs import single_program
    from spacerl.training.settings import resolve
    from spacerl.training.update import initial_state

    baseline = "rule" if algorithm == "space" else None
    settings = {"task": name, "algorithm": algorithm, "baseline": baseline, "simulator": "host", "batch_size": batch}
    parts = assemble(resolve({**settings, **BEGINNINGS[beginning]}))
    assert isinstance(parts.env, AntHost)
    env, stepper, carried = parts.env, single_program(parts).step, {"state": initial_state(parts.learner, 0)}
    for _ in range(3):  # compiles, for each of the few shapes that batches come in
        carried["state"] = stepper(carried["state"]).state

    def run() -> Timing:
        inside, began, before = env.simulator_seconds, time.perf_counter(), int(carried["state"].env_steps)
        carried["state"], _, collecting, updating = stepper(carried["state"])
        seconds = time.perf_counter() - began
        inside = env.simulator_seconds - inside
        steps = int(carried["state"].env_steps) - before
        remark = (
            f"{100 * inside / collecting:.0f} % of collection; {collecting:.1f} + {updating:.1f} s for {steps:,} steps"
        )
        return steps / seconds, inside / seconds, remark

    return run


def vector_env(kind: str, lanes: int, steps: int) -> Callable[[], Timing]:
    """Gymnasium's own ways to step several environments: one after the other, or a process each."""
    from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

    from spacerl.envs.ant.gymnasium import AntCircleEnv

    copies = [AntCircleEnv for _ in range(lanes)]
    # Not by a fork: JAX's threads do not survive one.
    env = SyncVectorEnv(copies) if kind == "sync" else AsyncVectorEnv(copies, context="spawn")
    actions = np.clip(drawn_actions(steps, lanes), -1, 1)

    def run() -> Timing:
        env.reset(seed=0)
        began = time.perf_counter()
        for action in actions:
            env.step(action)
        return lanes * steps / (time.perf_counter() - began), float("nan"), f"{lanes} environments, {steps} steps"

    return run


def envpool_ant(lanes: int, steps: int, threads: int) -> Callable[[], Timing] | str:
    """EnvPool's Ant: Gymnasium's, not this one. A step of it is five steps of 0.01 s, and is counted as five."""
    try:
        import envpool
    except ImportError:
        return "not installed"
    env = envpool.make_gymnasium("Ant-v4", num_envs=lanes, num_threads=threads)
    actions = np.clip(drawn_actions(steps, lanes), -1, 1).astype(np.float64)

    def run() -> Timing:
        env.reset()
        began = time.perf_counter()
        for action in actions:
            env.step(action)
        seconds = time.perf_counter() - began
        return 5 * lanes * steps / seconds, float("nan"), "another ant; simulator steps, not environment steps"

    return run


def device(name: str, lanes: int, steps: int, iterations: int | None) -> Timing:
    """One compiled scan over `steps` steps of `lanes` environments."""
    import dataclasses

    import jax
    import jax.numpy as jnp

    task: Any = TASKS[name] if iterations is None else dataclasses.replace(TASKS[name], iterations=iterations)

    @jax.jit
    def program(key: Any) -> Any:
        def step(states: Any, key: Any) -> Any:
            action = SPREAD * jax.random.normal(key, (lanes, 8))
            states, reward, cost, terminated = jax.vmap(task.step)(states, action)
            obs = jax.vmap(task.observe)(states)
            return states, (jnp.mean(obs), jnp.mean(reward), jnp.mean(cost), jnp.sum(terminated))

        states = jax.vmap(task.reset)(jax.random.split(key, lanes))
        return jax.lax.scan(step, states, jax.random.split(key, steps))

    began = time.perf_counter()
    compiled = program.lower(jax.random.key(0)).compile()
    compiling = time.perf_counter() - began
    seconds = []
    for repeat in range(3):
        began = time.perf_counter()
        states, _ = jax.block_until_ready(compiled(jax.random.key(repeat)))
        seconds.append(time.perf_counter() - began)
    best = statistics.median(seconds)
    diverged = int(states.diverged.sum())
    remark = f"{1e3 * best / steps:.2f} ms a step of all, {compiling:.0f} s to compile, {diverged} diverged"
    return lanes * steps / best, float("nan"), remark


def row(name: str, timing: Timing, reference: float) -> str:
    rate, share, remark = timing
    inside = "" if np.isnan(share) else f"{100 * share:.0f} %"
    return f"| {name} | {rate:,.0f} | {rate / reference:.2f} | {inside} | {remark} |"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--lanes", type=int, default=200)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-size", type=int, help="of whole updates, where not the paper's")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--vector-lanes", type=int, default=8, help="environments of Gymnasium's vector environments")
    parser.add_argument("--device-lanes", type=int, nargs="+", default=[200, 1000, 4096])
    parser.add_argument("--device-steps", type=int, default=100)
    parser.add_argument("--device-iterations", type=int, help="Newton steps, where not the task's own number")
    parser.add_argument("--device-on-cpu", action="store_true", help="run that part without an accelerator too")
    args = parser.parse_args(arguments)

    runs: dict[str, Callable[[], Timing] | str] = {"bare simulator": bare(args.lanes, args.steps, args.threads)}
    if "host" in args.parts:
        for name in TASKS:
            runs[f"{name}, host ticks"] = host(name, args.lanes, args.steps, args.threads)
    if "train" in args.parts:
        for name in TASKS:
            for algorithm in ("pcpo", "space"):
                for which in BEGINNINGS:
                    runs[f"{name}, whole updates of {algorithm}, {which} ants"] = training(
                        name, algorithm, which, args.batch_size
                    )
    if "gymnasium" in args.parts:
        for kind in ("sync", "async"):
            runs[f"Gymnasium, {kind}"] = vector_env(kind, args.vector_lanes, min(args.steps, 200))
    if "envpool" in args.parts:
        runs["EnvPool"] = envpool_ant(args.lanes, min(args.steps, 200), args.threads)

    timings: dict[str, list[Timing]] = {name: [] for name in runs}
    for _ in range(args.repeats):
        for name, run in runs.items():
            if not isinstance(run, str):
                timings[name].append(run())
    # The repeat with the median rate, so that its share and remark belong to it.
    medians = {name: sorted(found)[len(found) // 2] for name, found in timings.items() if found}
    reference = medians["bare simulator"][0]
    print("| what | steps/s | of the bare simulator | inside MuJoCo | |\n|---|---|---|---|---|")
    for name, run in runs.items():
        print(f"| {name} | | | | {run} |" if isinstance(run, str) else row(name, medians[name], reference))

    if "device" in args.parts:
        import jax

        kind = jax.devices()[0].device_kind
        if jax.default_backend() == "cpu" and not args.device_on_cpu:
            print("| device program | | | | jax sees no accelerator |")
            return
        for name in TASKS:
            for lanes in args.device_lanes:
                timing = device(name, lanes, args.device_steps, args.device_iterations)
                print(row(f"{name}, {lanes} on {kind}", timing, reference), flush=True)


if __name__ == "__main__":
    main()
