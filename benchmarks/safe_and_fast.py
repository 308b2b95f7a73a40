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

from spacerl.config import RunConfig
from spacerl.reporting import mean_interval
from spacerl.sweep import lanes_program
from spacerl.training import Parts, assemble
from spacerl.update import initial_state

TASKS = ("point-circle", "point-gather")
METHODS = {
    "pcpo": {"algorithm": "pcpo"},
    "trpo-lagrangian": {"algorithm": "trpo-lagrangian"},
    "space printed": {"algorithm": "space", "combine": "printed"},
    "space guarded": {"algorithm": "space"},
}
LOGGED = ("J_R", "J_C", "cumulative_violation", "J_C_error", "entropy", "J_D")
TENTHS = (10, 25, 30, 60, 90, 120, 150, 180, 210, 240, 270, 299)


def parameters(task: str) -> dict[str, jax.Array]:
    """Baselines of one architecture, as lanes of one program."""
    parts = {kind: assemble(RunConfig(task=task, baseline=kind)) for kind in ("near", "reward", "cost")}
    family = parts["near"].learner.family
    near = family.unravel(parts["near"].baseline.theta)

    def last_layer(factor: float, policy=near):
        last = (factor * policy.body.weights[-1], factor * policy.body.biases[-1])
        return eqx.tree_at(lambda p: (p.body.weights[-1], p.body.biases[-1]), policy, last)

    still = eqx.tree_at(lambda p: p.log_std, last_layer(0.0), jnp.full_like(near.log_std, math.log(0.3)))
    return {kind: part.baseline.theta for kind, part in parts.items()} | {
        "adversarial": ravel_pytree(last_layer(-1.0))[0],
        "random": family.init(jax.random.PRNGKey(77)),
        "constant": ravel_pytree(still)[0],
    }


def curves(parts: Parts, thetas: list, seeds: list[int], updates: int) -> np.ndarray:
    """(updates, baselines, seeds, logged)"""
    lanes = jnp.array(seeds * len(thetas))
    repeated = None if thetas[0] is None else jnp.repeat(jnp.stack(thetas), len(seeds), axis=0)
    states = jax.vmap(lambda seed: initial_state(parts.learner, seed))(lanes)

    program, rows = lanes_program(parts), []
    for _ in range(updates):
        states, metrics = program(states, repeated)
        rows.append(jnp.stack([metrics[name] for name in LOGGED], axis=-1))
    return np.asarray(jnp.stack(rows)).reshape(updates, len(thetas), len(seeds), len(LOGGED))


def one_setting(task: str, method: str, seeds: list[int], updates: int) -> dict[str, np.ndarray]:
    settings = METHODS[method]
    if settings["algorithm"] != "space":
        return {"none": curves(assemble(RunConfig(task=task, **settings)), [None], seeds, updates)[:, 0]}
    thetas = parameters(task)
    parts = assemble(RunConfig(task=task, baseline="near", **settings))
    found = curves(parts, list(thetas.values()), seeds, updates)
    result = {name: found[:, i] for i, name in enumerate(thetas)}
    rule = assemble(RunConfig(task=task, baseline="rule", **settings))
    result["rule"] = curves(rule, [jnp.zeros(1)], seeds, updates)[:, 0]
    return result


def run(options) -> None:
    mine, of = map(int, options.share.split("/"))
    settings = [(task, method) for method in reversed(METHODS) for task in TASKS]
    for task, method in settings[mine::of]:
        started = time.time()
        for baseline, values in one_setting(task, method, options.seeds, options.updates).items():
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=("run", "table"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12, 13, 14])
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--share", default="0/1")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    run(chosen) if chosen.action == "run" else table(chosen)
