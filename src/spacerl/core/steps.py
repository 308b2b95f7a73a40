"""Policy steps: closed-form solutions of small convex problems in parameter space.

Everything is in one sign convention (see `spacerl.types`): steps s maximise g.s and keep n.s + v <= 0 for a constraint
with normal n and value v at the current parameters. Degenerate input (zero or parallel gradients, infeasible or slack
constraints) is handled with `where`, never with a branch, so that every step can be compiled and vmapped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spacerl.types import Array, StepInputs

TINY = 1e-30  # below this a float32 squared length says nothing about a direction
PARALLEL = 1e-5  # squared sine between two normals under which they count as parallel


def natural_step(g: Array, x: Array, delta: Array) -> Array:
    """argmax_s g.s subject to s^T F s / 2 <= delta, given x = F^-1 g: s = sqrt(2 delta / g.x) x (step 1 of SPACE)."""
    return natural_length(g, x, delta) * x


def natural_length(g: Array, x: Array, delta: Array) -> Array:
    """The factor on x = F^-1 g with which it spends delta."""
    q = jnp.dot(g, x)
    return jnp.where(q > TINY, jnp.sqrt(2.0 * delta / jnp.where(q > TINY, q, 1.0)), 0.0)


def metric_directions(inputs: StepInputs, normals: Array, projection: str) -> tuple[Array, Array]:
    """x_g = F^-1 g, and L^-1 n for every row of `normals` (M, P): L = F for "kl", L = I for "l2".

    One solve for all right-hand sides; the Fisher matrix of the reward step is the one of the projections.
    """
    if projection == "l2":
        return inputs.solve(inputs.g[None])[0], normals
    solved = inputs.solve(jnp.concatenate([inputs.g[None], normals]))
    return solved[0], solved[1:]


def within_kl(step: Array, inputs: StepInputs, bound: Array | float) -> Array:
    """`step` (P,) shortened, where it must be, so that it spends at most `bound` of KL: s^T F s / 2 <= bound."""
    spent = 0.5 * jnp.dot(step, inputs.fisher(step[None])[0])
    return step * jnp.minimum(1.0, jnp.sqrt(bound / jnp.maximum(spent, TINY)))


def project(
    point: Array,  # (P,) step so far, relative to the current parameters
    normals: Array,  # (M, P)
    directions: Array,  # (M, P) L^-1 normals
    values: Array,  # (M,) constraint values at the current parameters
    priority: tuple[int, ...] | None = None,
    metric: Callable[[Array], Array] | None = None,  # (M, P) -> (M, P), applies L to each row
) -> Array:
    """Nearest point to `point` in the metric L with n.s + v <= 0 for every constraint. Returns the correction (P,).

    Directions X from a few iterations of conjugate gradient solve L x = n only roughly. The matrix n_i.x_j is then not
    symmetric, and multipliers of its symmetric part break the constraints. With `metric`, X only spans the corrections
    to choose from: on a basis Q of it, orthonormal in L, a correction is Q^T z, its length |z| and constraint i reads
    (Q n_i).z + n_i.point + v_i <= 0. That is a projection onto half-spaces again, with Gram matrix (Q n_i).(Q n_j), so
    constraints hold to rounding whatever the solver did, and the point is the nearest that `directions` can reach. The
    directions this amounts to are N G^-1 X with N = n X^T and G = X L X^T, which is X where the solves are exact;
    orthonormal rows do without the inverse of G, which is singular for parallel constraints. A single constraint is
    met along its own direction with or without `metric`.
    """
    priority = priority or (0,) * normals.shape[0]
    violation = normals @ point + values
    if metric is None or normals.shape[0] == 1:
        gram = normals @ directions.T
        return -(halfspace_multipliers(0.5 * (gram + gram.T), violation, priority) @ directions)
    basis, _ = _orthonormal_rows(directions, metric(directions))
    coordinates = normals @ basis.T
    return -((halfspace_multipliers(coordinates @ coordinates.T, violation, priority) @ coordinates) @ basis)


def stationarity(
    ascent: Array,  # (P,) step of the reward alone: a positive multiple of F^-1 g
    normals: Array,  # (M, P)
    directions: Array,  # (M, P) L^-1 normals
    values: Array,  # (M,)
    priority: tuple[int, ...] | None = None,
    metric: Callable[[Array], Array] | None = None,  # as for `project`; None: L = I
) -> tuple[Array, Array]:
    """rho = |s|_L / |ascent|_L and s, the nearest point to `ascent` that satisfies the constraints.

    s vanishes, and rho with it, exactly where the current parameters satisfy the constraints and `ascent` is a
    nonnegative combination of the directions of those that are active (the KKT conditions); rho is 1 where no
    constraint is in the way. Without an ascent rho is 0 if nothing is violated, else there is no scale for s: NaN.
    """
    s = ascent + project(ascent, normals, directions, values, priority, metric)
    rows = jnp.stack([s, ascent])
    squared = jnp.sum(rows * (rows if metric is None else metric(rows)), axis=-1)
    moved, wanted = jnp.sqrt(jnp.maximum(squared, 0.0))
    known = squared[1] > TINY
    without_ascent = jnp.where(squared[0] > TINY, jnp.nan, 0.0)
    return jnp.where(known, moved / jnp.where(known, wanted, 1.0), without_ascent), s


def farthest_ascent(
    ascent: Array,  # (P,) step of the reward alone, which spends delta
    normals: Array,  # (M, P) of the costs
    directions: Array,  # (M, P) F^-1 normals
    values: Array,  # (M,) not above zero at some step of at most delta
    delta: Array,
    fisher: Callable[[Array], Array],  # (M, P) -> (M, P)
    most: float,
    lift: Array | float = 0.0,  # (M,) by which the ascent raises the values besides what the normals say
) -> Array:
    """The factor u, from 1 / `most` to `most`, on the reward step with which its projection onto the costs gains most,
    of those that spend at most delta more than the projection of no step does.

    P(u s_1) maximises g.s - |s|^2 / 2u on the constraints, so g.s and the KL of it grow with u, and where it spends
    delta it is CPO's step: the most reward that the trust region and the costs allow, for any number of costs. With
    u = 1 it is PCPO's, which gives away what the projection takes from the length of the step. Where the ascent raises
    a cost by more than the normals say, taking that back is dear and the best factor may be less than 1. A factor on a
    grid: all are tried at once, in coordinates of the few directions there are.
    """
    rows = jnp.concatenate([directions, ascent[None]])
    basis, images = _orthonormal_rows(rows, fisher(rows))
    along, coordinates = images @ ascent, normals @ basis.T
    gram, rise = coordinates @ coordinates.T, coordinates @ along + lift

    def projected(factor: Array) -> Array:
        multipliers = halfspace_multipliers(gram, factor * rise + values, (0,) * normals.shape[0])
        return factor * along - multipliers @ coordinates

    longer = most ** jnp.linspace(0.0, 1.0, 33)
    factors = jnp.concatenate([1.0 / longer[:0:-1], longer])
    steps = jax.vmap(projected)(factors)
    spent = 0.5 * jnp.sum(steps**2, axis=1)
    fits = spent <= 1.001 * delta + 0.5 * jnp.sum(projected(jnp.zeros(())) ** 2)
    return factors[jnp.argmax(jnp.where(fits, steps @ along, -jnp.inf))]


def _orthonormal_rows(rows: Array, images: Array) -> tuple[Array, Array]:
    """A basis (M, P) of the span of `rows`, orthonormal in the metric that made `images` of them (Gram-Schmidt), and
    the images of the basis.

    A row that vanishes, or that is parallel to those before it, has a zero row in its place.
    """
    basis: list[Array] = []
    basis_images: list[Array] = []
    for row, image in zip(rows, images, strict=True):
        row, image = _unit_length(row, image, TINY)
        for before, before_image in 2 * list(zip(basis, basis_images, strict=True)):  # once more for what rounding left
            share = jnp.dot(before_image, row)
            row, image = row - share * before, image - share * before_image
        row, image = _unit_length(row, image, PARALLEL)
        basis.append(row)
        basis_images.append(image)
    return jnp.stack(basis), jnp.stack(basis_images)


def _unit_length(row: Array, image: Array, negligible: float) -> tuple[Array, Array]:
    """A row and its image with row.image = 1; zero where that was `negligible`."""
    squared = jnp.dot(row, image)
    scale = jnp.where(squared > negligible, 1.0 / jnp.sqrt(jnp.maximum(squared, negligible)), 0.0)
    return scale * row, scale * image


def halfspace_multipliers(gram: Array, violation: Array, priority: tuple[int, ...]) -> Array:
    """Multipliers nu (M,) of the exact projection onto an intersection of half-spaces: s = s_0 - sum nu_i L^-1 n_i.

    `gram` (M, M) is n_i^T L^-1 n_j and `violation` (M,) the constraint values at s_0. The projection onto a polyhedron
    is the nearest of the feasible projections onto the affine hulls of its faces, so all 2^M faces are tried (M is the
    number of constraints: two or three). Where the intersection is empty, constraints of a lower `priority` number are
    satisfied first, then the next level as far as a face allows. Constraints of one level that exclude each other give
    way alike: the largest of their distances is as small as it can be, and the point the nearest where it is. A
    constraint whose normal vanishes cannot be influenced and is ignored.
    """
    scale = jnp.sqrt(jnp.maximum(jnp.diagonal(gram), 0.0))
    alive = scale > jnp.sqrt(TINY)
    scale = jnp.where(alive, scale, 1.0)
    unit_gram = gram / (scale[:, None] * scale[None, :])
    distance = jnp.where(alive, violation / scale, 0.0)  # signed distance to each half-space, in the metric
    for level in set(priority):
        members = np.asarray(priority) == level
        distance -= jnp.where(members, _unavoidable_distance(unit_gram, distance, alive, members), 0.0)

    faces = jnp.asarray(list(itertools.product([False, True], repeat=len(priority))))
    candidate = jax.vmap(lambda face: _onto_face(unit_gram, distance, face & alive))(faces)
    keep = candidate.regular
    for level in sorted(set(priority)):
        members = np.flatnonzero(np.asarray(priority) == level)
        residual, rounding = candidate.residual[:, members], candidate.rounding[:, members]
        worst = jnp.where(keep, jnp.maximum(jnp.max(residual, axis=-1), 0.0), jnp.inf)
        doubt = jnp.take_along_axis(rounding, jnp.argmax(residual, axis=-1)[:, None], axis=-1)[:, 0]
        keep &= worst - doubt <= jnp.min(worst + doubt)  # not worse for certain
    best = jnp.argmin(jnp.where(keep, candidate.squared_length, jnp.inf))
    return candidate.multipliers[best] / scale


def _unavoidable_distance(unit_gram: Array, distance: Array, alive: Array, members: np.ndarray) -> Array:
    """min_s max_i of the signed distances of `members` at s where that is positive, else zero.

    By linear-programming duality it is the largest weighted mean of the distances over sets of unit normals that
    cancel, sum w_i u_i = 0 with w >= 0. Sets of which no part is dependent are enough: these have one w, found by
    writing their last normal as a combination of the others. What counts as dependent are the sets that are not tried
    as faces, so that half-spaces keep their distance where the point in which their boundaries meet is a candidate.
    """
    indices = np.flatnonzero(members)
    subsets = [subset for size in range(2, len(indices) + 1) for subset in itertools.combinations(indices, size)]
    if not subsets:
        return jnp.zeros(())
    last = jnp.asarray([subset[-1] for subset in subsets])
    others = jnp.asarray([np.isin(np.arange(len(members)), subset[:-1]) for subset in subsets])

    def mean_where_normals_cancel(last: Array, others: Array) -> Array:
        combination = _onto_face(unit_gram, unit_gram[:, last], others)
        weights = -combination.multipliers
        dependent = combination.regular & (unit_gram[last, last] - combination.squared_length <= PARALLEL)
        cancel = dependent & jnp.all(weights >= 0.0) & alive[last] & jnp.all(alive | ~others)
        return jnp.where(cancel, (distance[last] + weights @ distance) / (1.0 + jnp.sum(weights)), 0.0)

    return jnp.maximum(jnp.max(jax.vmap(mean_where_normals_cancel)(last, others)), 0.0)


class _Candidate(NamedTuple):
    multipliers: Array  # (M,) for unit normals
    residual: Array  # (M,) signed distance left, exactly zero on the face
    rounding: Array  # (M,) what float32 cannot tell from zero in it
    squared_length: Array  # () of the correction
    regular: Array  # () False where the face's normals are parallel


def _onto_face(unit_gram: Array, distance: Array, face: Array) -> _Candidate:
    """Projection onto the affine hull of one face, by a Cholesky factorisation unrolled over the few constraints."""
    M = distance.shape[0]
    both = face[:, None] & face[None, :]
    matrix = jnp.where(both, unit_gram, jnp.eye(M, dtype=unit_gram.dtype))
    rhs = jnp.where(face, distance, 0.0)
    factor = [[jnp.zeros(()) for _ in range(M)] for _ in range(M)]
    y: list[Array] = []
    regular = jnp.array(True)
    for i in range(M):
        for j in range(i):
            inner = sum((factor[i][k] * factor[j][k] for k in range(j)), jnp.zeros(()))
            factor[i][j] = (matrix[i, j] - inner) / factor[j][j]
        pivot = matrix[i, i] - sum((factor[i][k] ** 2 for k in range(i)), jnp.zeros(()))
        regular &= pivot > PARALLEL
        factor[i][i] = jnp.sqrt(jnp.maximum(pivot, PARALLEL))
        y.append((rhs[i] - sum((factor[i][k] * y[k] for k in range(i)), jnp.zeros(()))) / factor[i][i])
    nu: list[Array] = [jnp.zeros(())] * M
    for i in reversed(range(M)):
        nu[i] = (y[i] - sum((factor[k][i] * nu[k] for k in range(i + 1, M)), jnp.zeros(()))) / factor[i][i]
    multipliers = jnp.where(face, jnp.stack(nu), 0.0)
    # The two terms of a residual cancel where a constraint is just met; what float32 leaves there counts as zero.
    rounding = 2e-6 * (jnp.abs(distance) + jnp.sum(jnp.abs(multipliers)))
    residual = jnp.where(face, 0.0, distance - unit_gram @ multipliers)
    residual = jnp.where(jnp.abs(residual) <= rounding, 0.0, residual)
    return _Candidate(multipliers, residual, rounding, sum((v * v for v in y), jnp.zeros(())), regular)


class ConstrainedStep(NamedTuple):
    step: Array  # (P,)
    infeasible: Array  # () no point of the trust region satisfies the constraint: pure recovery
    recovering: Array  # () the constraint is violated now
    multiplier: Array  # () of the trust region (lambda)


def constrained_step(g: Array, x_g: Array, c: Array, x_c: Array, d: Array, delta: Array) -> ConstrainedStep:
    """argmax_s g.s subject to c.s + d <= 0 and s^T F s / 2 <= delta (CPO), given x_g = F^-1 g and x_c = F^-1 c.

    With q = g.x_g, r = g.x_c, s = c.x_c, the dual in the trust-region multiplier lam is
      D_active(lam)   = A/(2 lam) + B lam/2 - r d/s   where r + lam d >= 0,  A = q - r^2/s,  B = 2 delta - d^2/s,
      D_inactive(lam) = q/(2 lam) + delta lam         where r + lam d <= 0,
    convex and continuous across lam_mid = -r/d; each piece is minimised on its interval and the lower one taken.
    """
    q, r, s = jnp.dot(g, x_g), jnp.dot(g, x_c), jnp.dot(c, x_c)
    constant = s <= TINY  # the cost does not depend on the policy here: plain trust-region step
    s_safe = jnp.where(constant, 1.0, s)
    # What is left of g and x_g along the boundary. A is their product, not q - r^2/s, which cancels to nothing where g
    # and c are nearly parallel.
    along = x_g - (r / s_safe) * x_c
    A, B = jnp.maximum(jnp.dot(g - (r / s_safe) * c, along), 0.0), 2.0 * delta - d * d / s_safe
    slack = constant | ((d <= 0.0) & (B <= 0.0))  # the whole trust region is feasible
    infeasible = ~constant & (d > 0.0) & (B <= 0.0)

    lam_mid = jnp.where(d == 0.0, jnp.inf, -r / jnp.where(d == 0.0, 1.0, d))
    # Interval of lam where the constraint is active; at d = 0 it is active for every lam or for none.
    low = jnp.where(d > 0.0, jnp.maximum(lam_mid, 0.0), 0.0)
    high = jnp.where(d > 0.0, jnp.inf, lam_mid)
    high = jnp.where(d == 0.0, jnp.where(r > 0.0, jnp.inf, -1.0), high)
    active_lam = jnp.clip(jnp.sqrt(A / jnp.maximum(B, TINY)), low, jnp.maximum(high, low))
    active_lam = jnp.maximum(active_lam, TINY)
    inactive_low = jnp.where(d > 0.0, 0.0, jnp.where(d == 0.0, 0.0, jnp.maximum(lam_mid, 0.0)))
    inactive_high = jnp.where(d > 0.0, lam_mid, jnp.where((d == 0.0) & (r > 0.0), -1.0, jnp.inf))
    inactive_lam = jnp.clip(jnp.sqrt(q / (2.0 * delta)), inactive_low, jnp.maximum(inactive_high, inactive_low))
    inactive_lam = jnp.maximum(inactive_lam, TINY)
    dual_active = A / (2.0 * active_lam) + B * active_lam / 2.0 - r * d / s_safe
    dual_inactive = q / (2.0 * inactive_lam) + delta * inactive_lam
    dual_active = jnp.where(high > low, dual_active, jnp.inf)
    dual_inactive = jnp.where(inactive_high > inactive_low, dual_inactive, jnp.inf)

    # On the constraint: the part of x_g along its boundary, and the shortest way to it. Where g and c are parallel the
    # first part is rounding noise, and the shortest way alone is optimal.
    on_boundary = jnp.where(A > 1e-6 * q, 1.0 / active_lam, 0.0) * along - (d / s_safe) * x_c
    free = x_g / inactive_lam
    recovery = -jnp.sqrt(2.0 * delta / s_safe) * x_c
    use_active = dual_active <= dual_inactive
    step = jnp.where(use_active, on_boundary, free)
    step = jnp.where(slack, natural_step(g, x_g, delta), step)
    step = jnp.where(infeasible, recovery, step)
    multiplier = jnp.where(use_active & ~slack, active_lam, inactive_lam)
    return ConstrainedStep(step, infeasible, ~slack & (d > 0.0), multiplier)


def backtrack(accepts: Callable[[Array], Array], factor: float, tries: int) -> tuple[Array, Array]:
    """Largest scale in {1, factor, factor^2, ...} that `accepts`, and whether one was found within `tries`.

    Where none is accepted the scale is the smallest one tried.
    """

    def unfinished(carry):
        attempt, _, found = carry
        return (attempt < tries) & ~found

    def attempt_next(carry):
        attempt, _, _ = carry
        scale = factor ** attempt.astype(jnp.float32)
        return attempt + 1, scale, accepts(scale)

    start = (jnp.array(0, jnp.int32), jnp.array(1.0), jnp.array(False))
    _, scale, found = jax.lax.while_loop(unfinished, attempt_next, start)
    return scale, found
