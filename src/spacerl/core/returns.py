"""Returns and advantages of any per-step signal: reward, each cost, the divergence.

Time-major arrays: T steps, N environments, S signals. An episode ends at step t where `terminated[t]` (nothing
follows, value zero) or `truncated[t]` (a time limit; the value of the true next observation may be bootstrapped).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from spacerl.types import Array


def advantages_and_returns(
    signals: Array,  # (T, N, S)
    values: Array,  # (T, N, S) critic at the observation acted on
    bootstraps: Array,  # (T, N, S) value taken over a truncated end; zeros restore the original code's choice
    terminated: Array,  # (T, N)
    truncated: Array,  # (T, N)
    discounts: Array,  # (S,)
    lambdas: Array,  # (S,)
) -> tuple[Array, Array]:
    """GAE(lambda) and discounted returns, both (T, N, S), in one backward scan for all signals.

    delta_t = x_t + gamma v_{t+1} - v_t;  A_t = delta_t + gamma lambda A_{t+1};  G_t = x_t + gamma G_{t+1},
    where an end at t cuts the recursion and v_{t+1}, G_{t+1} become zero (terminated) or the bootstrap (truncated).
    """
    ended = (terminated | truncated)[..., None]
    last = jnp.where(terminated[..., None], 0.0, bootstraps)

    def backward(carry, step):
        next_value, next_advantage, next_return = carry
        x_t, v_t, last_t, ended_t = step
        delta = x_t + discounts * jnp.where(ended_t, last_t, next_value) - v_t
        advantage = delta + discounts * lambdas * jnp.where(ended_t, 0.0, next_advantage)
        total = x_t + discounts * jnp.where(ended_t, last_t, next_return)
        return (v_t, advantage, total), (advantage, total)

    zeros = jnp.zeros_like(signals[0])
    # A batch that stops in the middle of an episode is treated as truncated there, with the critic's own bootstrap.
    start = (bootstraps[-1], zeros, bootstraps[-1])
    _, (advantages, returns) = jax.lax.scan(backward, start, (signals, values, last, ended), reverse=True, unroll=5)
    return advantages, returns


def step_indices(terminated: Array, truncated: Array) -> Array:
    """Step within its episode of every sample, (T, N) int32; every column begins an episode."""
    ended = terminated | truncated

    def forward(index, ended_t):
        return jnp.where(ended_t, 0, index + 1), index

    return jax.lax.scan(forward, jnp.zeros(ended.shape[1:], jnp.int32), ended)[1]


def episode_sums(
    signals: Array,  # (T, N, S)
    index: Array,  # (T, N) step within the episode
    valid: Array,  # (T, N)
    discounts: Array,  # (S,)
) -> tuple[Array, Array, Array]:
    """Mean over episodes of the discounted sum from the episode's start, its standard error, and the mean length.

    Every column begins with a reset, so the number of episodes is the number of valid first steps. One episode says
    nothing about its spread: the error is NaN.
    """
    weighted = signals * valid[..., None] * discounts ** index[..., None].astype(signals.dtype)
    first = (index == 0) & valid
    episodes = jnp.maximum(jnp.sum(first), 1).astype(signals.dtype)
    mean = jnp.sum(weighted, axis=(0, 1)) / episodes

    # Columns with several episodes are no samples of the mean: how episodes are laid out depends on their lengths.
    def backward(following, step):
        x_t, first_t = step
        total = x_t + following
        return jnp.where(first_t[:, None], 0.0, total), total

    totals = jax.lax.scan(backward, jnp.zeros_like(weighted[0]), (weighted, index == 0), reverse=True)[1]
    squares = jnp.sum(jnp.where(first[..., None], (totals - mean) ** 2, 0.0), axis=(0, 1))
    error = jnp.where(episodes > 1.0, jnp.sqrt(squares / (episodes * jnp.maximum(episodes - 1.0, 1.0))), jnp.nan)
    return mean, error, jnp.sum(valid) / episodes


def contrast_of_halves(index: Array, valid: Array) -> Array:
    """(T, N) factors on the weights of samples that make of a mean over the batch a sample of that mean's error.

    Every second episode is in one half, w and 1 - w of the samples: sqrt(w (1 - w)) times the difference of the means
    of both halves has expectation zero and the variance of the mean of all. Zero where there is but one half.
    """
    episode = jnp.cumsum(index == 0, axis=0) + jnp.arange(index.shape[1])
    first = episode % 2 == 0
    samples = jnp.maximum(jnp.sum(valid), 1)
    one, other = jnp.sum(first & valid) / samples, jnp.sum(~first & valid) / samples
    both = (one > 0.0) & (other > 0.0)
    ratio = jnp.sqrt(jnp.where(both, other, 0.0) / jnp.where(both, one, 1.0))
    inverse = jnp.sqrt(jnp.where(both, one, 0.0) / jnp.where(both, other, 1.0))
    return jnp.where(first, ratio, -inverse)


def unaffected(signals: Array, terminated: Array, valid: Array) -> Array:
    """(S,) whether no action can have changed a signal: it is the same in every step, and zero or in episodes that
    nothing but time ends. What a critic makes of such a signal is noise."""
    shown = valid[..., None]
    least = jnp.min(jnp.where(shown, signals, jnp.inf), axis=(0, 1))
    most = jnp.max(jnp.where(shown, signals, -jnp.inf), axis=(0, 1))
    return (least == most) & ((least == 0.0) | ~jnp.any(terminated & valid))


def least_sums(signals: Array, index: Array, valid: Array) -> Array:
    """(S,) a bound below on what an episode's sum can be, from the least value of a step that was seen: zero where no
    value was negative, else that value in every step of the longest episode."""
    least = jnp.min(jnp.where(valid[..., None], signals, jnp.inf), axis=(0, 1))
    longest = jnp.max(jnp.where(valid, index, 0)) + 1
    return jnp.minimum(least, 0.0) * longest
