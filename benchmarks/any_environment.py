"""Public Gymnasium environments with the defaults that a new user gets, from safe, unsafe and useless baselines.

    python benchmarks/any_environment.py baselines --out DIR       # trains those that are not rules
    python benchmarks/any_environment.py run --out DIR [--half judge] [--seeds 10 11 12] [--updates 60] [--share 0/8]
    python benchmarks/any_environment.py table --out DIR [--half judge]

The settings were searched with one half of the environments, and are judged by the other. `safe` is a rule or a policy
that was trained under half of the limits, `unsafe` one that was trained for reward alone, `useless` a constant action.
`--share i/n` runs every n-th case, so that n processes can share a machine. Needs gymnasium[box2d,mujoco].
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

import spacerl
from spacerl.reporting import mean_interval

BASELINES = ("safe", "unsafe", "useless")
ALGORITHMS = ("pcpo", "cpo", "trpo-lagrangian", "space-alone", "space")
TRAINED_WITH = 100  # seed of the baselines
EDGE = -0.83  # position at which the careful car wants to have stopped: the cliff begins at -0.9
Cost = Callable[[Any, Any, Any, Any], float]


class Case(NamedTuple):
    """An environment, its costs of (obs, action, next_obs, info) and their limits."""

    env: str
    costs: Mapping[str, tuple[Cost, float]]
    batch_size: int
    half: str
    still: Any  # the constant action of the useless baseline
    safe: Callable[[np.ndarray], np.ndarray] | None = None  # a rule, instead of a policy that is trained
    settings: Mapping[str, Any] = {}


def where(condition: Callable[..., Any]) -> Cost:
    """One for every step on which a condition on the next observation holds."""
    return lambda obs, action, next_obs, info: float(condition(next_obs))


def upright(obs: np.ndarray) -> np.ndarray:
    """A cart that keeps its pole upright and stays near the middle."""
    return (obs[:, 2] + 0.5 * obs[:, 3] + 0.05 * obs[:, 0] + 0.1 * obs[:, 1] > 0.0).astype(np.int64)


def careful_pump(obs: np.ndarray) -> np.ndarray:
    """A car that pushes the way it rolls, until pushing forward would only just stop it before the cliff."""
    position, speed, force = obs[:, 0], obs[:, 1], 0.8

    def height(x):
        return np.sin(3.0 * x) * 0.0025 / 3.0

    left_at_the_edge = 0.5 * speed**2 + height(position) - height(EDGE) - 0.0015 * force * (position - EDGE)
    return np.where((speed < 0.0) & (left_at_the_edge < 0.0), -force, force)[:, None]


CASES = {
    # The half that settings were searched with.
    "cart": Case("CartPole-v1", {"far": (where(lambda o: abs(o[0]) > 0.2), 20.0)}, 4_000, "search", 0, upright),
    "pendulum": Case("Pendulum-v1", {"fast": (where(lambda o: abs(o[2]) > 4.0), 20.0)}, 8_000, "search", (0.0,)),
    "cheetah": Case(
        "HalfCheetah-v5",
        {"speed": (lambda obs, action, next_obs, info: float(info["x_velocity"] > 1.0), 100.0)},
        16_000,
        "search",
        (0.0,) * 6,
    ),
    "lander": Case(
        "LunarLander-v3",
        {
            "engine": (lambda obs, action, next_obs, info: float(action == 2), 30.0),
            "tilt": (where(lambda o: abs(o[4]) > 0.2), 15.0),
        },
        8_000,
        "search",
        0,
    ),
    "double-pendulum": Case(
        "InvertedDoublePendulum-v5",
        {"far": (where(lambda o: abs(o[0]) > 0.1), 10.0)},
        6_000,
        "search",
        (0.0,),
    ),
    "hopper": Case(
        "Hopper-v5",
        {"speed": (lambda obs, action, next_obs, info: float(info["x_velocity"] > 0.75), 50.0)},
        10_000,
        "search",
        (0.0,) * 3,
    ),
    "swimmer": Case(
        "Swimmer-v5",
        {
            "sideways": (where(lambda o: abs(o[4]) > 0.4), 100.0),
            "bend": (where(lambda o: max(abs(o[1]), abs(o[2])) > 1.2), 200.0),
        },
        20_000,
        "search",
        (0.0, 0.0),
    ),
    "lander-throttle": Case(
        "LunarLanderContinuous-v3",
        {"engine": (lambda obs, action, next_obs, info: float(max(action[0], 0.0)), 20.0)},
        8_000,
        "search",
        (0.0, 0.0),
    ),
    # The half that they are judged by.
    "acrobot": Case("Acrobot-v1", {"whirl": (where(lambda o: abs(o[5]) > 3.0), 20.0)}, 10_000, "judge", 1),
    "hill": Case(
        "MountainCarContinuous-v0",
        {"cliff": (where(lambda o: o[0] < -0.9), 3.0)},
        8_000,
        "judge",
        (0.0,),
        careful_pump,
    ),
    "walker": Case(
        "Walker2d-v5",
        {"speed": (lambda obs, action, next_obs, info: float(info["x_velocity"] > 0.5), 40.0)},
        12_000,
        "judge",
        (0.0,) * 6,
    ),
    "biped": Case(
        "BipedalWalker-v3",
        {
            "lean": (where(lambda o: abs(o[0]) > 0.3), 30.0),
            "effort": (lambda obs, action, next_obs, info: float(np.abs(action).mean()), 150.0),
        },
        16_000,
        "judge",
        (0.0,) * 4,
    ),
    "balance": Case("InvertedPendulum-v5", {"far": (where(lambda o: abs(o[0]) > 0.05), 10.0)}, 5_000, "judge", (0.0,)),
}


def constant(case: Case) -> Callable[[np.ndarray], np.ndarray]:
    def still(obs: np.ndarray) -> np.ndarray:
        return np.tile(np.asarray(case.still), (len(obs),) + (1,) * np.ndim(case.still))

    return still


def of_case(options, case: Case, factor: float = 1.0) -> dict[str, Any]:
    return {
        "env": case.env,
        "cost": {name: function for name, (function, _) in case.costs.items()},
        "cost_limit": {name: factor * limit for name, (_, limit) in case.costs.items()},
        "batch_size": options.batch_size or case.batch_size,
        "workers": 0,
        "progress": False,
        "log": (),
        **case.settings,
    }


def baseline_folder(options, name: str, kind: str) -> Path:
    return options.out / "baselines" / f"{name}-{kind}"


def baselines(options) -> None:
    """`safe` under half of the limits, `unsafe` for reward alone."""
    wanted = [(name, kind) for name in options.cases for kind in ("safe", "unsafe")]
    for name, kind in mine(options, [(n, k) for n, k in wanted if not (k == "safe" and CASES[n].safe)]):
        out = baseline_folder(options, name, kind)
        if (out / "policy.safetensors").exists():
            continue
        rule = {"algorithm": "space-alone"} if kind == "safe" else {"algorithm": "trpo"}
        started = time.time()
        result = spacerl.train(
            **of_case(options, CASES[name], 0.5), **rule, seed=TRAINED_WITH, updates=options.baseline_updates, out=out
        )
        last = result.metrics[-1]
        print(
            f"{name}, {kind}: J_R {last['J_R']:.3g}, J_C {last['J_C']:.3g}, {time.time() - started:.0f} s", flush=True
        )


def mine(options, work: list) -> list:
    index, of = map(int, options.share.split("/"))
    return work[index::of]


def baseline_of(options, name: str, kind: str) -> Any:
    if kind == "useless":
        return constant(CASES[name])
    if kind == "safe" and CASES[name].safe:
        return CASES[name].safe
    return str(baseline_folder(options, name, kind))


def run(options) -> None:
    algorithms = [(a, b) for a in options.algorithms for b in (options.baselines if a == "space" else ("none",))]
    for seed, name, (algorithm, kind) in mine(
        options, [(s, n, a) for s in options.seeds for n in options.cases for a in algorithms]
    ):
        path, started = options.out / f"{name}.{algorithm}.{kind}.{seed}.npz", time.time()
        if path.exists():
            continue
        chosen = {"baseline": baseline_of(options, name, kind)} if kind != "none" else {}
        rows: list[dict[str, float]] = []
        folder = options.out / "runs" / path.stem
        spacerl.train(
            **of_case(options, CASES[name]),
            **chosen,
            **{name: json.loads(value) for name, value in (pair.split("=") for pair in options.settings)},
            algorithm=algorithm,
            seed=seed,
            updates=options.updates,
            out=folder,
            on_update=rows.append,
        )
        np.savez_compressed(path, **{key: np.array([row.get(key, np.nan) for row in rows]) for key in rows[-1]})
        print(f"{path.stem}: {time.time() - started:.0f} s", flush=True)


# Showing --------------------------------------------------------------------------------------------------------------


def last_third(values: np.ndarray) -> np.ndarray:
    return values[-max(1, len(values) // 3) :]


def of_limits(case: Case, run: Mapping[str, np.ndarray]) -> np.ndarray:
    """(updates, K) J_C in parts of h_C."""
    columns = [f"J_C_{cost}" if len(case.costs) > 1 else "J_C" for cost in case.costs]
    return np.stack([run[c] / limit for c, (_, limit) in zip(columns, case.costs.values(), strict=True)], axis=1)


def cells_of(case: Case, runs: list[dict[str, np.ndarray]]) -> list[str]:
    """J_R at the start and, with the rest, over the last third of training; violations over all of it."""
    J_R = np.array([last_third(run["J_R"]).mean() for run in runs])
    ratios = [of_limits(case, run) for run in runs]
    ended = [last_third(each) for each in ratios]
    interval = mean_interval(J_R)
    return [
        f"{np.mean([run['J_R'][0] for run in runs]):.4g}",
        f"{J_R.mean():.4g} ± {(interval.high - interval.low) / 2:.2g}",
        " ".join(f"{each.mean(0).max():.2f}" for each in ended),
        f"{np.mean([(each.max(1) > 1).mean() for each in ended]):.2f}",
        f"{np.mean([np.maximum(each - 1, 0).sum() for each in ratios]):.2f}",
    ]


def table(options) -> None:
    """Markdown: means over the last third of training and over seeds; the worst J_C / h_C of each seed."""
    print("| environment | algorithm | pi_B | J_R start | J_R | J_C / h_C | above | violations / h_C |\n|" + "---|" * 8)
    for name in options.cases:
        for algorithm in options.algorithms:
            for kind in options.baselines if algorithm == "space" else ("none",):
                paths = sorted(options.out.glob(f"{name}.{algorithm}.{kind}.[0-9]*.npz"))
                if paths:
                    cells = cells_of(CASES[name], [dict(np.load(path)) for path in paths])
                    print("| " + " | ".join([name, algorithm, kind, *cells]) + " |")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("baselines", "run", "table"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--half", choices=("search", "judge", "all"), default="all")
    parser.add_argument("--cases", nargs="+", choices=CASES)
    parser.add_argument("--algorithms", nargs="+", default=ALGORITHMS)
    parser.add_argument("--baselines", nargs="+", default=BASELINES, choices=BASELINES)
    parser.add_argument("--settings", nargs="*", default=[], help="NAME=VALUE, for the search")
    parser.add_argument("--batch-size", type=int, help="instead of each environment's own")
    parser.add_argument("--seeds", nargs="+", type=int, default=[10, 11, 12])
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--baseline-updates", type=int, default=40)
    parser.add_argument("--share", default="0/1")
    options = parser.parse_args(arguments)
    options.cases = options.cases or [n for n, case in CASES.items() if options.half in (case.half, "all")]
    options.out.mkdir(parents=True, exist_ok=True)
    {"baselines": baselines, "run": run, "table": table}[options.what](options)


if __name__ == "__main__":
    main()
