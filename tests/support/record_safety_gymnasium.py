r"""Runs where Safety-Gymnasium is installed, not under pytest: exercises our layer for hosted environments against it,
and records what the form of its answers is, for the tests of the stand-in.

    python3.10 -m venv safety && safety/bin/pip install safety-gymnasium
    PYTHONPATH=src safety/bin/python tests/support/record_safety_gymnasium.py \
        > tests/support/safety_gymnasium_traces.json
"""

from __future__ import annotations

import json
import sys
from importlib import metadata
from typing import Any

import numpy as np

from spacerl.envs.host.check import check_environment
from spacerl.envs.host.costs import named_sources
from spacerl.envs.host.single import Recipe, SingleEnv

IDS = ("SafetyPointGoal1-v0", "SafetyPointCircle1-v0", "SafetyPointButton1-v0", "SafetyAntRun0-v0")


def space_of(space: Any) -> dict[str, Any]:
    finite = [bool(np.isfinite(bound).all()) for bound in (space.low, space.high)]
    return {"kind": type(space).__name__, "shape": list(space.shape), "dtype": str(space.dtype), "finite": finite}


def form_of(env: Any, steps: int = 2000) -> dict[str, Any]:
    """What an environment with six-tuple steps says and returns, in one episode of random actions."""
    obs, info = env.reset(seed=0)
    env.action_space.seed(0)
    form: dict[str, Any] = {
        "observation": space_of(env.observation_space),
        "action": space_of(env.action_space),
        "time_limit": env.spec.max_episode_steps,
        "metadata": {name: env.metadata[name] for name in ("render_modes", "render_fps")},
        "reset": {"observation": str(obs.dtype), "info": info},
    }
    kinds: dict[str, set[str]] = {}
    trace, inside, sums = [], True, True
    for _ in range(steps):
        obs, reward, cost, terminated, truncated, info = answer = env.step(env.action_space.sample())
        names = ("observation", "reward", "cost", "terminated", "truncated", "info")
        for name, value in zip(names, answer):  # noqa: B905 (Python 3.9)
            kinds.setdefault(name, set()).add(type(value).__name__)
        for name, value in info.items():
            kinds.setdefault(f"info {name}", set()).add(type(value).__name__)
        inside, sums = inside and env.observation_space.contains(obs), sums and cost == info["cost_sum"]
        trace.append([float(reward), float(cost)])
        if terminated or truncated:
            break
    form["step"] = {"values": len(answer), "types": {name: sorted(each) for name, each in kinds.items()}}
    form["episode"] = {"ended_as": "terminated" if terminated else "truncated", "steps": len(trace)}
    form["cost_is_cost_sum"], form["observations_inside_the_space"] = sums, inside
    form["first_rewards_and_costs"] = trace[:5]
    return form


def exercise(name: str) -> None:
    """Our own translation of it: found cost, arrays, and a check without a problem."""
    single = SingleEnv(Recipe("safety_gymnasium:make", named_sources(()), (("id", name),)))
    obs, total, sums = single.reset(0), 0.0, 0.0
    draw = np.random.default_rng(0)
    for _ in range(200):
        obs, _, cost, terminated, truncated = single.step(draw.uniform(-1, 1, single.actions.space.size))
        assert obs.dtype == np.float32
        assert cost.shape == (1,)
        total += float(cost[0])
        sums += float(single.env.unwrapped.cost["cost_sum"])
        if terminated or truncated:
            break
    assert total == sums
    single.close()
    findings = check_environment("safety_gymnasium:make", (), (f"id={name}",), 2, 2000, 0)
    assert not findings.broken, findings.text()


def main() -> None:
    import safety_gymnasium  # type: ignore[import-not-found]

    versions = {name: metadata.version(name) for name in ("safety-gymnasium", "gymnasium", "mujoco", "numpy")}
    versions["python"] = sys.version.split()[0]
    for name in IDS:
        exercise(name)
    forms = {name: form_of(safety_gymnasium.make(name)) for name in IDS}
    json.dump({"recorded_with": versions, "environments": forms}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
