"""Guarded SPACE, the default: the three steps of SPACE, each made answerable to what the batch measures.

  1. a step for reward within the trust region and along the costs' limits, with a margin; far above a limit a bounded
     way back to it first. The trust region is earned: it shrinks where a cost is not what was promised;
  2. from there the pull toward the baseline, inside the cost constraint, spending at most `kappa` of KL;
  3. the pull is taken only if it promises reward, as long as the baseline earns more than the policy does, and kappa
     follows how well such promises are kept;
  4. unless the baseline is known to earn more than the policy, and not to break the constraint: then the way to it is
     taken even where it leads downhill at first, as long as it leads nearer.

Derivation: docs/theory.md.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from spacerl.algorithms.contract import Algorithm, AlgorithmEntry, Judge, Needs, not_applicable
from spacerl.algorithms.optimality import metric_of, optimality
from spacerl.algorithms.space_options import GuardOptions, SpaceOptions
from spacerl.core.estimates import CostEstimate, nothing_known, with_batch
from spacerl.core.steps import (
    TINY,
    backtrack,
    farthest_ascent,
    metric_directions,
    natural_length,
    natural_step,
    project,
    within_kl,
)
from spacerl.core.thresholds import next_threshold, relative_excess, running_mean, trust_radius
from spacerl.types import Array, BaselineMeasurement, Measured, Proposal, StepInputs


class Promise(NamedTuple):
    """What the last step was to change, to first order; NaN where it said nothing that a batch could judge."""

    pull_gain: Array  # () change of J_R by its pull toward the baseline; NaN where it made none for the sake of reward
    safe_gain: Array  # () change of J_R by the rest of it
    cost_change: Array  # (K,) change of J_C
    sought: Array  # () 1 where the pull was made because the baseline is known to be better, else 0


class GuardedState(NamedTuple):
    h_D: Array  # ()
    trust: Array  # () share of delta and of the pull's budget that steps may spend, earned by costs as promised
    recovery: Array  # () share of the KL that the way back to a limit may spend, earned by recoveries as promised
    kappa: Array  # () KL a pull may spend
    seek_kl: Array  # () KL a pull may spend on the way to a baseline that is known to be better
    bias: Array  # (K,) running mean of measured minus predicted cost
    shortfall: Array  # () running mean of what steps with a pull promised of J_R and did not deliver
    promised: Array  # () running mean of how much these steps promised to change, gains of pulls and losses alike
    target_J_R: Array  # () J_R of a baseline that keeps the constraint; minus infinity of one that does not
    baseline_J_R: Array  # () up to which any is followed; NaN where it is unknown
    baseline_share: Array  # () of the time that it could be played within the limits
    promise: Promise  # of the last step
    previous_J_R: Array  # ()
    previous_J_C: Array  # (K,)
    nearest_J_D: Array  # () the least so far
    cost: CostEstimate  # what all batches say of J_C


# Of h_C, by which a baseline's cost may exceed it to be sought or begun at: the cost comes first on the way anyway.
TOLERANCE = 0.5
SETBACK, PROGRESS = 0.8, 1.25  # of the KL spent on seeking it, after a step that did not lead nearer than ever or did
NEARER, GIVEN_UP = 0.98, 0.02  # of the least J_D so far; of the most that seeking may spend
BROKEN, KEPT, LEAST = 0.5, 1.25, 0.01  # factors on the trust in predictions of cost, and the least of it
FAILED, CAME = 0.25, 0.5  # of what recovery was to take away of a cost: less than that, and more
# Factor on what recovery may spend after one that came, slower than trust: a step too far costs more than a short one.
REGAINED, LEAST_RECOVERY = 1.1, 0.2
FAR_ABOVE = 0.25  # of h_C
OVERSHOT = 1.25  # of the KL that was planned, beyond which a step is shortened
NEGLIGIBLE = 0.01  # of h_C, by which a cost may exceed its prediction where nothing is random
LARGEST_MARGIN = 0.8  # of what lies between a limit and the least that the cost can be
FIRST_TRUST = 0.2  # of a run that begins at pi_B: nothing has been earned yet, and there is much to lose
SMALL_PART = 0.25  # of what the rest of a step promises, below which nothing is learned about its pull
LEAST_SHARE = 0.1  # of a gradient: below this it is noise alone, and no longer step against it would help


def certainly_above(cost: CostEstimate, h_C: Array | float) -> Array:
    """(K,) by two standard errors, and by what is not negligible."""
    return cost.mean - h_C > jnp.maximum(2.0 * jnp.sqrt(cost.variance), NEGLIGIBLE * h_C)


def judged(options: SpaceOptions, state: GuardedState, inputs: StepInputs) -> GuardedState:
    """What the newest batch says about the last step: its promises kept or broken, its cost as predicted or not."""
    last = state.promise
    # A baseline that breaks a limit threefold keeps it if it is played a third of the time: that is what following it
    # is worth to a policy that begins elsewhere.
    worth = inputs.J_R + state.baseline_share * (state.baseline_J_R - inputs.J_R)
    worth = jnp.where(jnp.isnan(state.previous_J_R), jnp.minimum(worth, state.baseline_J_R), state.baseline_J_R)
    # What the rest of a step delivers says nothing about a pull that is a small part of it.
    says = last.pull_gain > SMALL_PART * jnp.abs(last.safe_gain)
    change = jnp.where(says, inputs.J_R - state.previous_J_R, jnp.nan)
    moved = jnp.where(says, jnp.abs(last.safe_gain) + last.pull_gain, jnp.nan)
    shortfall = running_mean(state.shortfall, last.safe_gain + last.pull_gain - change, options.promise_rate)
    promised = running_mean(state.promised, moved, options.promise_rate)
    # Measured by all that was to change: a loss that came as promised is a promise kept.
    kept = jnp.where(jnp.isnan(change), jnp.nan, 1.0 - shortfall / jnp.maximum(promised, TINY))
    # No prediction is below what the cost can be: a cost that is zero already cannot fall short of its promise.
    J_C, least = inputs.d + inputs.h_C, jnp.asarray(inputs.d_least + inputs.h_C)
    error = jnp.broadcast_to(inputs.d_error, inputs.d.shape)
    cost, surprise, noise = with_batch(state.cost, last.cost_change, J_C, error, least, options.filter_costs)
    # What is tolerated costs no trust: nobody keeps a limit of zero exactly, and nobody could ever earn any.
    allowed = inputs.h_C + inputs.tolerance
    doubt = jnp.maximum(2.0 * noise, NEGLIGIBLE * allowed)
    overshot = (surprise > doubt) & (cost.mean > allowed)
    # Many small steps outward, each within its noise, would never overshoot: above a limit for certain, any will do.
    stays_above = (surprise > 0.0) & certainly_above(cost, allowed)
    broken = jnp.any(overshot | stays_above)
    earned = jnp.where(jnp.any(jnp.isnan(surprise)), 1.0, jnp.where(broken, BROKEN, KEPT))
    # The same for the way back to a limit: where steps are too long for their gradients, each may lead farther from it.
    was_above, back = certainly_above(state.cost, inputs.h_C), jnp.maximum(-last.cost_change, 0.0)
    tried = was_above & (back > 0.0)
    beyond_doubt = surprise - jnp.maximum(2.0 * noise, NEGLIGIBLE * inputs.h_C)
    failed = tried & (beyond_doubt > (1.0 - FAILED) * back)
    came = tried & (surprise < (1.0 - CAME) * back)
    recovered = jnp.where(jnp.any(failed), BROKEN, jnp.where(jnp.any(came) | ~jnp.any(was_above), REGAINED, 1.0))
    # Far above a limit predictions err in ways that say nothing about steps along it.
    far_above = state.cost.mean > (1.0 + FAR_ABOVE) * inputs.h_C
    J_D = inputs.b + state.h_D
    nearer = J_D < NEARER * state.nearest_J_D
    way_made = jnp.where(last.sought > 0.0, jnp.where(nearer, PROGRESS, SETBACK), 1.0)
    return state._replace(
        trust=jnp.clip(state.trust * earned, LEAST, 1.0) if options.earned_trust else state.trust,
        recovery=jnp.clip(state.recovery * recovered, LEAST_RECOVERY, 1.0) if options.earned_trust else state.recovery,
        kappa=trust_radius(state.kappa, kept, options.pull_kl_max),
        seek_kl=jnp.minimum(state.seek_kl * way_made, options.pull_kl_max),
        bias=running_mean(state.bias, jnp.where(far_above, jnp.nan, surprise), options.margin_rate),
        shortfall=shortfall,
        promised=promised,
        baseline_J_R=worth,
        nearest_J_D=jnp.fmin(state.nearest_J_D, J_D),
        cost=cost,
    )


def margin_of(options: SpaceOptions, state: GuardedState, inputs: StepInputs) -> Array:
    """(K,) how far below its limit each cost is to be: not farther than it can be."""
    variance = jnp.where(jnp.isnan(state.cost.variance), 0.0, state.cost.variance)
    margin = options.cost_margin * jnp.sqrt(variance) + jnp.maximum(state.bias, 0.0)
    return jnp.minimum(margin, LARGEST_MARGIN * jnp.maximum(-inputs.d_least, 0.0))


class CostModel(NamedTuple):
    """What a move does to the costs, to first order.

    A correction against a cost goes along its gradient, noise included, and what it takes away is partly noise, which
    is not there to be taken: only the reliable share of it counts. What a move for reward or toward the baseline adds
    was not chosen by that noise, and counts in full: by `taken`, plus what `besides` says. But the gradient of the
    reward is of the same episodes, and where its errors go with those of the cost's, so does what it seems to add.
    """

    full: Array  # (K, P) gradients
    taken: Array  # (K, P) their reliable share
    ways: Array  # (K, P) L^-1 taken
    share: Array  # (K,) what is reliable
    seeming: Array  # (K,) of what F^-1 g adds, what errors that g and c have in common make of it

    def besides(self, move: Array) -> Array:
        return (self.full - self.taken) @ move


def cost_model(options: GuardOptions, inputs: StepInputs, directions: Array, noise_directions: Array) -> CostModel:
    """`directions` are L^-1 c, `noise_directions` L^-1 c_noise: rows of costs (K, P).

    The expectation of c.L^-1 c is that of the true gradient plus that of the noise, which c_noise.L^-1 c_noise
    measures: the factor of James and Stein. Along its own direction that share of a gradient is there.
    """
    share, seeming = jnp.ones(inputs.d.shape), jnp.zeros(inputs.d.shape)
    if options.shrink_cost_gradients:
        length, noise = jnp.sum(inputs.c * directions, axis=1), jnp.sum(inputs.c_noise * noise_directions, axis=1)
        share = jnp.where(length > TINY, jnp.clip(1.0 - noise / jnp.maximum(length, TINY), LEAST_SHARE, 1.0), 1.0)
        if options.projection == "kl":  # L^-1 c_noise is F^-1 c_noise
            seeming = noise_directions @ jnp.broadcast_to(inputs.g_noise, inputs.g.shape)
    return CostModel(inputs.c, share[:, None] * inputs.c, share[:, None] * directions, share, seeming)


class Move(NamedTuple):
    step: Array  # (P,)
    costs: Array  # (K,) by which it changes them


def safe_step(
    options: GuardOptions,
    inputs: StepInputs,
    model: CostModel,
    x_g: Array,
    limits: Array,
    delta: Array,
    recovery_kl: Array,
) -> Move:
    """Along the costs' limits (K,), with as much of the reward step as the trust region has room for.

    Far above a limit the linearised cost says nothing about a step as long as it asks for: recover in several. What
    recovery cannot reach in this one is the limit for the reward step, which is held there with whatever KL that takes.
    """
    metric, origin = metric_of(inputs, options.projection), jnp.zeros_like(x_g)
    recovery = project(origin, model.taken, model.ways, limits, metric=metric)
    recovery = within_kl(recovery, inputs, recovery_kl)
    within_reach = limits - jnp.maximum(model.taken @ recovery + limits, 0.0)
    length = natural_length(inputs.g, x_g, delta)
    ascent = length * x_g
    besides = model.besides(ascent) - length * model.seeming
    if metric is not None and options.ascent_factor > 1.0:
        costs = (model.taken, model.ways, within_reach)
        factor = farthest_ascent(ascent, *costs, delta, inputs.fisher, options.ascent_factor, lift=besides)
        ascent, besides = factor * ascent, factor * besides
    safe = ascent + project(ascent, model.taken, model.ways, within_reach + besides, metric=metric)
    return Move(safe, model.taken @ safe + besides)


def pull_step(
    options: SpaceOptions,
    inputs: StepInputs,
    model: CostModel,
    safe: Move,
    limits: Array,
    to_baseline: tuple,
    kl: Array,
) -> Move:
    """From the safe step toward the baseline, by what the safe step leaves of each cost's limit, within `kl`.

    `to_baseline` is L^-1 a and the value of the divergence constraint.
    """
    direction, b = to_baseline
    metric, K = metric_of(inputs, options.projection), limits.shape[0]
    left = limits - jnp.maximum(safe.costs + limits, 0.0)
    straight = project(safe.step, inputs.a[None], direction[None], b[None], metric=metric)
    besides = model.besides(straight)
    values = jnp.append(left + safe.costs - model.taken @ safe.step + besides, b)
    normals = jnp.concatenate([model.taken, inputs.a[None]])
    ways = jnp.concatenate([model.ways, direction[None]])
    whole = project(safe.step, normals, ways, values, (0,) * K + (1,), metric)
    pull = within_kl(whole, inputs, kl)
    share = jnp.dot(pull, whole) / jnp.maximum(jnp.dot(whole, whole), TINY)
    return Move(pull, share * (model.taken @ whole + besides))


def space(options: SpaceOptions) -> Algorithm:
    recovery_kl = options.projection_kl_bound

    def init(costs: int, baseline: BaselineMeasurement) -> GuardedState:
        unknown, unknowns = jnp.full((), jnp.nan), jnp.full((costs,), jnp.nan)
        better = jnp.where(baseline.better, jnp.asarray(baseline.J_R, jnp.float32), -jnp.inf)
        safe = (baseline.excess <= TOLERANCE) & options.seek_baseline & ~jnp.isnan(better)
        return GuardedState(
            h_D=jnp.array(options.divergence_threshold, jnp.float32),
            trust=jnp.array(FIRST_TRUST if options.earned_trust and baseline.begun else 1.0),
            recovery=jnp.ones(()),
            kappa=jnp.array(options.pull_kl, jnp.float32),
            seek_kl=jnp.array(options.pull_kl_max, jnp.float32),
            bias=jnp.zeros(costs),
            shortfall=jnp.zeros(()),
            promised=jnp.zeros(()),
            baseline_J_R=better,
            baseline_share=1.0 / (1.0 + jnp.nan_to_num(jnp.maximum(baseline.excess, 0.0))),
            target_J_R=jnp.where(safe, better, -jnp.inf),
            promise=Promise(unknown, unknown, unknowns, jnp.zeros(())),
            previous_J_R=unknown,
            previous_J_C=unknowns,
            nearest_J_D=jnp.full((), jnp.inf),
            cost=nothing_known(costs),
        )

    def step(inputs: StepInputs, state: GuardedState) -> Proposal:
        state = judged(options, state, inputs)
        K, delta = inputs.d.shape[0], state.trust * inputs.delta
        margin = margin_of(options, state, inputs)
        limits = state.cost.mean - inputs.h_C + margin
        seeks = (state.target_J_R > inputs.J_R) & (state.seek_kl > GIVEN_UP * options.pull_kl_max)
        # On the way to a baseline that is known to be better, h_D has not grown.
        b = inputs.b + jnp.where(seeks, state.h_D - options.divergence_threshold, 0.0)
        normals = jnp.concatenate([inputs.c, inputs.a[None]])  # K costs, then the divergence
        solved_for = jnp.concatenate([normals, jnp.broadcast_to(inputs.c_noise, inputs.c.shape)])
        x_g, directions = metric_directions(inputs, solved_for, options.projection)
        directions, noise_directions = directions[: K + 1], directions[K + 1 :]
        model = cost_model(options, inputs, directions[:K], noise_directions)
        # A limit must be kept, a margin is wished for: below the limit the way to it is no longer than a reward step.
        above = jnp.any(state.cost.mean > inputs.h_C)
        back_kl = jnp.where(above, recovery_kl, jnp.minimum(recovery_kl, inputs.delta))
        back_kl = state.recovery * jnp.min(model.share) * back_kl
        safe = safe_step(options, inputs, model, x_g, limits, delta, back_kl)
        budget = state.trust * jnp.where(seeks, state.seek_kl, state.kappa)
        far = jnp.dot(inputs.a, safe.step) + b > 0.0  # who is near enough is pulled by nothing, not by rounding
        pull = pull_step(options, inputs, model, safe, limits, (directions[K], b), budget)
        pull = jax.tree.map(lambda change: jnp.where(far, change, 0.0), pull)
        pull_gain, safe_gain = inputs.gain @ pull.step, inputs.gain @ safe.step
        # A step back to a limit that is broken for certain may promise to lose reward. At a limit it may not: what it
        # loses there earlier pulls had gained, and they would be paid for the same reward again and again.
        safe_gain = jnp.where(jnp.any(certainly_above(state.cost, inputs.h_C)), safe_gain, jnp.maximum(safe_gain, 0.0))
        # Who earns more than the baseline has nothing to learn from it: what its pull still promises is noise. Where no
        # reward depends on what is done, nobody promises anything, and one that earns more is worth following.
        pays = (pull_gain > 0.0) & ~(inputs.J_R > state.baseline_J_R)
        pays |= ~jnp.any(inputs.gain) & (inputs.J_R < state.baseline_J_R)
        follows = jnp.where(pays | (seeks & far), 1.0, 0.0)
        promise = Promise(
            pull_gain=jnp.where(pays & ~seeks, pull_gain, jnp.nan),
            safe_gain=safe_gain,
            cost_change=safe.costs + follows * pull.costs,
            sought=(seeks & far).astype(jnp.float32),
        )
        info = {
            "follows": follows,
            "pull_promise": pull_gain,
            "pull_kl_bound": budget,
            "cost_margin": jnp.max(margin),
            "cost_estimate": state.cost.mean[
                jnp.argmax(relative_excess(inputs.d + inputs.h_C, jnp.asarray(inputs.h_C)))
            ],
            "trust": state.trust,
            "recovery_kl_bound": back_kl,
            "cost_gradient_share": jnp.min(model.share),
            "seeks": seeks.astype(jnp.float32),
        }
        values, priority = jnp.append(inputs.d, inputs.b), (0,) * K + (1,)  # the costs come first
        info |= optimality(
            inputs, natural_step(inputs.g, x_g, inputs.delta), normals, directions, values, options.projection, priority
        )
        # Who has come near has seen what the baseline has to show: from now on the gate decides.
        seek_kl = jnp.where(seeks & ~far, 0.0, state.seek_kl)
        memory = state._replace(promise=promise, seek_kl=seek_kl)
        return Proposal(safe.step + follows * pull.step, info=info, memory=memory)

    def accept(judge: Judge, inputs: StepInputs, proposal: Proposal, state: GuardedState) -> Array:
        """The step as far as its measured KL is of the size that was planned: a Fisher matrix from few samples errs."""
        info = proposal.info
        planned = info["trust"] * inputs.delta + info["recovery_kl_bound"] + info["pull_kl_bound"]
        return backtrack(
            lambda scale: judge(scale).kl <= OVERSHOT * planned, options.backtrack_factor, options.backtrack_tries
        )[0]

    def control(state: GuardedState, measured: Measured) -> GuardedState:
        taken = jnp.asarray(measured.scale)
        promise = jax.tree.map(lambda change: taken * change, state.promise)
        nothing = ~(taken > 0.0)  # no step, or none whose effect can be told from another change of the policy
        return state._replace(
            h_D=next_threshold(options, state.h_D, measured, state.previous_J_R, state.previous_J_C),
            promise=promise._replace(
                pull_gain=jnp.where(nothing, jnp.nan, promise.pull_gain),
                sought=jnp.where(nothing, 0.0, state.promise.sought),
            ),
            previous_J_R=measured.J_R,
            previous_J_C=measured.J_C,
        )

    return Algorithm(
        Needs(
            cost=True,
            baseline=True,
            noise=options.shrink_cost_gradients or options.mean_cost_gradients,
            mean_gradients=options.mean_cost_gradients,
        ),
        step,
        init,
        accept,
        control,
        threshold=lambda state: state.h_D,
        divergence_gradient=options.divergence_gradient,
        starts_at_baseline=True,
    )


def guarded(options: GuardOptions) -> Algorithm:
    """The same without a baseline: shows what the guards are worth alone."""
    rule = space(SpaceOptions(**dataclasses.asdict(options)))

    def step(inputs: StepInputs, state: GuardedState) -> Proposal:
        return rule.step(inputs._replace(a=jnp.zeros_like(inputs.g), b=jnp.zeros(())), state)

    needs = rule.needs._replace(baseline=False)
    return rule._replace(needs=needs, step=step, threshold=not_applicable, starts_at_baseline=False)


ENTRY = AlgorithmEntry(
    "SPACE, guarded: a reward step along the costs' limits with a margin, and the baseline as far as it pays",
    SpaceOptions,
    space,
)
ALONE = AlgorithmEntry(
    "guarded SPACE without a baseline: what margin, earned trust and a step along the limits do alone",
    GuardOptions,
    guarded,
)
