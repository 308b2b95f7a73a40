"""One update taken apart: units of every gradient against a task that can be solved on paper, padding, bookkeeping.

`Drift` is linear and Gaussian: with a linear policy of parameters theta = (w, b, log_std) the state stays normal, so
J_R, J_C and J_D are closed formulas of theta, whose finite differences the sampled gradients must match.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spacerl.core.estimates import no_gradients, with_gradients
from spacerl.policies.networks import Layout
from spacerl.training.surrogates import judge_of, surrogate_gradients, surrogates
from spacerl.training.update import initial_state, make_batch, step_inputs, subsample_rows, update
from spacerl.types import Rollout
from support.learners import Toy, algorithm_of, collect, make_config, make_learner, quick_jit

THETA = np.array([-0.3, 0.4, np.log(0.8)], np.float32)
BASELINE = np.array([0.1, -0.2, np.log(0.6)], np.float32)
START = 0.5


class Drift(Toy):
    """s' = s + a from s = 1/2; the reward asks for s' = 1, the first cost is s', the second a^2."""

    cost_names = ("position", "effort")

    def __init__(self, horizon: int):
        self.horizon = horizon

    def reset(self, key):
        return jnp.array(START)

    def observe(self, state):
        return state[None]

    def step(self, state, action):
        state = state + action[0]
        return state, -((state - 1.0) ** 2), jnp.stack([state, action[0] ** 2]), jnp.array(False)


def drift_on_paper(theta, horizon: int, discount: float = 1.0) -> np.ndarray:
    """J_R, J_C of both costs and J_D of the linear policy, from the state's mean and variance; `theta` (3,), or one
    for each step (horizon, 3)."""
    w_B, b_B, log_std_B = (float(x) for x in BASELINE)
    m, V, totals = START, 0.0, np.zeros(4)
    for t, (w, b, log_std) in enumerate(np.broadcast_to(np.asarray(theta, np.float64), (horizon, 3))):
        variance_a, variance_B = np.exp(2.0 * log_std), np.exp(2.0 * log_std_B)
        gap = ((w - w_B) ** 2 * V + ((w - w_B) * m + b - b_B) ** 2) / variance_B
        divergence = 0.5 * (variance_a / variance_B - 1.0 + gap) + log_std_B - log_std
        effort = w * w * V + (w * m + b) ** 2 + variance_a
        m, V = (1.0 + w) * m + b, (1.0 + w) ** 2 * V + variance_a
        totals += [-(discount**t) * (V + (m - 1.0) ** 2), m, effort, divergence]
    return totals


def finite_differences(theta, horizon: int, discount: float = 1.0, steps=slice(None)) -> np.ndarray:
    """Gradients of `drift_on_paper` in the parameters that act in `steps`, (4, 3)."""
    h, theta = 1e-5, np.tile(np.asarray(theta, np.float64), (horizon, 1))

    def shifted(shift):
        moved = theta.copy()
        moved[steps] += shift
        return drift_on_paper(moved, horizon, discount)

    ahead, behind = ([shifted(shift) for shift in s * h * np.eye(3)] for s in (1.0, -1.0))
    return (np.array(ahead) - np.array(behind)).T / (2.0 * h)


DRIFT_FIELDS = {"discount": 1.0, "gae_lambda": 1.0, "cost_gae_lambda": 1.0, "divergence_gae_lambda": 1.0}
EPISODES = 40_000


@functools.cache
def drift(horizon: int, discount: float = 1.0):
    """A learner and its batch of many episodes. Critics know nothing: they take out noise, which is not looked at."""
    env = Drift(horizon)
    fields = {**DRIFT_FIELDS, "discount": discount}
    config = make_config("space-printed", rollout_length=horizon, cost_limit=(0.0, 0.0), **fields)
    learner = make_learner(env, config, baseline=True)

    def run(key):
        rollout = collect(learner, env, jnp.asarray(THETA), key, EPISODES)
        baseline = learner.family.apply(jnp.asarray(BASELINE), rollout.obs)
        return make_batch(learner, initial_state(learner, 0), rollout, baseline)

    return learner, quick_jit(run)(jax.random.key(0))


