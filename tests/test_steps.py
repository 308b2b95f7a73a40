"""Every policy step against a convex solver, on random problems and on each way a problem can degenerate.

Tolerances. The code computes in single precision (rounding u = 6e-8); inner products over a few parameters with metrics
of condition number up to 100 are good to about 1e-5 of the product of the lengths. Lengths are therefore compared
relative to the longest vector in play, and where several constraints are active together, the condition number of the
Gram matrix of their unit normals multiplies the tolerance.
"""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spacerl.core.fisher import conjugate_gradient
from spacerl.core.steps import backtrack, constrained_step, farthest_ascent, natural_step, project, stationarity
from support.convex import (
    least_worst_value,
    nearest_point,
    nearest_point_by_active_set,
    random_metrics,
    solved_rows,
    trust_region_optimum,
)

COUNT, SIZE = 500, 6


def metric_length(L: np.ndarray, s: np.ndarray) -> float:
    return float(np.sqrt(max(s @ L @ s, 0.0)))


# ---------------------------------------------------------------- the reward step


def test_natural_step_is_the_best_point_of_the_trust_region():
    rng = np.random.default_rng(0)
    F = random_metrics(rng, COUNT, SIZE)
    g = (rng.normal(size=(COUNT, SIZE)) * 10.0 ** rng.uniform(-6, 6, size=(COUNT, 1))).astype(np.float32)
    delta = (10.0 ** rng.uniform(-6, 0, size=COUNT)).astype(np.float32)
    x = solved_rows(F, g[:, None])[:, 0]
    steps = np.asarray(jax.jit(jax.vmap(natural_step))(g, x, delta), np.float64)
    for i in range(COUNT):
        best = trust_region_optimum(F[i], g[i], delta[i])
        # The optimum is unique on an ellipsoid, and flat: an error e in the point costs e^2 in the objective.
        assert metric_length(F[i], steps[i] - best) <= 1e-4 * metric_length(F[i], best)


def test_natural_step_of_a_vanished_gradient_is_zero():
    zero = jnp.zeros(SIZE)
    assert np.array_equal(natural_step(zero, zero, jnp.array(0.01)), zero)


# ---------------------------------------------------------------- projections onto half-spaces


def projection_problems(kind: str, M: int, metric: str, seed: int):
    """L, point, normals, values of COUNT problems of one kind; float32."""
    rng = np.random.default_rng([seed, M, metric == "kl"])
    L = random_metrics(rng, COUNT, SIZE) if metric == "kl" else np.tile(np.eye(SIZE, dtype=np.float32), (COUNT, 1, 1))
    point = rng.normal(size=(COUNT, SIZE))
    normals = rng.normal(size=(COUNT, M, SIZE)) * 10.0 ** rng.uniform(-3, 3, size=(COUNT, M, 1))
    at_point = rng.normal(size=(COUNT, M))  # signed distance of the point to each half-space
    if kind == "slack":
        at_point = -np.abs(at_point)
    elif kind == "zero normal":
        normals[:, 0] = 0.0
    elif kind == "parallel":  # the same direction twice: only the tighter of the two counts
        normals[:, -1] = normals[:, 0] * 10.0 ** rng.uniform(-2, 2, size=(COUNT, 1))
    elif kind == "slab":  # opposite directions with room between them
        normals[:, -1] = -normals[:, 0] * 10.0 ** rng.uniform(-2, 2, size=(COUNT, 1))
        at_point[:, -1] = -at_point[:, 0] - 10.0 ** rng.uniform(-3, 0, size=COUNT)
    elif kind == "on the boundary":
        at_point[:, 0] = 0.0
    elif kind == "one without a limit":
        at_point[:, -1] = -1e6
    normals = normals.astype(np.float32)
    size = np.sqrt(np.einsum("nmi,nmi->nm", normals, solved_rows(L, normals)))
    values = at_point * size - np.einsum("nmi,ni->nm", normals, point)
    values[size == 0.0] = rng.normal(size=(COUNT, M))[size == 0.0]
    return L, point.astype(np.float32), normals, values.astype(np.float32)


