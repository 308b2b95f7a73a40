"""Every algorithm on the point tasks at three trust regions, with good, bad and useless baselines.

    python benchmarks/safe_and_fast.py run --out DIR [--seeds 20 21 22 23 24] [--updates 300] [--share 0/4]
    python benchmarks/safe_and_fast.py table --out DIR     # Markdown: each setting at the paper's and its best delta
    python benchmarks/safe_and_fast.py figure --out DIR --figures DIR
    python benchmarks/safe_and_fast.py pack --out DIR --data FILE.npz

Baselines: near, reward and cost (shipped), a rule, and three that cannot help: the near one with its mean action
negated (adversarial), an untrained network (random), and a constant action (constant). One program steps all seeds,
baselines and trust regions of a setting. `--share i/n` runs every n-th setting, so that n processes can share an
accelerator.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from spacerl.algorithms import Algorithm
from spacerl.api import load_policy
from spacerl.envs.tasks import TASKS as ALL_TASKS
from spacerl.policies.policy import NetworkPolicy
from spacerl.reporting import mean_interval
from spacerl.training.assemble import Given, Parts, assemble
from spacerl.training.programs import joint_program, stack_states
from spacerl.training.settings import resolve
from spacerl.training.start import begin

sys.path.insert(0, str(Path(__file__).parent))

from shared.curves import at_end

TASKS = ("point-circle", "point-gather", "ant-circle", "ant-gather")
DELTAS = (1e-4, 1e-3, 1e-2)  # the first is the paper's
KINDS = ("near", "reward", "cost")
USELESS = ("adversarial", "random", "constant")
ALL_BASELINES = (*KINDS, "rule", *USELESS)
LOGGED = (
    "J_R",
    "J_C",
    "cumulative_violation",
    "kl",
    "J_C_error",
    "entropy",
    "J_D",
    "rho",
    "trust",
    "follows",
    "seeks",
    "cost_gradient_share",
)
J_R, J_C, VIOLATION, KL = range(4)
SHOWN = (10, 25, 50, 100, 200)
KEPT_EVERY = 10  # updates


class Setting(NamedTuple):
    algorithm: str
    options: dict[str, Any] = {}  # noqa: RUF012  never written to
    baselines: tuple[str, ...] = ()
    deltas: tuple[float, ...] = DELTAS


ENDS = (DELTAS[0], DELTAS[-1])  # for what is compared with another form of itself, not with us
SETTINGS = {
    "trpo": Setting("trpo"),
    "trpo-lagrangian": Setting("trpo-lagrangian"),
    "trpo-pid": Setting("trpo-pid"),
    "cpo": Setting("cpo"),
    "pcpo": Setting("pcpo"),
    "pcpo-l2": Setting("pcpo", {"projection": "l2"}, (), ENDS),
    "f-cpo": Setting("f-cpo", {}, KINDS),
    "f-pcpo": Setting("f-pcpo", {}, KINDS),
    "d-cpo": Setting("d-cpo", {"weight_schedule": "decay"}, KINDS),
    "d-pcpo": Setting("d-pcpo", {"weight_schedule": "decay"}, KINDS),
    "pretrain": Setting("pretrain", {}, KINDS),
    "space-printed": Setting("space-printed", {}, KINDS),
    "space-printed-l2": Setting("space-printed", {"projection": "l2"}, KINDS, ENDS),
    "space-printed-fixed": Setting("space-printed", {"threshold_rule": "fixed"}, KINDS, ENDS),
    "space-sequential": Setting("space-sequential", {}, KINDS, ENDS),
    "space-joint": Setting("space-joint", {}, KINDS, ENDS),
    "space-alone": Setting("space-alone"),
    "space": Setting("space", {}, ALL_BASELINES),
}


# Running --------------------------------------------------------------------------------------------------------------


class WithDelta(NamedTuple):
    delta: jax.Array  # () trust-region radius of this run
    inner: Any  # the algorithm's own state


def with_delta(algorithm: Algorithm) -> Algorithm:
    """The algorithm with its trust region in its state, so that one program can step runs that differ in it."""

    def step(inputs, state):
        proposal = algorithm.step(inputs._replace(delta=state.delta), state.inner)
        remembered = state.inner if proposal.memory is None else proposal.memory
        return proposal._replace(memory=WithDelta(state.delta, remembered))

    def accept(judge, inputs, proposal, state):
        own = proposal._replace(memory=proposal.memory.inner)
        return algorithm.accept(judge, inputs._replace(delta=state.delta), own, state.inner)

    return algorithm._replace(
        step=step,
        init=lambda costs, baseline: WithDelta(jnp.zeros(()), algorithm.init(costs, baseline)),
        accept=accept,
        control=lambda state, measured: WithDelta(state.delta, algorithm.control(state.inner, measured)),
        threshold=lambda state: algorithm.threshold(state.inner),
        weight=lambda state: algorithm.weight(state.inner),
    )


def baselines(task: str) -> dict[str, Any]:
    """All of one architecture but the rule."""
    shipped = {kind: load_policy(kind, task) for kind in KINDS}
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
    useless = {name: NetworkPolicy(family, theta, name) for name, theta in made.items()}
    return {**shipped, **useless, "rule": "rule"}


def curves(runs: list[Parts], deltas: list[float], updates: int, keep: Callable[[np.ndarray], None]) -> np.ndarray:
    """(runs, updates, logged) of runs that one program steps, each beginning as a run of its own would. What there is
    of them is kept now and then: whoever has no more time has something."""
    runs = [run._replace(learner=run.learner._replace(algorithm=with_delta(run.learner.algorithm))) for run in runs]
    begun: dict[tuple, Any] = {}  # it does not depend on delta
    states = []
    for run, delta in zip(runs, deltas, strict=True):
        key = (run.config.seed, *(baseline.name for baseline in run.baselines))
        if key not in begun:
            begun[key] = begin(run)[0]
        state = begun[key]
        states.append(state._replace(algorithm=state.algorithm._replace(delta=jnp.array(delta, jnp.float32))))
    program, state, rows = joint_program(runs), stack_states(states), []
    for update in range(updates):
        state, metrics, *_ = program.step(state)
        rows.append([[float(each.get(name, math.nan)) for name in LOGGED] for each in metrics])
        if update % KEPT_EVERY == 0:
            keep(_as_array(rows))
    return _as_array(rows)


def _as_array(rows: list[list[list[float]]]) -> np.ndarray:
    values = np.array(rows).swapaxes(0, 1)
    values[..., KL] = np.cumsum(values[..., KL], axis=1)
    return values


Curves = dict[tuple[str, float], np.ndarray]  # pi_B, delta -> (seeds, updates, logged)


def one_setting(task: str, setting: Setting, options, keep: Callable[[Curves], None]) -> Curves:
    known = baselines(task) if setting.baselines else {}
    wanted = [name for name in setting.baselines if name in options.baselines]
    groups = [[name for name in wanted if name != "rule"], [name for name in wanted if name == "rule"]]
    deltas = [delta for delta in options.deltas if delta in setting.deltas]
    found: Curves = {}
    for names in [group for group in groups if group] or [["none"]]:
        keys = [(name, delta, seed) for name in names for delta in deltas for seed in options.seeds]
        fixed = {"task": task, "algorithm": setting.algorithm, "batch_size": options.batch_size, **setting.options}
        fixed |= {"simulator": "device"} | options.with_settings
        runs = []
        for name, _, seed in keys:
            chosen = {"baseline": name} if name != "none" else {}
            given = Given(baseline=known[name]) if name != "none" else Given()
            runs.append(assemble(resolve({**fixed, "seed": seed, **chosen}), given))

        def by_key(values: np.ndarray, names=names) -> Curves:
            values = values.reshape(len(names), len(deltas), len(options.seeds), *values.shape[1:])
            return {(n, d): values[i, j] for i, n in enumerate(names) for j, d in enumerate(deltas)}

        def keep_too(values: np.ndarray, found=found, by_key=by_key) -> None:
            keep(found | by_key(values))

        found |= by_key(curves(runs, [delta for _, delta, _ in keys], options.updates, keep_too))
    return found


def run(options) -> None:
    mine, of = map(int, options.share.split("/"))
    work = [(task, name) for name in reversed(options.settings) for task in options.tasks]
    for task, name in work[mine::of]:
        path, started = options.out / f"{task}.{name}.npz", time.time()
        if path.exists():
            continue

        def save(found: Curves, path: Path, task=task, name=name) -> None:
            named = {f"{task}|{name}|{baseline}|{delta:g}": values for (baseline, delta), values in found.items()}
            np.savez_compressed(path, **named)

        unfinished = path.with_suffix(".part.npz")
        save(one_setting(task, SETTINGS[name], options, functools.partial(save, path=unfinished)), path)
        unfinished.unlink(missing_ok=True)
        print(f"{task}, {name}: {time.time() - started:.0f} s", flush=True)


# Showing --------------------------------------------------------------------------------------------------------------

Results = dict[tuple[str, str, float], np.ndarray]  # setting, pi_B, delta -> (seeds, updates, logged)


def results_of(folder: Path, task: str, updates: int) -> Results:
    """Their first updates: those of a run that was stopped are compared with as many of the others."""
    found: Results = {}
    for path in sorted(set(folder.glob(f"{task}.*.npz")) - set(folder.glob("*.part.npz"))):
        with np.load(path) as arrays:
            for key in arrays.files:
                _, setting, baseline, delta = key.split("|")
                found[setting, baseline, float(delta)] = arrays[key][:, :updates]
    return found


def keeps(values: np.ndarray, h_C: float) -> bool:
    """Whether the limit is kept at the end, to a twentieth: generous, so that no opponent is shown below its best."""
    return at_end(values[..., J_C]).mean() <= 1.05 * h_C


def best_delta(results: Results, setting: str, baseline: str, h_C: float) -> float:
    """The trust region with the most reward at the end of those that keep the limit; if none does, the least cost."""
    own = {delta: values for (s, b, delta), values in results.items() if (s, b) == (setting, baseline)}
    kept = {delta: values for delta, values in own.items() if keeps(values, h_C)}
    if kept:
        return max(kept, key=lambda delta: at_end(kept[delta][..., J_R]).mean())
    return min(own, key=lambda delta: at_end(own[delta][..., J_C]).mean())


def in_digits(value: float, digits: int = 3) -> str:
    """Significant digits, never an exponent."""
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:#.{digits}g}".rstrip(".")


def with_interval(values: np.ndarray) -> str:
    interval = mean_interval(values)
    return f"{in_digits(interval.mean)} ± {in_digits((interval.high - interval.low) / 2, 2)}"


def table(options) -> None:
    """Markdown: mean over seeds of J_R during training; at the end, over its last tenth, with a 95 % interval."""
    shown = [k for k in SHOWN if k < options.updates]
    for task in options.tasks:
        results, h_C = results_of(options.out, task, options.updates), ALL_TASKS[task].settings["cost_limit"]
        head = ["setting", "pi_B", "delta", *(f"J_R@{k}" for k in shown), "J_R end", "J_C end", "violations", "KL"]
        print(f"\n### {task} (h_C = {h_C:g})\n\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
        for setting, baseline in dict.fromkeys((s, b) for s, b, _ in results):
            best = best_delta(results, setting, baseline, h_C)
            for delta in dict.fromkeys((min(DELTAS), best)):
                if (setting, baseline, delta) not in results:
                    continue
                values = results[setting, baseline, delta]
                cells = [setting, baseline, f"{delta:g}" + (" (best)" if delta == best else "")]
                cells += [f"{values[:, k, J_R].mean():.1f}" for k in shown]
                cells += [with_interval(at_end(values[..., J_R])), with_interval(at_end(values[..., J_C]))]
                cells += [with_interval(values[:, -1, VIOLATION]), in_digits(values[:, -1, KL].mean(), 2)]
                print("| " + " | ".join(cells) + " |")


LINES = {
    ("pcpo", "none"): "#555555",
    ("cpo", "none"): "#a0a0a0",
    ("trpo-lagrangian", "none"): "#56b4e9",
    ("trpo-pid", "none"): "#0072b2",
    ("space-printed", "near"): "#d55e00",
    ("space", "near"): "#009e73",
    ("space", "reward"): "#cc79a7",
    ("space", "cost"): "#e69f00",
    ("space", "rule"): "#8c564b",
}


def figure(options) -> None:
    """J_R over updates, over the violations so far and over the KL so far; opponents at their best delta, and PCPO at
    the paper's too."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    for task in options.tasks:
        results, h_C = results_of(options.out, task, options.updates), ALL_TASKS[task].settings["cost_limit"]
        page = Figure(figsize=(13.5, 4.6), layout="constrained")
        axes = page.subplots(1, 3, sharey=True)
        for (setting, baseline), colour in LINES.items():
            if not any((setting, baseline) == key[:2] for key in results):
                continue
            best = best_delta(results, setting, baseline, h_C)
            for delta in dict.fromkeys((best, min(DELTAS)) if setting == "pcpo" else (best,)):
                values = results.get((setting, baseline, delta))
                if values is None:
                    continue
                mean = values.mean(0)
                name = setting + ("" if baseline == "none" else f" from {baseline}") + f", delta {delta:g}"
                style = {"color": colour, "lw": 1.8, "label": name, "ls": "-" if delta == best else ":"}
                axes[0].plot(mean[:, J_R], **style)
                axes[1].plot(np.maximum(mean[:, VIOLATION], 1e-2 * h_C), mean[:, J_R], **style)
                axes[2].plot(mean[:, KL], mean[:, J_R], **style)
        titles = ("over updates", "over the violations so far", "over the KL spent so far")
        labels = ("update", f"sum of max(0, J_C - h_C), h_C = {h_C:g}", "sum of KL(old, new)")
        for axis, title, label in zip(axes, titles, labels, strict=True):
            axis.set(title=title, xlabel=label)
            axis.grid(alpha=0.25)
            axis.spines[["top", "right"]].set_visible(False)
        axes[1].set_xscale("log")
        least, most = axes[1].get_xlim()
        axes[1].xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if most < 1e3 * least else (1.0,)))
        axes[1].xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes[1].xaxis.set_minor_formatter(NullFormatter())
        axes[2].set_xscale("log")
        axes[0].set_ylabel("J_R, mean over seeds")
        page.legend(
            *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=9
        )
        page.suptitle(f"{task}: reward, and what it costs to get there")
        options.figures.mkdir(parents=True, exist_ok=True)
        page.savefig(options.figures / f"{task}.png", dpi=90)


