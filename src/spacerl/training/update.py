"""One policy update: Rollout -> Batch -> StepInputs -> the algorithm's step -> accept -> critics -> thresholds.

Pure and compiled as one piece; `vmap` over the state runs several seeds in one program.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from spacerl.core.estimates import no_gradients, with_gradients
from spacerl.core.fisher import conjugate_gradient
from spacerl.core.returns import (
    advantages_and_returns,
    contrast_of_halves,
    episode_sums,
    least_sums,
    step_indices,
    unaffected,
)
from spacerl.core.thresholds import relative_excess
from spacerl.policies.normaliser import fresh_normaliser
from spacerl.training.learner import Learner
from spacerl.training.surrogates import judge_of, surrogate_gradients
from spacerl.types import (
    UNMEASURED,
    Array,
    BaselineMeasurement,
    Batch,
    Measured,
    Metrics,
    Rollout,
    StepInputs,
    TrainState,
)


def initial_state(learner: Learner, seed: int | Array, baseline: BaselineMeasurement = UNMEASURED) -> TrainState:
    """Before the first update."""
    key, policy_key, critic_key = jax.random.split(jax.random.PRNGKey(seed), 3)
    theta, costs = learner.family.init(policy_key), len(learner.cost_names)
    state = TrainState(
        theta=theta,
        critics=learner.critic.init(critic_key),
        algorithm=learner.algorithm.init(costs, baseline),
        key=key,
        update=jnp.array(0, jnp.int32),
        env_steps=jnp.array(0, jnp.uint32),
        cumulative_violation=jnp.array(0.0),
        normaliser=fresh_normaliser(learner.family.width) if learner.config.normalise_observations else (),
        gradients=no_gradients(costs, theta.size) if learner.algorithm.needs.mean_gradients else (),
    )
    # Without weak types a first state, a later one and a loaded one are the same to the compiler: it compiles once.
    return jax.tree.map(lambda leaf: leaf.astype(leaf.dtype), state)


def policy_inputs(learner: Learner, normaliser: Any, obs: Array) -> Array:
    """Observations as the policy takes them."""
    return learner.family.normalised(normaliser, obs) if learner.config.normalise_observations else obs


def raw_theta(learner: Learner, state: TrainState) -> Array:
    """The policy as a network on observations as they are, with the statistics worked into its first layer."""
    if learner.config.normalise_observations:
        return learner.family.fold(state.theta, state.normaliser)
    return state.theta


def with_policy(learner: Learner, state: TrainState, rollout: Rollout) -> Rollout:
    """A rollout with the acting policy's distribution and log-probabilities, where whoever collected it left them."""
    dist = learner.family.apply(state.theta, policy_inputs(learner, state.normaliser, rollout.obs))
    return rollout._replace(dist=dist, log_prob=dist.log_prob(rollout.action))


def nearest_baseline(rollout: Rollout, dists: tuple[Any, ...]) -> tuple[Any, Array, Array]:
    """The baseline with the least divergence on this batch: its distribution, its number, and J_D of each one."""
    episodes = jnp.maximum(jnp.sum((rollout.terminated | rollout.truncated) & rollout.valid), 1)
    distances = jnp.stack([jnp.sum(rollout.dist.kl(dist), where=rollout.valid) / episodes for dist in dists])
    chosen = jnp.argmin(distances)
    dist = jax.tree.map(lambda *leaves: jnp.stack(jnp.broadcast_arrays(*leaves))[chosen], *dists)
    return dist, chosen, distances


