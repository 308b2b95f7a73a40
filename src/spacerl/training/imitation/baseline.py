"""`spacerl baseline from-demos`: pi_B learned from a dataset, measured on its task, and written as a policy file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spacerl.envs.host.description import spaces_of_spec
from spacerl.policies.family import PolicyFamily
from spacerl.policies.normaliser import fresh_normaliser
from spacerl.policies.policy import NetworkPolicy
from spacerl.rollout.demos.dataset import Demonstrations
from spacerl.rollout.evaluate import Play, measured
from spacerl.runs.fields import Count, Positive, Seed, check_value
from spacerl.runs.lock import require_new_file
from spacerl.runs.versions import versions
from spacerl.training.assemble import assemble
from spacerl.training.baselines import keep_policy
from spacerl.training.imitation.cloning import clone, with_std
from spacerl.training.imitation.data import Steps, steps_of
from spacerl.training.imitation.ddpg import ddpg
from spacerl.training.settings import resolve
from spacerl.types import Array, InputError

CLONING_RATE = 1e-3
ABSORBED = 20_000  # observations whose statistics normalise them


class HowToLearn(NamedTuple):
    """What `from-demos` may be asked for."""

    method: str = "bc"
    updates: int = 3000
    batch: int = 256
    least_std: float = 0.1
    std: float = 0.3
    seed: int = 0
    episodes: int = 20


def baseline_from_demos(
    dataset: str, task: str | None, out: Path, how: HowToLearn, progress: bool = True
) -> dict[str, Any]:
    """Learn pi_B, write it with the facts of its making, and return those facts."""
    _check(how)
    require_new_file(out)
    demos = Demonstrations(dataset)
    task = task or demos.task
    if task is None:
        raise InputError(f"dataset '{dataset}' does not say which task it is of: give --task")
    parts = assemble(resolve({"task": task, "algorithm": "pcpo", "seed": how.seed}))
    try:
        config, env, family = parts.config, parts.env, parts.learner.family
        if how.method == "ddpg" and family.action.kind != "box":
            raise InputError(f"method is 'ddpg' and task '{task}' has {family.action.kind} actions: allowed is bc")
        steps = steps_of(demos, env.spec, task)
        theta, figures = _learn(family, steps, how, config.discount, _teller(how, progress))
        policy = NetworkPolicy(family, theta)
        play = Play(how.episodes, config.rollout_length, how.seed + 1)
        found = measured(env, policy, config.cost_limit, config.discount, play)
        facts = _facts(demos, task, how, steps, figures, found, float(config.cost_limit[0]))
        keep_policy(out, family, theta, facts, spaces_of_spec(env.spec))
        return facts
    finally:
        parts.close()


def _check(how: HowToLearn) -> None:
    hints: dict[str, Any] = {
        "method": Literal["bc", "ddpg"],
        "updates": Count,
        "batch": Count,
        "least_std": Positive,
        "std": Positive,
        "seed": Seed,
        "episodes": Count,
    }
    for name, hint in hints.items():
        check_value(name, getattr(how, name), hint)


def _learn(
    family: PolicyFamily, steps: Steps, how: HowToLearn, discount: float, told: Callable[[int], None]
) -> tuple[Array, dict[str, float]]:
    """theta of raw observations. Numbers are normalised while it learns; images have their scale."""
    normaliser = fresh_normaliser(family.width)
    if family.width:
        some = np.random.default_rng(how.seed).permutation(steps.before)[:ABSORBED]
        normaliser = family.absorb(normaliser, jnp.asarray(steps.observations[some]), jnp.ones(len(some)))

    def see(obs: Array) -> Array:
        return family.normalised(normaliser, obs) if family.width else obs

    theta = family.init(jax.random.key(how.seed))
    common: dict[str, Any] = {"updates": how.updates, "batch": how.batch, "seed": how.seed, "told": told}
    if how.method == "bc":
        theta, figures = clone(family, theta, see, steps, rate=CLONING_RATE, least_std=how.least_std, **common)
    else:
        theta, figures = ddpg(family, theta, see, steps, discount=discount, **common)
        theta = with_std(family, theta, how.std)
    return family.fold(theta, normaliser), figures


def _teller(how: HowToLearn, progress: bool) -> Callable[[int], None]:
    def told(done: int) -> None:
        if progress:
            end = "\n" if done == how.updates else "\r"
            print(f"{how.method}: {done} of {how.updates} updates", end=end, file=sys.stderr, flush=True)

    return told


def _facts(
    demos: Demonstrations,
    task: str,
    how: HowToLearn,
    steps: Steps,
    figures: dict[str, float],
    found: dict[str, Any],
    limit: float,
) -> dict[str, Any]:
    cost = next(iter(found["J_C"].values()))
    stated = {"std": how.std} if how.method == "ddpg" else {"least_std": how.least_std}
    return {
        "task": task,
        "kind": "demos",
        "demonstrated_by": ", ".join(steps.drivers),
        "dataset": Path(demos.name).name,
        "demonstrated_episodes": demos.total_episodes,
        "demonstrated_steps": len(steps.reward),
        "method": {"bc": "behaviour cloning", "ddpg": "DDPG on the logged data alone"}[how.method],
        **{name: round(value, 4) for name, value in figures.items()},
        **stated,
        "updates": how.updates,
        "batch": how.batch,
        "seed": how.seed,
        "J_R": round(found["J_R"]["mean"], 4),
        "J_R_interval": round(found["J_R"]["interval"], 4) if how.episodes > 1 else None,
        "J_C": round(cost["mean"], 4),
        "J_C_interval": round(cost["interval"], 4) if how.episodes > 1 else None,
        "return": round(found["episode_return"]["mean"], 4),
        "task_h_C": limit,
        "episodes": how.episodes,
        "commit": versions("")["commit"],
    }
