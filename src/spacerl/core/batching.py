"""Independent computations of the same shape, arranged as the hardware likes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def for_each(function: Callable[[Any], Any], items: Any) -> Any:
    """Map `function` over the leading axis of `items`.

    On an accelerator side by side (`vmap`); on a CPU one after the other, because batched products with small matrices
    cost several single ones there, and a loop reuses buffers that still lie in the cache.
    """
    if jax.default_backend() == "cpu":
        return jax.lax.map(function, items)
    return jax.vmap(function)(items)
