"""SPACE: a trust-region step for reward, a projection toward the baseline, a projection onto the cost constraint.

Equation `P2CPO_final` of the paper and two other ways of combining its corrections:
  printed     both corrections start at theta^{k+1/3} and are added (the paper's closed form);
  sequential  the cost correction starts at theta^{k+2/3}, where the paper's step 3 is stated;
  joint       one exact projection onto both half-spaces, the cost first when both cannot hold.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from spacerl.algorithms.common import absent, take_full_step
from spacerl.core.steps import metric_directions, natural_step, project, within_kl
from spacerl.core.thresholds import next_threshold
from spacerl.types import Algorithm, Array, Needs, Proposal, StepInputs, Worth


class SpaceState(NamedTuple):
    h_D: Array  # ()
    previous_J_R: Array  # (), NaN before the first update
    previous_J_C: Array  # (K,)


def space(config) -> Algorithm:
    def init(costs: int, worth: Worth) -> SpaceState:
        unknown = jnp.full((), jnp.nan)
        return SpaceState(jnp.array(config.divergence_threshold, jnp.float32), unknown, jnp.full((costs,), jnp.nan))

    def step(inputs: StepInputs, state: SpaceState) -> Proposal:
        normals = jnp.concatenate([inputs.c, inputs.a[None]])  # K costs, then the divergence
        values = jnp.append(inputs.d, inputs.b)
        x_g, directions = metric_directions(inputs, normals, config.projection)
        cost, toward = slice(0, -1), slice(-1, None)

        def projection(point: Array, which: slice, priority: tuple[int, ...] | None = None) -> Array:
            correction = project(point, normals[which], directions[which], values[which], priority)
            bound = config.projection_kl_bound
            return correction if bound is None else within_kl(correction, inputs, bound)

        ascent = natural_step(inputs.g, x_g, inputs.delta)
        if config.combine == "joint":
            correction = projection(ascent, slice(None), (0,) * inputs.d.shape[0] + (1,))
            pull = jnp.zeros_like(correction)
        else:
            pull = projection(ascent, toward)
            start = ascent if config.combine == "printed" else ascent + pull
            correction = projection(start, cost)
        info = {"baseline_pull": jnp.linalg.norm(pull), "cost_correction": jnp.linalg.norm(correction)}
        return Proposal(ascent + pull + correction, jnp.array(False), info)

    def control(state: SpaceState, J_R: Array, J_C: Array, h_C: Array, J_D: Array) -> SpaceState:
        rule, v = config.threshold_rule, config.threshold_constant
        h_D = next_threshold(rule, state.h_D, J_R, J_C, state.previous_J_R, state.previous_J_C, h_C, v)
        return SpaceState(h_D, J_R, J_C)

    return Algorithm(Needs(cost=True, baseline=True), init, step, take_full_step, control, lambda s: s.h_D, absent)
