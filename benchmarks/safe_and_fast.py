"""Is guarded SPACE fast and never less safe than PCPO? Good, bad and useless baselines, fresh seeds, one table.

    python benchmarks/safe_and_fast.py run --out DIR [--seeds 10 11 12 13 14] [--updates 300] [--share 0/4]
    python benchmarks/safe_and_fast.py table --out DIR

Baselines: near, reward and cost (shipped), a rule, and three that cannot help: the near one with its mean action
negated (adversarial), an untrained network (random), and a constant action (constant). `--share i/n` runs every n-th
setting, so that n processes can share an accelerator.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from spacerl.api import load_policy
from spacerl.policies.policy import NetworkPolicy
from spacerl.reporting import mean_interval
from spacerl.training.assemble import Given, Parts, assemble
from spacerl.training.measure import measure_baselines
from spacerl.training.programs import joint_program, stack_states
from spacerl.training.settings import resolve
from spacerl.training.update import initial_state

TASKS = ("point-circle", "point-gather")
METHODS = {
    "pcpo": "pcpo",
    "trpo-lagrangian": "trpo-lagrangian",
    "space printed": "space-printed",
    "space guarded": "space",
}
LOGGED = ("J_R", "J_C", "cumulative_violation", "J_C_error", "entropy", "J_D")
TENTHS = (10, 25, 30, 60, 90, 120, 150, 180, 210, 240, 270, 299)


def baselines(task: str) -> dict[str, NetworkPolicy]:
    """Baselines of one architecture, so that one program has them all."""
    shipped = {kind: load_policy(kind, task) for kind in ("near", "reward", "cost")}
    family = shipped["near"].family
    near = family.unravel(shipped["near"].theta)

    def last_layer(factor: float):
        dense = near.body.dense
        last = (factor * dense.weights[-1], factor * dense.biases[-1])
        return eqx.tree_at(lambda p: (p.body.dense.weights[-1], p.body.dense.biases[-1]), near, last)

    still = eqx.tree_at(lambda p: p.log_std, last_layer(0.0), jnp.full_like(near.log_std, math.log(0.3)))
    made = {
        "adversarial": ravel_pytree(last_layer(-1.0))[0],
        "random": family.init(jax.random.PRNGKey(77)),
        "constant": ravel_pytree(still)[0],
    }
    return shipped | {name: NetworkPolicy(family, theta, name) for name, theta in made.items()}


def curves(runs: list[Parts], updates: int) -> np.ndarray:
    """(updates, runs, logged) of runs that one program steps, each beginning with what is measured of its baseline."""
    states = [initial_state(run.learner, run.config.seed, measure_baselines(run)[0]) for run in runs]
    program, state, rows = joint_program(runs), stack_states(states), []
    for _ in range(updates):
        state, metrics, *_ = program.step(state)
        rows.append([[float(each[name]) for name in LOGGED] for each in metrics])
    return np.array(rows)


def one_setting(task: str, method: str, seeds: list[int], options) -> dict[str, np.ndarray]:
    """(updates, seeds, logged) by the name of the baseline."""
    settings = {"task": task, "algorithm": METHODS[method], "batch_size": options.batch_size}
    if not METHODS[method].startswith("space"):
        runs = [assemble(resolve({**settings, "seed": seed})) for seed in seeds]
        return {"none": curves(runs, options.updates)}
    found = {}
    for group in (baselines(task), {"rule": "rule"}):
        runs = [
            assemble(resolve({**settings, "seed": seed, "baseline": name}), Given(baseline=policy))
            for name, policy in group.items()
            for seed in seeds
        ]
        values = curves(runs, options.updates).reshape(options.updates, len(group), len(seeds), len(LOGGED))
        found |= {name: values[:, i] for i, name in enumerate(group)}
    return found


def run(options) -> None:
    mine, of = map(int, options.share.split("/"))
    settings = [(task, method) for method in reversed(METHODS) for task in TASKS]
    for task, method in settings[mine::of]:
        started = time.time()
        for baseline, values in one_setting(task, method, options.seeds, options).items():
            np.savez_compressed(options.out / f"{task}.{method.replace(' ', '_')}.{baseline}.npz", values)
        print(f"{task}, {method}: {time.time() - started:.0f} s", flush=True)


def table(options) -> None:
    """Markdown: mean over seeds of J_R at tenths of training, and violations with a 95 % interval."""
    shown = [k for k in TENTHS if k < options.updates]
    for task in TASKS:
        head = ["method", "pi_B", *(f"J_R@{k}" for k in shown), "J_C end", "violations"]
        print(f"\n### {task}\n\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
        for path in sorted(options.out.glob(f"{task}.*.npz")):
            _, method, baseline, _ = path.name.split(".")
            values = np.load(path)["arr_0"]
            violations = values[-1, :, 2]
            interval = mean_interval(violations)
            half = (interval.high - interval.low) / 2
            cells = [method.replace("_", " "), baseline, *(f"{values[k, :, 0].mean():.1f}" for k in shown)]
            cells += [f"{values[-10:, :, 1].mean():.3f}", f"{violations.mean():.1f} ± {half:.1f}"]
            print("| " + " | ".join(cells) + " |")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=("run", "table"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12, 13, 14])
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=50_000)
    parser.add_argument("--share", default="0/1")
    chosen = parser.parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    run(chosen) if chosen.action == "run" else table(chosen)


if __name__ == "__main__":
    main()
