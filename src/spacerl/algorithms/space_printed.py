"""SPACE: a trust-region step for reward, a projection toward the baseline, a projection onto the cost constraint.

Equation `P2CPO_final` of the paper and two other ways of combining its corrections:
  space-printed     both corrections start at theta^{k+1/3} and are added (the paper's closed form);
  space-sequential  the cost correction starts at theta^{k+2/3}, where the paper's step 3 is stated;
  space-joint       one exact projection onto both half-spaces, the cost first when both cannot hold.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from spacerl.algorithms.contract import Algorithm, AlgorithmEntry, Needs
from spacerl.algorithms.optimality import metric_of, optimality
from spacerl.algorithms.options import DivergenceOptions, ProjectionOptions, ThresholdOptions
from spacerl.core.steps import metric_directions, natural_step, project, within_kl
from spacerl.core.thresholds import next_threshold
from spacerl.types import Array, BaselineMeasurement, Measured, Proposal, StepInputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrintedOptions(ThresholdOptions, DivergenceOptions, ProjectionOptions): ...


class SpaceState(NamedTuple):
    h_D: Array  # ()
    previous_J_R: Array  # (), NaN before the first update
    previous_J_C: Array  # (K,)


Projection = Callable[..., Array]  # point (P,), which constraints, priority -> correction (P,)
COST, BASELINE, BOTH = slice(0, -1), slice(-1, None), slice(None)


def printed(ascent: Array, projection: Projection, costs: int) -> tuple[Array, Array]:
    """Pull toward the baseline and cost correction, both from the reward step."""
    return projection(ascent, BASELINE), projection(ascent, COST)


def sequential(ascent: Array, projection: Projection, costs: int) -> tuple[Array, Array]:
    """The cost correction starts where the pull toward the baseline ended."""
    pull = projection(ascent, BASELINE)
    return pull, projection(ascent + pull, COST)


def joint(ascent: Array, projection: Projection, costs: int) -> tuple[Array, Array]:
    """One projection onto both; what is not cost alone counts as correction."""
    correction = projection(ascent, BOTH, (0,) * costs + (1,))
    return jnp.zeros_like(correction), correction


def space_with(combine: Callable, options: PrintedOptions) -> Algorithm:
    def init(costs: int, baseline: BaselineMeasurement) -> SpaceState:
        unknown = jnp.full((), jnp.nan)
        return SpaceState(jnp.array(options.divergence_threshold, jnp.float32), unknown, jnp.full((costs,), jnp.nan))

    def step(inputs: StepInputs, state: SpaceState) -> Proposal:
        normals = jnp.concatenate([inputs.c, inputs.a[None]])  # K costs, then the divergence
        values = jnp.append(inputs.d, inputs.b)
        x_g, directions = metric_directions(inputs, normals, options.projection)
        metric, costs = metric_of(inputs, options.projection), inputs.d.shape[0]

        def projection(point: Array, which: slice, priority: tuple[int, ...] | None = None) -> Array:
            correction = project(point, normals[which], directions[which], values[which], priority, metric)
            bound = options.projection_kl_bound
            return within_kl(correction, inputs, bound) if math.isfinite(bound) else correction

        ascent = natural_step(inputs.g, x_g, inputs.delta)
        pull, correction = combine(ascent, projection, costs)
        info = {"baseline_pull": jnp.linalg.norm(pull), "cost_correction": jnp.linalg.norm(correction)}
        info |= optimality(inputs, ascent, normals, directions, values, options.projection, (0,) * costs + (1,))
        return Proposal(ascent + pull + correction, info=info)

    def control(state: SpaceState, measured: Measured) -> SpaceState:
        h_D = next_threshold(options, state.h_D, measured, state.previous_J_R, state.previous_J_C)
        return SpaceState(h_D, measured.J_R, measured.J_C)

    return Algorithm(
        Needs(cost=True, baseline=True),
        step,
        init,
        control=control,
        threshold=lambda state: state.h_D,
        divergence_gradient=options.divergence_gradient,
    )


PRINTED = AlgorithmEntry(
    "SPACE as printed: both projections start at the reward step and are added",
    PrintedOptions,
    lambda options: space_with(printed, options),
)
SEQUENTIAL = AlgorithmEntry(
    "SPACE with the cost projection starting where the baseline's ended",
    PrintedOptions,
    lambda options: space_with(sequential, options),
)
JOINT = AlgorithmEntry(
    "SPACE with one exact projection onto both constraints, the cost first",
    PrintedOptions,
    lambda options: space_with(joint, options),
)