def make_batch(learner: Learner, state: TrainState, rollout: Rollout, baseline_dist: Any) -> Batch:
    """Advantages, critic targets and episode sums of a rollout, flattened to B = T * N samples."""
    critics = state.critics
    config, has_baseline = learner.config, baseline_dist is not None
    rollout, baseline_dist = without_padding(rollout, baseline_dist)
    divergence = [rollout.dist.kl(baseline_dist) * rollout.valid] if has_baseline else []
    costs = [rollout.cost[..., k] for k in range(len(learner.cost_names))]
    signals = jnp.stack([rollout.reward, *costs, *divergence], axis=-1)  # (T, N, S)
    index = step_indices(rollout.terminated, rollout.truncated)
    T, N, S = signals.shape

    def per_signal(reward: float, cost: float, div: float) -> Array:
        return jnp.array([reward] + [cost] * len(costs) + [div] * len(divergence))

    discounts = per_signal(config.discount, config.cost_discount, config.divergence_discount)
    lambdas = per_signal(config.gae_lambda, config.cost_gae_lambda, config.divergence_gae_lambda)
    flat_obs = rollout.obs.reshape(T * N, *rollout.obs.shape[2:])
    values = learner.critic.predict(critics, flat_obs, index.reshape(-1))  # (S, B)
    bootstraps = jnp.zeros_like(signals)
    if config.bootstrap_truncation:
        following = rollout.next_obs.reshape(flat_obs.shape)
        bootstraps = learner.critic.predict(critics, following, index.reshape(-1) + 1).T.reshape(T, N, S)
        # An undiscounted sum has no end to predict: a critic that learned from its own prediction would never stop.
        bootstraps *= discounts < 1.0
    advantages, returns = advantages_and_returns(
        signals, values.T.reshape(T, N, S), bootstraps, rollout.terminated, rollout.truncated, discounts, lambdas
    )
    # J_R is discounted; J_C and J_D are undiscounted sums, whatever discounts their advantages use.
    sums, errors, length = episode_sums(signals, index, rollout.valid, per_signal(config.discount, 1.0, 1.0))
    weight = rollout.valid.reshape(-1) / jnp.maximum(jnp.sum(rollout.valid), 1)
    flat = advantages.reshape(T * N, S)
    centred = without_rounding(flat - weight @ flat, weight, returns.reshape(T * N, S))
    centred = jnp.where(unaffected(signals, rollout.terminated, rollout.valid), 0.0, centred)
    flatten = jax.tree.map(lambda leaf: leaf.reshape(T * N, *leaf.shape[2:]), (rollout, baseline_dist))
    samples, baseline = flatten
    K = len(costs)
    return Batch(
        obs=flat_obs,
        inputs=policy_inputs(learner, state.normaliser, flat_obs),
        action=samples.action,
        log_prob=samples.log_prob,
        dist=samples.dist,
        baseline_dist=baseline,
        weight=weight,
        step_index=index.reshape(-1),
        reward_advantage=centred[:, 0],
        cost_advantage=centred[:, 1 : K + 1],
        divergence_advantage=centred[:, -1] if has_baseline else jnp.zeros(T * N),
        targets=returns.reshape(T * N, S).T,
        values=values,
        J_R=sums[0],
        J_C=sums[1 : K + 1],
        J_D=sums[-1] if has_baseline else jnp.array(jnp.nan),
        J_C_error=errors[1 : K + 1],
        J_C_least=least_sums(signals, index, rollout.valid)[1 : K + 1],
        discounting=config.discount ** index.reshape(-1).astype(jnp.float32),
        contrast=contrast_of_halves(index, rollout.valid).reshape(-1),
        episode_length=length,
        episode_return=jnp.sum(rollout.reward, where=rollout.valid) * length / jnp.maximum(jnp.sum(rollout.valid), 1),
    )


def without_padding(rollout: Rollout, baseline_dist: Any) -> tuple[Rollout, Any]:
    """Padding overwritten with the first step of its column: a weight of zero does not remove what is not a number.
    Images of bytes are numbers whatever they show, and are not copied for that."""

    def overwrite(leaf: Array) -> Array:
        if leaf.dtype == jnp.uint8:
            return leaf
        valid = rollout.valid.reshape(rollout.valid.shape + (1,) * (leaf.ndim - 2))
        return jnp.where(valid, leaf, leaf[:1])

    names = ("obs", "action", "log_prob", "dist", "next_obs")
    kept, baseline = jax.tree.map(overwrite, ({name: getattr(rollout, name) for name in names}, baseline_dist))
    return rollout._replace(**kept), baseline


