"""Backtracking line search on the measured surrogates, as TRPO and CPO do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from spacerl.algorithms.contract import Judge
from spacerl.algorithms.options import LineSearchOptions
from spacerl.core.steps import backtrack
from spacerl.types import Array, Proposal, StepInputs, Trial


def line_search(objective: Callable[[Trial, Any], Array], constrained: bool, options: LineSearchOptions) -> Callable:
    """The objective improves, the KL stays within delta and, where `constrained`, no cost surrogate grows by more than
    its slack.

    A recovering step need not improve the objective, and its smallest trial stays when none is acceptable; any other
    step without an acceptable trial is dropped.
    """

    def accept(judge: Judge, inputs: StepInputs, proposal: Proposal, state: Any) -> Array:
        def acceptable(scale: Array) -> Array:
            trial = judge(scale)
            improves = (objective(trial, state) > 0.0) | proposal.recovering
            safe = jnp.all(trial.cost <= jnp.maximum(-inputs.d, 0.0)) if constrained else jnp.array(True)
            return improves & safe & (trial.kl <= inputs.delta)

        scale, found = backtrack(acceptable, options.backtrack_factor, options.backtrack_tries)
        return jnp.where(found | proposal.recovering, scale, 0.0)

    return accept


def reward_objective(trial: Trial, state: Any) -> Array:
    return trial.reward
