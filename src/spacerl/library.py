"""The library's front door beside `train`: evaluate, load_policy, make_env, report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spacerl.baselines import Baseline
from spacerl.baselines import load_baseline as _load_baseline
from spacerl.config import InputError, require_seed
from spacerl.envs import make_native
from spacerl.types import Env


def make_env(task: str) -> Env:
    """The native environment of a task."""
    return make_native(task)


def load_policy(path: str | Path, task: str | None = None) -> Baseline:
    """The policy of a run folder or policy file, or of a shipped baseline such as ("reward", task="point-circle")."""
    from spacerl.baselines import _load_file, _locate

    return _load_file(_locate(str(path), task or ""), str(path))


def evaluate(run: str | Path, *, episodes: int = 1000, seed: int = 1, env: Env | None = None) -> dict[str, Any]:
    """Play the newest policy of a run: mean, deviation and 95 % interval of J_R and J_C, stochastic and not."""
    from spacerl.evaluation import Network, evaluate_policy
    from spacerl.runs import RunFolder
    from spacerl.training import environment

    if episodes < 1:
        raise InputError(f"episodes is {episodes}: allowed is a whole number of at least 1")
    require_seed(seed)
    config = RunFolder.open(run).config()
    env = environment(config, env)
    policy = _load_baseline(str(run), config.task, env.obs_shape, env.action_space)
    assert policy is not None
    assert policy.family is not None
    assert policy.theta is not None
    limits: Any = config.cost_limit
    return evaluate_policy(
        env,
        Network(policy.family, policy.theta),
        limits,
        config.discount,  # type: ignore[arg-type]
        config.rollout_length,  # type: ignore[arg-type]
        episodes,
        seed,
    )


def report(runs: Sequence[str | Path], out: str | Path | None = None, title: str | None = None) -> Path:
    """One self-contained HTML page about one or several runs."""
    from spacerl.reporting import write_report

    target = Path(out) if out is not None else Path(runs[0]) / "report.html"
    return Path(write_report([Path(run) for run in runs], target, title))
