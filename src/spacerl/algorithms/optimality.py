"""How far a policy is from a first-order stationary point of its constrained problem: the paper's theorem, measured."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

from spacerl.core.steps import stationarity
from spacerl.types import Array, StepInputs


def metric_of(inputs: StepInputs, projection: str) -> Callable[[Array], Array] | None:
    """L of the projections, applied to rows; None for the identity."""
    return inputs.fisher if projection == "kl" else None


def optimality(
    inputs: StepInputs,
    ascent: Array,  # (P,) the reward step
    normals: Array,  # (M, P) of the constraints the algorithm has
    directions: Array,  # (M, P) L^-1 normals
    values: Array,  # (M,)
    projection: str = "kl",
    priority: tuple[int, ...] | None = None,
) -> dict[str, Array]:
    """Metrics, from what the step has solved for anyway: s is the reward step and its exact projection onto all
    constraints, rho the length of s in parts of the reward step's, and what s promises to add to J_R."""
    rho, s = stationarity(ascent, normals, directions, values, priority, metric_of(inputs, projection))
    return {"rho": rho, "predicted_gain": jnp.dot(inputs.gain, s)}