@functools.partial(jax.jit, static_argnums=4)
def project_all(point, normals, directions, values, priority):
    return jax.vmap(lambda p, n, x, v: p + project(p, n, x, v, priority))(point, normals, directions, values)


@functools.partial(jax.jit, static_argnums=5)
def project_all_in_metric(L, point, normals, directions, values, priority):
    def one(L, p, n, x, v):
        return p + project(p, n, x, v, priority, metric=lambda rows: rows @ L)

    return jax.vmap(one)(L, point, normals, directions, values)


def projected(L, point, normals, values, priority=None) -> np.ndarray:
    return np.asarray(project_all(point, normals, solved_rows(L, normals), values, priority), np.float64)


def projected_in_metric(L, point, normals, values, priority=None) -> np.ndarray:
    directions = solved_rows(L, normals)
    return np.asarray(project_all_in_metric(L, point, normals, directions, values, priority), np.float64)


def gram_condition(L: np.ndarray, normals: np.ndarray) -> float:
    """Condition number of the Gram matrix of the distinct unit normals."""
    gram = normals @ np.linalg.solve(L.astype(np.float64), normals.T.astype(np.float64))
    unit = gram / np.sqrt(np.outer(np.diag(gram), np.diag(gram)))
    kept: list[int] = []
    for i in range(len(unit)):
        if all(abs(unit[i, j]) < 1.0 - 1e-6 for j in kept):
            kept.append(i)
    return float(np.linalg.cond(unit[np.ix_(kept, kept)]))


KINDS = [(kind, M, "kl") for kind in ("random", "slack", "on the boundary") for M in (1, 2, 3)]
KINDS += [(kind, M, "kl") for kind in ("zero normal", "parallel", "slab", "one without a limit") for M in (2, 3)]
KINDS += [("random", M, "l2") for M in (1, 2, 3)]  # the metric only changes what L^-1 n is


@pytest.mark.parametrize(("kind", "M", "metric"), KINDS)
def test_projection_is_the_nearest_feasible_point(kind, M, metric):
    L, point, normals, values = projection_problems(kind, M, metric, seed=1)
    found = projected(L, point, normals, values)
    # Directions that are exact up to rounding need no help from the metric.
    in_metric = projected_in_metric(L, point, normals, values)
    assert M > 1 or np.array_equal(in_metric, found)
    for i in range(COUNT):
        alive = np.any(normals[i] != 0.0, axis=-1)  # a constraint that nothing can influence is ignored
        n, v = normals[i][alive], values[i][alive]
        best = nearest_point(L[i], point[i], n, v)
        reach = metric_length(L[i], point[i]) + metric_length(L[i], best)
        tolerance = 5e-5 * gram_condition(L[i], n) * reach
        assert metric_length(L[i], found[i] - best) <= tolerance
        assert metric_length(L[i], in_metric[i] - best) <= tolerance


def unfinished_solves(condition: float, M: int, size: int = 30, count: int = 200):
    """Problems with the directions that a few iterations of conjugate gradient give on an ill-conditioned metric."""
    rng = np.random.default_rng([7, M, int(condition)])
    L = random_metrics(rng, count, size, condition)
    normals = rng.normal(size=(count, M, size))
    normals[::2, -1] = normals[::2, 0] + 0.3 * normals[::2, -1]  # as of two costs with much in common
    normals = (normals * 10.0 ** rng.uniform(-3, 3, size=(count, M, 1))).astype(np.float32)
    solve = jax.vmap(lambda L, rows: conjugate_gradient(lambda x: x @ L, rows, iterations=10))
    directions = np.asarray(jax.jit(solve)(L, normals))
    point = rng.normal(size=(count, size))
    point /= np.sqrt(np.einsum("ni,nij,nj->n", point, L, point))[:, None]
    length = np.sqrt(np.einsum("nmi,nmi->nm", normals, directions))
    values = rng.normal(size=(count, M)) * length - np.einsum("nmi,ni->nm", normals, point)
    return L, point.astype(np.float32), normals, directions, values.astype(np.float32)