def gradients(learner, batch) -> np.ndarray:
    found = quick_jit(lambda theta: surrogate_gradients(learner, batch, theta))(jnp.asarray(THETA))
    return np.array([found.g, *found.c, found.a])


def test_gradients_and_products_of_chunks_are_those_of_the_batch(monkeypatch):
    """As an update from images computes them, on a task whose batch may be computed in one piece too."""
    learner, batch = drift(3, 0.9)
    theta, found = jnp.asarray(THETA), []
    for size in (None, 7_000):  # the last chunk is smaller
        monkeypatch.setattr(Layout, "rows_at_once", lambda self, rows, size=size: size)
        state = initial_state(learner, 0)._replace(theta=theta)

        def computed(state):
            inputs = step_inputs(learner, batch, state, jnp.arange(0, 3 * EPISODES, 3))
            return inputs.g, inputs.gain, inputs.a, inputs.c, inputs.c_noise, inputs.fisher(jnp.eye(3))

        found.append(quick_jit(computed)(state))
    for whole, chunked in zip(*found, strict=True):
        # Sums of 120,000 terms in another order: single precision keeps four digits of them.
        np.testing.assert_allclose(chunked, whole, rtol=1e-3, atol=1e-4 * np.abs(whole).max())


# ---------------------------------------------------------------- units


@pytest.mark.parametrize("horizon", [3, 6])
def test_gradients_are_those_of_episode_sums(horizon):
    """Reward, both costs, divergence. Twice the horizon must give what the formula gives, not the same per step."""
    learner, batch = drift(horizon)
    found, expected = gradients(learner, batch), finite_differences(THETA, horizon)
    sums = np.array([batch.J_R, *batch.J_C, batch.J_D])
    np.testing.assert_allclose(sums, drift_on_paper(THETA, horizon), rtol=0.02)
    # 40,000 episodes: the sampling error of a gradient is one to two per cent of its length.
    assert np.all(np.linalg.norm(found - expected, axis=-1) < 0.06 * np.linalg.norm(expected, axis=-1))


@pytest.mark.parametrize("discount", [1.0, 0.99, 0.9, 0.6])
def test_the_gain_is_the_gradient_of_J_R_and_g_is_of_its_size_but_forgets_no_step(discount):
    """Each step's share of the gradient of J_R fades with discount^t; in g it does not, but for a common factor."""
    horizon = 6
    learner, batch = drift(horizon, discount)
    found = quick_jit(lambda theta: surrogate_gradients(learner, batch, theta))(jnp.asarray(THETA))
    g, gain = np.asarray(found.g), np.asarray(found.gain)
    assert float(batch.J_R) == pytest.approx(drift_on_paper(THETA, horizon, discount)[0], rel=0.02)
    expected = finite_differences(THETA, horizon, discount)[0]
    assert np.linalg.norm(gain - expected) < 0.06 * np.linalg.norm(expected)
    weight = discount ** np.arange(horizon)
    shares = [finite_differences(THETA, horizon, discount, t)[0] / weight[t] for t in range(horizon)]
    direction = weight.mean() * np.sum(shares, axis=0)
    assert np.linalg.norm(g - direction) < 0.06 * np.linalg.norm(direction)
    if discount == 1.0:
        assert np.array_equal(g, gain)
    elif discount < 0.9:
        assert np.linalg.norm(g - gain) > 0.1 * np.linalg.norm(gain)  # and the two can be told apart


class Repeated(Toy):
    """The same bandit in every step of a long episode: the reward is highest at action 1."""

    horizon = 1000

    def step(self, state, action):
        return state, -((action[0] - 1.0) ** 2), jnp.zeros(1), jnp.array(False)


