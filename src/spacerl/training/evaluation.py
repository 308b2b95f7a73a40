"""The policy, played now and then while a run learns, and the best one of those that keep the limits.

Every evaluation of every run plays the same episodes, so that policies are compared on equal terms. It draws nothing
from the run's random key: a run that is evaluated learns what it would have learned.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from spacerl.core.thresholds import relative_excess
from spacerl.policies.files import save_policy
from spacerl.rollout.acting import ActingPolicy
from spacerl.rollout.evaluate import Play, play_episodes
from spacerl.runs.config import RunConfig
from spacerl.runs.folder import RunFolder
from spacerl.training.assemble import Parts
from spacerl.types import Row

SEED = 54321  # of the episodes, whatever the run's


def is_due(config: RunConfig, done: int) -> bool:
    """After every so many updates, and at the end of a run that is long enough to be evaluated at all."""
    every = config.evaluate_every
    return 0 < every <= done and (done % every == 0 or done == config.updates)


def evaluated(parts: Parts, policy: ActingPolicy, update: int, env_steps: int) -> Row:
    """A row of evaluations.csv, but for whether it is the best one."""
    config = parts.config
    play = Play(config.evaluation_episodes, config.rollout_length, SEED, config.evaluation_mode == "deterministic")
    played = play_episodes(parts.env, policy, config.discount, play)
    J_C, limits = played.J_C.mean(0), np.array(config.cost_limit)
    excess = np.asarray(relative_excess(jnp.asarray(J_C), jnp.asarray(limits + config.cost_tolerance)))
    worst = int(np.argmax(excess))
    row: Row = {
        "update": update,
        "env_steps": env_steps,
        "J_R": float(played.J_R.mean()),
        "J_C": float(J_C[worst]),
        "h_C": float(limits[worst]),
        "episode_return": float(played.episode_return.mean()),
        "episode_length": float(played.episode_length.mean()),
        "excess": float(excess[worst]),
    }
    names = parts.learner.cost_names
    if len(names) > 1:
        for name, cost, limit in zip(names, J_C, limits, strict=True):
            row |= {f"J_C_{name}": float(cost), f"h_C_{name}": float(limit)}
    return row


def keep_evaluation(folder: RunFolder, config: RunConfig, policy: ActingPolicy, row: Row) -> None:
    """The row, and the policy as best.safetensors where it is the best so far."""
    before = folder.evaluations()
    best = not before or _worth(row) > max(map(_worth, before))
    if best:
        facts = {"J_R": row["J_R"], "J_C": row["J_C"], "evaluated_episodes": config.evaluation_episodes}
        info = {"task": config.task, "algorithm": config.algorithm, "update": row["update"], **facts}
        save_policy(folder.best_path, policy.family, policy.theta, info, None, policy.spaces)
    folder.append_evaluation(row | {"best": int(best)})


def _worth(row: Row) -> tuple[bool, float]:
    """Within all limits before anything else, then reward; where no policy is within them, the least excess."""
    feasible = row["excess"] <= 0.0
    return feasible, row["J_R"] if feasible else -row["excess"]
