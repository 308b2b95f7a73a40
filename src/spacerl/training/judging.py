"""`spacerl evaluate`: a policy of a run in fresh episodes, and its baselines beside it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from spacerl.policies.loading import load_policy
from spacerl.rollout.evaluate import Play, measured, reach, verdict
from spacerl.runs.config import RunConfig
from spacerl.runs.folder import RunFolder, read_json
from spacerl.training.assemble import loading_of
from spacerl.training.origin import code_named_by, require_consent
from spacerl.types import BatchEnv, Env, InputError, Policy

PARTS = 10  # about so many lines of progress for each policy


class Judging(NamedTuple):
    """What is played, and how."""

    folder: RunFolder
    config: RunConfig
    env: Env
    episodes: Mapping[str, int]  # of each mode
    seed: int
    baseline: Any = None  # as an object
    trust: bool = False
    progress: bool = False


def judge_run(judging: Judging, policy: Policy) -> dict[str, Any]:
    """Every mode that has episodes, and the baselines in as many as the first of them."""
    modes = {mode: count for mode, count in judging.episodes.items() if count}
    report: dict[str, Any] = {"seed": judging.seed, "episodes": max(modes.values())}
    for mode, count in modes.items():
        report[mode] = _measured(judging, policy, count, mode == "deterministic", mode)
    recorded = _recorded(judging.folder)
    given = judging.baseline if isinstance(judging.baseline, list | tuple) else [judging.baseline]
    objects = given if judging.baseline is not None else judging.config.baseline
    count = next(iter(modes.values()))
    report["baselines"] = [
        _baseline(judging, each, recorded[i] if i < len(recorded) else {}, count) for i, each in enumerate(objects)
    ]
    return report


def _measured(judging: Judging, policy: Policy, count: int, deterministic: bool, what: str) -> dict[str, Any]:
    config = judging.config
    play = Play(count, config.rollout_length, judging.seed, deterministic)
    told = _told(what, count) if judging.progress else None
    if told is not None and not isinstance(judging.env, BatchEnv):
        print(f"{what}: {count} episodes in one program", file=sys.stderr, flush=True)
    return measured(judging.env, policy, config.cost_limit, config.discount, play, told, config.cost_tolerance)


def _told(what: str, count: int) -> Callable[[int], None]:
    """Says now and then how many episodes are done; rewrites its line on a terminal."""
    shown, live = 0, sys.stderr.isatty()

    def told(done: int) -> None:
        nonlocal shown
        part = done * PARTS // count if not live else done
        if part > shown:
            shown = part
            ending = "\n" if not live or done >= count else ""
            print(
                f"{chr(13) if live else ''}{what}: {done} of {count} episodes", end=ending, file=sys.stderr, flush=True
            )

    return told


def _baseline(judging: Judging, given: Any, recorded: Mapping[str, Any], count: int) -> dict[str, Any]:
    """pi_B in the same episodes, or what was measured of it before training where it cannot be loaded now."""
    name = recorded.get("name") or str(given)
    how = loading_of(judging.config, judging.env, judging.trust)
    try:
        named = code_named_by(judging.config, env=(), cost=()) if judging.baseline is None else []
        require_consent(judging.folder, [code for code in named if code.name == given], judging.trust)
        policy = load_policy(given, judging.config.task, judging.env.spec, how)
    except InputError as error:
        try:
            return {"name": name, "recorded": True, "why": str(error), **_as_measured(judging, recorded)}
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as damage:
            path = judging.folder.baseline_path
            raise InputError(f"'{path}' does not hold what was measured of a baseline: {damage!r}") from damage
    return {"name": policy.name, "recorded": False, **_measured(judging, policy, count, False, f"pi_B {policy.name}")}


def _recorded(folder: RunFolder) -> list[dict[str, Any]]:
    if not folder.baseline_path.is_file():
        return []
    summary = read_json(folder.baseline_path)
    everyone = summary.get("all", [summary])
    return [each for each in everyone if isinstance(each, dict)] if isinstance(everyone, list) else []


def _as_measured(judging: Judging, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of baseline.json in the form of fresh ones; of several costs it keeps no spread."""

    def known(mean: Any, error: float = math.nan) -> dict[str, float]:
        interval = reach(error, int(recorded.get("episodes", 0)))
        return {"mean": float(mean) if mean is not None else math.nan, "std": math.nan, "interval": interval}

    names = judging.env.spec.cost_names
    alone = {names[0]: {"J_C": recorded.get("J_C"), "h_C": recorded.get("h_C")}} if len(names) == 1 else {}
    costs, tolerance = {}, judging.config.cost_tolerance
    error = float(recorded.get("J_C_error", math.nan)) if len(names) == 1 else math.nan
    for name, each in recorded.get("costs", alone).items():
        summary, limit = known(each["J_C"], error), judging.config.cost_limit[names.index(name)]
        stands = verdict(summary["mean"], summary["interval"], limit, tolerance)
        costs[name] = {**summary, "limit": limit, "tolerance": tolerance, "verdict": stands}
    return {
        "episodes": recorded.get("episodes"),
        "J_R": known(recorded.get("J_R"), float(recorded.get("J_R_error", math.nan))),
        "episode_return": known(recorded.get("episode_return")),
        "episode_length": known(recorded.get("episode_length")),
        "J_C": costs,
    }