def test_what_a_step_promises_is_what_J_R_gains_however_long_the_episode():
    """J_R = -((b - 1)^2 + variance) (1 - discount^T) / (1 - discount). Weighted flat the promise was ten times that."""
    env, discount = Repeated(), 0.99
    config = make_config(
        "trpo", rollout_length=env.horizon, **{**DRIFT_FIELDS, "discount": discount, "gae_lambda": 0.0}
    )
    learner, theta = make_learner(env, config), jnp.array([0.0, 0.5, np.log(0.5)])

    @quick_jit
    def both():
        state = initial_state(learner, 0)._replace(theta=theta)
        batch = make_batch(learner, state, collect(learner, env, theta, jax.random.key(5), 40), None)
        inputs = step_inputs(learner, batch, state, jnp.arange(100))
        return inputs.g, inputs.gain

    g, gain = (np.asarray(x) for x in both())
    step = np.array([0.0, 0.01, -0.01])
    weights = (1.0 - discount**env.horizon) / (1.0 - discount)
    gradient = -weights * np.array([0.0, 2.0 * (0.5 - 1.0), 2.0 * 0.25])
    gained = gradient @ step
    assert gain @ step == pytest.approx(gained, rel=0.1)
    assert g @ step == pytest.approx(gained, rel=0.1)  # every step has the same effect here


def test_the_divergence_needs_both_of_its_terms():
    learner, batch = drift(6)
    expected = finite_differences(THETA, 6)[-1]
    part = {}
    for kind in ("full", "direct", "score"):
        config = make_config(
            "space-printed", divergence_gradient=kind, rollout_length=6, cost_limit=(0.0, 0.0), **DRIFT_FIELDS
        )
        part[kind] = gradients(learner._replace(config=config, algorithm=algorithm_of(config)), batch)[-1]
    np.testing.assert_allclose(part["direct"] + part["score"], part["full"], rtol=1e-3, atol=1e-3)
    size = np.linalg.norm(expected)
    assert np.linalg.norm(part["full"] - expected) < 0.04 * size
    assert np.linalg.norm(part["direct"] - expected) > 0.15 * size
    assert np.linalg.norm(part["score"] - expected) > 0.15 * size


def test_the_noise_of_gradients_is_the_difference_of_two_halves():
    """Even columns against odd ones, each an episode: the noise is half the difference of what each half says, but for
    advantages that are centred over both."""
    horizon = 3
    env = Drift(horizon)
    config = make_config("space", rollout_length=horizon, cost_limit=(0.0, 0.0), **DRIFT_FIELDS)
    learner = make_learner(env, config, baseline=True)
    rollout = quick_jit(lambda key: collect(learner, env, jnp.asarray(THETA), key, 4000))(jax.random.key(0))

    def gradients_of(part):
        baseline = learner.family.apply(jnp.asarray(BASELINE), part.obs)
        batch = make_batch(learner, initial_state(learner, 0), part, baseline)
        return surrogate_gradients(learner, batch, jnp.asarray(THETA))

    whole, even, odd = (
        quick_jit(gradients_of)(jax.tree.map(lambda leaf, s=start, by=by: leaf[:, s::by], rollout))
        for start, by in ((0, 1), (0, 2), (1, 2))
    )
    np.testing.assert_allclose(0.5 * (even.c + odd.c), whole.c, atol=0.01 * np.abs(whole.c).max())
    signs = []
    for first, second, found in ((even.c, odd.c, whole.c_noise), (even.g, odd.g, whole.g_noise)):
        expected, found = 0.5 * np.asarray(first - second), np.asarray(found)
        signs.append(np.sign(np.sum(found * expected)))
        assert np.abs(found - signs[-1] * expected).max() <= 0.1 * np.abs(expected).max()
    assert signs[0] == signs[1]  # which half counts as which does not matter, but it is the same for both


