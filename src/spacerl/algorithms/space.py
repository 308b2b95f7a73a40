"""Guarded SPACE, the default: the three steps of SPACE, each made answerable to what the batch measures.

  1. the trust-region step for reward, then the projection onto the cost constraint with a margin: a safe step of PCPO;
  2. from there the pull toward the baseline, inside the cost constraint, spending at most `kappa` of KL;
  3. the pull is taken only if it promises reward, and kappa follows how well such promises are kept;
  4. unless the baseline is known to earn more than the policy, and not to break the constraint: then the way to it is
     taken even where it leads downhill at first, as long as it leads nearer.

With a slack divergence constraint or a baseline that never pays this is PCPO with a margin. Derivation: docs/theory.md.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

import jax.numpy as jnp

from spacerl.algorithms.contract import Algorithm, AlgorithmEntry, Judge, Needs
from spacerl.algorithms.options import DivergenceOptions, LineSearchOptions, ProjectionOptions, ThresholdOptions
from spacerl.core.steps import backtrack, metric_directions, natural_step, project, within_kl
from spacerl.core.thresholds import next_threshold, running_mean, trust_radius
from spacerl.runs.fields import Fraction, NotNegative, Positive, PositiveOrInf
from spacerl.types import Array, BaselineMeasurement, Measured, Proposal, StepInputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpaceOptions(LineSearchOptions, ThresholdOptions, DivergenceOptions, ProjectionOptions):
    divergence_gradient: Literal["full", "direct", "score"] = "direct"
    """Gradient of J_D: direct term, score term (effect through the states visited), or both (full)."""
    projection_kl_bound: PositiveOrInf = 0.05
    """Most KL the projection onto the costs may spend; 0.01 for your own environment."""
    pull_kl: Positive = 0.02
    """KL the first pull toward the baseline may spend; later ones follow what the pulls deliver."""
    pull_kl_max: Positive = 0.05
    """Most KL any pull may spend."""
    cost_margin: NotNegative = 0.5
    """Safety margin below h_C, in standard errors of J_C."""
    margin_rate: Fraction = 0.1
    """Rate at which the margin learns how much cost its predictions leave out."""
    seek_baseline: bool = True
    """A baseline that was measured to earn more than the policy and to keep the constraint is followed even where the
    gradient sees no reward on the way."""
    promise_rate: Fraction = 0.3
    """Rate at which promised and measured gains of the pulls are averaged."""


class GuardedState(NamedTuple):
    h_D: Array  # ()
    kappa: Array  # () KL the pull may spend
    bias: Array  # (K,) running mean of measured minus predicted cost
    previous_J_R: Array  # ()
    previous_J_C: Array  # (K,)
    gained: Array  # () running mean of measured changes of J_R after steps that followed the baseline
    promised: Array  # () running mean of what those steps promised
    J_C_error: Array  # (K,) standard error of the newest J_C
    promised_gain: Array  # () change of J_R that the newest step promises; NaN where it does not follow the baseline
    promised_J_C: Array  # (K,) cost that the newest step promises
    due_gain: Array  # () the same promises of the step before, which this batch can judge
    due_J_C: Array  # (K,)
    target_J_R: Array  # () J_R of a baseline that keeps the constraint; minus infinity of one that does not
    seek_kl: Array  # () KL a pull may spend on the way to such a baseline
    previous_J_D: Array  # ()


TOLERANCE = 0.5  # of h_C, by which a baseline's cost may exceed it to be sought: the cost comes first on the way anyway
SETBACK, PROGRESS = 0.8, 1.25  # of the KL spent on seeking it, after an update that led away from it or nearer to it


def is_seeking(state: GuardedState) -> Array:
    """Whether the baseline is known to be better than the policy was in the last update; False in the first one."""
    return state.target_J_R > state.previous_J_R


def pull_budget(state: GuardedState) -> Array:
    """KL that the pull may spend now."""
    return jnp.where(is_seeking(state), state.seek_kl, state.kappa)


def space(options: SpaceOptions) -> Algorithm:
    recovery_kl = options.projection_kl_bound

    def init(costs: int, baseline: BaselineMeasurement) -> GuardedState:
        unknown, unknowns = jnp.full((), jnp.nan), jnp.full((costs,), jnp.nan)
        safe = (baseline.excess <= TOLERANCE) & options.seek_baseline
        return GuardedState(
            h_D=jnp.array(options.divergence_threshold, jnp.float32),
            kappa=jnp.array(options.pull_kl, jnp.float32),
            bias=jnp.zeros(costs),
            previous_J_R=unknown,
            previous_J_C=unknowns,
            gained=jnp.zeros(()),
            promised=jnp.zeros(()),
            J_C_error=jnp.zeros(costs),
            promised_gain=unknown,
            promised_J_C=unknowns,
            due_gain=unknown,
            due_J_C=unknowns,
            target_J_R=jnp.where(safe & ~jnp.isnan(baseline.J_R), baseline.J_R, -jnp.inf),
            seek_kl=jnp.array(options.pull_kl_max, jnp.float32),
            previous_J_D=unknown,
        )

    def step(inputs: StepInputs, state: GuardedState) -> Proposal:
        margin = options.cost_margin * inputs.d_error + jnp.maximum(state.bias, 0.0)
        # On the way to a baseline that is known to be better, h_D has not grown.
        seeks = is_seeking(state)
        b = inputs.b + jnp.where(seeks, state.h_D - options.divergence_threshold, 0.0)
        normals = jnp.concatenate([inputs.c, inputs.a[None]])  # K costs, then the divergence
        values = jnp.append(inputs.d + margin, b)
        x_g, directions = metric_directions(inputs, normals, options.projection)
        ascent = natural_step(inputs.g, x_g, inputs.delta)
        # Far above the limit the linearised cost says nothing about a step as long as it asks for: recover in several.
        correction = project(ascent, normals[:-1], directions[:-1], values[:-1])
        safe = ascent + within_kl(correction, inputs, recovery_kl)
        near = ascent + project(ascent, normals, directions, values, (0,) * inputs.d.shape[0] + (1,))
        # A baseline that is near enough pulls with nothing: not with the rounding of two projections that agree.
        far = jnp.dot(inputs.a, ascent + correction) + b > 0.0
        pull = within_kl(jnp.where(far, near - ascent - correction, 0.0), inputs, pull_budget(state))
        promise = jnp.dot(inputs.g, pull)
        follows = (promise > 0.0) | (seeks & far)
        chosen = safe + jnp.where(follows, 1.0, 0.0) * pull
        info = {"follows": follows.astype(jnp.float32), "pull_promise": promise, "pull_kl_bound": pull_budget(state)}
        info |= {"cost_margin": jnp.max(margin), "seeks": seeks.astype(jnp.float32)}
        memory = state._replace(
            promised_gain=jnp.where(follows & ~seeks, jnp.dot(inputs.g, chosen), jnp.nan),
            promised_J_C=inputs.d + inputs.c @ chosen,
            J_C_error=jnp.broadcast_to(inputs.d_error, inputs.d.shape),
            due_gain=state.promised_gain,
            due_J_C=state.promised_J_C,
        )
        return Proposal(chosen, info=info, memory=memory)

    def accept(judge: Judge, inputs: StepInputs, proposal: Proposal, state: GuardedState) -> Array:
        """The step as far as its measured KL is of the size that was planned: a Fisher matrix from few samples errs."""
        planned = inputs.delta + recovery_kl + pull_budget(state)
        return backtrack(
            lambda scale: judge(scale).kl <= 2.0 * planned, options.backtrack_factor, options.backtrack_tries
        )[0]

    def control(state: GuardedState, measured: Measured) -> GuardedState:
        J_R, J_C, J_D = measured.J_R, measured.J_C, measured.J_D
        surprise = J_C - measured.h_C - state.due_J_C  # NaN in the first update
        gain = jnp.where(jnp.isnan(state.due_gain), jnp.nan, J_R - state.previous_J_R)
        gained = running_mean(state.gained, gain, options.promise_rate)
        promised = running_mean(state.promised, state.due_gain, options.promise_rate)
        kept = jnp.where(jnp.isnan(gain), jnp.nan, gained / jnp.maximum(promised, 1e-30))
        overshot = ~jnp.isnan(gain) & jnp.any(surprise > 2.0 * state.J_C_error)
        # A baseline that cannot be come near to is not sought for ever.
        farther = is_seeking(state) & (J_D >= state.previous_J_D)
        return state._replace(
            h_D=next_threshold(options, state.h_D, measured, state.previous_J_R, state.previous_J_C),
            kappa=trust_radius(state.kappa, kept, overshot, options.pull_kl_max),
            bias=running_mean(state.bias, surprise, options.margin_rate),
            previous_J_R=J_R,
            previous_J_C=J_C,
            gained=gained,
            promised=promised,
            seek_kl=jnp.minimum(state.seek_kl * jnp.where(farther, SETBACK, PROGRESS), options.pull_kl_max),
            previous_J_D=J_D,
        )

    return Algorithm(
        Needs(cost=True, baseline=True),
        step,
        init,
        accept,
        control,
        threshold=lambda state: state.h_D,
        divergence_gradient=options.divergence_gradient,
    )


ENTRY = AlgorithmEntry(
    "SPACE, guarded: trust-region step, projection onto the cost with a margin, the baseline as far as it pays",
    SpaceOptions,
    space,
)