def pack(options) -> None:
    """All curves in one file, every third update, single precision: J_R, J_C, violation and KL."""
    arrays = {}
    for task in options.tasks:
        for (setting, baseline, delta), values in results_of(options.out, task, options.updates).items():
            thinned = np.concatenate([values[:, :-1:3], values[:, -1:]], axis=1)[..., :4]
            arrays[f"{task}|{setting}|{baseline}|{delta:g}"] = thinned.astype(np.float32)
    np.savez_compressed(options.data, **arrays)


ACTIONS = {"run": run, "table": table, "figure": figure, "pack": pack}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--baselines", nargs="+", default=list(ALL_BASELINES), choices=ALL_BASELINES)
    parser.add_argument("--with", nargs="*", default=[], dest="others", metavar="NAME=VALUE", help="other settings")
    parser.add_argument("--deltas", type=float, nargs="+", default=list(DELTAS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[20, 21, 22, 23, 24])
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=50_000)
    parser.add_argument("--share", default="0/1")
    parser.add_argument("--figures", type=Path, default=Path("docs/images"))
    parser.add_argument("--data", type=Path, default=Path("docs/results/data/point-tasks.npz"))
    chosen = parser.parse_args(arguments)
    chosen.with_settings = {name: json.loads(value) for name, value in (pair.split("=") for pair in chosen.others)}
    chosen.out.mkdir(parents=True, exist_ok=True)
    ACTIONS[chosen.action](chosen)


if __name__ == "__main__":
    main()
