"""Independent computations of the same shape, arranged as the hardware likes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def for_each(function: Callable[[Any], Any], items: Any) -> Any:
    """Map `function` over the leading axis of `items`.

    On an accelerator side by side (`vmap`); on a CPU one after the other, because batched products with small matrices
    cost several single ones there, and a loop reuses buffers that still lie in the cache.
    """
    if jax.default_backend() == "cpu":
        return jax.lax.map(function, items)
    return jax.vmap(function)(items)


def sum_over_chunks(function: Callable[[Any], Any], samples: Any, size: int) -> Any:
    """Sum of `function` over chunks of `size` along the leading axis of `samples`: what it holds of one chunk is gone
    before the next. A last chunk that is smaller is computed by itself."""
    count = jax.tree.leaves(samples)[0].shape[0]
    whole = count - count % size
    chunks = jax.tree.map(lambda leaf: leaf[:whole].reshape(count // size, size, *leaf.shape[1:]), samples)
    kind = jax.eval_shape(function, jax.tree.map(lambda leaf: leaf[0], chunks))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), kind)
    total, _ = jax.lax.scan(lambda sums, chunk: (jax.tree.map(jnp.add, sums, function(chunk)), None), zeros, chunks)
    if whole == count:
        return total
    return jax.tree.map(jnp.add, total, function(jax.tree.map(lambda leaf: leaf[whole:], samples)))
