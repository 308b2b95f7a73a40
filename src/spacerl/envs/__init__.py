"""Tasks by name: native JAX environments here, and the same ones under Gymnasium ids.

Importing this package imports neither jax nor a task, so that listing the tasks is quick. It makes the ids below known
to Gymnasium; without an import of your own, `gymnasium.make("spacerl.envs:spacerl/PointCircle-v0")` imports it for you.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

# Names, not the module: `spacerl.envs.gymnasium`, once imported, takes the name `gymnasium` in this package.
from gymnasium import register as register_with_gymnasium
from gymnasium import registry

if TYPE_CHECKING:
    from spacerl.envs.ant import AntCircle, AntGather
    from spacerl.envs.point import PointCircle, PointGather


def _point_circle(**settings: Any) -> PointCircle:
    from spacerl.envs.point import PointCircle

    return PointCircle(**settings)


def _point_gather(**settings: Any) -> PointGather:
    from spacerl.envs.point import PointGather

    return PointGather(**settings)


def _ant_circle(**settings: Any) -> AntCircle:
    from spacerl.envs.ant import AntCircle

    return AntCircle(**settings)


def _ant_gather(**settings: Any) -> AntGather:
    from spacerl.envs.ant import AntGather

    return AntGather(**settings)


NATIVE: dict[str, Callable[..., Any]] = {
    "point-circle": _point_circle,
    "point-gather": _point_gather,
    "ant-circle": _ant_circle,
    "ant-gather": _ant_gather,
}

# Gymnasium id -> entry point, time limit in steps (the `horizon` of the native environment, kept equal by a test).
GYMNASIUM_IDS: dict[str, tuple[str, int]] = {
    "spacerl/PointCircle-v0": ("spacerl.envs.gymnasium:PointCircleEnv", 50),
    "spacerl/PointGather-v0": ("spacerl.envs.gymnasium:PointGatherEnv", 15),
    "spacerl/AntCircle-v0": ("spacerl.envs.ant_gymnasium:AntCircleEnv", 500),
    "spacerl/AntGather-v0": ("spacerl.envs.ant_gymnasium:AntGatherEnv", 500),
}


def make_native(name: str, **settings: Any) -> Any:
    """The native environment called `name`; `settings` replace defaults of its dataclass, such as `radius=10.0`."""
    if name not in NATIVE:
        nearest = difflib.get_close_matches(name, NATIVE, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
        raise ValueError(f"No native environment is called {name!r}{hint} Known: {', '.join(sorted(NATIVE))}")
    return NATIVE[name](**settings)


def register() -> None:
    """Make the tasks known to Gymnasium. Calling it again changes nothing."""
    for task_id, (entry_point, steps) in GYMNASIUM_IDS.items():
        if task_id not in registry:
            register_with_gymnasium(task_id, entry_point=entry_point, max_episode_steps=steps)


register()
