"""Toy environments that each expose one fault: a wrong sign, lost credit, a leaking episode end, a futile repair.

Policies are linear with no hidden layer unless said otherwise, so theta is (weights, bias, log_std) and starts at zero:
a standard normal action whatever the observation.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spacerl.types import ActionSpace
from support.learners import Toy, make_config, make_learner, train


def learn(env, algorithm: str, updates: int = 25, episodes: int = 400, baseline=None, baseline_J_R=0.0, **fields):
    """Final action mean at an observation of one, and the metrics of all updates."""
    fields = {"delta": 0.02, "discount": 1.0, "gae_lambda": 1.0, "cost_gae_lambda": 1.0, "cost_limit": 1e6} | fields
    config = make_config(algorithm, rollout_length=env.horizon, **fields)
    learner = make_learner(env, config, baseline=baseline is not None)
    state, metrics = train(learner, env, episodes, updates, baseline_theta=baseline, baseline_J_R=baseline_J_R)
    assert np.all(metrics["finite"] == 1.0)
    return learner, state, metrics


def mean_action(learner, theta, obs=(1.0,)) -> float:
    return float(learner.family.apply(jnp.asarray(theta), jnp.asarray(obs, jnp.float32)).mode()[0])


# ---------------------------------------------------------------- reward


class Target(Toy):
    """One step; the reward is highest at action 1."""

    def step(self, state, action):
        return state, -((action[0] - 1.0) ** 2), jnp.zeros(1), jnp.array(True)


def test_a_bandit_is_solved():
    """Fails on a wrong sign or scale of the reward gradient."""
    learner, state, metrics = learn(Target(), "trpo")
    assert mean_action(learner, state.theta) == pytest.approx(1.0, abs=0.2)
    assert metrics["J_R"][-1] > 0.5 * metrics["J_R"][0]
    assert np.all(metrics["kl"] <= 0.02 * 1.001)


class Delayed(Toy):
    """Two steps; the first action is rewarded after the second, and the observation in between does not show it."""

    obs_shape = (2,)
    horizon = 2

    def reset(self, key):
        return jnp.zeros(2)  # time, first action

    def observe(self, state):
        return jnp.stack([1.0 - state[0], state[0]])

    def step(self, state, action):
        first = state[0] == 0.0
        return jnp.stack([state[0] + 1.0, action[0]]), jnp.where(first, 0.0, state[1]), jnp.zeros(1), jnp.array(False)


@pytest.mark.parametrize(("gae_lambda", "learns"), [(1.0, True), (0.0, False)])
def test_credit_for_a_delayed_reward_comes_through_lambda(gae_lambda, learns):
    """With lambda 0 the observation would have to carry it; fails where advantages leak between steps or are lost."""
    learner, state, _ = learn(Delayed(), "trpo", updates=10, gae_lambda=gae_lambda)
    first, second = mean_action(learner, state.theta, (1.0, 0.0)), mean_action(learner, state.theta, (0.0, 1.0))
    if learns:
        assert first > 1.0
        assert abs(second) < 0.4
    else:
        assert abs(first) < 0.5


# ---------------------------------------------------------------- episode ends


class Mirage(Toy):
    """Half of the episodes are rich: 5 per step. The others get 1 per step until a negative action ends them, and then
    see what a rich state looks like."""

    horizon = 6

    def reset(self, key):
        return jax.random.bernoulli(key).astype(jnp.float32)

    def observe(self, state):
        return state[None]

    def step(self, state, action):
        ends = (state == 0.0) & (action[0] < 0.0)
        return jnp.where(ends, 1.0, state), 1.0 + 4.0 * state, jnp.zeros(1), ends


def test_nothing_is_expected_after_a_termination():
    """Fails where the value of the observation after the end is counted: ending would look better than going on."""
    learner, state, metrics = learn(Mirage(), "trpo", updates=20, bootstrap_truncation=True, discount=0.5)
    assert mean_action(learner, state.theta, (0.0,)) > 1.0
    first = 0.5 * 6.0 + 0.5 * 2.0 * (1.0 - 0.5**6)  # a fair coin at every step of the poor
    assert metrics["episode_length"][0] == pytest.approx(first, abs=0.4)
    assert metrics["episode_length"][-1] > 5.5
    # What follows the end is padding: it is not experience.
    assert int(state.env_steps) == np.rint(metrics["episode_length"] * 400).sum()


# ---------------------------------------------------------------- costs


class Costly(Toy):
    """One step; the reward grows with the action, and a positive action costs one."""

    def step(self, state, action):
        return state, action[0], (action > 0.0).astype(jnp.float32), jnp.array(True)


@pytest.mark.parametrize("algorithm", ["cpo", "pcpo"])
def test_a_cost_is_brought_to_its_limit_and_kept_there(algorithm):
    """Fails on a wrong sign or scale of the cost gradient, or of d. The reward alone would drive it to one."""
    _, _, metrics = learn(Costly(), algorithm, updates=30, episodes=1000, cost_limit=0.2)
    assert metrics["J_C"][0] > 0.4
    assert np.mean(metrics["J_C"][-10:]) == pytest.approx(0.2, abs=0.06)


class Unavoidable(Target):
    """The bandit with a cost of one whatever is done."""

    def step(self, state, action):
        state, reward, _, terminated = super().step(state, action)
        return state, reward, jnp.ones(1), terminated


def test_a_cost_that_nothing_changes_does_not_disturb_the_reward():
    """Violated for ever, but its gradient is zero: fails where rounding is taken for a direction."""
    learner, state, metrics = learn(Unavoidable(), "pcpo", updates=25, cost_limit=0.5)
    assert np.all(metrics["J_C"] == 1.0)
    assert mean_action(learner, state.theta) == pytest.approx(1.0, abs=0.2)
    assert metrics["cumulative_violation"][-1] == pytest.approx(0.5 * 25)


class TwoCosts(Toy):
    """One step; the reward grows with the action; positive actions and large actions cost."""

    cost_names = ("positive", "large")

    def step(self, state, action):
        costs = jnp.stack([action[0] > 0.0, jnp.abs(action[0]) > 1.0]).astype(jnp.float32)
        return state, action[0], costs, jnp.array(True)


@pytest.mark.parametrize("algorithm", ["pcpo", "space-joint"])
def test_two_costs_are_kept_at_once(algorithm):
    baseline = np.zeros(3, np.float32) if algorithm == "space-joint" else None
    fields = {"cost_limit": (0.3, 0.25), "divergence_threshold": 100.0}
    _, _, metrics = learn(TwoCosts(), algorithm, updates=30, episodes=1000, baseline=baseline, **fields)
    for name, limit in (("positive", 0.3), ("large", 0.25)):
        assert np.all(metrics[f"h_C_{name}"] == np.float32(limit))
        assert np.mean(metrics[f"J_C_{name}"][-10:]) <= limit + 0.05
    assert np.mean(metrics["J_C_positive"][-10:]) >= 0.2  # and not by giving up the reward


# ---------------------------------------------------------------- divergence


class Nothing(Toy):
    """One step without reward or cost: only the baseline can move the policy."""

    def step(self, state, action):
        return state, jnp.zeros(()), jnp.zeros(1), jnp.array(True)


BASELINE = np.array([0.0, 1.0, 0.0], np.float32)  # mean 1, standard deviation 1: a divergence of 1/2 from the start


@pytest.mark.parametrize("kind", ["direct", "full", "score"])
def test_only_the_direct_term_sees_a_bandits_divergence(kind):
    """The state never changes, so the score term is zero; fails where the direct one is missing or has a wrong sign."""
    fields = {"divergence_gradient": kind, "divergence_threshold": 0.02, "threshold_rule": "fixed"}
    learner, state, metrics = learn(Nothing(), "space-printed", updates=12, baseline=BASELINE, **fields)
    assert metrics["J_D"][0] == pytest.approx(0.5, abs=1e-5)
    if kind == "score":
        assert np.array_equal(state.theta, np.zeros(3))
    else:
        assert metrics["J_D"][-1] == pytest.approx(0.02, abs=0.005)
        assert 0.0 < mean_action(learner, state.theta) < 1.0


def test_a_weighted_divergence_pulls_to_the_baseline():
    """Fails with the sign the paper prints."""
    _, _, metrics = learn(Nothing(), "f-cpo", updates=20, baseline=BASELINE)
    assert metrics["J_D"][-1] < 0.1


def test_pretraining_imitates_and_then_improves():
    baseline = np.array([0.0, 0.5, 0.0], np.float32)  # J_R = -(1 + 1/4); a better mean has -1, less spread has more
    fields = {"updates": 40, "baseline_J_R": -1.25, "pretrain_tolerance": 0.1, "episodes": 2000}
    _, _, metrics = learn(Target(), "pretrain", baseline=baseline, **fields)
    imitating = metrics["divergence_weight"]
    assert imitating[0] == 1.0
    assert imitating[-1] == 0.0
    switch = int(np.argmin(imitating))
    assert np.all(imitating[switch:] == 0.0)
    assert metrics["J_D"][switch] < 0.3 * metrics["J_D"][0]
    assert metrics["J_R"][-1] > -0.9


# ---------------------------------------------------------------- discrete actions


class ThreeActions(Toy):
    """One step, three discrete actions: the second pays most and costs one, the third pays a little."""

    action_space = ActionSpace("discrete", 3)

    def step(self, state, action):
        return state, jnp.array([0.0, 1.0, 0.4])[action], (action == 1).astype(jnp.float32)[None], jnp.array(True)


def test_a_categorical_policy_keeps_its_cost_and_takes_the_best_that_is_left():
    learner, state, metrics = learn(ThreeActions(), "pcpo", updates=30, episodes=1000, delta=0.02, cost_limit=0.25)
    probability = probabilities(learner, state.theta)
    assert np.mean(metrics["J_C"][-10:]) == pytest.approx(0.25, abs=0.06)
    assert probability[2] > 0.6


def probabilities(learner, theta) -> np.ndarray:
    logits = np.asarray(learner.family.apply(jnp.asarray(theta), jnp.ones(1)).logits, np.float64)
    return np.exp(logits) / np.exp(logits).sum()


# ---------------------------------------------------------------- guarded SPACE, with critics that err

NEURAL = {"critic": "neural", "critic_kl": 0.05}


class Harmless(Target):
    """The bandit over ten steps, with a cost that is always zero."""

    horizon = 10

    def step(self, state, action):
        return state, -((action[0] - 1.0) ** 2), jnp.zeros(1), jnp.array(False)


@pytest.mark.parametrize("algorithm", ["space", "pcpo", "trpo-lagrangian"])
def test_a_cost_that_never_is_changes_nothing(algorithm):
    """Its critic's noise is no advantage: fails where a limit of zero makes an update spend KL on a phantom."""
    baseline = np.array([0.0, -3.0, 0.0], np.float32) if algorithm == "space" else None
    fields = {"cost_limit": 0.0, "updates": 12, "episodes": 200, "backtrack_tries": 15, **NEURAL}
    learner, state, metrics = learn(Harmless(), algorithm, baseline=baseline, **fields)
    _, plain, _ = learn(Harmless(), "trpo", **fields)
    assert np.all(metrics["J_C"] == 0.0)
    assert np.all(metrics["kl"] <= 0.02 * 1.3)
    if algorithm == "space":
        assert np.all(metrics["cost_margin"] == 0.0)
    alone = mean_action(learner, plain.theta)
    assert mean_action(learner, state.theta) == pytest.approx(alone, abs=0.15)


