"""PCPO: a trust-region step for reward, then the nearest point that satisfies the linearised costs."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from spacerl.algorithms.common import absent, stateless, take_full_step, unchanged
from spacerl.core.steps import metric_directions, natural_step, project, within_kl
from spacerl.types import Algorithm, Array, Needs, Proposal, StepInputs


def pcpo_proposal(
    inputs: StepInputs, objective_gradient: Array, config: Any, constrained: Array | bool = True
) -> Proposal:
    """PCPO's step for any objective gradient (P,); all costs are projected onto at once, unless not `constrained`."""
    inputs = inputs._replace(g=objective_gradient)
    x_g, cost_directions = metric_directions(inputs, inputs.c, config.projection)
    ascent = natural_step(inputs.g, x_g, inputs.delta)
    correction = project(ascent, inputs.c, cost_directions, inputs.d) * jnp.asarray(constrained, ascent.dtype)
    if config.projection_kl_bound is not None:
        correction = within_kl(correction, inputs, config.projection_kl_bound)
    return Proposal(ascent + correction, jnp.array(False), {"cost_correction": jnp.linalg.norm(correction)})


def pcpo(config) -> Algorithm:
    def step(inputs: StepInputs, state) -> Proposal:
        return pcpo_proposal(inputs, inputs.g, config)

    return Algorithm(Needs(cost=True, baseline=False), stateless, step, take_full_step, unchanged, absent, absent)