@pytest.mark.parametrize("normalised", [False, True])
def test_the_gradients_of_costs_are_means_over_batches(normalised):
    """Where observations are normalised, the first batch is of another policy and does not count."""
    config = make_config(
        "space", rollout_length=3, cost_limit=(0.0, 0.0), normalise_observations=normalised, **DRIFT_FIELDS
    )
    env, seen = Drift(3), []
    learner = make_learner(env, config, baseline=True)
    rule = learner.algorithm

    def spy(inputs, state):
        seen.append(inputs)
        return rule.step(inputs, state)

    def of(averaging):
        learner_of = learner._replace(
            algorithm=rule._replace(step=spy, needs=rule.needs._replace(mean_gradients=averaging))
        )
        state = initial_state(learner_of, 0)
        states = [state]
        for i in range(3):
            rollout = collect(learner, env, jnp.asarray(THETA), jax.random.key(i), 40)
            baseline = learner.family.apply(jnp.asarray(BASELINE), rollout.obs)
            state = state._replace(theta=jnp.asarray(THETA))  # the same policy in every update
            state, _ = update(learner_of, state, rollout, (baseline,))
            states.append(state)
        return states

    (plain, newest), (states, means) = ((of(averaging), list(seen[-3:])) for averaging in (False, True))
    assert plain[0].gradients == plain[-1].gradients == ()
    expected = no_gradients(2, 3)
    for i, (inputs, given) in enumerate(zip(newest, means, strict=True)):
        following = with_gradients(expected, inputs.c, inputs.c_noise)
        np.testing.assert_allclose(given.c, following.mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(given.c_noise, following.error, rtol=1e-4, atol=1e-5)
        if i or not normalised:
            expected = following
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), states[i + 1].gradients, expected
        )
    assert not np.allclose(means[-1].c, newest[-1].c)


def test_c_times_step_predicts_the_change_of_the_cost():
    """By formula, and measured with the same random numbers before and after. This is what a projection relies on."""
    horizon = 6
    learner, batch = drift(horizon)
    c = gradients(learner, batch)[1:3]
    measure = quick_jit(lambda theta: episode_costs(learner, Drift(horizon), theta))
    before = measure(jnp.asarray(THETA))
    for direction in (c[0], -c[1], np.array([0.0, 1.0, 0.0])):
        step = (0.02 * direction / np.linalg.norm(direction)).astype(np.float32)
        predicted = c @ step
        by_formula = (drift_on_paper(THETA + step, horizon) - drift_on_paper(THETA, horizon))[1:3]
        measured = np.asarray(measure(jnp.asarray(THETA + step)) - before)
        size = 0.02 * np.linalg.norm(c, axis=-1)  # the most such a step could change
        assert np.all(np.abs(predicted - by_formula) < 0.08 * size)
        assert np.all(np.abs(predicted - measured) < 0.08 * size)


def episode_costs(learner, env, theta):
    rollout = collect(learner, env, theta, jax.random.key(7), 5000)
    return jnp.mean(jnp.sum(rollout.cost, axis=0), axis=0)


class Lottery(Toy):
    """Ends after each step with probability 0.4, whatever is done; the cost is the action."""

    horizon = 8

    def reset(self, key):
        return key

    def step(self, key, action):
        key, draw = jax.random.split(key)
        return key, action[0], action, jax.random.uniform(draw) < 0.4


@functools.cache
def lottery(episodes: int = 20_000):
    env = Lottery()
    config = make_config("pcpo", rollout_length=env.horizon, cost_limit=1.0, **{**DRIFT_FIELDS, "discount": 0.9})
    learner = make_learner(env, config, baseline=False)
    theta = jnp.array([0.0, 0.7, 0.0])
    rollout = quick_jit(lambda key: collect(learner, env, theta, key, episodes))(jax.random.key(3))
    return learner, theta, rollout, batch_of(learner, rollout)


def batch_of(learner, rollout):
    """By critics that predict zero."""
    return quick_jit(lambda r: make_batch(learner, initial_state(learner, 0), r, None))(rollout)


def test_units_hold_for_episodes_of_different_length():
    """J_C = E[length] * mean action, so its gradient in the bias is E[length]."""
    learner, theta, _, batch = lottery()
    expected = (1.0 - 0.6**8) / 0.4
    assert float(batch.episode_length) == pytest.approx(expected, rel=0.02)
    assert float(batch.J_C[0]) == pytest.approx(0.7 * expected, rel=0.04)
    c = quick_jit(lambda: surrogate_gradients(learner, batch, theta).c)()
    assert float(c[0, 1]) == pytest.approx(expected, rel=0.05)


