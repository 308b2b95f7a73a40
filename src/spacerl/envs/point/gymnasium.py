"""The point tasks as ordinary Gymnasium environments, for other libraries and for images."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from spacerl.envs.point.robot import PointCircle, PointGather
from spacerl.envs.to_gymnasium import Step, TaskGymEnv
from spacerl.types import Array, DrawableEnv


# An environment of ours is a frozen dataclass, so it serves as the static argument of jitted functions: environments
# with equal settings share one compilation, however many are made.
@functools.partial(jax.jit, static_argnums=0)
def _reset(env: Any, key: Array) -> tuple[Any, Array]:
    state = env.reset(key)
    return state, env.observe(state)


@functools.partial(jax.jit, static_argnums=0)
def _step(env: Any, state: Any, action: Array) -> tuple[Any, Array, Array, Array, Array]:
    state, reward, cost, terminated = env.step(state, action)
    return state, env.observe(state), reward, cost, terminated


def _host_device() -> Any:
    """The CPU where jax has it: one small environment steps faster there than through an accelerator's launches."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return jax.local_devices()[0]


def key_from(np_random: np.random.Generator, device: Any = None) -> Array:
    """A jax key drawn from a NumPy generator, which it advances: Gymnasium's seed then decides the whole episode."""
    device = device or _host_device()
    with jax.default_device(device):
        # Committed to the device, so that everything computed from it stays there.
        return jax.device_put(jax.random.key(int(np_random.integers(2**31))), device)


class JaxGymEnv(TaskGymEnv):
    """An environment in JAX, stepped by a compiled program."""

    def __init__(self, env: DrawableEnv, render_mode: str | None = None) -> None:
        super().__init__(env, render_mode)
        self._device = _host_device()
        self._state: Any = None

    def _begin(self) -> np.ndarray:
        self._state, obs = _reset(self.task, key_from(self.np_random, self._device))
        return np.array(obs)

    def _advance(self, action: np.ndarray) -> Step:
        self._state, obs, reward, cost, terminated = _step(self.task, self._state, action)
        return Step(np.array(obs), float(reward), float(cost[0]), bool(terminated))

    def _position(self) -> np.ndarray:
        return np.asarray(self.task.position(self._state))

    def _heading(self) -> float:
        return float(self.task.heading(self._state))

    def _objects(self) -> tuple[np.ndarray, np.ndarray] | None:
        objects = self.task.objects(self._state)
        return None if objects is None else (np.asarray(objects[0]), np.asarray(objects[1]))


class PointCircleEnv(JaxGymEnv):
    """`spacerl/PointCircle-v0`; `settings` replace defaults of `PointCircle`."""

    def __init__(self, render_mode: str | None = None, **settings: Any) -> None:
        super().__init__(PointCircle(**settings), render_mode)


class PointGatherEnv(JaxGymEnv):
    """`spacerl/PointGather-v0`; `settings` replace defaults of `PointGather`.

    The action box is nominal: the task itself clips no control (see `PointGather.spec`).
    """

    def __init__(self, render_mode: str | None = None, **settings: Any) -> None:
        super().__init__(PointGather(**settings), render_mode)
