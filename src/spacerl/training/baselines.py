"""`spacerl baseline make`: pi_B trained by PCPO at another threshold, as the paper's appendix describes."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from spacerl.envs.tasks import KINDS, task_named
from spacerl.policies.family import PolicyFamily
from spacerl.policies.files import save_policy
from spacerl.policies.policy import NetworkPolicy
from spacerl.rollout.evaluate import Play, evaluate_policy
from spacerl.runs.config import RunConfig
from spacerl.runs.lock import require_new_file
from spacerl.runs.versions import versions
from spacerl.training.assemble import Given, assemble
from spacerl.training.settings import Draft, resolve
from spacerl.training.train import Watching, train_run
from spacerl.types import Array, InputError, unknown_name

# Thresholds as multiples of the task's own h_C. The paper gives none: J_C about 0, about h_C, and above it.
LIMIT_FACTORS = {"cost": 0.1, "near": 1.0, "reward": 3.0}
EVALUATION_EPISODES, EVALUATION_STEPS = 20_000, 1_000_000  # at most
HOSTED_STEPS = 100_000  # at most, of a task that worker processes step
# The trust region is wider than in the paper's table, so that a baseline takes minutes.
USUAL = {"updates": 150, "delta": 1e-2, "seed": 0}
NOT_OF_THE_COMMAND = ("simulator", "workers", "algorithm", "task")  # where it ran, and what follows from the others


def make_baseline(
    task: str,
    kind: str,
    out: Path,
    settings: Mapping[str, Any],
    cost_limit: float | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Train pi_B and write it as a policy file with the facts of its making. Returns those facts.

    How pi_B came to be is not part of the comparison, what it earns and costs is, and that is measured and kept with
    it. With a `baseline` of its own, such as "rule", that one is imitated before PCPO begins.
    """
    if kind not in KINDS:
        raise unknown_name("baseline kind", kind, KINDS)
    require_new_file(out)
    own = float(task_named(task, only=True).settings["cost_limit"])
    limit = cost_limit if cost_limit is not None else own * LIMIT_FACTORS[kind]
    algorithm = "pretrain" if settings.get("baseline") else "pcpo"
    chosen = USUAL | {"algorithm": algorithm} | dict(settings) | {"task": task, "cost_limit": limit}
    draft = resolve(chosen)
    with scratch_run() as run:
        result = train_run(draft, Given(), run, Watching(progress, log=()))
        config, episodes, measured = _measured(draft, result.policy, own)
    facts = {
        "task": task,
        "kind": kind,
        "command": _command(task, kind, chosen),
        "algorithm": config.algorithm,
        "trained_h_C": limit,
        "seed": config.seed,
        "updates": config.updates,
        "delta": config.delta,
        "J_R": round(measured["J_R"]["mean"], 4),
        "J_C": round(next(iter(measured["J_C"].values()))["mean"], 4),
        "task_h_C": own,
        "episodes": episodes,
        "commit": versions("")["commit"],
    }
    keep_policy(out, result.policy.family, result.policy.theta, facts)
    return facts


@contextlib.contextmanager
def scratch_run() -> Iterator[Path]:
    """A run folder that is needed until all went well. Where it did not, what was trained stays there."""
    scratch = Path(tempfile.mkdtemp(prefix="spacerl-"))
    run = scratch / "run"
    try:
        yield run
    except BaseException:
        if (run / "policy.safetensors").exists():
            print(f"what was trained is in '{run}', which serves as a baseline too", file=sys.stderr)
        else:
            shutil.rmtree(scratch, ignore_errors=True)
        raise
    shutil.rmtree(scratch, ignore_errors=True)


def keep_policy(out: Path, family: PolicyFamily, theta: Array, facts: Mapping[str, Any], spaces: str = "") -> None:
    """A policy file where it was asked for. Where it cannot be by now, what was trained goes elsewhere."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        save_policy(out, family, theta, dict(facts), spaces=spaces)
    except OSError as error:
        kept = Path(tempfile.mkdtemp(prefix="spacerl-")) / out.name
        save_policy(kept, family, theta, dict(facts), spaces=spaces)
        raise InputError(f"'{out}' cannot be written: {error.strerror or error}; the policy is in '{kept}'") from error


def _measured(draft: Draft, policy: NetworkPolicy, limit: float) -> tuple[RunConfig, int, dict[str, Any]]:
    """What the policy achieves on its task; its config, and how many episodes were played."""
    parts = assemble(draft)
    try:
        config = parts.config
        steps = HOSTED_STEPS if task_named(config.task).hosted else EVALUATION_STEPS
        episodes = min(EVALUATION_EPISODES, steps // config.rollout_length)
        play = Play(episodes, config.rollout_length, config.seed + 1)
        limits = (limit,) * len(config.cost_limit)
        return config, episodes, evaluate_policy(parts.env, policy, limits, config.discount, play)["stochastic"]
    finally:
        parts.close()


def _command(task: str, kind: str, chosen: Mapping[str, Any]) -> str:
    options = [_option(name, value) for name, value in chosen.items() if name not in NOT_OF_THE_COMMAND]
    return " ".join([f"spacerl baseline make {task} --kind {kind}", *options])


def _option(name: str, value: Any) -> str:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    if isinstance(value, tuple | list):
        return f"--{flag} " + " ".join(map(str, value))
    return f"--{flag} {value:g}" if isinstance(value, float) else f"--{flag} {value}"
