"""What the numbers of the episodes say about a run: costs, rewards, lengths, sizes, speed, repetition."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

from spacerl.envs.host.check.findings import Recorder
from spacerl.envs.host.check.form import random_action
from spacerl.envs.host.check.play import Played
from spacerl.envs.host.single import USUAL_HORIZON, Recipe, SingleEnv
from spacerl.runs.config import MainSettings

STEPS_TO_REPEAT = 20
LIKELY = ("cost", "violation", "collision", "crash", "unsafe", "hazard")  # words in the names of costs
SLOW = 200.0  # steps a second; a batch of the usual size then takes most of a minute
HUGE = 100.0  # an observation of this size saturates tanh layers


def judge_episodes(single: SingleEnv, played: Played, max_steps: int, recorder: Recorder) -> None:
    _suggest_costs(single, played, recorder)
    _judge_costs(single, played, recorder)
    _judge_rewards(played, recorder)
    _judge_lengths(single, played, max_steps, recorder)
    _judge_sizes(played, recorder)
    _judge_speed(played, recorder)
    _judge_wrappers(single.env, recorder)


def _suggest_costs(single: SingleEnv, played: Played, recorder: Recorder) -> None:
    """Where a cost is missing, the keys of info that could be meant, likely ones first."""
    steps = sum(played.lengths)
    keys = sorted(played.info, key=lambda key: (not any(word in key.lower() for word in LIKELY), key))
    for name, _ in single.recipe.costs:
        finding = recorder.kinds.get(f"missing {name}")
        if finding is None or not keys or not steps:
            continue
        told = []
        for key in keys[:5]:
            there = played.info[key]
            rare = "" if there >= steps else f"=0 (it is there on {there} of {steps} steps; 0 where it is not)"
            told.append(f"--cost info:{key}{rare}")
        fix = f"pass {' or '.join(told)}; or {finding.fix}"
        recorder.kinds[finding.kind] = dataclasses.replace(finding, fix=fix)


def _judge_costs(single: SingleEnv, played: Played, recorder: Recorder) -> None:
    values = played.all_costs()
    for k, (name, source) in enumerate(single.recipe.costs):
        column = values[:, k]
        if source == "none" or len(column) < 2 or not np.isfinite(column).all():
            continue
        if np.all(column == column[0]):
            text = f"the cost '{name}' is {column[0]:g} on all {len(column)} steps"
            fix = "see that it is computed from the right values"
            fix += "; if random actions are simply too timid to cost anything, it is fine" if column[0] == 0 else ""
            recorder.note(f"constant {name}", text, fix)
        if np.any(column < 0):
            text = f"the cost '{name}' is negative at times ({column.min():g})"
            fix = "start it at 0: a negative cost pays for a violation elsewhere in the episode"
            recorder.note(f"negative {name}", text, fix)


def _judge_rewards(played: Played, recorder: Recorder) -> None:
    """A constant reward still teaches where episodes differ in length, as in CartPole."""
    rewards = played.all_rewards()
    if len(rewards) < 2 or not np.isfinite(rewards).all() or len(set(played.lengths)) > 1:
        return
    if np.all(rewards == rewards[0]):
        text = f"the reward is {rewards[0]:g} on all {len(rewards)} steps, and all episodes are equally long"
        fix = "see that it is computed from the right values: there is nothing to learn"
        recorder.note("constant reward", text, fix)


def _judge_lengths(single: SingleEnv, played: Played, max_steps: int, recorder: Recorder) -> None:
    if single.horizon is not None or not played.lengths:
        return
    fix = (
        f"pass --rollout-length to train (without it episodes are cut after {USUAL_HORIZON} steps), or set "
        "max_episode_steps where the environment is registered"
    )
    longest = max(played.lengths)
    if played.endless:
        times = f"{played.endless} of {len(played.lengths)} episodes"
        recorder.note("endless", f"{times} had not ended after {max_steps} steps, and it states no time limit", fix)
    elif longest > USUAL_HORIZON:
        recorder.note("endless", f"an episode lasted {longest} steps, and it states no time limit", fix)


def _judge_sizes(played: Played, recorder: Recorder) -> None:
    for name, size in played.largest.items():
        if size > HUGE:
            text = f"the {name} holds numbers as large as {size:.3g}"
            recorder.note("scale", text, "pass --normalise-observations to train")
            return


def _judge_speed(played: Played, recorder: Recorder) -> None:
    if sum(played.lengths) and played.speed < SLOW:
        batch = MainSettings.batch_size
        text = f"it makes {played.speed:.3g} steps a second, so a batch of {batch:,} takes {batch / played.speed:.0f} s"
        recorder.note("slow", text, "raise --workers and --environments where there are cores, or lower --batch-size")


def _judge_wrappers(env: Any, recorder: Recorder) -> None:
    """Running statistics in a wrapper are of one copy, start anew in an evaluation, and are no part of a policy."""
    keeping = []
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.NormalizeObservation | gymnasium.wrappers.NormalizeReward):
            keeping.append(type(env).__name__)
        env = env.env
    if keeping:
        text = f"each copy of it learns statistics of its own ({', '.join(keeping)}), which no policy or export holds"
        fix = "leave the wrapper out, and pass --normalise-observations to train"
        recorder.note("statistics", text, fix)


def check_repetition(used: SingleEnv, recipe: Recipe, seed: int, recorder: Recorder) -> None:
    """A used environment and a new one must play the same episode from the same seed: resumed runs rely on it."""
    rng = np.random.default_rng(seed + 1)
    rows = [random_action(used.actions.space, rng) for _ in range(STEPS_TO_REPEAT)]
    fresh = SingleEnv(recipe)
    try:
        pairs = zip(_trace(used, seed, rows), _trace(fresh, seed, rows), strict=False)
        step = next((i for i, (one, other) in enumerate(pairs) if not _equal(one, other)), None)
    finally:
        fresh.close()
    fix = (
        "draw every random number from self.np_random, call super().reset(seed=seed) first, and let nothing of an "
        "earlier episode remain; until then runs of one seed differ, and a resumed run is not an uninterrupted one"
    )
    if step == 0:
        recorder.note("repeat reset", f"reset(seed={seed}) of two environments gave different observations", fix)
    elif step is not None:
        text = f"the same seed and actions gave something else in a second environment, first on step {step}"
        recorder.note("repeat step", text, fix)


def _trace(single: SingleEnv, seed: int, rows: list[np.ndarray]) -> Iterator[tuple[Any, ...]]:
    yield (np.array(single.reset(seed)),)
    for row in rows:
        obs, reward, cost, terminated, truncated = single.step(row)
        yield np.array(obs), reward, cost, terminated, truncated
        if terminated or truncated:
            return


def _equal(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
