"""Fisher-vector products and their inverse.

F = E_s[ J(s)^T M(s) J(s) ] with J the Jacobian of the distribution's parameters in theta and M their Fisher matrix.
At theta itself this Gauss-Newton form is the Hessian of the mean KL, and needs no second derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from spacerl.core.batching import for_each, sum_over_chunks
from spacerl.types import Array


def fisher_product(outputs: Callable[[Array], Any], theta: Array, weight: Array, damping: float) -> Callable:
    """(M, P) -> (M, P): v -> (F + damping I) v for every row, from a single linearisation.

    `outputs` maps theta to something with a `fisher` method and leaves (B, A); `weight` (B,) averages over samples.
    """
    row = fisher_row(outputs, theta, weight)
    return jax.vmap(lambda v: row(v) + damping * v)


def fisher_row(outputs: Callable[[Array], Any], theta: Array, weight: Array) -> Callable[[Array], Array]:
    """(P,) -> (P,): v -> F v."""
    at_theta, jacobian = jax.linearize(outputs, theta)
    transpose = jax.linear_transpose(jacobian, theta)

    def product(v: Array) -> Array:
        tangent = at_theta.fisher(jacobian(v))
        return transpose(jax.tree.map(lambda leaf: leaf * weight[:, None], tangent))[0]

    return product


def chunked_fisher_product(
    outputs: Callable[[Array, Any], Any], theta: Array, samples: Any, weight: Array, damping: float, size: int
) -> Callable:
    """The same of `outputs` of theta and samples (B, ...), linearised anew for every `size` of them in each product:
    the activations of all, which a single linearisation keeps, may be more than memory holds."""

    def of_chunk(v: Array, chunk: tuple[Any, Array]) -> Array:
        some, its_weight = chunk
        return for_each(fisher_row(lambda t: outputs(t, some), theta, its_weight), v)

    return lambda v: sum_over_chunks(lambda chunk: of_chunk(v, chunk), (samples, weight), size) + damping * v


def split_fisher_product(
    outputs: Callable[[Array, Array], Any],
    theta: Array,
    part: Callable[[Array], Array],
    slopes: Array,
    weight: Array,
    damping: float,
) -> Callable:
    """The same of `outputs` of theta and z (B, A), for what depends on a linear `part` of theta, (P,) -> (Q,), by
    z alone: `slopes` (B, A, Q) are the derivatives of z in it, and z is zero at theta.

    Where z is costly to differentiate, as what convolutions make of images is, that is done once and not in every
    product.
    """
    at_theta, jacobian = jax.linearize(outputs, theta, jnp.zeros(slopes.shape[:2], slopes.dtype))
    transpose = jax.linear_transpose(jacobian, theta, jnp.zeros(slopes.shape[:2], slopes.dtype))
    back = jax.linear_transpose(part, theta)
    flat = slopes.reshape(-1, slopes.shape[-1])

    def weighted(row: tuple[Array, Array]) -> tuple[Array, Array]:
        tangent = at_theta.fisher(jacobian(*row))
        return transpose(jax.tree.map(lambda leaf: leaf * weight[:, None], tangent))

    def product(v: Array) -> Array:
        z = (jax.vmap(part)(v) @ flat.T).reshape(-1, *slopes.shape[:2])
        direct, of_z = for_each(weighted, (v, z))
        through = of_z.reshape(v.shape[0], -1) @ flat
        return direct + jax.vmap(lambda row: back(row)[0])(through) + damping * v

    return product


def chunked_pull_back(
    outputs: Callable[[Array, Any], Any], theta: Array, samples: Any, cotangents: Any, size: int
) -> Array:
    """(R, P): cotangents of the outputs, leaves (B, R, A), pulled back to theta for `size` samples at a time."""

    def of_chunk(chunk: tuple[Any, Any]) -> Array:
        some, of_samples = chunk
        _, pull_back = jax.vjp(lambda t: outputs(t, some), theta)
        return for_each(lambda row: pull_back(row)[0], jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), of_samples))

    return sum_over_chunks(of_chunk, (samples, cotangents), size)


def conjugate_gradient(
    product: Callable[[Array], Array], rhs: Array, iterations: int, tolerance: float = 1e-10
) -> Array:
    """Solve A x = b for every row of `rhs` (M, P) with a fixed number of iterations.

    Rows are brought to unit length first because the tolerance on the squared residual is absolute, and a zero row
    (a gradient that vanishes) must come back as zero.
    """
    length = jnp.linalg.norm(rhs, axis=-1, keepdims=True)
    b = rhs / jnp.where(length > 0.0, length, 1.0)

    def iterate(_, carry):
        x, r, p, rr = carry
        q = product(p)
        curvature = jnp.sum(p * q, axis=-1, keepdims=True)
        active = (rr > tolerance) & (curvature > 0.0)
        alpha = jnp.where(active, rr / jnp.where(active, curvature, 1.0), 0.0)
        x, r_next = x + alpha * p, r - alpha * q
        rr_next = jnp.where(active, jnp.sum(r_next * r_next, axis=-1, keepdims=True), rr)
        beta = jnp.where(active, rr_next / jnp.where(active, rr, 1.0), 0.0)
        return x, jnp.where(active, r_next, r), jnp.where(active, r_next + beta * p, p), rr_next

    start = (jnp.zeros_like(b), b, b, jnp.sum(b * b, axis=-1, keepdims=True))
    return jax.lax.fori_loop(0, iterations, iterate, start)[0] * length