@pytest.mark.parametrize("M", [2, 3])
@pytest.mark.parametrize("condition", [1e2, 1e4, 1e6])
def test_constraints_hold_however_far_the_solves_got(condition, M):
    L, point, normals, directions, values = unfinished_solves(condition, M)
    found = np.asarray(project_all_in_metric(L, point, normals, directions, values, None), np.float64)
    asymmetry = []
    for i in range(len(L)):
        n, x, v = (array[i].astype(np.float64) for array in (normals, directions, values))
        metric = L[i].astype(np.float64)
        # Corrections are combinations z of rows that are orthonormal in the metric: a problem in M unknowns.
        x /= np.sqrt(np.einsum("mi,ij,mj->m", x, metric, x))[:, None]
        reachable = np.linalg.solve(np.linalg.cholesky(x @ metric @ x.T), x)
        z = nearest_point_by_active_set(np.eye(M), np.zeros(M), n @ reachable.T, n @ point[i] + v)
        best = point[i] + z @ reachable
        scale = metric_length(metric, point[i]) + metric_length(metric, found[i])
        length = np.sqrt(np.einsum("mi,mi->m", n, np.linalg.solve(metric, n.T).T))
        assert np.all(n @ found[i] + v <= 1e-6 * length * scale)
        # What is nearest depends on lengths, and vectors that L stretches least have the rounding of what it stretches
        # most: the root of its condition number.
        tolerance = 1e-7 * np.sqrt(condition) * np.linalg.cond(x @ metric @ x.T)
        assert metric_length(metric, found[i] - best) <= tolerance * scale
        gram = n @ directions[i].T / np.outer(length, length)
        asymmetry.append(np.max(np.abs(gram - gram.T)))
    assert np.median(asymmetry) > 1e-3  # the solves are as unfinished as this test is about


def empty_intersections(kind: str, seed: int):
    """Costs that can be met, then a divergence that cannot be met with them; float32."""
    K = 1 if kind == "opposite to the cost" else 2
    rng = np.random.default_rng([seed, K])
    L = random_metrics(rng, COUNT, SIZE)
    point = rng.normal(size=(COUNT, SIZE))
    # Whole numbers: a rounded opposite would meet the costs somewhere far away.
    costs = rng.integers(-9, 10, size=(COUNT, K, SIZE)).astype(np.float64)
    mix = rng.integers(1, 6, size=(COUNT, K)).astype(np.float64)
    if kind == "opposite to one of two costs":
        mix[:, 1] = 0.0
    divergence = -np.einsum("nk,nki->ni", mix, costs)
    cost_values = 10.0 * rng.normal(size=(COUNT, K)) - np.einsum("nki,ni->nk", costs, point)
    # Where the costs hold, divergence.s >= mix.cost_values; `gap` above that is what must remain.
    gap = 10.0 ** rng.uniform(-1, 2, size=COUNT)
    normals = np.concatenate([costs, divergence[:, None]], axis=1)
    values = np.concatenate([cost_values, (gap - np.sum(mix * cost_values, axis=-1))[:, None]], axis=1)
    return L, *(x.astype(np.float32) for x in (point, normals, values))


@pytest.mark.parametrize("kind", ["opposite to the cost", "opposite to one of two costs", "opposite to both costs"])
def test_an_empty_intersection_keeps_the_costs_then_the_least_divergence_then_the_nearest_point(kind):
    L, point, normals, values = empty_intersections(kind, seed=2)
    K = normals.shape[1] - 1
    found = projected(L, point, normals, values, priority=(0,) * K + (1,))
    for i in range(COUNT):
        n, v = normals[i].astype(np.float64), values[i].astype(np.float64)
        size = np.sqrt(np.einsum("mi,ij,mj->m", n, np.linalg.inv(L[i].astype(np.float64)), n))
        n, v = n / size[:, None], v / size  # violations as distances in the metric
        divergence = np.arange(K + 1) == K
        least = least_worst_value(n, v, divergence, np.zeros(K + 1))
        # A whisker more room than none, because an interior-point method needs an interior.
        best = nearest_point(L[i], point[i], n, v - np.append(np.zeros(K), least + 1e-7))
        after = n @ found[i] + v
        tolerance = 2e-6 * gram_condition(L[i], n) * (metric_length(L[i], point[i]) + metric_length(L[i], best))
        assert np.all(after[:-1] <= tolerance)
        assert after[-1] <= least + tolerance
        assert metric_length(L[i], found[i] - best) <= 10.0 * tolerance


