"""Fisher-vector products and their inverse.

F = E_s[ J(s)^T M(s) J(s) ] with J the Jacobian of the distribution's parameters in theta and M their Fisher matrix.
At theta itself this Gauss-Newton form is the Hessian of the mean KL, and needs no second derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from spacerl.types import Array


def fisher_product(outputs: Callable[[Array], Any], theta: Array, weight: Array, damping: float) -> Callable:
    """(M, P) -> (M, P): v -> (F + damping I) v for every row, from a single linearisation.

    `outputs` maps theta to something with a `fisher` method and leaves (B, A); `weight` (B,) averages over samples.
    """
    at_theta, jacobian = jax.linearize(outputs, theta)
    transpose = jax.linear_transpose(jacobian, theta)

    def product(v: Array) -> Array:
        tangent = at_theta.fisher(jacobian(v))
        weighted = jax.tree.map(lambda leaf: leaf * weight[:, None], tangent)
        return transpose(weighted)[0] + damping * v

    return jax.vmap(product)


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
