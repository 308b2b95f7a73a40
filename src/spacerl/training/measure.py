"""What is measured beside training: the baselines before it, and episodes to draw after it."""

from __future__ import annotations

import importlib
import math
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spacerl.core.thresholds import relative_excess
from spacerl.envs.host.single import parse_arguments
from spacerl.envs.tasks import task_named
from spacerl.policies.policy import FunctionPolicy
from spacerl.rollout.evaluate import Play, episode_sums, play_by_ticks, play_episodes, play_on_device
from spacerl.rollout.host import sampling
from spacerl.runs.config import is_own
from spacerl.runs.folder import RunFolder
from spacerl.training.assemble import Parts
from spacerl.types import UNMEASURED, BaselineMeasurement, DrawableEnv, Policy

BASELINE_EPISODES, FEWEST_EPISODES = 1000, 30
CERTAIN = 2.0  # standard errors
DRAWN_EPISODES, DRAWN_SEED = 12, 12345


def measure_baselines(parts: Parts) -> tuple[BaselineMeasurement, dict[str, Any] | None]:
    """What is known of the baseline on this task, and what the run folder keeps of it; of several, the first one's, and
    all of them below "all".

    Of several another one may lead in each update, so that nothing is known about the cost of the one that does, and of
    its reward only what it is at most.
    """
    if not parts.baselines:
        return UNMEASURED, None
    summaries = [_summary_of(parts, baseline) for baseline in parts.baselines]
    summary: dict[str, Any] = summaries[0] | ({"all": summaries} if len(summaries) > 1 else {})
    most = max(each["J_R"] for each in summaries)
    return BaselineMeasurement(most, excess(summary, -CERTAIN) if len(summaries) == 1 else math.nan), summary


def excess(summary: dict[str, Any], errors: float = 0.0) -> float:
    """By what part of h_C and its tolerance a cost exceeds them, were it so many standard errors above its mean.

    A baseline counts as safe by its mean less two of them: who hovers at a limit with a cost that is rare and large
    would else be safe by one sample of episodes and unsafe by the next.
    """
    allowed = summary["h_C"] + summary["cost_tolerance"]
    return (summary["J_C"] + errors * summary["J_C_error"] - allowed) / max(allowed, 1e-30)


def measuring(parts: Parts, purpose: int) -> Play:
    """Episodes that say what a policy earns and costs before training; other ones for each `purpose`."""
    episodes = min(max(parts.columns, FEWEST_EPISODES), BASELINE_EPISODES)
    return Play(episodes, parts.config.rollout_length, parts.config.seed + purpose)


def _summary_of(parts: Parts, baseline: Policy) -> dict[str, Any]:
    config, play = parts.config, measuring(parts, 1)
    played = play_episodes(parts.env, baseline, config.discount, play)
    spread = baseline.stated_spread() if isinstance(baseline, FunctionPolicy) else None
    return {
        "name": baseline.name,
        **in_means(parts, played.J_R, played.J_C),
        "costs": {
            name: {"J_C": float(values.mean()), "h_C": limit}
            for name, limit, values in zip(parts.learner.cost_names, config.cost_limit, played.J_C.T, strict=True)
        },
        "episode_return": float(played.episode_return.mean()),
        "episode_length": float(played.episode_length.mean()),
        "episodes": play.episodes,
        "made_by": baseline.info,
        **({"given": spread} if spread else {}),
    }


def in_means(parts: Parts, J_R: np.ndarray, J_C: np.ndarray) -> dict[str, Any]:
    """Means and standard errors over episodes (N,), (N, K): of the reward, and of the cost worst for its limit."""
    config, root = parts.config, math.sqrt(J_R.size)
    allowed = jnp.array(config.cost_limit) + config.cost_tolerance
    worst = int(np.argmax(relative_excess(jnp.asarray(J_C.mean(0)), allowed)))
    return {
        "J_R": float(J_R.mean()),
        "J_R_error": float(J_R.std(ddof=1) / root),
        "J_C": float(J_C[:, worst].mean()),
        "J_C_error": float(J_C[:, worst].std(ddof=1) / root),
        "h_C": config.cost_limit[worst],
        "cost_tolerance": config.cost_tolerance,
    }


class Whereabouts(NamedTuple):
    """Position and objects of a state; equal for equal environments, so that runs of one task share a program."""

    env: DrawableEnv

    def __call__(self, state: Any) -> Any:
        return self.env.position(state), self.env.objects(state)


def write_trajectories(parts: Parts, policy: Policy, folder: RunFolder) -> None:
    """A few episodes of pi_B and of the learned policy, for the report, where the environment can be drawn."""
    env = parts.env
    if not is_own(parts.config.task) and task_named(parts.config.task).tracing is not None:
        _write_traces(parts, policy, folder)
        return
    if not isinstance(env, DrawableEnv):
        return
    drawn = [_episodes(parts, env, baseline, "baseline") for baseline in parts.baselines[:1]]
    learned = _episodes(parts, env, policy, "learned")
    content = {"task": parts.config.task, "arena": env.arena(), "policies": [*drawn, learned]}
    folder.write_trajectories(content)


def _write_traces(parts: Parts, policy: Policy, folder: RunFolder) -> None:
    """One episode of pi_B and the same one of the learned policy, as a task that writes its own down does it. They
    illustrate a run that is over: where the simulator fails, the run is whole without them."""
    config = parts.config
    tracing = importlib.import_module(task_named(config.task).tracing or "")
    given = dict(parse_arguments(config.env_args))
    played = []
    try:
        for name, each in [("baseline", baseline) for baseline in parts.baselines[:1]] + [("learned", policy)]:
            act = sampling(each, parts.env.spec.action.size, 1, DRAWN_SEED)
            episode = tracing.trace(
                config.task, given, lambda obs, k, act=act: act(obs[None], k)[0], config.rollout_length, DRAWN_SEED
            )
            rewards = np.array(episode.pop("rewards"))
            J_R = float(config.discount ** np.arange(len(rewards)) @ rewards)
            played.append({"name": name, "J_R": J_R, "J_C": float(sum(episode["cost"])), "episodes": [episode]})
    except RuntimeError as error:
        print(f"no episode is drawn: {error}", file=sys.stderr)
        return
    folder.write_trajectories({"task": config.task, "arena": tracing.arena(config.task, given), "policies": played})


def _episodes(parts: Parts, env: DrawableEnv, policy: Policy, name: str) -> dict[str, Any]:
    episodes = min(parts.columns, BASELINE_EPISODES)
    play = Play(episodes, parts.config.rollout_length, DRAWN_SEED)
    played = play_on_device if policy.compiles else play_by_ticks
    rewards, costs, valid, (xy, objects) = jax.device_get(played(env, policy, play, Whereabouts(env)))
    J_R, J_C = episode_sums(rewards, costs, parts.config.discount)
    shown = []
    for n in range(min(DRAWN_EPISODES, episodes)):
        steps = int(valid[:, n].sum())
        path = {"xy": np.round(xy[:steps, n], 4).tolist(), "cost": costs[:steps, n].max(-1).tolist()}
        if objects is not None:
            placed = objects[0][0, n]
            path |= {"apples": placed[: env.apples].tolist(), "bombs": placed[env.apples :].tolist()}
        shown.append(path)
    return {"name": name, "J_R": float(J_R.mean()), "J_C": float(J_C.mean(0).max()), "episodes": shown}
