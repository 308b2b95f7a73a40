"""Where a run begins: with a fresh policy, or with pi_B itself where that is known to be safe and better."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from spacerl.algorithms.space import TOLERANCE
from spacerl.policies.normaliser import fresh_normaliser
from spacerl.policies.policy import NetworkPolicy
from spacerl.rollout.adapter import JaxBatchEnv
from spacerl.rollout.evaluate import Play, episode_returns, rollout_on_device
from spacerl.rollout.host import episodes, pack, sampling
from spacerl.training.assemble import Parts
from spacerl.training.learner import Learner
from spacerl.training.measure import CERTAIN, excess, in_means, measure_baselines, measuring
from spacerl.training.programs import distribution_on
from spacerl.training.update import initial_state, make_batch, policy_inputs, subsample_rows, with_policy
from spacerl.types import Array, BatchEnv, InputError, JaxEnv, Policy, Rollout, TrainState

FITTING_STEPS, MINIBATCH, RATE = 2000, 1024, 3e-3
ROUNDS, CLOSE, HELD_OUT = 5, 0.05, 10  # of so many steps at most; nats that are near enough; every tenth row judges
FAR_SAFER = 0.25  # of what a fresh policy breaks a limit by, up to which beginning at an unsafe baseline is worth it
CRITIC_FITS = 20  # on the same episodes: a first step must not follow critics that know nothing


class Choice(NamedTuple):
    baseline: int | None  # which one the run begins with; None: a fresh policy
    why: str  # one line
    better: bool = True  # whether it earns more than a fresh policy by more than chance: else it is not followed either


def begin(parts: Parts, say: bool = False) -> tuple[TrainState, dict[str, Any] | None]:
    """The state of a new run before its first update, and what the run folder keeps about its baselines."""
    measured, summary = measure_baselines(parts)
    state = initial_state(parts.learner, parts.config.seed, measured)
    if summary is None:
        if parts.config.start == "baseline":
            raise InputError("start is 'baseline' and there is none: give one with --baseline, or begin fresh")
        return state, None
    choice = choose(parts, state, summary)
    measured = measured._replace(begun=choice.baseline is not None, better=choice.better)
    state = initial_state(parts.learner, parts.config.seed, measured)
    if choice.baseline is not None:
        state = at_baseline(parts, state, parts.baselines[choice.baseline])
    if say and choice.why:
        print(choice.why, file=sys.stderr)
    kept = {"chosen": "fresh" if choice.baseline is None else "baseline", "why": choice.why}
    return state, summary | {"start": kept}


def choose(parts: Parts, state: TrainState, summary: dict[str, Any]) -> Choice:
    """Of baselines that keep the limit, or nearly, the one that earns most, if that is more than a fresh policy earns,
    by two standard errors. But not where that is less than episodes differ by chance, and a fresh policy keeps the
    limit too: learning finds as much by itself, and a baseline that does next to nothing is a bad place to learn from.

    Where all break it, the one that earns most, if it breaks it by no more than a quarter of what a fresh policy does,
    for certain: who begins there keeps habits that are hard to lose, and a fresh policy that is not much worse comes
    back faster."""
    config = parts.config
    everyone = summary.get("all", [summary])
    if config.start == "fresh":
        return Choice(None, "")
    if config.start == "baseline":
        best = max(range(len(everyone)), key=lambda i: (is_nearly_safe(everyone[i]), everyone[i]["J_R"]))
        return Choice(best, f"begins at baseline '{everyone[best]['name']}', as asked")
    safe = [i for i, each in enumerate(everyone) if is_nearly_safe(each)]
    best = max(safe or range(len(everyone)), key=lambda i: everyone[i]["J_R"])
    chosen, fresh = everyone[best], _fresh_summary(parts, state)
    error = math.hypot(chosen["J_R_error"], fresh["J_R_error"])
    more, doubt, chance = chosen["J_R"] - fresh["J_R"], 2.0 * error, error * math.sqrt(chosen["episodes"] / 2.0)
    costs = costs_in_words(chosen)
    told = f"baseline '{chosen['name']}' earns J_R {chosen['J_R']:.3g}, a fresh policy {fresh['J_R']:.3g}"
    told += f" (± {doubt:.2g} between them)"
    better = more > doubt
    if better and safe and more < chance and excess(fresh, CERTAIN) <= 0.0:
        alike = f"less than the standard deviation of an episode ({chance:.2g}), and a fresh policy keeps the limit too"
        return Choice(None, f"begins fresh: {told}, {alike}", better=False)
    if better and safe:
        return Choice(best, f"begins at the baseline: {told}, {costs}")
    if better and excess(chosen, CERTAIN) < FAR_SAFER * excess(fresh, -CERTAIN):
        return Choice(best, f"begins at the baseline: {told}, {costs}, where a fresh policy has J_C {fresh['J_C']:.3g}")
    why = told if safe else f"baseline '{chosen['name']}' has {costs}"
    return Choice(None, f"begins fresh: {why}")


def _fresh_summary(parts: Parts, state: TrainState) -> dict[str, Any]:
    """What a policy that has learned nothing earns and costs, as of a baseline."""
    fresh = NetworkPolicy(parts.learner.family, state.theta, "fresh")
    return in_means(parts, *episode_returns(parts.env, fresh, parts.config.discount, measuring(parts, 2)))


def costs_in_words(summary: dict[str, Any]) -> str:
    """Every cost with its own limit; one alone needs no name."""
    costs, tolerance = summary.get("costs", {}), summary["cost_tolerance"]
    allowed = "allowed" + (f" and {tolerance:g} tolerated" if tolerance else "")
    if len(costs) < 2:
        return f"J_C {summary['J_C']:.3g} of {summary['h_C']:g} {allowed}"
    return ", ".join(f"{name} {each['J_C']:.3g} of {each['h_C']:g}" for name, each in costs.items()) + f" {allowed}"


def is_nearly_safe(summary: dict[str, Any]) -> bool:
    return excess(summary, -CERTAIN) <= TOLERANCE


def at_baseline(parts: Parts, state: TrainState, baseline: Policy) -> TrainState:
    """The policy fitted to pi_B on episodes that pi_B itself plays, so that nothing else is tried, and critics fitted
    to what these episodes returned. Their steps, and by how much they break a limit, count as those of an update."""
    learner, config = parts.learner, parts.config
    rollout = episodes_of(parts, baseline)
    if baseline.compiles:
        dist = jax.jit(baseline.apply)(baseline.parameters, rollout.obs)
    else:
        dist = jax.tree.map(jnp.asarray, distribution_on(baseline, rollout))
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (rollout.obs, dist, rollout.valid))
    if config.normalise_observations:
        state = state._replace(normaliser=learner.family.absorb(state.normaliser, flat[0], flat[2]))
    state = state._replace(theta=fitted(parts, state, baseline, *flat))
    return _preparation(_Preparing(learner))(state, rollout, dist)


class _Preparing:
    """A learner, equal to any that differs from it in its seed and baselines alone: runs of a sweep share a program."""

    def __init__(self, learner: Learner):
        self.learner = learner
        alike = dataclasses.replace(learner.config, seed=0, updates=1, baseline=()).to_json()
        self.alike = (alike, learner.cost_names, json.dumps(learner.family.spec()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Preparing) and self.alike == other.alike

    def __hash__(self) -> int:
        return hash(self.alike)


@functools.lru_cache(maxsize=4)
def _preparation(preparing: _Preparing) -> Callable[[TrainState, Rollout, Any], TrainState]:
    learner, config = preparing.learner, preparing.learner.config

    @jax.jit
    def prepared(state: TrainState, rollout: Rollout, dist: Any) -> TrainState:
        batch = make_batch(learner, state, with_policy(learner, state, rollout), dist)
        key, rows_key = jax.random.split(state.key)
        rows = subsample_rows(rows_key, batch.weight.shape[0], config.fisher_subsample)

        def fit(_: Array, critics: Any) -> Any:
            return learner.critic.fit(critics, batch.obs, batch.step_index, batch.targets, batch.weight, rows)

        violation = jnp.sum(jnp.maximum(batch.J_C - jnp.array(config.cost_limit), 0.0))
        return state._replace(
            critics=jax.lax.fori_loop(0, CRITIC_FITS, fit, state.critics),
            key=key,
            env_steps=state.env_steps + jnp.sum(rollout.valid).astype(jnp.uint32),
            cumulative_violation=state.cumulative_violation + violation,
        )

    return prepared


def episodes_of(parts: Parts, policy: Policy) -> Rollout:
    """A batch of episodes that a policy plays."""
    config = parts.config
    if isinstance(parts.env, JaxEnv) and policy.compiles:
        return rollout_on_device(parts.env, policy, Play(parts.columns, config.rollout_length, config.seed + 3))
    env = parts.env if isinstance(parts.env, BatchEnv) else JaxBatchEnv(parts.env, parts.columns)
    act = sampling(policy, env.spec.action.size, env.lanes, config.seed + 3)
    keep_next = config.bootstrap_truncation
    played = episodes(env, act, config.seed + 3, config.rollout_length, steps=config.batch_size, keep_next=keep_next)
    env.counts()  # faults on the way are not those of an update
    return jax.tree.map(jnp.asarray, pack(played, parts.columns, config.rollout_length))


def fitted(parts: Parts, state: TrainState, baseline: Policy, obs: Array, dist: Any, valid: Array) -> Array:
    """Parameters of our policy that act as pi_B does: its own where they fit, else those of the least KL(pi_B, pi) on
    its observations. Rules that switch take long to learn: rounds follow while KL on rows that were held out falls."""
    learner, config = parts.learner, parts.config
    family = learner.family
    if isinstance(baseline, NetworkPolicy) and baseline.family.spec() == family.spec():
        theta = jnp.asarray(baseline.theta)
        if config.normalise_observations:
            return family.rebase(theta, fresh_normaliser(family.width), state.normaliser)
        return theta
    inputs = policy_inputs(learner, state.normaliser, obs)
    whole = np.flatnonzero(np.asarray(valid))
    judged = np.arange(len(whole)) % HELD_OUT == HELD_OUT - 1
    rows, held_out = jnp.asarray(whole[~judged]), jnp.asarray(whole[judged] if judged.any() else whole)
    optimiser = optax.adam(optax.cosine_decay_schedule(RATE, FITTING_STEPS))

    def loss(theta: Array, some: Array) -> Array:
        target = jax.tree.map(lambda leaf: leaf[some], dist)
        return jnp.mean(target.kl(family.apply(theta, inputs[some])))

    def step(carry: tuple[Array, Any], key: Array) -> tuple[tuple[Array, Any], None]:
        theta, moments = carry
        some = rows[jax.random.randint(key, (MINIBATCH,), 0, rows.shape[0])]
        updates, moments = optimiser.update(jax.grad(loss)(theta, some), moments)
        return (jnp.add(theta, jnp.asarray(updates)), moments), None

    @jax.jit
    def fit(theta: Array, key: Array) -> tuple[Array, Array]:
        theta, _ = jax.lax.scan(step, (theta, optimiser.init(theta)), jax.random.split(key, FITTING_STEPS))[0]
        return theta, loss(theta, held_out)

    key, best, least = jax.random.PRNGKey(config.seed), state.theta, math.inf
    for i in range(ROUNDS):
        theta, found = fit(best, key if i == 0 else jax.random.fold_in(key, i))
        if not found < least:
            break
        is_last = found < CLOSE or found >= 0.9 * least
        best, least = theta, float(found)
        if is_last:
            break
    return best
