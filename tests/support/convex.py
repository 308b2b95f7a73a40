"""Small convex problems with a solver to judge them.

The solver works in double precision on the very numbers the code under test gets in single precision. Nothing here
calls the function it is used to judge.
"""

from __future__ import annotations

from typing import NamedTuple

import clarabel
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.sparse

from spacerl.types import StepInputs


def as_csc(dense: np.ndarray) -> scipy.sparse.csc_matrix:
    """The solver's format, zeros included: looking for zeros in matrices this small takes longer than solving."""
    m, n = dense.shape
    return scipy.sparse.csc_matrix((dense.ravel("F"), np.tile(np.arange(m), n), np.arange(n + 1) * m), shape=(m, n))


def solve_cone(P, q, A, b, cones, tolerance: float = 1e-9) -> np.ndarray:
    """argmin x'Px/2 + q'x subject to b - Ax in the cones, by an interior-point method."""
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tolerance
    solution = clarabel.DefaultSolver(as_csc(np.triu(P)), q, as_csc(A), b, cones, settings).solve()
    assert str(solution.status) == "Solved", solution.status
    return np.array(solution.x)


def unit_rows(normals, values) -> tuple[np.ndarray, np.ndarray]:
    """The same half-spaces with normals of length one, which the solver's tolerances are meant for."""
    normals, values = np.asarray(normals, np.float64), np.asarray(values, np.float64)
    length = np.linalg.norm(normals, axis=-1)
    return normals / length[:, None], values / length


def nearest_point(L, point, normals, values) -> np.ndarray:
    """argmin (s - point)' L (s - point) subject to normals s + values <= 0."""
    L, point = np.asarray(L, np.float64), np.asarray(point, np.float64)
    normals, values = unit_rows(normals, values)
    # The solver's tolerances are absolute; constraints that hold by far say nothing about the answer's size.
    scale = np.linalg.norm(point) + np.max(np.maximum(normals @ point + values, 0.0))
    cones = [clarabel.NonnegativeConeT(len(values))]
    return scale * solve_cone(L, -L @ point / scale, normals, -values / scale, cones)


def nearest_point_by_active_set(L, point, normals, values) -> np.ndarray:
    """As `nearest_point`, exact where an interior-point method is not: sets without an interior, points next to a set.

    Least-distance programming by nonnegative least squares (Lawson and Hanson, Solving least squares problems, 23.4).
    """
    back = np.linalg.inv(np.linalg.cholesky(np.asarray(L, np.float64)).T)
    point = np.asarray(point, np.float64)
    normals, distance = unit_rows(normals @ back, normals @ point + values)
    scale = np.max(np.abs(distance))
    E = np.vstack([-normals.T, distance / scale])
    target = np.append(np.zeros(len(point)), 1.0)
    residual = E @ scipy.optimize.nnls(E, target)[0] - target
    return point - scale * back @ (residual[:-1] / residual[-1])


def least_worst_value(normals, values, level, room) -> float:
    """min_s max(0, normals_i s + values_i over `level`) where normals_i s + values_i <= room_i for all others.

    A linear program; `level` (M,) is true or false, `room` (M,) infinite where nothing is asked.
    """
    size = normals.shape[1]
    objective = np.append(np.zeros(size), 1.0)
    A = np.column_stack([normals, np.where(level, -1.0, 0.0)])
    asked = level | np.isfinite(room)
    bounds = [(None, None)] * size + [(0.0, None)]
    b = np.where(level, 0.0, room) - values
    tolerances = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    solution = scipy.optimize.linprog(objective, A[asked], b[asked], bounds=bounds, options=tolerances)
    assert solution.status == 0, solution.message
    return float(solution.fun)