EXCLUDING = ["opposite, both violated", "opposite, one violated", "opposite beside a third"]
EXCLUDING += ["in a plane", "surrounding the origin", "four in three dimensions"]


def excluding_costs(kind: str, divergence: bool, count: int = 60):
    """Costs that exclude each other (or nearly do), and a divergence that has to wait for them; float32."""
    rng = np.random.default_rng([3, EXCLUDING.index(kind), divergence])

    def whole(low: int, high: int, *shape: int) -> np.ndarray:  # so that normals cancel to the last bit
        return rng.integers(low, high, size=(count, *shape)).astype(np.float64)

    L, point = random_metrics(rng, count, SIZE), rng.normal(size=(count, SIZE))
    costs = whole(-9, 10, 3 if kind == "four in three dimensions" else 2, SIZE)
    if kind == "in a plane":
        costs = np.einsum("nmk,nki->nmi", whole(-3, 4, 3, 2), costs)
    elif kind.startswith("opposite"):
        costs[:, 1] = -costs[:, 0]
    else:
        costs = np.append(costs, -np.einsum("nk,nki->ni", whole(1, 6, costs.shape[1]), costs)[:, None], axis=1)
    if kind == "opposite beside a third":
        costs = np.stack([costs[:, 0], whole(-9, 10, SIZE), costs[:, 1]], axis=1)
    K = costs.shape[1]
    normals = costs * 2.0 ** whole(-9, 10, K, 1)
    at_point = rng.normal(size=(count, K + divergence))
    if kind == "opposite, both violated":
        at_point[:, :2] = np.abs(at_point[:, :2])
    elif kind == "opposite, one violated":
        at_point[:, :2] = np.abs(at_point[:, :2]) * [1.0, -1.0]
    if divergence:  # anywhere, or where it must get in the way of the costs
        entangled = np.einsum("nk,nki->ni", whole(-3, 4, K), costs)
        other = np.where(np.arange(count)[:, None] % 2 == 0, entangled, whole(-9, 10, SIZE))
        normals = np.append(normals, other[:, None], axis=1)
    length = np.sqrt(np.einsum("nmi,nmi->nm", normals, solved_rows(L, normals)))
    values = at_point * length - np.einsum("nmi,ni->nm", normals, point)
    alive = np.all(length > 0.0, axis=-1)
    return tuple(x[alive].astype(np.float32) for x in (L, point, normals, values))


def worst_condition(L: np.ndarray, unit_normals: np.ndarray) -> float:
    """Largest condition number of the Gram matrix of unit normals over their independent subsets."""
    gram = unit_normals @ np.linalg.solve(L.astype(np.float64), unit_normals.T)
    sizes = range(1, len(gram) + 1)
    subsets = itertools.chain.from_iterable(itertools.combinations(range(len(gram)), size) for size in sizes)
    conditions = np.asarray([np.linalg.cond(gram[np.ix_(subset, subset)]) for subset in subsets])
    return float(np.max(conditions[conditions < 1e8]))


@pytest.mark.parametrize("divergence", [False, True])
@pytest.mark.parametrize("kind", EXCLUDING)
def test_costs_that_exclude_each_other_give_way_alike(kind, divergence):
    """Least worst distance to the costs, then the least divergence, then the nearest point."""
    L, point, normals, values = excluding_costs(kind, divergence)
    K = normals.shape[1] - divergence
    priority = (0,) * K + (1,) * divergence
    found, in_metric = (
        solve(L, point, normals, values, priority=priority) for solve in (projected, projected_in_metric)
    )
    judged = excluded = 0
    for i in range(len(L)):
        n, v = normals[i].astype(np.float64), values[i].astype(np.float64)
        length = np.sqrt(np.einsum("mi,ij,mj->m", n, np.linalg.inv(L[i].astype(np.float64)), n))
        n, v = n / length[:, None], v / length  # values as distances in the metric
        condition = worst_condition(L[i], n)
        if condition > 3e3:  # boundaries that meet too far away to tell from boundaries that never do
            continue
        costs = np.arange(len(v)) < K
        worst = least_worst_value(n, v, costs, np.full(len(v), np.inf))
        room = np.where(costs, worst + 1e-9, np.inf)  # a whisker more than none, for the solver's rounding
        if divergence:
            room[K] = least_worst_value(n, v, ~costs, room) + 1e-9
        best = nearest_point_by_active_set(L[i], point[i], n, v - room)
        tolerance = 5e-7 * condition * (metric_length(L[i], point[i]) + metric_length(L[i], best))
        for s in (found[i], in_metric[i]):
            assert np.all(n @ s + v <= room + tolerance)
            assert metric_length(L[i], s - best) <= tolerance
        judged, excluded = judged + 1, excluded + (worst > 1e-3)
    assert judged > 0.5 * len(L)
    assert excluded > 0.05 * judged


