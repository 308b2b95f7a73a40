"""How the environment was understood, and a command that trains on it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from typing import Any

import numpy as np

from spacerl.envs.host.check.findings import Recorder, count
from spacerl.envs.host.check.play import Played
from spacerl.envs.host.costs import AUTOMATIC
from spacerl.envs.host.single import USUAL_HORIZON, SingleEnv
from spacerl.envs.host.spaces import Observations
from spacerl.types import ActionSpace


def lines_of_summary(single: SingleEnv, played: Played) -> tuple[tuple[str, str], ...]:
    """Lines of the report, each with its name."""
    return tuple(_lines(single, played))


def _lines(single: SingleEnv, played: Played) -> Iterator[tuple[str, str]]:
    yield "observation", _observation_text(single.observations)
    yield "action", _action_text(single.actions.space)
    for k, (name, source) in enumerate(single.recipe.costs):
        value = played.mean_costs()[k]
        unknown = source == "none" or math.isnan(value)
        mean = "" if unknown else f", {value:.4g} per episode with random actions"
        yield "cost", f"{name}, from {_source_text(source, played.sixth)}{mean}"
    if played.lengths and np.isfinite(played.all_rewards()).all():
        yield "reward", f"{np.mean([sum(each) for each in played.rewards]):.4g} per episode with random actions"
    limit = f"time limit {single.horizon}" if single.horizon else "no time limit stated"
    if played.lengths:
        shortest, longest = min(played.lengths), max(played.lengths)
        spread = f"{shortest} to {longest}" if longest > shortest else f"{longest}"
        yield "episode", f"{spread} steps in {count(len(played.lengths), 'episode')}; {limit}"
        yield "speed", f"{played.speed:,.0f} steps a second in one process"


def _observation_text(observations: Observations) -> str:
    images = [" x ".join(map(str, shape)) for _, shape, _ in observations.images]
    if images and observations.dtype == np.uint8:
        return f"an image of {images[0]} (height, width, channels), pixels from 0 to 255"
    size = count(math.prod(observations.shape), "number")
    parts = f" from {len(observations.leaves)} parts laid one after the other" if len(observations.leaves) > 1 else ""
    return size + parts + (f", of them the image {' and '.join(images)}" if images else "")


def _action_text(space: ActionSpace) -> str:
    if space.kind == "discrete":
        return f"one of {space.size} actions (Discrete)"
    if space.kind == "multidiscrete":
        return f"{len(space.nvec)} discrete actions with {', '.join(map(str, space.nvec))} values (MultiDiscrete)"
    bounds = sorted(set(zip(space.low, space.high, strict=True)))
    stands = f"[{bounds[0][0]:g}, {bounds[0][1]:g}]" if len(bounds) == 1 else "the bounds of each"
    return f"{count(space.size, 'number')}; the policy's [-1, 1] stands for {stands}"


def _source_text(source: Any, sixth: bool) -> str:
    if source == "none":
        return "nowhere: it is always 0"
    if source == "step" or (source == AUTOMATIC and sixth):
        return "the third of the six values of a step"
    if source in ("info", AUTOMATIC):
        return "info['cost']"
    key, equals, default = str(source).removeprefix("info:").partition("=")
    if equals and str(source).startswith("info:"):
        return f"info['{key}'], {default} where it is missing"
    return f"info['{source[5:]}']" if str(source).startswith("info:") else f"the function {source}"


def training_command(
    single: SingleEnv, played: Played, recorder: Recorder, cost: tuple[str, ...], env_args: tuple[str, ...]
) -> str:
    """A command that works as it is; the limit is only an opening bid, half of what random actions cost."""
    words = ["spacerl", "train", "--env", single.recipe.name]
    words += ["--env-args", *env_args] if env_args else []
    words += ["--cost", *cost] if cost else []
    without = all(source == "none" for _, source in single.recipe.costs)
    words += ["--algorithm", "trpo" if without else "pcpo", "--cost-limit"]
    halves = [float(f"{max(value, 0.0) / 2:.2g}") for value in np.nan_to_num(played.mean_costs())]
    limits = [f"{half:.15g}" for half in halves]  # 670 and not 6.7e+02
    many = len(limits) > 1
    words += [f"{name}={limit}" if many else limit for name, limit in zip(single.cost_names, limits, strict=True)]
    if "endless" in recorder.kinds and single.horizon is None:
        words += ["--rollout-length", str(USUAL_HORIZON)]
    words += ["--normalise-observations"] if "scale" in recorder.kinds else []
    return shlex.join(words)
