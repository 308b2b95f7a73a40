"""The paper's theorem on problems with a known solution: which forms of SPACE come to a stationary point, and where."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import clarabel
import numpy as np
import pytest
import scipy.optimize

from support.convex import solve_cone

OPTIMISED = True  # thousands of iterations: computes for longer than it compiles
COUNT, SIZE, DELTA, ITERATIONS = 6, 6, 1e-2, 1500


@pytest.fixture(scope="module")
def theorem():
    path = Path(__file__).parents[1] / "benchmarks" / "theorem.py"
    spec = importlib.util.spec_from_file_location("benchmark_theorem", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def problems(theorem):
    return theorem.random_problems(seed=1, count=COUNT, size=SIZE)


@pytest.fixture(scope="module")
def joint(theorem, problems):
    return {
        projection: theorem.courses(problems, "space-joint", projection, DELTA, ITERATIONS)
        for projection in ("kl", "l2")
    }


def gradients(problems, i, theta):
    """g (P,), and the gradients (2, P) of cost and divergence, in double precision."""
    g = problems.H[i] @ (problems.peak[i] - theta)
    return g, np.stack([problems.Q[i] @ (theta - problems.free[i]), problems.M[i] @ (theta - problems.baseline[i])])


def optimum(problems, i) -> np.ndarray:
    """argmax J_R subject to both constraints, by an interior-point method in double precision."""

    def ball(matrix, centre, level):
        """|R (theta - centre)| <= sqrt(2 level) with matrix = R'R, as rows of a second-order cone."""
        R = np.linalg.cholesky(matrix).T
        return np.vstack([np.zeros(SIZE), -R]), np.append(np.sqrt(2.0 * level), -R @ centre)

    A, b = zip(ball(problems.Q[i], problems.free[i], problems.h_C[i]),
               ball(problems.M[i], problems.baseline[i], problems.h_D[i]), strict=True)  # fmt: skip
    cones = 2 * [clarabel.SecondOrderConeT(SIZE + 1)]
    H = problems.H[i]
    return solve_cone(H, -H @ problems.peak[i], np.vstack(A), np.concatenate(b), cones, tolerance=1e-7)


def test_the_problems_have_the_solution_they_are_built_from(problems):
    for i in range(COUNT):
        assert np.linalg.norm(optimum(problems, i) - problems.solution[i]) < 3e-4


@pytest.mark.parametrize("projection", ["kl", "l2"])
def test_the_joint_form_comes_to_a_stationary_point(theorem, problems, joint, projection):
    course = joint[projection]
    assert np.all(theorem.final_rho(course) < 1e-4)
    assert np.all(np.abs(course.b) < 1e-4)
    assert np.all(np.abs(course.d) < 1e-4)
    for i in range(COUNT):  # F^-1 g is a nonnegative combination of the directions L^-1 n, without the code under test
        g, normals = gradients(problems, i, course.theta[i])
        ascent = np.linalg.solve(problems.F[i], g)
        directions = np.linalg.solve(problems.F[i], normals.T).T if projection == "kl" else normals
        multipliers, left = scipy.optimize.nnls(directions.T, ascent)
        assert left < 1e-4 * np.linalg.norm(ascent)
        assert np.all(multipliers > 0.0)


def test_the_two_metrics_come_to_different_points_and_kl_to_the_solution(theorem, problems, joint):
    for i in range(COUNT):
        solution = optimum(problems, i)
        assert np.linalg.norm(joint["kl"].theta[i] - solution) < 3e-4
        assert np.linalg.norm(joint["l2"].theta[i] - solution) > 0.1
    assert np.all(theorem.distance(joint["kl"], problems.solution) < 1e-4)
    assert np.all(joint["l2"].J_R < joint["kl"].J_R)


@pytest.mark.parametrize("name", ["space-printed", "space-sequential"])
def test_added_and_successive_projections_stay_a_part_of_a_step_away(theorem, problems, name):
    """Their rho does not fall, with a shorter step neither; where they end is then nearer, as much as the step is."""
    one, shorter = (theorem.courses(problems, name, "kl", delta, ITERATIONS) for delta in (DELTA, DELTA / 16))
    for course in (one, shorter):
        assert np.all(theorem.final_rho(course) > 1e-2)
        assert 0.1 < np.median(theorem.final_rho(course)) < 1.0
    nearer = theorem.distance(one, problems.solution) / theorem.distance(shorter, problems.solution)
    assert 3.0 < np.median(nearer) < 5.0


def test_guarded_space_comes_to_the_stationary_point_of_pcpo(theorem, problems):
    """The baseline leads as long as that pays; it is no constraint in the end."""
    short, long = DELTA / 10, 3 * ITERATIONS
    guarded, pcpo = (theorem.courses(problems, name, "kl", short, long) for name in ("space", "pcpo"))
    assert np.all(guarded.cost_rho < 1e-3)
    assert np.all(theorem.distance(guarded, pcpo.theta) < 1e-3)
    assert np.all(theorem.final_rho(guarded) > 1.0)


def test_iterations_to_epsilon_count_from_one(theorem):
    rho = np.array([[0.5, 0.05, 0.2], [2.0, 2.0, 2.0]])
    assert theorem.iterations_to(rho, (0.5, 0.1, 0.01)).tolist() == [[1.0, 2.0, np.inf], [np.inf] * 3]