def trust_region_optimum(F, objective, delta, normals=None, values=None) -> np.ndarray:
    """argmax objective.s subject to s'Fs/2 <= delta and normals s + values <= 0."""
    F, objective = np.asarray(F, np.float64), np.asarray(objective, np.float64)
    size = len(objective)
    # In coordinates z = R s / sqrt(2 delta) with F = R'R the trust region is the unit ball.
    back = np.sqrt(2.0 * float(delta)) * np.linalg.inv(np.linalg.cholesky(F).T)
    normals, values = (np.zeros((0, size)), np.zeros(0)) if normals is None else unit_rows(normals @ back, values)
    A = np.vstack([normals, np.zeros((1, size)), -np.eye(size)])
    b = np.concatenate([-values, [1.0], np.zeros(size)])
    cones = [clarabel.NonnegativeConeT(len(values))] if len(values) else []
    ascent = objective @ back
    ascent /= max(np.linalg.norm(ascent), 1e-300)
    cones.append(clarabel.SecondOrderConeT(size + 1))
    return back @ solve_cone(np.zeros((size, size)), -ascent, A, b, cones, tolerance=1e-7)


def random_metrics(rng: np.random.Generator, count: int, size: int, condition: float = 100.0) -> np.ndarray:
    """Symmetric positive definite matrices with condition number up to `condition`, (count, size, size) float32."""
    rotation = np.linalg.qr(rng.normal(size=(count, size, size)))[0]
    eigenvalues = condition ** rng.uniform(-0.5, 0.5, size=(count, size))
    F = np.einsum("nij,nj,nkj->nik", rotation, eigenvalues, rotation)
    return (0.5 * (F + F.transpose(0, 2, 1))).astype(np.float32)


def solved_rows(L: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """L^-1 applied to every row, one metric per problem: (n, P, P), (n, M, P) -> (n, M, P) float32."""
    return (
        np.linalg.solve(L.astype(np.float64), rows.astype(np.float64).transpose(0, 2, 1))
        .transpose(0, 2, 1)
        .astype(np.float32)
    )


class Problem(NamedTuple):
    """Random inputs of a policy step with an explicit Fisher matrix; stacked along a leading axis for vmap."""

    F: np.ndarray  # (P, P)
    F_inverse: np.ndarray  # (P, P)
    g: np.ndarray  # (P,)
    a: np.ndarray  # (P,)
    b: np.ndarray  # ()
    c: np.ndarray  # (K, P)
    d: np.ndarray  # (K,)
    delta: np.ndarray  # ()

    def inputs(self) -> StepInputs:
        return StepInputs(
            *(jnp.asarray(x) for x in (self.g, self.g, self.a, self.b, self.c, self.d)),
            solve=lambda rows: rows @ self.F_inverse,
            fisher=lambda rows: rows @ self.F,
            delta=jnp.asarray(self.delta),
        )

    def one(self, i: int) -> Problem:
        """The i-th problem of a stack, in double precision."""
        return Problem(*(np.asarray(x[i], np.float64) for x in self))


def random_problems(seed: int, count: int, costs: int, size: int = 6) -> Problem:
    """Constraint values of the size a trust-region step can change, so that every combination of active ones occurs."""
    rng = np.random.default_rng(seed)
    F = random_metrics(rng, count, size)
    F_inverse = np.linalg.inv(F.astype(np.float64))
    delta = 10.0 ** rng.uniform(-4.0, -1.0, size=count)
    gradients = rng.normal(size=(count, 2 + costs, size)) * 10.0 ** rng.uniform(-2.0, 2.0, size=(count, 2 + costs, 1))
    reach = np.sqrt(2.0 * delta[:, None] * np.einsum("nij,njk,nik->ni", gradients, F_inverse, gradients))
    values = reach * rng.normal(size=reach.shape)
    g, a, c = gradients[:, 0], gradients[:, 1], gradients[:, 2:]
    parts = (F, F_inverse, g, a, values[:, 1], c, values[:, 2:], delta)
    return Problem(*(np.asarray(x, np.float32) for x in parts))
