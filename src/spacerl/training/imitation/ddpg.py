"""DDPG on logged data alone, as the paper makes its human baseline: nothing is played while it learns.

Actor and critic are the policy's network, the critic with the action among its numbers. Where the actor would leave
the bounds of an action its gradient is turned round (inverting gradients), since our policies have no squashed output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from spacerl.policies.family import GaussianPolicy, PolicyFamily
from spacerl.policies.networks import Layout, Network, Seen
from spacerl.training.imitation.cloning import JUDGED_AT, minibatches
from spacerl.training.imitation.data import Steps
from spacerl.types import Array

ACTOR_RATE, CRITIC_RATE = 1e-4, 1e-3  # the paper's
FOLLOWING = 5e-3  # share of the networks that their targets take over at each update


@dataclasses.dataclass(frozen=True)
class QNetwork:
    """Q(s, a): the policy's layers, with the action beside what the convolutions make of the images."""

    layout: Layout
    hidden: tuple[int, ...]
    actions: int

    def fresh(self, key: Array) -> Network:
        wider = _Wider(self.layout.obs_shape, self.layout.images, self.layout.filters, self.actions)
        return wider.network(self.hidden, 1, key)

    def __call__(self, network: Network, obs: Array, action: Array) -> Array:
        seen = self.layout.see(obs.reshape(obs.shape[0], -1))
        return network(Seen(seen.images, jnp.concatenate([seen.numbers, action], axis=-1)))[..., 0]


@dataclasses.dataclass(frozen=True)
class _Wider(Layout):
    """A layout whose dense layers get the action as well."""

    extra: int = 0

    @property
    def features(self) -> int:
        return super().features + self.extra


class Learned(NamedTuple):
    """What is learned, and what it follows."""

    actor: Array
    critic: Any
    actor_target: Array
    critic_target: Any
    actor_state: Any
    critic_state: Any


def ddpg(
    family: PolicyFamily,
    theta: Array,
    see: Callable[[Array], Array],
    steps: Steps,
    *,
    discount: float,
    updates: int,
    batch: int,
    seed: int,
    told: Callable[[int], None],
) -> tuple[Array, dict[str, float]]:
    """theta (P,) whose mean is the actor, and figures of the last tenth of the updates."""
    q = QNetwork(family.layout, family.hidden, family.action.size)
    actor_steps, critic_steps = optax.adam(ACTOR_RATE), optax.adam(CRITIC_RATE)
    low, high = bounds_in_policy_units(family)

    def act(actor: Array, obs: Array) -> Array:
        policy = family.unravel(actor)
        assert isinstance(policy, GaussianPolicy)
        return family.apply(actor, obs).mode()

    @jax.jit
    def improve(now: Learned, obs: Array, action: Array, reward: Array, after: Array, terminated: Array):
        obs, after = see(obs), see(after)
        next_action = jnp.clip(act(now.actor_target, after), low, high)
        following = q(now.critic_target, after, next_action)
        target = reward + discount * (1.0 - terminated) * following

        def error(critic: Any) -> Array:
            return jnp.mean((q(critic, obs, action) - target) ** 2)

        loss, slope = jax.value_and_grad(error)(now.critic)
        change, critic_state = critic_steps.update(slope, now.critic_state)
        critic: Any = optax.apply_updates(now.critic, change)

        proposed = act(now.actor, obs)
        pull = jax.grad(lambda a: jnp.sum(q(critic, obs, a)))(proposed)
        room = jnp.where(pull > 0, high - proposed, proposed - low) / (high - low)
        pull = jax.lax.stop_gradient(pull * room)
        slope = jax.grad(lambda t: -jnp.mean(jnp.sum(pull * act(t, obs), -1)))(now.actor)
        change, actor_state = actor_steps.update(slope, now.actor_state)
        actor: Any = optax.apply_updates(now.actor, change)

        def follow(target: Any, network: Any) -> Any:
            return jax.tree.map(lambda a, b: a + FOLLOWING * (b - a), target, network)

        targets = follow(now.actor_target, actor), follow(now.critic_target, critic)
        return Learned(actor, critic, *targets, actor_state, critic_state), loss, jnp.mean(jnp.abs(proposed - action))

    critic: Any = q.fresh(jax.random.key(seed + 1))
    now = Learned(theta, critic, theta, critic, actor_steps.init(theta), critic_steps.init(critic))
    figures: list[tuple[float, float]] = []
    rows = np.arange(len(steps.reward))
    for done, chosen in enumerate(minibatches(rows, batch, updates, seed), 1):
        before = steps.before[chosen]
        now, loss, distance = improve(
            now,
            steps.observations[before],
            steps.action[chosen],
            steps.reward[chosen],
            steps.observations[before + 1],
            steps.terminated[chosen],
        )
        if done > 0.9 * updates:
            figures.append((float(loss), float(distance)))
        if done % max(1, updates // JUDGED_AT) == 0:
            told(done)
    losses, distances = np.mean(figures, axis=0).tolist()
    return now.actor, {"critic_loss": losses, "distance_from_actions": distances}


def bounds_in_policy_units(family: PolicyFamily) -> tuple[Array, Array]:
    action = family.action
    if action.scaled:
        return -jnp.ones(action.size), jnp.ones(action.size)
    return jnp.array(action.low), jnp.array(action.high)
