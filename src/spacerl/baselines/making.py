"""`spacerl baseline make`: pi_B trained by PCPO at another threshold, as the paper's appendix describes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from spacerl.baselines import KINDS, save_policy
from spacerl.config import InputError, RunConfig, unknown_name

# Thresholds as multiples of the task's own h_C. The paper gives none: J_C about 0, about h_C, and above it.
LIMIT_FACTORS = {"cost": 0.1, "near": 1.0, "reward": 3.0}
EVALUATION_EPISODES, EVALUATION_STEPS = 20_000, 1_000_000  # at most
USUAL = {"updates": 150, "delta": 1e-2, "seed": 0}
NOT_OF_THE_COMMAND = ("simulator", "workers", "algorithm")  # where and how it ran, and what follows from the others


def make_baseline(
    task: str, kind: str, out: Path, cost_limit: float | None = None, progress: bool = True, **settings: Any
) -> dict[str, Any]:
    """Train pi_B and write it as a policy file with the facts of its making. Returns those facts.

    `settings` are those of `RunConfig`. The trust region is wider than in the paper's table, so that a baseline takes
    minutes: how pi_B came to be is not part of the comparison, what it earns and costs is, and that is measured and
    kept with it. With a `baseline` of its own, such as "rule", that one is imitated before PCPO begins.
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
    algorithm = "pretrain" if settings.get("baseline") else "pcpo"
    settings = USUAL | {"algorithm": algorithm} | settings
    with tempfile.TemporaryDirectory() as scratch:
        result = train(task, out=Path(scratch) / "run", progress=progress, cost_limit=limit, **settings)
    family, theta = result.policy.family, result.policy.theta
    assert family is not None
    assert theta is not None
    measured, episodes = {}, 0
    parts = assemble(RunConfig(task=task, cost_limit=limit, **settings))
    try:
        config = parts.config
        assert config.rollout_length is not None
        assert config.discount is not None
        episodes = min(EVALUATION_EPISODES, EVALUATION_STEPS // config.rollout_length)
        network, length, seed = Network(family, theta), config.rollout_length, config.seed + 1
        measured = evaluate_policy(parts.env, network, own, config.discount, length, episodes, seed)["stochastic"]
    finally:
        parts.close()
    cost = next(iter(measured["J_C"].values()))
    chosen = {"cost_limit": limit} | {name: value for name, value in settings.items() if name not in NOT_OF_THE_COMMAND}
    facts = {
        "task": task,
        "kind": kind,
        "command": f"spacerl baseline make {task} --kind {kind} " + " ".join(map(_option, chosen.items())),
        "algorithm": settings["algorithm"],
        "trained_h_C": limit,
        "seed": config.seed,
        "updates": config.updates,
        "delta": config.delta,
        "J_R": round(measured["J_R"]["mean"], 4),
        "J_C": round(cost["mean"], 4),
        "task_h_C": own[0],
        "episodes": episodes,
        "commit": versions("")["commit"],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    save_policy(out, family, theta, facts)
    return facts


def _option(setting: tuple[str, Any]) -> str:
    name, value = setting
    flag = name.replace("_", "-")
    if isinstance(value, bool) and name != "critic_sees_time":  # which has a third value, the task's own
        return f"--{flag}" if value else f"--no-{flag}"
    if isinstance(value, tuple | list):
        return f"--{flag} " + " ".join(map(str, value))
    return f"--{flag} {value:g}" if isinstance(value, float) else f"--{flag} {value}"
