"""What an update rule is: a value of pure functions, and the row that names it.

A rule proposes a step in parameter space from `StepInputs`, by whatever means: a closed form, a solve, or gradient
steps on minibatches. The update takes the proposal as far as `accept` says, and shows `control` what was measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp

from spacerl.types import Array, BaselineMeasurement, Measured, Proposal, StepInputs, Trial

Judge = Callable[[Array], Trial]  # scale of the proposed step -> what the batch says about it


class Needs(NamedTuple):
    """What a rule cannot do without, and what it cannot handle."""

    cost: bool
    baseline: bool
    many_costs: bool = True
    many_baselines: bool = True
    noise: bool = False  # a sample of the error of the costs' gradients
    mean_gradients: bool = False  # those of the costs, and their errors, as means over batches; takes `noise`


class NoState(NamedTuple):
    """For rules that remember nothing."""


def no_state(costs: int, baseline: BaselineMeasurement) -> NoState:
    return NoState()


def take_full_step(judge: Judge, inputs: StepInputs, proposal: Proposal, state: Any) -> Array:
    """No line search: PCPO's authors take every step whole, and SPACE follows them."""
    return jnp.array(1.0)


def keep_state(state: Any, measured: Measured) -> Any:
    return state


def not_applicable(state: Any) -> Array:
    return jnp.array(jnp.nan)


class Algorithm(NamedTuple):
    """A policy-update rule as a value. All functions are pure; the state is a NamedTuple of arrays."""

    needs: Needs
    step: Callable[[StepInputs, Any], Proposal]
    init: Callable[[int, BaselineMeasurement], Any] = no_state  # number of costs, what is known of pi_B -> state
    accept: Callable[[Judge, StepInputs, Proposal, Any], Array] = take_full_step  # -> scale of the step, ()
    control: Callable[[Any, Measured], Any] = keep_state  # -> next state
    threshold: Callable[[Any], Array] = not_applicable  # state -> h_D in force, NaN where there is none
    weight: Callable[[Any], Array] = not_applicable  # state -> weight of the divergence in the objective
    divergence_gradient: Literal["full", "direct", "score"] = "full"  # which terms of the gradient of J_D it looks at
    starts_at_baseline: bool = False  # where `start` is auto, and the baseline is safe and better than a fresh policy
    name: str = "algorithm"


class AlgorithmEntry(NamedTuple):
    """A row of the registry: what the rule does in one line, its options, and how it is made from them."""

    summary: str
    options: type  # a frozen dataclass whose fields have defaults
    make: Callable[[Any], Algorithm]
