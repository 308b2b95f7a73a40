"""The Fisher product against the dense Hessian of the mean KL, and conjugate gradients against a direct solve."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spacerl.core.fisher import chunked_fisher_product, chunked_pull_back, conjugate_gradient, fisher_product
from spacerl.policies.family import PolicyFamily
from spacerl.policies.networks import LARGEST_SLOPES, Layout
from spacerl.types import ActionSpace, ImageSpec

SPACES = {"gaussian": ActionSpace("box", 2), "categorical": ActionSpace("discrete", 4)}


@pytest.fixture
def double_precision():
    with jax.enable_x64(True):
        yield


def small_policy(kind: str, samples: int = 30):
    """Outputs of a small network as a function of theta, a random theta, and uneven sample weights with zeros."""
    rng = np.random.default_rng(1)
    family = PolicyFamily((3,), SPACES[kind], (5,))
    theta, obs = jnp.asarray(0.5 * rng.normal(size=family.parameters)), jnp.asarray(rng.normal(size=(samples, 3)))
    weight = rng.random(samples) * (np.arange(samples) % 5 > 0)
    return lambda t: family.apply(t, obs), theta, jnp.asarray(weight / weight.sum())


def dense(outputs, theta, weight, damping: float) -> np.ndarray:
    identity = jnp.eye(len(theta), dtype=theta.dtype)
    return np.asarray(jax.jit(lambda rows: fisher_product(outputs, theta, weight, damping)(rows))(identity))


def kl_hessian(outputs, theta, weight) -> np.ndarray:
    """Second derivative of the weighted mean of KL(old || new) at new = old."""

    def hessian(theta):
        old = outputs(theta)
        return jax.hessian(lambda t: weight @ old.kl(outputs(t)))(theta)

    return np.asarray(jax.jit(hessian)(theta))


@pytest.mark.parametrize("kind", sorted(SPACES))
def test_product_is_the_hessian_of_the_mean_kl(kind, double_precision):
    outputs, theta, weight = small_policy(kind)
    assert theta.dtype == jnp.float64
    hessian = kl_hessian(outputs, theta, weight)
    assert np.max(np.abs(hessian)) > 1e-2
    np.testing.assert_allclose(dense(outputs, theta, weight, 0.0), hessian, rtol=1e-9, atol=1e-12)


def test_product_in_single_precision_with_damping():
    outputs, theta, weight = small_policy("gaussian")
    expected = kl_hessian(outputs, theta, weight) + 0.5 * np.eye(len(theta))
    # Entries are sums of 30 products of order one: 30 roundings of 6e-8.
    np.testing.assert_allclose(dense(outputs, theta, weight, 0.5), expected, rtol=1e-4, atol=1e-5)


def test_samples_without_weight_do_not_count(double_precision):
    outputs, theta, weight = small_policy("gaussian")
    kept = np.flatnonzero(weight)

    def outputs_of_kept(t):
        return jax.tree.map(lambda leaf: leaf[kept], outputs(t))

    every, some = dense(outputs, theta, weight, 0.0), dense(outputs_of_kept, theta, weight[kept], 0.0)
    np.testing.assert_allclose(every, some, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("size", [1, 10, 13, 30])
def test_products_of_chunks_are_those_of_all(size, double_precision):
    """Also where the last chunk is smaller than the others."""
    rng = np.random.default_rng(5)
    family = PolicyFamily((3,), SPACES["gaussian"], (5,))
    theta, obs = jnp.asarray(0.5 * rng.normal(size=family.parameters)), jnp.asarray(rng.normal(size=(30, 3)))
    weight, v = jnp.asarray(rng.random(30)), jnp.asarray(rng.normal(size=(4, family.parameters)))
    expected = fisher_product(lambda t: family.apply(t, obs), theta, weight, 0.1)(v)
    found = jax.jit(lambda v: chunked_fisher_product(family.apply, theta, obs, weight, 0.1, size)(v))(v)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)

    dist, pull_back = jax.vjp(lambda t: family.apply(t, obs), theta)
    cotangents = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=(30, 2, *leaf.shape[1:]))), dist)
    rows = [pull_back(jax.tree.map(lambda leaf, r=r: leaf[:, r], cotangents))[0] for r in range(2)]
    found = jax.jit(lambda c: chunked_pull_back(family.apply, theta, obs, c, size))(cotangents)
    np.testing.assert_allclose(found, jnp.stack(rows), rtol=1e-12, atol=1e-14)


IMAGE = ImageSpec(1, (12, 10, 3), 1 / 255)  # with one number before it and one after
IMAGE_SPACES = (*SPACES.values(), ActionSpace("multidiscrete", 5, nvec=(2, 3)))


@pytest.mark.parametrize("space", IMAGE_SPACES, ids=lambda space: space.kind)
@pytest.mark.parametrize("size", [None, 13])
def test_products_that_hold_the_derivatives_of_convolutions_are_the_same(space, size, double_precision, monkeypatch):
    rng = np.random.default_rng(6)
    family = PolicyFamily((362,), space, (6, 5), images=(IMAGE,), filters=(4, 3))
    theta, obs = jnp.asarray(0.5 * rng.normal(size=family.parameters)), jnp.asarray(50 * rng.normal(size=(30, 362)))
    weight, v = jnp.asarray(rng.random(30)), jnp.asarray(rng.normal(size=(4, family.parameters)))
    expected = jax.jit(fisher_product(lambda t: family.apply(t, obs), theta, weight, 0.1))(v)
    monkeypatch.setattr(Layout, "rows_at_once", lambda self, rows: size)
    assert family.layout.slopes_fit(30, space.size)
    found = jax.jit(lambda v: family.fisher_product(theta, obs, weight, 0.1)(v))(v)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)
    convolutions = slice(0, 4 * 4 * 3 * 4 + 4)
    assert np.abs((found - 0.1 * v)[:, convolutions]).max() > 1e-3


def test_derivatives_that_would_fill_the_memory_are_not_held():
    layout = PolicyFamily((362,), SPACES["gaussian"], (6, 5), images=(IMAGE,), filters=(4, 3)).layout
    first, second = 4 * 4 * 3 * 4 + 4, 4 * 4 * 4 * 3 + 3
    most = LARGEST_SLOPES // (4 * 2 * (first + second))
    assert layout.slopes_fit(most, 2)
    assert not layout.slopes_fit(most + 1, 2)
    assert not PolicyFamily((3,), SPACES["gaussian"], (5,)).layout.slopes_fit(1, 2)


def spd_system(rows: int, size: int, condition: float):
    rng = np.random.default_rng(2)
    rotation = np.linalg.qr(rng.normal(size=(size, size)))[0]
    A = (rotation * np.geomspace(1.0, condition, size)) @ rotation.T
    # Right-hand sides of very different size: each must be solved as well as the others.
    b = rng.normal(size=(rows, size)) * np.geomspace(1e-6, 1e6, rows)[:, None]
    return A, b


def test_conjugate_gradient_solves_every_row(double_precision):
    A, b = spd_system(rows=5, size=12, condition=50.0)
    x = conjugate_gradient(lambda v: v @ A, jnp.asarray(b), iterations=40, tolerance=1e-24)
    expected = np.linalg.solve(A, b.T).T
    np.testing.assert_allclose(x, expected, rtol=1e-8, atol=1e-10 * np.abs(expected).max(axis=-1).min())


def test_conjugate_gradient_in_single_precision():
    A, b = spd_system(rows=5, size=12, condition=50.0)
    A32 = jnp.asarray(A, jnp.float32)
    x = np.asarray(conjugate_gradient(lambda v: v @ A32, jnp.asarray(b, jnp.float32), iterations=40))
    error = np.linalg.norm(x - np.linalg.solve(A, b.T).T, axis=-1) / np.linalg.norm(np.linalg.solve(A, b.T).T, axis=-1)
    # It stops at a relative residual of 1e-5, which the condition number may magnify.
    assert np.max(error) <= 50.0 * 1e-5


def test_conjugate_gradient_is_exact_after_as_many_iterations_as_distinct_eigenvalues(double_precision):
    """Three distinct eigenvalues, three iterations: a wrong step length or direction would need more."""
    rng = np.random.default_rng(3)
    rotation = np.linalg.qr(rng.normal(size=(9, 9)))[0]
    A = (rotation * np.repeat([1.0, 3.0, 10.0], 3)) @ rotation.T
    b = rng.normal(size=(2, 9))
    three = conjugate_gradient(lambda v: v @ A, jnp.asarray(b), iterations=3, tolerance=1e-26)
    two = conjugate_gradient(lambda v: v @ A, jnp.asarray(b), iterations=2, tolerance=1e-26)
    expected = np.linalg.solve(A, b.T).T
    np.testing.assert_allclose(three, expected, rtol=1e-9)
    assert np.max(np.abs(two - expected)) > 1e-3


def test_conjugate_gradient_of_a_zero_row_is_zero_and_leaves_its_neighbours_alone():
    A, b = spd_system(rows=3, size=8, condition=10.0)
    A32 = jnp.asarray(A, jnp.float32)
    b32 = jnp.asarray(b, jnp.float32).at[1].set(0.0)
    x = np.asarray(conjugate_gradient(lambda v: v @ A32, b32, iterations=20))
    assert np.array_equal(x[1], np.zeros(8))
    np.testing.assert_allclose(x[[0, 2]], np.linalg.solve(A, b[[0, 2]].T).T, rtol=1e-3, atol=1e-9)


def test_conjugate_gradient_does_not_divide_by_a_vanished_curvature():
    """A singular matrix and a right-hand side in its kernel: nothing to solve, but nothing to break either."""
    A = jnp.diag(jnp.array([1.0, 0.0]))
    x = np.asarray(conjugate_gradient(lambda v: v @ A, jnp.array([[0.0, 1.0], [2.0, 0.0]]), iterations=10))
    assert np.all(np.isfinite(x))
    np.testing.assert_allclose(x[1], [2.0, 0.0])


def test_solve_through_the_policys_own_fisher_matrix():
    """The pair as the update uses them: g -> F^-1 g without ever forming F."""
    outputs, theta, weight = small_policy("gaussian")
    F = kl_hessian(outputs, theta, weight).astype(np.float64) + 0.1 * np.eye(len(theta))
    g = np.random.default_rng(4).normal(size=(2, len(theta))).astype(np.float32)
    x = jax.jit(lambda rows: conjugate_gradient(fisher_product(outputs, theta, weight, damping=0.1), rows, 60))(g)
    expected = np.linalg.solve(F, g.T).T
    assert np.all(np.linalg.norm(x - expected, axis=-1) <= 1e-3 * np.linalg.norm(expected, axis=-1))