def without_rounding(centred: Array, weight: Array, returns: Array) -> Array:
    """Advantages (B, S) whose spread is no more than the rounding of their returns, set to zero.

    A signal that no action changes has none, and what float32 leaves of it is not a direction: a projection would
    divide by its tiny square and jump.
    """
    spread = jnp.sqrt(weight @ centred**2)
    size = jnp.max(jnp.where(weight[:, None] > 0.0, jnp.abs(returns), 0.0), axis=0)
    return jnp.where(spread <= 1e-6 * size, 0.0, centred)  # a NaN stays one, and stops the run


def step_inputs(learner: Learner, batch: Batch, state: TrainState, rows: Array, key: Any = None) -> StepInputs:
    """The only place where gradients, constraint values and the Fisher matrix are put into the step's units."""
    config, theta = learner.config, state.theta
    gradients = surrogate_gradients(learner, batch, theta)
    h_C = jnp.array(config.cost_limit)
    row_weight = batch.weight[rows] / jnp.maximum(jnp.sum(batch.weight[rows]), 1e-30)
    product = learner.family.fisher_product(theta, batch.inputs[rows], row_weight, config.cg_damping)
    return StepInputs(
        g=gradients.g,
        gain=gradients.gain,
        a=gradients.a,
        b=batch.J_D - learner.algorithm.threshold(state.algorithm),
        c=gradients.c,
        c_noise=gradients.c_noise,
        g_noise=gradients.g_noise,
        d=batch.J_C - h_C,
        solve=lambda rhs: conjugate_gradient(product, rhs, config.cg_iterations),
        fisher=product,
        delta=jnp.array(config.delta),
        d_error=batch.J_C_error,
        d_least=batch.J_C_least - h_C,
        h_C=h_C,
        tolerance=config.cost_tolerance,
        J_R=batch.J_R,
        batch=batch,
        policy=lambda step, rows: learner.family.apply(theta + step, batch.inputs[rows]),
        key=key,
    )


