"""PCPO: a trust-region step for reward, then the nearest point that satisfies the linearised costs."""

from __future__ import annotations

import math

import jax.numpy as jnp

from spacerl.algorithms.contract import Algorithm, AlgorithmEntry, Needs
from spacerl.algorithms.optimality import metric_of, optimality
from spacerl.algorithms.options import ProjectionOptions
from spacerl.core.steps import metric_directions, natural_step, project, within_kl
from spacerl.types import Array, Proposal, StepInputs


def pcpo_proposal(
    inputs: StepInputs, objective_gradient: Array, options: ProjectionOptions, constrained: Array | bool = True
) -> Proposal:
    """PCPO's step for any objective gradient (P,); all costs are projected onto at once, unless not `constrained`."""
    inputs = inputs._replace(g=objective_gradient)
    x_g, cost_directions = metric_directions(inputs, inputs.c, options.projection)
    ascent = natural_step(inputs.g, x_g, inputs.delta)
    metric = metric_of(inputs, options.projection)
    correction = project(ascent, inputs.c, cost_directions, inputs.d, metric=metric)
    correction *= jnp.asarray(constrained, ascent.dtype)
    if math.isfinite(options.projection_kl_bound):
        correction = within_kl(correction, inputs, options.projection_kl_bound)
    info = {"cost_correction": jnp.linalg.norm(correction)}
    info |= optimality(inputs, ascent, inputs.c, cost_directions, inputs.d, options.projection)
    return Proposal(ascent + correction, info=info)


def pcpo(options: ProjectionOptions) -> Algorithm:
    def step(inputs: StepInputs, state) -> Proposal:
        return pcpo_proposal(inputs, inputs.g, options)

    return Algorithm(Needs(cost=True, baseline=False), step)


ENTRY = AlgorithmEntry("trust-region step, then projection onto the cost constraint", ProjectionOptions, pcpo)
