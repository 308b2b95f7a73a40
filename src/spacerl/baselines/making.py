"""`spacerl baseline make`: pi_B trained by PCPO at another threshold, as the paper's appendix describes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from spacerl.baselines import KINDS, save_policy
from spacerl.config import InputError, RunConfig, unknown_name

# Thresholds as multiples of the task's own h_C. The paper gives none: J_C about 0, about h_C, and above it.
LIMIT_FACTORS = {"cost": 0.1, "near": 1.0, "reward": 3.0}
EVALUATION_EPISODES = 20_000


def make_baseline(
    task: str,
    kind: str,
    out: Path,
    cost_limit: float | None = None,
    updates: int = 150,
    delta: float = 1e-2,
    seed: int = 0,
    progress: bool = True,
) -> dict[str, Any]:
    """Train pi_B and write it as a policy file with the facts of its making. Returns those facts.

    The trust region is wider than in the paper's table, so that a baseline takes minutes: how pi_B came to be is not
    part of the comparison, what it earns and costs is, and that is measured and kept with it.
    """
    from spacerl.evaluation import Network, evaluate_policy
    from spacerl.runs import versions
    from spacerl.training import assemble, train

    if kind not in KINDS:
        raise unknown_name("baseline kind", kind, KINDS)
    if out.exists():
        raise InputError(f"'{out}' exists: give a new file with --out, nothing is overwritten")
    own = RunConfig(task=task, algorithm="pcpo").resolved().cost_limit
    assert isinstance(own, tuple)
    limit = cost_limit if cost_limit is not None else own[0] * LIMIT_FACTORS[kind]
    settings = {"algorithm": "pcpo", "cost_limit": limit, "updates": updates, "delta": delta, "seed": seed}
    parts = assemble(RunConfig(task=task, **settings))
    with tempfile.TemporaryDirectory() as scratch:
        result = train(task, out=Path(scratch) / "run", progress=progress, **settings)
    family, theta = result.policy.family, result.policy.theta
    assert family is not None
    assert theta is not None
    config = parts.config
    measured = evaluate_policy(
        parts.env,
        Network(family, theta),
        own,
        config.discount,  # type: ignore[arg-type]
        config.rollout_length,  # type: ignore[arg-type]
        EVALUATION_EPISODES,
        seed + 1,
    )["stochastic"]
    cost = next(iter(measured["J_C"].values()))
    chosen = f"--cost-limit {limit:g} --updates {updates} --delta {delta:g} --seed {seed}"
    command = f"spacerl baseline make {task} --kind {kind} {chosen}"
    facts = {
        "task": task,
        "kind": kind,
        "command": command,
        "algorithm": "pcpo",
        "trained_h_C": limit,
        "seed": seed,
        "updates": updates,
        "delta": delta,
        "J_R": round(measured["J_R"]["mean"], 4),
        "J_C": round(cost["mean"], 4),
        "task_h_C": own[0],
        "episodes": EVALUATION_EPISODES,
        "commit": versions("")["commit"],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    save_policy(out, family, theta, facts)
    return facts