# ---------------------------------------------------------------- the batch


def test_episode_sums_of_a_batch_match_a_loop():
    _, _, rollout, batch = lottery()
    valid, reward, cost = (np.asarray(x, np.float64) for x in (rollout.valid, rollout.reward, rollout.cost[..., 0]))
    lengths = valid.sum(0).astype(int)
    ends = np.asarray(rollout.terminated | rollout.truncated)
    J_R = np.mean([sum(0.9**t * reward[t, n] for t in range(k)) for n, k in enumerate(lengths)])
    episode_cost = (cost * valid).sum(0)
    assert np.all(ends.sum(0) == 1)
    assert all(ends[k - 1, n] for n, k in enumerate(lengths))
    assert float(batch.J_R) == pytest.approx(J_R, rel=1e-4)
    assert float(batch.J_C[0]) == pytest.approx(episode_cost.mean(), rel=1e-4)
    assert float(batch.J_C_error[0]) == pytest.approx(episode_cost.std(ddof=1) / np.sqrt(len(lengths)), rel=1e-3)
    assert np.isnan(float(batch.J_D))
    weight = np.asarray(batch.weight).reshape(valid.shape)
    assert np.array_equal(weight > 0.0, valid > 0.0)
    assert weight.sum() == pytest.approx(1.0, rel=1e-4)
    for advantage in (batch.reward_advantage, batch.cost_advantage[:, 0]):
        assert float(batch.weight @ advantage) == pytest.approx(0.0, abs=1e-4)


def test_costs_are_summed_without_a_discount_whatever_their_advantages_use():
    learner, _, rollout, one = lottery()
    config = make_config("pcpo", rollout_length=8, cost_limit=1.0, cost_discount=0.5)
    other = batch_of(learner._replace(config=config), rollout)
    assert np.array_equal(one.J_C, other.J_C)
    assert not np.allclose(one.cost_advantage, other.cost_advantage)


# ---------------------------------------------------------------- the step's inputs


def test_constraint_values_are_sums_minus_limits():
    learner, batch = drift(3)
    config = make_config("space-printed", rollout_length=3, cost_limit=(0.5, 2.0), divergence_threshold=1.5)
    learner = learner._replace(config=config, algorithm=algorithm_of(config))
    state = initial_state(learner, 0)._replace(theta=jnp.asarray(THETA))
    d, b = quick_jit(lambda: (lambda i: (i.d, i.b))(step_inputs(learner, batch, state, jnp.arange(10))))()
    np.testing.assert_allclose(d, batch.J_C - jnp.array([0.5, 2.0]), rtol=1e-6)
    assert float(b) == pytest.approx(float(batch.J_D) - 1.5, rel=1e-5)


