"""CPO: reward, trust region and one cost constraint solved together, then its line search."""

from __future__ import annotations

import jax.numpy as jnp

from spacerl.algorithms.contract import Algorithm, AlgorithmEntry, Needs
from spacerl.algorithms.line_search import line_search, reward_objective
from spacerl.algorithms.optimality import optimality
from spacerl.algorithms.options import LineSearchOptions
from spacerl.core.steps import constrained_step, natural_step
from spacerl.types import Array, Proposal, StepInputs


def cpo_proposal(inputs: StepInputs, objective_gradient: Array) -> Proposal:
    """CPO's step for any objective gradient (P,), with the first (and only) cost."""
    c = inputs.c[0]
    x_g, x_c = inputs.solve(jnp.stack([objective_gradient, c]))
    solution = constrained_step(objective_gradient, x_g, c, x_c, inputs.d[0], inputs.delta)
    ascent = natural_step(objective_gradient, x_g, inputs.delta)
    info = {"cpo_infeasible": solution.infeasible.astype(jnp.float32)}
    info |= optimality(inputs, ascent, inputs.c, x_c[None], inputs.d)
    return Proposal(solution.step, solution.recovering, info)


def cpo(options: LineSearchOptions) -> Algorithm:
    def step(inputs: StepInputs, state) -> Proposal:
        return cpo_proposal(inputs, inputs.g)

    needs = Needs(cost=True, baseline=False, many_costs=False)
    return Algorithm(needs, step, accept=line_search(reward_objective, True, options))


ENTRY = AlgorithmEntry("reward, trust region and one cost solved together, with line search", LineSearchOptions, cpo)