def test_the_default_keeps_a_cost_while_a_baseline_pulls_beyond_it():
    """The baseline takes action 2 and always pays the cost; neural critics, standard settings."""
    baseline = np.array([0.0, 2.0, 0.0], np.float32)
    fields = {"cost_limit": 0.2, "updates": 30, "episodes": 1000, "divergence_threshold": 0.01, **NEURAL}
    _, _, metrics = learn(Costly(), "space", baseline=baseline, **fields)
    assert metrics["J_C"][0] > 0.4
    end = metrics["J_C"][-10:]
    assert np.mean(end) == pytest.approx(0.19, abs=0.03)
    assert np.mean(end <= 0.2) >= 0.5
    assert np.sum(metrics["follows"]) > 0


class Long(Toy):
    """The same bandit in each of 200 steps, of which J_R at a discount of 0.9 counts about ten."""

    horizon = 200

    def step(self, state, action):
        return state, -((action[0] - 1.0) ** 2), jnp.zeros(1), jnp.array(False)


def test_promises_of_long_episodes_are_kept():
    """Fails where gains are promised in other units than J_R is measured in: kappa would fall from the start."""
    baseline = np.array(
        [0.0, 1.0, np.log(0.3)], np.float32
    )  # the best action, and less noise than the policy begins with
    fields = {"discount": 0.9, "delta": 1e-4, "updates": 10, "episodes": 50, "pull_kl": 0.01, **NEURAL}
    _, _, metrics = learn(
        Long(), "space", baseline=baseline, divergence_threshold=1.0, threshold_rule="fixed", **fields
    )
    assert np.all(metrics["follows"] == 1.0)
    gains = np.diff(metrics["J_R"])
    promised = metrics["pull_promise"][:-1]
    assert np.sum(gains) == pytest.approx(np.sum(promised), rel=0.3)
    assert metrics["pull_kl_bound"][-1] > 0.04