def test_rules_reduce_to_one_another_on_a_real_batch():
    """SPACE -> PCPO -> TRPO as their constraints become slack, all from the same batch through the same code."""
    learner, batch = drift(3)

    def step(algorithm, **fields):
        config = make_config(algorithm, rollout_length=3, delta=0.01, **fields)
        rule = algorithm_of(config)
        mine = learner._replace(config=config, algorithm=rule)
        state = initial_state(mine, 0)._replace(theta=jnp.asarray(THETA))
        inputs = step_inputs(mine, batch, state, jnp.arange(0, 3 * EPISODES, 50))
        return rule.step(inputs, state.algorithm).step

    # Thresholds just below what the policy has, so that each projection has something of its own to do.
    _, *costs, divergence = drift_on_paper(THETA, 3)
    limits, region, slack = tuple(cost - 0.1 for cost in costs), divergence - 0.5, (1e6, 1e6)

    @quick_jit
    def steps():
        return {
            "space": step("space-joint", cost_limit=limits, divergence_threshold=region),
            "space, slack region": step("space-printed", cost_limit=limits, divergence_threshold=1e6),
            "pcpo": step("pcpo", cost_limit=limits),
            "pcpo, slack costs": step("pcpo", cost_limit=slack),
            "trpo": step("trpo", cost_limit=limits),
        }

    found = {name: np.asarray(value) for name, value in steps().items()}
    np.testing.assert_allclose(found["space, slack region"], found["pcpo"], rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(found["pcpo, slack costs"], found["trpo"], rtol=1e-4, atol=1e-7)
    for one, other in (("space", "pcpo"), ("pcpo", "trpo")):
        assert np.linalg.norm(found[one] - found[other]) > 0.1 * np.linalg.norm(found[other])


def test_judging_a_step_is_first_order_in_the_surrogates_and_second_in_the_kl():
    learner, batch = drift(3)
    theta = jnp.asarray(THETA)
    step = jnp.array([0.003, -0.002, 0.004])
    F = np.diag([0.0, 0.0, 2.0])  # of (w, b, log_std), by hand: E[(s, 1)(s, 1)'] / sigma^2 and 2
    obs, weight = np.asarray(batch.obs[:, 0], np.float64), np.asarray(batch.weight, np.float64)
    F[:2, :2] = np.array([[weight @ obs**2, weight @ obs], [weight @ obs, 1.0]]) / np.exp(2.0 * THETA[2])
    small, none = quick_jit(lambda: [judge_of(learner, batch, theta, step)(jnp.array(s)) for s in (0.5, 0.0)])()
    predicted = gradients(learner, batch) @ (0.5 * np.asarray(step))
    change = np.array([small.reward, *small.cost, small.divergence])
    np.testing.assert_allclose(change, predicted, rtol=0.05, atol=2e-3)
    assert float(small.kl) == pytest.approx(0.5 * 0.25 * np.asarray(step) @ F @ np.asarray(step), rel=0.02)
    assert np.allclose([none.reward, *none.cost, none.divergence, none.kl], 0.0, atol=1e-4)


def test_surrogates_start_where_advantages_are_centred():
    """Before any change a centred advantage's surrogate is zero, and the divergence's direct part is J_D itself."""
    learner, batch = drift(3)
    now = np.asarray(surrogates(learner, batch, batch.dist))
    assert np.allclose(now[:3], 0.0, atol=1e-3)
    assert now[3] == pytest.approx(float(batch.J_D), rel=1e-3)


@pytest.mark.parametrize(("share", "expected"), [(1.0, 1000), (0.2, 200), (1e-6, 1)])
def test_rows_of_the_fisher_matrix(share, expected):
    rows = np.asarray(subsample_rows(jax.random.key(0), 1000, share))
    assert rows.shape == (expected,)
    assert np.all((rows >= 0) & (rows < 1000))


# ---------------------------------------------------------------- whole updates


class Fragile(Lottery):
    """Lottery with a second observation and a cost of its own, for updates with padding."""

    obs_shape = (2,)

    def observe(self, key):
        bits = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
        return (bits % 1000).astype(jnp.float32) / 500.0 - 1.0


@functools.cache
def fragile(algorithm: str, critic: str):
    env = Fragile()
    fields = {"cost_limit": 0.5, "divergence_threshold": 0.1, "delta": 0.01, "bootstrap_truncation": True}
    fields["cg_damping"] = 0.1  # so that rounding is not magnified and runs can be compared closely
    config = make_config(algorithm, rollout_length=env.horizon, critic=critic, **fields)
    learner = make_learner(env, config, hidden=(6,), baseline=True)
    state = quick_jit(lambda: initial_state(learner, 0))()
    rollout = quick_jit(lambda key: collect(learner, env, state.theta, key, 200))(jax.random.key(5))
    return learner, state, rollout, quick_jit(lambda state, rollout: update_from(learner, state, rollout))


def update_from(learner, state, rollout):
    baseline = learner.family.apply(jnp.full(learner.family.parameters, 0.3), rollout.obs)
    return update(learner, state, rollout, (baseline,))


def with_garbage(rollout: Rollout, scale: float) -> Rollout:
    """Every array overwritten where it is padding, the flags apart."""
    rng, valid = np.random.default_rng(0), np.asarray(rollout.valid)

    def spoil(leaf):
        counts = valid.reshape(valid.shape + (1,) * (leaf.ndim - 2))
        return np.where(counts, leaf, scale * rng.normal(size=leaf.shape)).astype(leaf.dtype)

    parts = {name: getattr(rollout, name) for name in ("obs", "action", "log_prob", "dist", "next_obs")}
    return rollout._replace(**jax.tree.map(spoil, parts))


@pytest.mark.parametrize("garbage", [3.0, np.nan])
@pytest.mark.parametrize(("algorithm", "critic"), [("space-printed", "neural"), ("f-cpo", "linear")])
def test_padding_never_leaks(algorithm, critic, garbage):
    """Whatever it holds: a simulator that breaks ends its episode and goes on producing what is not a number."""
    _, state, rollout, run = fragile(algorithm, critic)
    assert 0.2 < float(jnp.mean(rollout.valid)) < 0.8
    clean, dirty = run(state, rollout), run(state, with_garbage(rollout, garbage))
    for one, other in zip(jax.tree.leaves(clean), jax.tree.leaves(dirty), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert not np.allclose(clean[0].theta, state.theta)


def test_rows_of_nothing_but_padding_change_nothing():
    """The same episodes in a rollout with room for longer ones."""
    _, state, rollout, run = fragile("f-cpo", "linear")
    longer = jax.tree.map(lambda leaf: np.concatenate([leaf, np.zeros_like(leaf[:3])]), rollout)
    np.testing.assert_allclose(run(state, longer)[0].theta, run(state, rollout)[0].theta, rtol=1e-4, atol=1e-6)


def test_an_update_keeps_the_books():
    learner, state, rollout, run = fragile("space-printed", "neural")
    following, metrics = run(state, rollout)
    again, _ = run(following, rollout)
    steps = int(jnp.sum(rollout.valid))
    assert [int(s.update) for s in (state, following, again)] == [0, 1, 2]
    assert [int(s.env_steps) for s in (state, following, again)] == [0, steps, 2 * steps]
    violation = max(float(metrics["J_C"]) - 0.5, 0.0)
    assert [float(s.cumulative_violation) for s in (following, again)] == pytest.approx([violation, 2 * violation])
    assert not np.array_equal(state.key, following.key)
    assert float(metrics["finite"]) == 1.0
    assert float(metrics["h_D"]) == pytest.approx(0.1)
    assert float(metrics["kl"]) == pytest.approx(mean_kl(learner, rollout, state.theta, following.theta), rel=0.01)


def mean_kl(learner, rollout, old, new) -> float:
    """KL(old || new) averaged over the steps that were taken."""
    kl = learner.family.apply(old, rollout.obs).kl(learner.family.apply(new, rollout.obs))
    return float(jnp.sum(kl * rollout.valid) / jnp.sum(rollout.valid))


def test_what_is_not_finite_is_reported():
    _, state, rollout, run = fragile("space-printed", "neural")
    broken = rollout._replace(reward=rollout.reward.at[0, 0].set(jnp.nan))
    assert float(run(state, broken)[1]["finite"]) == 0.0


@pytest.mark.parametrize("algorithm", ["trpo", "d-pcpo", "pretrain", "space-printed", "space"])
@pytest.mark.parametrize("critic", ["neural", "linear"])
def test_an_update_keeps_the_types_of_the_state(algorithm, critic):
    """Otherwise the second update is compiled anew, which takes longer than many updates."""
    env = Fragile()
    learner = make_learner(env, make_config(algorithm, rollout_length=8, critic=critic), baseline=True)

    def one(state):
        return update_from(learner, state, collect(learner, env, state.theta, jax.random.key(0), 4))[0]

    state = jax.eval_shape(lambda: initial_state(learner, 0))
    before, after = (
        {jax.tree_util.keystr(path): (leaf.shape, leaf.dtype, leaf.weak_type) for path, leaf in leaves}
        for leaves in map(jax.tree_util.tree_leaves_with_path, (state, jax.eval_shape(one, state)))
    )
    assert after == before
