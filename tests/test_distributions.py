"""The action distributions against SciPy, numerical integration, sampling and second derivatives."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from spacerl.core.distributions import Categorical, Gaussian, MultiCategorical
from spacerl.core.fisher import fisher_product
from support.learners import quick_jit

RNG = np.random.default_rng(0)
BATCH, ACTIONS = 20, 3
NVEC = (2, 3, 1, 4)


def gaussians():
    mean, log_std = RNG.normal(size=(2, BATCH, ACTIONS)).astype(np.float32)
    return Gaussian(jnp.asarray(mean), jnp.asarray(log_std))


def categoricals():
    return Categorical(jnp.asarray(3.0 * RNG.normal(size=(BATCH, ACTIONS + 1)), jnp.float32))


def multicategoricals():
    return MultiCategorical(jnp.asarray(2.0 * RNG.normal(size=(BATCH, sum(NVEC))), jnp.float32), NVEC)


KINDS = [gaussians, categoricals, multicategoricals]


def frozen(dist: Gaussian):
    return scipy.stats.norm(np.asarray(dist.mean, np.float64), np.exp(np.asarray(dist.log_std, np.float64)))


def test_gaussian_log_prob_and_entropy():
    dist = gaussians()
    action = RNG.normal(size=(BATCH, ACTIONS)).astype(np.float32) * 3.0
    np.testing.assert_allclose(dist.log_prob(jnp.asarray(action)), frozen(dist).logpdf(action).sum(-1), rtol=1e-4)
    np.testing.assert_allclose(dist.entropy(), frozen(dist).entropy().sum(-1), rtol=1e-5, atol=1e-5)


def test_gaussian_kl_is_the_integral():
    p, q = gaussians(), gaussians()
    # In units of p's standard deviation: its mass beyond 12 is 1e-33.
    z = np.linspace(-12.0, 12.0, 4001)[:, None, None]
    x = frozen(p).mean() + frozen(p).std() * z
    integrand = frozen(p).pdf(x) * (frozen(p).logpdf(x) - frozen(q).logpdf(x)) * frozen(p).std()
    expected = np.sum(integrand, axis=0).sum(-1) * (z[1, 0, 0] - z[0, 0, 0])
    np.testing.assert_allclose(p.kl(q), expected, rtol=1e-4)


def test_gaussian_kl_has_a_direction():
    """The wide policy against the narrow baseline: the number the paper's divergence starts from, worked by hand."""
    wide, narrow = Gaussian(jnp.zeros(1), jnp.zeros(1)), Gaussian(jnp.zeros(1), jnp.log(jnp.array([0.3])))
    assert float(wide.kl(narrow)) == pytest.approx((1.0 / 0.09 - 1.0) / 2.0 + np.log(0.3), rel=1e-5)
    assert float(narrow.kl(wide)) == pytest.approx((0.09 - 1.0) / 2.0 - np.log(0.3), rel=1e-5)


