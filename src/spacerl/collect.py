"""Experience for one update. Native environments are stepped inside the compiled program, all at once, by one scan."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from spacerl.policies import PolicyFamily
from spacerl.types import Array, Env, Rollout


def environments_per_batch(batch_size: int, rollout_length: int) -> int:
    """Whole episodes until the batch is reached, as the original sampler collects them."""
    return math.ceil(batch_size / rollout_length)


def native_rollout(env: Env, family: PolicyFamily, theta: Array, key: Array, count: int, length: int) -> Rollout:
    """`count` fresh episodes of at most `length` steps under the policy theta, one per column.

    A column whose episode terminates early is padded (`valid` False): restarting there would fill the batch with
    beginnings of episodes that the time limit then cuts, and bias the episode sums.
    """
    reset_key, noise_key = jax.random.split(key)
    states = jax.vmap(env.reset)(jax.random.split(reset_key, count))
    noise = family.noise(noise_key, (length, count))
    last = jnp.arange(length) == length - 1

    def step(carry, inputs):
        state, obs, alive = carry
        noise_t, last_t = inputs
        dist = family.apply(theta, obs)
        action = dist.sample(noise_t)
        next_state, reward, cost, terminated = jax.vmap(env.step)(state, action)
        next_obs = jax.vmap(env.observe)(next_state)
        ended = terminated & alive
        row = Rollout(
            obs,
            action,
            dist.log_prob(action),
            dist,
            jnp.where(alive, reward, 0.0),
            jnp.where(alive[:, None], cost, 0.0),
            next_obs,
            ended,
            last_t & alive & ~terminated,
            alive,
        )
        return (next_state, next_obs, alive & ~terminated), row

    start = (states, jax.vmap(env.observe)(states), jnp.ones(count, bool))
    return jax.lax.scan(step, start, (noise, last))[1]
