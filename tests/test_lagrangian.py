"""Lagrangian TRPO: multipliers by hand, the step against a convex solver, toys with a known best safe action."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spacerl.algorithms.lagrangian import MultiplierState, relative_violation
from spacerl.types import UNMEASURED, Trial
from support.convex import random_problems, trust_region_optimum
from support.learners import Toy, algorithm_of, make_config, make_learner, train

OPTIMISED = True  # steps are compared to the last digits
FORMS = ("trpo-lagrangian", "trpo-pid")
COUNT = 100


def rule_of(form: str, **options):
    return algorithm_of(make_config(form, **options))


def inputs_with(d, h_C, seed: int = 0, **replaced):
    """A step's inputs with explicit Fisher matrix, the given violations and limits."""
    d, h_C = jnp.asarray(d, jnp.float32), jnp.asarray(h_C, jnp.float32)
    problem = random_problems(seed, 1, len(d))
    problem = problem._replace(**replaced) if replaced else problem
    return jax.tree.map(lambda x: x[0], problem).inputs()._replace(d=d, h_C=h_C)


def multipliers_over(rule, errors, costs: int = 1) -> np.ndarray:
    """Multipliers (updates, K) that each step uses, with a limit of 1 and one row of `errors` per batch."""
    state, used = rule.init(costs, UNMEASURED), []
    for error in errors:
        # With a limit of 1 a violation d <= 0 is its own error; an error e > 0 needs J_C = 1 / (1 - e).
        error = np.broadcast_to(error, costs)
        state = rule.step(inputs_with(np.where(error > 0, error / (1 - error), error), np.ones(costs)), state).memory
        used.append(state.multipliers)
    return np.array(used)


# ---------------------------------------------------------------- error and multipliers by hand


@pytest.mark.parametrize(
    ("J_C", "h_C", "error"),
    [
        (0.0, 5.0, -1.0),
        (4.0, 5.0, -0.2),
        (5.0, 5.0, 0.0),
        (6.25, 5.0, 0.2),
        (10.0, 5.0, 0.5),
        (5000.0, 5.0, 0.999),
        (0.1, 0.0, 1.0),
        (0.0, 0.0, 0.0),
        (-100.0, 5.0, -1.0),  # costs below zero stay within the bounds
        (-1.0, 0.0, -1.0),
        (-1.0, -2.0, 0.5),
        (-4.0, -2.0, -0.5),
        (1.0, -1.0, 1.0),
    ],
)
def test_an_error_is_a_part_of_the_limit_and_bounded(J_C, h_C, error):
    found = relative_violation(jnp.array([J_C - h_C]), jnp.array([h_C]))
    np.testing.assert_allclose(found, [error], rtol=1e-6)


def test_plain_multipliers_sum_the_errors_the_newest_included_and_never_turn_negative():
    found = multipliers_over(rule_of("trpo-lagrangian", multiplier_rate=0.5), [0.4, 0.6, -0.2, -1.0, -1.0, 0.8])
    np.testing.assert_allclose(found[:, 0], [0.2, 0.5, 0.4, 0.0, 0.0, 0.4], atol=1e-6)


def test_each_cost_has_its_own_multiplier():
    rule = rule_of("trpo-lagrangian", multiplier_rate=0.5, cost_limit=(1.0, 1.0))
    found = multipliers_over(rule, [(0.5, -0.5), (-0.25, 0.5), (0.0, 0.5)], costs=2)
    np.testing.assert_allclose(found, [[0.25, 0.0], [0.125, 0.25], [0.125, 0.5]], atol=1e-6)


