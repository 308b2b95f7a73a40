"""The native tasks as ordinary Gymnasium environments, for other libraries and for pictures.

The constraint cost of every step is `info["cost"]`, a float. Time limits are Gymnasium's `TimeLimit` wrapper, which
`gymnasium.make` adds; the environments themselves never truncate.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from spacerl.envs.point import PointCircle, PointGather
from spacerl.types import Array

NativeEnv = PointCircle | PointGather


# A native environment is a frozen dataclass, so it serves as the static argument of the jitted functions: environments
# with equal settings share one compilation, however many are made.
@functools.partial(jax.jit, static_argnums=0)
def _reset(native: Any, key: Array) -> tuple[Any, Array]:
    state = native.reset(key)
    return state, native.observe(state)


@functools.partial(jax.jit, static_argnums=0)
def _step(native: Any, state: Any, action: Array) -> tuple[Any, Array, Array, Array, Array]:
    state, reward, cost, terminated = native.step(state, action)
    return state, native.observe(state), reward, cost, terminated


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


class NativeGymEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """A native environment with one cost, stepped from Python."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, native: NativeEnv, render_mode: str | None = None) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode {render_mode!r} is unknown; use 'rgb_array', or None to draw nothing")
        if len(native.cost_names) != 1:
            raise ValueError(f"info['cost'] is one number, but {native.name} has the costs {native.cost_names}")
        self.native = native
        self.render_mode = render_mode
        low, high = (np.array(bound, np.float32) for bound in (native.action_space.low, native.action_space.high))
        self.action_space = spaces.Box(low, high, dtype=np.float32)
        self.observation_space = spaces.Box(-np.inf, np.inf, native.obs_shape, np.float32)
        self._device = _host_device()
        self._state: Any = None
        self._trail: list[np.ndarray] = []
        self._rewards: list[float] = []
        self._costs: list[float] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._state, obs = _reset(self.native, key_from(self.np_random, self._device))
        self._rewards, self._costs = [], []
        self._trail = [np.asarray(self.native.position(self._state))]
        return np.array(obs), {"cost": 0.0}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self._state is None:
            raise gymnasium.error.ResetNeeded("call reset() before the first step()")
        action = np.asarray(action, np.float32)
        if action.shape != self.action_space.shape:
            raise ValueError(f"an action has the shape {self.action_space.shape}, this one has {action.shape}")
        self._state, obs, reward, cost, terminated = _step(self.native, self._state, action)
        self._rewards.append(float(reward))
        self._costs.append(float(cost[0]))
        if self.render_mode is not None:
            self._trail.append(np.asarray(self.native.position(self._state)))
        return np.array(obs), self._rewards[-1], bool(terminated), False, {"cost": self._costs[-1]}

    def render(self) -> np.ndarray | None:
        """The episode so far, (400, 400, 3) uint8: the robot, where it has been, and the sums of reward and cost."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() needs a render mode; pass render_mode='rgb_array' to gymnasium.make")
            return None
        if self._state is None:
            raise gymnasium.error.ResetNeeded("call reset() before render()")
        try:
            from spacerl.envs.drawing import Scene, draw
        except ImportError as error:
            raise gymnasium.error.DependencyNotInstalled("pictures need Pillow: pip install pillow") from error
        scene = Scene(
            arena=self.native.arena(),
            trail=np.stack(self._trail),
            costs=np.array(self._costs),
            heading=float(self.native.heading(self._state)),
            title=self.native.name,
            reward=sum(self._rewards),
            **self._objects_to_draw(),
        )
        return draw(scene)

    def _objects_to_draw(self) -> dict[str, Any]:
        if isinstance(self.native, PointCircle):
            return {}
        positions, alive = self.native.objects(self._state)
        return {
            "objects": np.asarray(positions),
            "alive": np.asarray(alive),
            "n_apples": self.native.n_apples,
            "sensor": (self.native.sensor_range, self.native.sensor_span),
        }


class PointCircleEnv(NativeGymEnv):
    """`spacerl/PointCircle-v0`; `settings` replace defaults of `PointCircle`."""

    def __init__(self, render_mode: str | None = None, **settings: Any) -> None:
        super().__init__(PointCircle(**settings), render_mode)


class PointGatherEnv(NativeGymEnv):
    """`spacerl/PointGather-v0`; `settings` replace defaults of `PointGather`.

    The action box is nominal: the task itself clips no control (see `PointGather.action_space`).
    """

    def __init__(self, render_mode: str | None = None, **settings: Any) -> None:
        super().__init__(PointGather(**settings), render_mode)
