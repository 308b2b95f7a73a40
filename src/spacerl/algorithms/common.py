"""What several update rules share: empty state, the two ways of accepting a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from spacerl.core.steps import backtrack
from spacerl.types import Array, Evaluation, Proposal, StepInputs, Worth


class NoState(NamedTuple):
    """For rules that remember nothing."""


def stateless(costs: int, worth: Worth) -> NoState:
    return NoState()


def unchanged(state: Any, J_R: Array, J_C: Array, h_C: Array, J_D: Array) -> Any:
    return state


def absent(state: Any) -> Array:
    return jnp.array(jnp.nan)


def take_full_step(evaluate: Callable, inputs: StepInputs, proposal: Proposal, state: Any) -> Array:
    """No line search: PCPO's authors take every step whole, and SPACE follows them."""
    return jnp.array(1.0)


def line_search(
    objective: Callable[[Evaluation, Any], Array], constrained: bool, factor: float, tries: int
) -> Callable:
    """Backtracking as CPO does it: the objective improves, the KL stays within delta and, where `constrained`, no cost
    surrogate grows by more than its slack.

    A recovering step need not improve the objective, and its smallest trial stays when none is acceptable; any other
    step without an acceptable trial is dropped.
    """

    def accept(evaluate: Callable, inputs: StepInputs, proposal: Proposal, state: Any) -> Array:
        def acceptable(scale: Array) -> Array:
            trial = evaluate(scale)
            improves = (objective(trial, state) > 0.0) | proposal.recovering
            safe = jnp.all(trial.cost <= jnp.maximum(-inputs.d, 0.0)) if constrained else jnp.array(True)
            return improves & safe & (trial.kl <= inputs.delta)

        scale, found = backtrack(acceptable, factor, tries)
        return jnp.where(found | proposal.recovering, scale, 0.0)

    return accept


def reward_objective(trial: Evaluation, state: Any) -> Array:
    return trial.reward