def test_pid_multipliers_by_hand():
    rule = rule_of("trpo-pid", proportional_gain=2.0, integral_gain=0.5, derivative_gain=3.0)
    #  error  integral          rise   2 error + integral + 3 rise
    #   0.5   0.25              none before the first batch         1.25
    #   0.6   0.55              0.1                          1.2 + 0.55 + 0.3
    #   0.2   0.65              falls                        0.4 + 0.65
    #  -0.2   0.55              falls                       -0.4 + 0.55
    #  -1.0   0.05              falls                       -2.0 + 0.05, not below 0
    #  -1.0   -0.45, stays 0    0                            0
    #  -0.8   0                 0.2                         -1.6 + 0.6, not below 0
    #   0.4   0.2               1.2                          0.8 + 0.2 + 3.6
    found = multipliers_over(rule, [0.5, 0.6, 0.2, -0.2, -1.0, -1.0, -0.8, 0.4])
    np.testing.assert_allclose(found[:, 0], [1.25, 2.05, 1.05, 0.15, 0.0, 0.0, 0.0, 4.6], atol=1e-5)


def test_pid_without_proportion_and_derivative_is_the_plain_form():
    errors = np.random.default_rng(1).uniform(-0.9, 0.9, 40)
    pid = rule_of("trpo-pid", proportional_gain=0.0, integral_gain=0.3, derivative_gain=0.0)
    plain = rule_of("trpo-lagrangian", multiplier_rate=0.3)
    np.testing.assert_array_equal(multipliers_over(pid, errors), multipliers_over(plain, errors))


@pytest.mark.parametrize("form", FORMS)
def test_the_state_keeps_its_shapes_and_types(form):
    rule = rule_of(form)
    before = rule.init(2, UNMEASURED)
    after = rule.step(inputs_with([1.0, -1.0], [1.0, 2.0]), before).memory
    assert [(leaf.shape, leaf.dtype) for leaf in after] == [(leaf.shape, leaf.dtype) for leaf in before]


# ---------------------------------------------------------------- the step


@functools.cache
def batched(form: str, costs: int):
    """Steps, multipliers and weights of many problems with their limits, from a state that all share."""
    rule = rule_of(form, cost_limit=(1.0,) * costs)

    def step(problem, h_C, state):
        proposal = rule.step(problem.inputs()._replace(h_C=h_C), state)
        return proposal.step, proposal.memory

    return jax.jit(jax.vmap(step, in_axes=(0, 0, None)))


def given_state(multipliers) -> MultiplierState:
    """With multipliers from before, so that several are in play at once."""
    multipliers = jnp.asarray(multipliers, jnp.float32)
    costs = len(multipliers)
    return MultiplierState(multipliers, multipliers, jnp.ones(costs), jnp.zeros(1 + costs))