def update(
    learner: Learner, state: TrainState, rollout: Rollout, baseline_dists: tuple[Any, ...] = ()
) -> tuple[TrainState, Metrics]:
    """One update from one rollout. Metrics describe the policy that collected it; kl is what the update then spent."""
    config, algorithm = learner.config, learner.algorithm
    key, rows_key = jax.random.split(state.key)
    baseline_dist, nearest = (baseline_dists[0] if baseline_dists else None), {}
    if len(baseline_dists) > 1:
        baseline_dist, chosen, distances = nearest_baseline(rollout, baseline_dists)
        nearest = {
            "baseline": chosen,
            **{f"J_D_{n}": j for n, j in zip(learner.baseline_names, distances, strict=True)},
        }
    batch = make_batch(learner, state, rollout, baseline_dist)
    samples = batch.weight.shape[0]
    rows = subsample_rows(rows_key, samples, config.fisher_subsample)
    inputs = step_inputs(learner, batch, state, rows, jax.random.fold_in(rows_key, 1))
    gradients = state.gradients
    if algorithm.needs.mean_gradients:
        gradients = with_gradients(gradients, inputs.c, jnp.asarray(inputs.c_noise))
        inputs = inputs._replace(c=gradients.mean, c_noise=gradients.error)
    proposal = algorithm.step(inputs, state.algorithm)
    judge = judge_of(learner, batch, state.theta, proposal.step)
    scale = algorithm.accept(judge, inputs, proposal, state.algorithm)
    theta = state.theta + scale * proposal.step
    critics = learner.critic.fit(state.critics, batch.obs, batch.step_index, batch.targets, batch.weight, rows)
    h_C = jnp.array(config.cost_limit)
    violation = jnp.sum(jnp.maximum(batch.J_C - h_C, 0.0))
    steps = state.env_steps + jnp.sum(rollout.valid).astype(jnp.uint32)
    remembered = state.algorithm if proposal.memory is None else proposal.memory
    normaliser, taken = state.normaliser, scale
    if config.normalise_observations:
        normaliser = learner.family.absorb(state.normaliser, batch.obs, batch.weight > 0.0)
        # The statistics move, the policy does not. But the first batch only gives them: a network drawn for numbers of
        # unit size is of no use on raw ones, and begins with the second.
        rebased = learner.family.rebase(theta, state.normaliser, normaliser)
        begun = state.normaliser.count > 0
        theta, scale, taken = (
            jnp.where(begun, *pair) for pair in ((rebased, state.theta), (scale, 0.0), (scale, jnp.nan))
        )
        # Nor are its gradients those of the policy that the second batch sees.
        gradients = jax.tree.map(lambda now, before: jnp.where(begun, now, before), gradients, state.gradients)
    following = TrainState(
        theta=theta,
        critics=critics,
        algorithm=algorithm.control(remembered, Measured(batch.J_R, batch.J_C, h_C, batch.J_D, taken)),
        key=key,
        update=state.update + 1,
        env_steps=steps,
        cumulative_violation=state.cumulative_violation + violation,
        normaliser=normaliser,
        gradients=gradients,
    )
    metrics = {
        **_cost_metrics(learner, batch, h_C),
        "h_D": algorithm.threshold(state.algorithm),
        "cumulative_violation": following.cumulative_violation,
        "kl": judge(scale).kl,
        "entropy": batch.weight @ batch.dist.entropy(),
        "episode_length": batch.episode_length,
        "episode_return": batch.episode_return,
        "step_scale": scale,
        "divergence_weight": algorithm.weight(state.algorithm),
        **_critic_metrics(learner, batch),
        **nearest,
        **({} if rollout.diverged is None else {"diverged": jnp.sum(rollout.diverged)}),
        **proposal.info,
        "finite": _finite(following, batch).astype(jnp.float32),
    }
    return following, metrics


def subsample_rows(key: Array, samples: int, share: float) -> Array:
    """Rows that estimate the Fisher matrices: all, or a share drawn with replacement (a permutation is a sort)."""
    if share >= 1.0:
        return jnp.arange(samples)
    return jax.random.randint(key, (max(1, int(samples * share)),), 0, samples)


def _cost_metrics(learner: Learner, batch: Batch, h_C: Array) -> Metrics:
    """J_C and h_C of the cost that is farthest above its limit, in parts of it; with several, each by name as well."""
    worst = jnp.argmax(relative_excess(batch.J_C, h_C))
    metrics = {
        "J_R": batch.J_R,
        "J_C": batch.J_C[worst],
        "J_D": batch.J_D,
        "h_C": h_C[worst],
        "J_C_error": batch.J_C_error[worst],
    }
    if len(learner.cost_names) > 1:
        for k, name in enumerate(learner.cost_names):
            metrics |= {f"J_C_{name}": batch.J_C[k], f"h_C_{name}": h_C[k]}
    return metrics


def _critic_metrics(learner: Learner, batch: Batch) -> Metrics:
    """Share of the returns' variance that each critic explained before its fit."""
    error = (batch.targets - batch.values) ** 2 @ batch.weight
    spread = (batch.targets - (batch.targets @ batch.weight)[:, None]) ** 2 @ batch.weight
    explained = 1.0 - error / jnp.maximum(spread, 1e-12)
    names = ["reward", *learner.cost_names, *(["divergence"] if batch.baseline_dist is not None else [])]
    return {f"explained_{name}": explained[i] for i, name in enumerate(names)}


def _finite(state: TrainState, batch: Batch) -> Array:
    kept = [state.theta, *jax.tree.leaves(state.critics), batch.J_R, batch.J_C]
    kept += [batch.J_D] if batch.baseline_dist is not None else []
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in kept]))