def test_categorical_log_prob_entropy_and_kl():
    p, q = categoricals(), categoricals()
    log_p, log_q = (scipy.special.log_softmax(np.asarray(d.logits, np.float64), axis=-1) for d in (p, q))
    action = RNG.integers(0, ACTIONS + 1, size=BATCH)
    np.testing.assert_allclose(p.log_prob(jnp.asarray(action)), log_p[np.arange(BATCH), action], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(p.entropy(), scipy.stats.entropy(np.exp(log_p), axis=-1), rtol=1e-4, atol=1e-6)
    expected = scipy.stats.entropy(np.exp(log_p), np.exp(log_q), axis=-1)
    np.testing.assert_allclose(p.kl(q), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", KINDS)
def test_kl_to_itself_is_zero(make):
    dist = make()
    np.testing.assert_allclose(dist.kl(dist), np.zeros(BATCH), atol=1e-6)


def test_categorical_logits_may_be_shifted():
    dist = categoricals()
    shifted = Categorical(dist.logits + 100.0)
    np.testing.assert_allclose(shifted.entropy(), dist.entropy(), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(shifted.kl(dist), np.zeros(BATCH), atol=1e-4)


def test_gaussian_samples_have_the_distributions_moments():
    dist = gaussians()
    samples = np.asarray(dist.sample(Gaussian.noise(jax.random.key(1), (100_000, BATCH, ACTIONS))))
    std = np.exp(np.asarray(dist.log_std))
    # 60 means and standard deviations with standard errors of 1/316 and 1/447 of the latter: five of them are never
    # reached.
    assert np.max(np.abs(samples.mean(0) - dist.mean) / std) < 5.0 / 316.0
    assert np.max(np.abs(samples.std(0) / std - 1.0)) < 5.0 / 447.0


def test_categorical_samples_have_the_distributions_frequencies():
    dist = categoricals()
    samples = np.asarray(dist.sample(Categorical.noise(jax.random.key(2), (100_000, BATCH, ACTIONS + 1))))
    frequencies = np.stack([(samples == k).mean(0) for k in range(ACTIONS + 1)], axis=-1)
    probabilities = scipy.special.softmax(np.asarray(dist.logits), axis=-1)
    error = np.sqrt(probabilities * (1.0 - probabilities) / 100_000)
    assert np.all(np.abs(frequencies - probabilities) < 5.0 * error + 1e-5)


@pytest.mark.parametrize("make", KINDS)
def test_mode_is_the_most_likely_action(make):
    dist = make()
    others = dist.sample(type(dist).noise(jax.random.key(3), (200, *jax.tree.leaves(dist)[0].shape)))
    likelihood = jax.vmap(dist.log_prob)(others)
    assert np.all(dist.log_prob(dist.mode()) >= np.max(likelihood, axis=0) - 1e-6)


def inner(one, other):
    """Sum of the products of all parameters, per sample."""
    return sum(jnp.sum(u * v, axis=-1) for u, v in zip(*map(jax.tree.leaves, (one, other)), strict=True))


@pytest.mark.parametrize("make", KINDS)
def test_fisher_is_the_second_derivative_of_the_kl(make):
    """Of KL(p || p + t u) along random tangents u, in double precision."""
    single, tangent = make(), make()
    with jax.enable_x64(True):
        dist, tangent = (
            jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), d) for d in (single, tangent)
        )

        def kl(t):
            return dist.kl(jax.tree.map(lambda leaf, u: leaf + t * u, dist, tangent))

        curvature = jax.jacfwd(jax.jacfwd(kl))(0.0)
        product = dist.fisher(tangent)
        quadratic = inner(tangent, product)
        np.testing.assert_allclose(quadratic, curvature, rtol=1e-9)


@pytest.mark.parametrize("make", KINDS)
def test_fisher_is_the_covariance_of_the_score(make):
    """The definition: an average over actions of (score . u)^2, so the product cannot be off by a factor."""
    dist, tangent = make(), make()
    dist, tangent = (jax.tree.map(lambda leaf: leaf[:3], d) for d in (dist, tangent))
    actions = dist.sample(type(dist).noise(jax.random.key(4), (200_000, *jax.tree.leaves(dist)[0].shape)))
    _, slope = jax.jvp(lambda d: jax.vmap(d.log_prob)(actions), (dist,), (tangent,))
    quadratic = inner(tangent, dist.fisher(tangent))
    np.testing.assert_allclose(np.mean(np.asarray(slope) ** 2, axis=0), quadratic, rtol=0.03)


# ---------------------------------------------------------------- several discrete actions


def joint(dist: MultiCategorical) -> tuple[np.ndarray, np.ndarray]:
    """All combinations of actions (C, D), and their probabilities (B, C) in double precision."""
    cuts = np.split(np.asarray(dist.logits, np.float64), np.cumsum(dist.nvec)[:-1], axis=-1)
    lists = [scipy.special.softmax(logits, axis=-1) for logits in cuts]
    combinations = np.array(list(itertools.product(*(range(count) for count in dist.nvec))))
    parts = [p[:, combinations[:, i]] for i, p in enumerate(lists)]
    return combinations, np.prod(parts, axis=0)


def test_several_discrete_actions_are_the_enumerated_joint_distribution():
    p, q = multicategoricals(), multicategoricals()
    combinations, chances = joint(p)
    others = joint(q)[1]
    np.testing.assert_allclose(chances.sum(-1), 1.0)
    every = jnp.asarray(np.broadcast_to(combinations[:, None], (len(combinations), BATCH, len(NVEC))))
    np.testing.assert_allclose(jax.vmap(p.log_prob)(every).T, np.log(chances), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(p.entropy(), -np.sum(chances * np.log(chances), axis=-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(p.kl(q), np.sum(chances * np.log(chances / others), axis=-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(p.mode(), combinations[np.argmax(chances, axis=-1)])


def test_samples_of_several_discrete_actions_have_the_joint_frequencies():
    dist = jax.tree.map(lambda leaf: leaf[:4], multicategoricals())
    samples = np.asarray(dist.sample(MultiCategorical.noise(jax.random.key(5), (100_000, 4, sum(NVEC)))))
    combinations, chances = joint(dist)
    frequencies = np.stack([np.all(samples == row, axis=-1).mean(0) for row in combinations], axis=-1)
    error = np.sqrt(chances * (1.0 - chances) / 100_000)
    assert np.all(np.abs(frequencies - chances) < 5.0 * error + 5e-5)


def test_one_discrete_action_is_a_categorical():
    p, q = categoricals(), categoricals()
    one, other = (MultiCategorical(dist.logits, (ACTIONS + 1,)) for dist in (p, q))
    noise = Categorical.noise(jax.random.key(6), p.logits.shape)
    np.testing.assert_array_equal(one.sample(noise)[:, 0], p.sample(noise))
    np.testing.assert_array_equal(one.kl(other), p.kl(q))
    np.testing.assert_array_equal(one.fisher(other).logits, p.fisher(q).logits)


def test_several_discrete_actions_pass_through_every_transformation_of_an_update():
    """Stacked by a scan, reshaped and masked leaf by leaf, differentiated as a whole, in a Fisher product."""
    dist, tangent = multicategoricals(), multicategoricals()
    weight = jnp.full(BATCH, 1.0 / BATCH)

    @quick_jit
    def transformed(dist, tangent):
        stacked = jax.lax.scan(lambda carry, _: (carry, dist), None, None, length=3)[1]
        flat = jax.tree.map(lambda leaf: jnp.where(leaf > 99.0, 0.0, leaf).reshape(3 * BATCH, -1), stacked)
        slopes = jax.jacrev(lambda d: jnp.stack([jnp.sum(d.entropy()), jnp.sum(d.kl(tangent))]))(dist)
        theta = dist.logits.ravel()
        product = fisher_product(lambda t: MultiCategorical(t.reshape(BATCH, -1), NVEC), theta, weight, 0.0)
        products = product(tangent.logits.ravel()[None])[0].reshape(BATCH, -1), dist.fisher(tangent).logits / BATCH
        return flat, slopes, products, flat.entropy(), jax.vmap(lambda d: d.entropy())(dist)

    flat, slopes, (product, expected), entropies, entropy = transformed(dist, tangent)
    assert flat.nvec == slopes.nvec == NVEC
    assert slopes.logits.shape == (2, BATCH, sum(NVEC))
    np.testing.assert_array_equal(flat.logits.reshape(3, BATCH, -1)[2], dist.logits)
    np.testing.assert_allclose(entropies.reshape(3, BATCH)[1], entropy, rtol=1e-6)
    np.testing.assert_allclose(product, expected, rtol=1e-4, atol=1e-7)