@pytest.mark.parametrize("costs", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_the_step_is_the_best_one_for_reward_minus_multipliers_times_costs(form, costs):
    """Against an interior-point method on the gradient g/|g| - sum m c/|c|, in double precision."""
    problems = random_problems(seed=2, count=COUNT, costs=costs)
    h_C = np.full((COUNT, costs), 0.7, np.float32)
    steps, memory = batched(form, costs)(problems, h_C, given_state([0.8, 0.3][:costs]))
    for i in range(COUNT):
        p, m = problems.one(i), np.asarray(memory.multipliers[i], np.float64)
        norms = np.sqrt([v @ np.linalg.solve(p.F, v) for v in (p.g, *p.c)])
        gradient = p.g / norms[0] - (m / norms[1:]) @ p.c
        x = np.linalg.solve(p.F, gradient)
        length = np.sqrt(gradient @ x)
        if length < 1e-2:  # reward and costs cancel, and the direction is rounding
            continue
        expected = np.sqrt(2.0 * p.delta) / length * x
        error = steps[i] - expected
        assert np.sqrt(error @ p.F @ error) <= 1e-4 / length * np.sqrt(2.0 * p.delta)
        oracle = trust_region_optimum(p.F, gradient, p.delta)
        assert gradient @ steps[i] >= (1 - 1e-4) * (gradient @ oracle)
        np.testing.assert_allclose(memory.weights[i], np.append(1.0, m) / norms, rtol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_one_solve_is_all_a_step_takes(form):
    calls = []
    inputs = inputs_with([0.5, -0.5], [1.0, 1.0])

    def counted(rows):
        calls.append(rows.shape)
        return inputs.solve(rows)

    rule_of(form).step(inputs._replace(solve=counted), given_state([0.5, 0.5]))
    assert calls == [(3, 6)]


@pytest.mark.parametrize("reward", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("cost", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("form", FORMS)
def test_neither_the_unit_of_reward_nor_that_of_cost_changes_a_step(form, reward, cost):
    problems = random_problems(seed=3, count=COUNT, costs=2)
    h_C = np.full((COUNT, 2), 0.5, np.float32)
    state = given_state([0.4, 1.5])
    scaled = problems._replace(
        g=np.float32(reward) * problems.g, c=np.float32(cost) * problems.c, d=np.float32(cost) * problems.d
    )
    steps, memory = batched(form, 2)(problems, h_C, state)
    others, other_memory = batched(form, 2)(scaled, np.float32(cost) * h_C, state)
    np.testing.assert_allclose(other_memory.multipliers, memory.multipliers, atol=2e-5)
    sizes = np.linalg.norm(steps, axis=-1)
    assert np.all(np.linalg.norm(others - steps, axis=-1) <= 1e-3 * sizes)
    assert np.median(np.linalg.norm(others - steps, axis=-1) / sizes) <= 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_while_every_cost_is_kept_the_step_is_that_of_trpo(form):
    trpo = rule_of("trpo")
    rule = rule_of(form)
    state = rule.init(2, UNMEASURED)
    for seed in range(5):
        inputs = inputs_with([-0.5, 0.0], [1.0, 2.0], seed)
        proposal = rule.step(inputs, state)
        expected = trpo.step(inputs, trpo.init(2, UNMEASURED)).step
        assert np.array_equal(proposal.memory.multipliers, [0.0, 0.0])
        np.testing.assert_allclose(proposal.step, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
        state = proposal.memory


@pytest.mark.parametrize("form", FORMS)
def test_without_reward_to_follow_the_step_leads_back_to_the_limit(form):
    inputs = inputs_with([0.5], [1.0], g=np.zeros((1, 6), np.float32))
    rule = rule_of(form)
    proposal = rule.step(inputs, rule.init(1, UNMEASURED))
    x = inputs.solve(inputs.c)[0]
    expected = -jnp.sqrt(2.0 * inputs.delta / (inputs.c[0] @ x)) * x
    np.testing.assert_allclose(proposal.step, expected, rtol=1e-5)

    def judge(scale):
        return Trial(jnp.zeros(()), scale * inputs.c @ proposal.step, jnp.zeros(()), jnp.zeros(()))

    assert rule.accept(judge, inputs, proposal, rule.init(1, UNMEASURED)) == 1.0


@pytest.mark.parametrize("form", FORMS)
def test_a_cost_that_nothing_changes_leaves_the_others_alone(form):
    """Its gradient vanishes; its multiplier grows all the same."""
    rule = rule_of(form)
    two = inputs_with([3.0, 0.5], [1.0, 1.0])
    two = two._replace(c=two.c.at[0].set(0.0))
    one = two._replace(c=two.c[1:], d=two.d[1:], h_C=two.h_C[1:])
    found, expected = (rule.step(inputs, rule.init(len(inputs.d), UNMEASURED)) for inputs in (two, one))
    np.testing.assert_allclose(found.step, expected.step, rtol=1e-5)
    assert found.memory.multipliers[0] > found.memory.multipliers[1] > 0.0
    assert found.memory.weights[1] == 0.0


@pytest.mark.parametrize("form", FORMS)
def test_the_line_search_weighs_costs_as_the_step_did(form):
    """The multipliers of this batch decide, not those of the state before, which would be zero."""
    rule, inputs = rule_of(form, backtrack_tries=3), inputs_with([1.0], [1.0])
    state = rule.init(1, UNMEASURED)
    proposal = rule.step(inputs, state)
    price = float(proposal.memory.weights[1] / proposal.memory.weights[0])  # reward that makes up for a unit of cost
    assert price > 0.0

    def scale_for(cost):
        change = Trial(jnp.array(1.0), jnp.array([cost]), jnp.zeros(()), jnp.zeros(()))
        return float(rule.accept(lambda scale: change, inputs, proposal, state))

    assert scale_for(0.99 / price) == 1.0
    assert scale_for(1.01 / price) == 0.0


# ---------------------------------------------------------------- toys


class Dear(Toy):
    """One step; the reward is highest at action 1, and the action is what it costs."""

    reward_unit = cost_unit = 1.0

    def step(self, state, action):
        return state, -self.reward_unit * (action[0] - 1.0) ** 2, self.cost_unit * action, jnp.array(True)


class InOtherUnits(Dear):
    reward_unit, cost_unit = 1e3, 1e-3


class TwoSteps(Toy):
    """The reward is highest at action 1, then 2; each costs itself, so with a sum of 1 the best are 0 and 1."""

    obs_shape = (2,)
    horizon = 2

    def observe(self, state):
        return jax.nn.one_hot(state, 2)

    def reset(self, key):
        return jnp.array(0)

    def step(self, state, action):
        return state + 1, -((action[0] - 1.0 - state) ** 2), action, state == 1


class Dearer(Dear):
    """Nothing is free: the first policy costs 1."""

    def step(self, state, action):
        state, reward, cost, terminated = super().step(state, action)
        return state, reward, cost + 1.0, terminated


@pytest.mark.parametrize("form", FORMS)
def test_the_first_step_knows_the_first_batch(form):
    config = make_config(form, delta=0.01, discount=1.0, cost_limit=0.5)
    env = Dearer()
    _, metrics = train(make_learner(env, config), env, 1000, 1)
    gain = sum(config.options.get(name, 0.0) for name in ("multiplier_rate", "proportional_gain", "integral_gain"))
    error = 1.0 - 0.5 / metrics["J_C"][0]
    np.testing.assert_allclose(metrics["multiplier"][0], gain * error, rtol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_the_cost_settles_at_its_limit(form):
    """Without the multiplier the action would go to 1. Reward and cost pull equally at the best safe action."""
    config = make_config(form, delta=0.001, discount=1.0, cost_limit=0.3)
    env = Dear()
    _, metrics = train(make_learner(env, config), env, 1000, 120)
    assert abs(metrics["J_C"][-60:].mean() - 0.3) < 0.03
    assert abs(metrics["multiplier"][-60:].mean() - 1.0) < 0.2


@pytest.mark.parametrize("form", FORMS)
def test_two_steps_settle_at_the_best_that_is_allowed(form):
    config = make_config(form, delta=0.001, discount=1.0, cost_limit=1.0, gae_lambda=1.0, cost_gae_lambda=1.0)
    env = TwoSteps()
    learner = make_learner(env, config)
    state, metrics = train(learner, env, 1000, 300)
    actions = learner.family.apply(state.theta, jnp.eye(2)).mean[:, 0]
    np.testing.assert_allclose(actions, [0.0, 1.0], atol=0.15)
    assert abs(metrics["J_C"][-150:].mean() - 1.0) < 0.05
    assert abs(metrics["multiplier"][-150:].mean() - 1.0) < 0.2


@pytest.mark.parametrize("form", FORMS)
def test_training_is_the_same_in_other_units(form):
    found = {}
    for env, limit in ((Dear(), 0.3), (InOtherUnits(), 0.3e-3)):
        config = make_config(form, delta=0.001, discount=1.0, cost_limit=limit)
        state, metrics = train(make_learner(env, config), env, 500, 30)
        found[type(env)] = (state.theta, metrics["J_C"] / env.cost_unit, metrics["multiplier"])
    for one, other in zip(found[Dear], found[InOtherUnits], strict=True):
        np.testing.assert_allclose(one, other, atol=0.01)
