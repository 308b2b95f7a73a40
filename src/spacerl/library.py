"""The library's front door beside `train`: evaluate, export, film, load_policy, make_env, report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spacerl.baselines import Baseline
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


def evaluate(
    run: str | Path, *, episodes: int = 1000, seed: int = 1, env: Any = None, cost: Any = None
) -> dict[str, Any]:
    """Play the newest policy of a run: mean, deviation and 95 % interval of J_R and J_C, stochastic and not.

    The environment is built as in training; one that was passed to `train` as an object is passed here again.
    """
    from spacerl.environments import environment, is_hosted
    from spacerl.evaluation import evaluate_policy, network_of_run
    from spacerl.runs import RunFolder

    if episodes < 1:
        raise InputError(f"episodes is {episodes}: allowed is a whole number of at least 1")
    require_seed(seed)
    config = RunFolder.open(run).config()
    env = environment(config, env, cost)
    try:
        network, _ = network_of_run(run, config.task, env.obs_shape, env.action_space)
        limits: Any = config.cost_limit
        discount, length = config.discount, config.rollout_length
        return evaluate_policy(env, network, limits, discount, length, episodes, seed)  # type: ignore[arg-type]
    finally:
        if is_hosted(env):
            env.close()


def export(run: str | Path, out: str | Path, *, env: Any = None, cost: Any = None) -> float:
    """Write the newest policy of a run for use elsewhere: .onnx, .py (NumPy only) or .npz, by the name of `out`.

    The file takes the environment's observations and gives actions in its units. Returns by how much it differs from
    the policy at most, on random observations. `env` and `cost` are as for `evaluate`.
    """
    from spacerl.environments import environment, is_hosted
    from spacerl.evaluation import network_of_run
    from spacerl.exporting import export_policy
    from spacerl.runs import RunFolder

    config = RunFolder.open(run).config()
    env = environment(config, env, cost, lanes=1)
    try:
        network, info = network_of_run(run, config.task, env.obs_shape, env.action_space)
        note = "as the environment gives them"
        if is_hosted(env):
            note += "; parts of a Dict or Tuple laid one after the other, choices as one-hot vectors"
        return export_policy(network.family, network.theta, out, info, env.action_space, note)
    finally:
        if is_hosted(env):
            env.close()


def film(
    run: str | Path,
    out: str | Path,
    *,
    episodes: int = 1,
    seed: int = 1,
    beside_baseline: bool = False,
    env: Any = None,
    cost: Any = None,
) -> Path:
    """Film the newest policy of a run, stochastic as in training: an .mp4 (extra `video`) or a .gif.

    No screen is needed. Reward and costs so far are written below the picture, a cost above its limit in red.
    `beside_baseline` shows pi_B in the same episodes to the left of it. `env` and `cost` are as for `evaluate`.
    """
    from spacerl.filming import film_run
    from spacerl.runs import RunFolder

    if episodes < 1:
        raise InputError(f"episodes is {episodes}: allowed is a whole number of at least 1")
    require_seed(seed)
    return film_run(Path(run), RunFolder.open(run).config(), Path(out), episodes, seed, env, cost, beside_baseline)


def report(runs: Sequence[str | Path], out: str | Path | None = None, title: str | None = None) -> Path:
    """One self-contained HTML page about one or several runs."""
    from spacerl.reporting import write_report

    target = Path(out) if out is not None else Path(runs[0]) / "report.html"
    return Path(write_report([Path(run) for run in runs], target, title))
