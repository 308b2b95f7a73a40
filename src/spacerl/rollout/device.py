"""Episodes on the device: one scan plays them for training, evaluation and drawings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from spacerl.types import Array, JaxEnv, Rollout

Sampler = Callable[[Any, Array], Array]  # distribution, noise -> actions


def environments_per_batch(batch_size: int, rollout_length: int) -> int:
    """Whole episodes until the batch is reached, as the original sampler collects them."""
    return math.ceil(batch_size / rollout_length)


def random_action(dist: Any, noise: Array) -> Array:
    return dist.sample(noise)


def likeliest_action(dist: Any, noise: Array) -> Array:
    return dist.mode()


def unroll(
    env: JaxEnv,
    policy: Callable[[Array], Any],
    reset_key: Array,
    noise: Array,
    sample: Sampler = random_action,
    look: Callable[[Any], Any] = lambda state: (),
) -> tuple[Rollout, Any]:
    """N fresh episodes of at most T steps, one per column, and what `look` sees of the state each step is taken in.

    `noise` (T, N, A) is what random actions are made of. A column whose episode terminates early is padded (`valid`
    False): restarting there would fill the batch with beginnings of episodes that the time limit then cuts, and bias
    the episode sums.
    """
    length, count = noise.shape[:2]
    states = jax.vmap(env.reset)(jax.random.split(reset_key, count))
    last = jnp.arange(length) == length - 1

    def step(carry, inputs):
        state, obs, alive = carry
        noise_t, last_t = inputs
        dist = policy(obs)
        action = sample(dist, noise_t)
        next_state, reward, cost, terminated = jax.vmap(env.step)(state, action)
        next_obs = jax.vmap(env.observe)(next_state)
        diverged = jax.vmap(env.diverged)(next_state)
        row = Rollout(
            obs=obs,
            action=action,
            log_prob=dist.log_prob(action),
            dist=dist,
            reward=jnp.where(alive, reward, 0.0),
            cost=jnp.where(alive[:, None], cost, 0.0),
            next_obs=next_obs,
            terminated=terminated & alive,
            truncated=last_t & alive & ~terminated,
            valid=alive,
            diverged=None if diverged is None else diverged & alive,
        )
        return (next_state, next_obs, alive & ~terminated), (row, jax.vmap(look)(state))

    start = (states, jax.vmap(env.observe)(states), jnp.ones(count, bool))
    return jax.lax.scan(step, start, (noise, last))[1]