def test_nearly_opposite_constraints_keep_the_cost_and_do_not_explode():
    """An angle that single precision cannot resolve must not send the step to where the two planes would meet."""
    rng = np.random.default_rng(4)
    L = random_metrics(rng, COUNT, SIZE)
    point = rng.normal(size=(COUNT, SIZE)).astype(np.float32)
    cost = rng.normal(size=(COUNT, SIZE))
    tilt = 10.0 ** rng.uniform(-8, -4, size=(COUNT, 1)) * rng.normal(size=(COUNT, SIZE))
    normals = np.stack([cost, tilt - cost], axis=1).astype(np.float32)
    values = np.abs(rng.normal(size=(COUNT, 2))).astype(np.float32)
    found = projected(L, point, normals, values, priority=(0, 1))
    for i in range(COUNT):
        # Up to the tilt, the plane of the cost is where it holds and the divergence is least.
        n, v = normals[i, 0].astype(np.float64), float(values[i, 0])
        direction = np.linalg.solve(L[i].astype(np.float64), n)
        on_plane = point[i] - (n @ point[i] + v) / (n @ direction) * direction
        assert n @ found[i] + v <= 1e-5 * (1.0 + np.linalg.norm(n) * np.linalg.norm(found[i]))
        assert metric_length(L[i], found[i] - on_plane) <= 1e-5 * (1.0 + metric_length(L[i], on_plane))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_degenerate_input_gives_finite_steps_at_every_scale(scale):
    rng = np.random.default_rng(8)
    n = rng.normal(size=(2, SIZE))
    zero = np.zeros(SIZE)
    triples = [[zero, zero, zero], [n[0], zero, -n[0]], [n[0], n[0], -n[0]], [n[0], n[1], -n[0] - n[1]]]
    normals = np.repeat(np.asarray(triples) * scale, COUNT // 4, axis=0).astype(np.float32)
    L = random_metrics(rng, len(normals), SIZE)
    point = (10.0 ** rng.uniform(-6, 6, size=(len(L), 1)) * rng.normal(size=(len(L), SIZE))).astype(np.float32)
    values = (10.0 ** rng.uniform(-6, 6, size=(len(L), 3)) * rng.normal(size=(len(L), 3))).astype(np.float32)
    for solve in (projected, projected_in_metric):
        for priority in ((0, 0, 0), (1, 0, 1)):
            found = solve(L, point, normals, values, priority)
            assert np.all(np.isfinite(found))
            assert np.array_equal(found[: COUNT // 4], point[: COUNT // 4])  # normals that vanish change nothing


# ---------------------------------------------------------------- distance from a stationary point


@jax.jit
def stationarity_of_all(L, ascent, normals, directions, values):
    def one(L, ascent, n, x, v):
        return stationarity(ascent, n, x, v, metric=lambda rows: rows @ L)

    return jax.vmap(one)(L, ascent, normals, directions, values)


@pytest.mark.parametrize("M", [1, 2, 3])
def test_a_stationary_point_leaves_nothing_of_the_ascent(M):
    rng = np.random.default_rng([9, M])
    L = random_metrics(rng, COUNT, SIZE)
    normals = (rng.normal(size=(COUNT, M, SIZE)) * 10.0 ** rng.uniform(-3, 3, size=(COUNT, M, 1))).astype(np.float32)
    directions = solved_rows(L, normals)
    length = np.sqrt(np.einsum("nmi,nmi->nm", normals, directions))
    # Complementary slackness: a constraint that pushes is active, and at least one pushes.
    pushes = np.arange(M) <= rng.integers(0, M, size=(COUNT, 1))
    multipliers = np.where(pushes, 10.0 ** rng.uniform(-1, 1, size=(COUNT, M)), 0.0) / length
    ascent = np.einsum("nm,nmi->ni", multipliers, directions).astype(np.float32)
    values = np.where(pushes, 0.0, -np.abs(rng.normal(size=(COUNT, M))) * length).astype(np.float32)
    rho, s = (np.asarray(x, np.float64) for x in stationarity_of_all(L, ascent, normals, directions, values))
    for i in range(COUNT):
        assert rho[i] <= 2e-6 * gram_condition(L[i], normals[i])
        assert rho[i] == pytest.approx(metric_length(L[i], s[i]) / metric_length(L[i], ascent[i]), rel=1e-3, abs=1e-9)


def test_an_ascent_that_no_constraint_stops_is_as_far_from_stationary_as_it_is_long():
    L, ascent, normals, values = projection_problems("slack", 3, "kl", seed=10)
    rho, s = stationarity_of_all(L, ascent, normals, solved_rows(L, normals), values)
    assert np.all(np.asarray(rho) == 1.0)
    assert np.array_equal(s, ascent)


@pytest.mark.parametrize("metric", ["kl", "l2"])
def test_stationarity_is_the_length_of_the_nearest_feasible_point(metric):
    L, ascent, normals, values = projection_problems("random", 2, metric, seed=11)
    if metric == "l2":
        rho, _ = jax.jit(jax.vmap(stationarity))(ascent, normals, normals, values)
    else:
        rho, _ = stationarity_of_all(L, ascent, normals, solved_rows(L, normals), values)
    for i in range(COUNT):
        best = metric_length(L[i], nearest_point(L[i], ascent[i], normals[i], values[i]))
        wanted = metric_length(L[i], ascent[i])
        assert abs(rho[i] * wanted - best) <= 5e-5 * gram_condition(L[i], normals[i]) * (wanted + best)


def test_stationarity_without_an_ascent():
    zero, normals = jnp.zeros(SIZE), jnp.eye(2, SIZE)
    measure = jax.jit(stationarity)
    met, _ = measure(zero, normals, normals, jnp.array([0.0, -1.0]))
    violated, recovery = measure(zero, normals, normals, jnp.array([1.0, -1.0]))
    assert float(met) == 0.0
    assert np.isnan(float(violated))
    assert np.allclose(recovery, -normals[0])


# ---------------------------------------------------------------- CPO's step

CONSTRAINED = ["random", "recoverable", "out of reach", "slack", "on the boundary", "zero g", "zero c"]
CONSTRAINED += ["parallel", "opposite", "parallel on the boundary", "opposite on the boundary", "nearly parallel"]


def constrained_problems(kind: str, seed: int):
    rng = np.random.default_rng([seed, CONSTRAINED.index(kind)])
    F = random_metrics(rng, COUNT, SIZE)
    g, c = rng.normal(size=(2, COUNT, SIZE)) * 10.0 ** rng.uniform(-3, 3, size=(2, COUNT, 1))
    if kind == "zero g":
        g[:] = 0.0
    elif kind == "zero c":
        c[:] = 0.0
    elif kind == "nearly parallel":
        g = c * 10.0 ** rng.uniform(-3, 3, size=(COUNT, 1))
        g += (
            10.0 ** rng.uniform(-7, -1, size=(COUNT, 1))
            * np.linalg.norm(g, axis=-1, keepdims=True)
            * rng.normal(size=g.shape)
        )
    elif kind.startswith(("parallel", "opposite")):
        sign = 1.0 if kind.startswith("parallel") else -1.0
        # Whole numbers times powers of two: parallel to the last bit.
        c = rng.integers(-9, 10, size=(COUNT, SIZE)) * 1.0
        g = sign * c * 2.0 ** rng.integers(-9, 10, size=(COUNT, 1))
    delta = 10.0 ** rng.uniform(-5, -1, size=COUNT)
    # d as a multiple of the most that c.s can change within the trust region: beyond 1 no step meets the constraint.
    share = rng.uniform(-1.5, 1.5, size=COUNT)
    share = {
        "recoverable": rng.uniform(0.0, 0.99, size=COUNT),
        "out of reach": rng.uniform(1.01, 5.0, size=COUNT),
        "slack": rng.uniform(-5.0, -1.01, size=COUNT),
        "on the boundary": np.zeros(COUNT),
        "parallel on the boundary": np.zeros(COUNT),
        "opposite on the boundary": np.zeros(COUNT),
    }.get(kind, share)
    reach = np.sqrt(2.0 * delta * np.einsum("ni,nij,nj->n", c, np.linalg.inv(F), c))
    d = share * reach if kind != "zero c" else rng.normal(size=COUNT)
    return (F, *(np.asarray(x, np.float32) for x in (g, c, d, delta)))


step_all = jax.jit(jax.vmap(constrained_step))


@pytest.mark.parametrize("kind", CONSTRAINED)
def test_constrained_step_is_optimal(kind):
    F, g, c, d, delta = constrained_problems(kind, seed=5)
    x_g, x_c = solved_rows(F, np.stack([g, c], axis=1)).transpose(1, 0, 2)
    found = jax.tree.map(np.asarray, step_all(g, x_g, c, x_c, d, delta))
    # Changes are compared with the most the trust region allows. A reward within an angle of 1e-3 of the constraint's
    # normal counts as parallel, because what is left of it is mostly rounding; that may cost 1e-3 of the reward, and
    # just above that angle rounding is 1e-7 / 1e-3 of what is left.
    near = kind == "nearly parallel"
    reward_tolerance, kl_tolerance, cost_tolerance = (1.5e-3, 1e-3, 1e-3) if near else (1e-5, 1e-5, 1e-5)
    for i in range(COUNT):
        s = found.step[i].astype(np.float64)
        inverse = np.linalg.inv(F[i].astype(np.float64))
        most_g = np.sqrt(2.0 * delta[i] * (g[i] @ inverse @ g[i]))
        most_c = np.sqrt(2.0 * delta[i] * (c[i] @ inverse @ c[i]))
        assert 0.5 * s @ F[i] @ s <= delta[i] * (1.0 + kl_tolerance)
        assert found.infeasible[i] == (0.0 < most_c < d[i])
        assert found.recovering[i] == (most_c > 0.0 and d[i] > 0.0)
        if most_c == 0.0:  # nothing can be done about the cost
            assert g[i] @ s >= most_g * (1.0 - 1e-5)
        elif found.infeasible[i]:  # as much of the cost as possible, whatever it does to the reward
            least = trust_region_optimum(F[i], -c[i], delta[i])
            assert c[i] @ s <= c[i] @ least + 1e-5 * most_c
        else:
            best = trust_region_optimum(F[i], g[i], delta[i], c[i][None], d[i][None])
            assert c[i] @ s + d[i] <= cost_tolerance * most_c
            assert g[i] @ s >= g[i] @ best - reward_tolerance * most_g


def test_constrained_step_stays_where_there_is_nothing_to_gain():
    """Without a reward gradient, and with the cost met, any feasible step is optimal; only no step is sensible."""
    F, g, c, d, delta = constrained_problems("zero g", seed=5)
    x_g, x_c = solved_rows(F, np.stack([g, c], axis=1)).transpose(1, 0, 2)
    found = step_all(g, x_g, c, x_c, d, delta)
    assert np.all(np.asarray(found.step)[d <= 0.0] == 0.0)


# ---------------------------------------------------------------- the reward step along the costs' limits


@pytest.mark.parametrize("costs", [1, 2, 3])
def test_the_lengthened_reward_step_is_the_best_of_the_trust_region_and_the_costs(costs):
    """Against a convex solver, up to the grid of its factor and a most of 100; costs that are kept, some just so."""
    rng = np.random.default_rng([8, costs])
    F = random_metrics(rng, COUNT, SIZE)
    g, c = rng.normal(size=(COUNT, SIZE)), rng.normal(size=(COUNT, costs, SIZE))
    delta = 10.0 ** rng.uniform(-4, -1, size=COUNT)
    inverse = np.linalg.inv(F.astype(np.float64))
    reach = np.sqrt(2.0 * delta[:, None] * np.einsum("nmi,nij,nmj->nm", c, inverse, c))
    d = -np.abs(rng.normal(size=(COUNT, costs))) * reach * (rng.random((COUNT, costs)) < 0.7)
    F, g, c, d, delta = (np.asarray(x, np.float32) for x in (F, g, c, d, delta))
    x_g, x_c = solved_rows(F, g[:, None])[:, 0], solved_rows(F, c)

    @jax.jit
    @jax.vmap
    def step(F, g, c, d, delta, x_g, x_c):
        ascent = natural_step(g, x_g, delta)
        longer = ascent * farthest_ascent(ascent, c, x_c, d, delta, lambda rows: rows @ F, 100.0)
        return longer + project(longer, c, x_c, d, metric=lambda rows: rows @ F)

    found, worse = np.asarray(step(F, g, c, d, delta, x_g, x_c), np.float64), 0
    for i in range(COUNT):
        best = trust_region_optimum(F[i], g[i], delta[i], c[i], d[i])
        most = np.sqrt(2.0 * delta[i] * (g[i] @ inverse[i] @ g[i]))
        assert 0.5 * metric_length(F[i], found[i]) ** 2 <= 1.005 * delta[i]
        assert np.all(c[i] @ found[i] + d[i] <= 1e-4 * reach[i])
        assert g[i] @ found[i] <= g[i] @ best + 1e-3 * most
        worse += g[i] @ found[i] < 0.85 * (g[i] @ best) - 0.01 * most
    assert worse <= 0.01 * COUNT  # where hardly anything of the reward is left along the limits


def test_a_reward_step_that_no_cost_shortens_is_not_lengthened():
    rng = np.random.default_rng(9)
    F, ascent, c = np.eye(SIZE, dtype=np.float32), rng.normal(size=SIZE), rng.normal(size=(2, SIZE))
    delta, slack = 0.5 * ascent @ ascent, np.full(2, -1e3)
    factor = farthest_ascent(*map(jnp.asarray, (ascent, c, c, slack, delta)), lambda rows: rows @ F, 10.0)
    assert float(factor) == 1.0


def test_what_recovery_spends_is_not_taken_from_the_reward_step():
    """A cost above its limit at right angles to the reward: the way back comes on top of delta."""
    ascent, c = jnp.eye(SIZE)[0], jnp.eye(SIZE)[1:2]
    for excess in (0.1, 1e3):
        values = (ascent, c, c, jnp.array([excess]), jnp.array(0.5))
        assert float(farthest_ascent(*values, lambda rows: rows, 10.0)) == 1.0


def test_a_reward_step_is_no_longer_than_its_costs_can_be_taken_back():
    """The ascent raises the cost by 1 per unit, a correction along the normal takes back half of what it is long: up to
    the limit every unit gains, beyond it two steps back are needed for each step ahead."""
    ascent, c = jnp.eye(SIZE)[0], 0.5 * jnp.eye(SIZE)[:1]
    values = (ascent, c, c, jnp.array([-0.5]), jnp.array(0.5))
    factor = float(farthest_ascent(*values, lambda rows: rows, 10.0, lift=jnp.array([0.5])))
    assert 0.45 <= factor <= 0.5 * 1.08  # the grid's nearest


# ---------------------------------------------------------------- line search


@pytest.mark.parametrize(("limit", "scale"), [(1.0, 1.0), (0.8, 0.8), (0.5, 0.4096), (0.8**13.5, 0.8**14)])
def test_backtrack_returns_the_largest_accepted_scale(limit, scale):
    got, found = jax.jit(lambda: backtrack(lambda s: s <= limit + 1e-6, 0.8, 15))()
    assert float(got) == pytest.approx(scale)
    assert bool(found)


def test_backtrack_without_an_acceptable_scale_reports_the_smallest_tried():
    scale, found = jax.jit(lambda: backtrack(lambda s: s < 0.0, 0.8, 15))()
    assert float(scale) == pytest.approx(0.8**14)
    assert not bool(found)
