"""An environment in JAX as a BatchEnv, for policies that cannot be compiled with it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from spacerl.types import RESET, STEP, Array, BatchEnv, EnvSpec, JaxEnv, Tick


class JaxBatchEnv(BatchEnv):
    """`lanes` copies of a JaxEnv. Their states stay on the device; every tick is one compiled program.

    With `keys` (N, ...) every episode of a lane begins with the lane's own key, instead of one made from its seed.
    """

    def __init__(self, env: JaxEnv, lanes: int, keys: Array | None = None):
        self.lanes, self._spec = lanes, env.spec
        self._state = jax.vmap(env.reset)(jax.random.split(jax.random.PRNGKey(0), lanes))
        self._obs = jnp.zeros((lanes, *env.spec.obs_shape), env.spec.obs_dtype)

        def advance(state: Any, obs: Any, command: Any, action: Any, last: Any, seed: Any):
            stepped, reward, cost, terminated = jax.vmap(env.step)(state, action)
            stepping = command == STEP
            terminated = terminated & stepping
            truncated = last & stepping & ~terminated
            own = jax.vmap(jax.random.PRNGKey)(jnp.maximum(seed, 0)) if keys is None else keys
            fresh = jax.vmap(env.reset)(own)
            begins = (command == RESET) | ((terminated | truncated) & (seed >= 0))
            next_obs = jax.vmap(env.observe)(stepped)
            following = jax.tree.map(lambda *leaves: _chosen(begins, stepping, *leaves), fresh, stepped, state)
            obs = _chosen(begins, stepping, jax.vmap(env.observe)(fresh), next_obs, obs)
            return following, (obs, next_obs, reward, cost, terminated, truncated)

        self._advance = jax.jit(advance)

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    @property
    def states(self) -> Any:
        """The state of every lane."""
        return self._state

    def tick(self, command: Any, action: Any, last: Any, seed: Any) -> Tick:
        self._state, out = self._advance(self._state, self._obs, command, action, last, np.asarray(seed, np.int32))
        self._obs = out[0]
        return Tick(*(np.asarray(part) for part in out), lost=np.zeros(self.lanes, bool))


def _chosen(begins: Any, stepping: Any, fresh: Any, stepped: Any, kept: Any) -> Any:
    """A leaf of the states after a tick: of a new episode, after a step, or as it was in an idle lane."""
    wide = (slice(None), *(None,) * (fresh.ndim - 1))
    return jnp.where(begins[wide], fresh, jnp.where(stepping[wide], stepped, kept))
