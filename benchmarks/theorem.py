"""The paper's theorem on problems whose solution is known: does SPACE come to a first-order stationary point?

    python benchmarks/theorem.py [--problems 128] [--deltas 1e-2 1e-3 1e-4] [--iterations 20000] [--figure theorem.png]

Reward, cost and divergence are quadratic functions of theta, the Fisher matrix is fixed and gradients are exact, so
that nothing but the update rule is measured: theta <- theta + step, with the steps that training takes, in float32.
Prints how far each form of SPACE ends from a stationary point (rho) and from the solution.
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spacerl.algorithms import ALGORITHMS, Algorithm
from spacerl.types import UNMEASURED, Array, Measured, StepInputs, Trial

FORMS = {"space-joint": 0, "space-sequential": 2, "space-printed": 1}  # and the number of its colour
METRICS = {"kl": "KL", "l2": "2-norm"}
EPSILONS = (0.1, 0.01, 0.001)
STATIONARY = 1e-3  # rho below which a problem counts as solved in the table


Values = Any  # of NumPy in double precision, or of JAX inside a program


class Problems(NamedTuple):
    """max J_R subject to J_C <= h_C and J_D <= h_D; n of them along the leading axis, P parameters.

    J_R = -(theta - peak)' H (theta - peak) / 2, J_C = (theta - free)' Q (theta - free) / 2 and
    J_D = (theta - baseline)' M (theta - baseline) / 2.
    """

    F: Values  # (n, P, P) Fisher matrix
    F_inverse: Values  # (n, P, P)
    H: Values  # (n, P, P)
    peak: Values  # (n, P) where reward is highest
    Q: Values  # (n, P, P)
    free: Values  # (n, P) where nothing costs
    M: Values  # (n, P, P)
    baseline: Values  # (n, P)
    h_C: Values  # (n,)
    h_D: Values  # (n,)
    start: Values  # (n, P)
    solution: Values  # (n, P)


class Course(NamedTuple):
    """What a run of one form of SPACE on every problem came to."""

    rho: np.ndarray  # (n, iterations)
    theta: np.ndarray  # (n, P) at the end
    b: np.ndarray  # (n,) J_D - h_D at the end
    d: np.ndarray  # (n,) J_C - h_C at the end
    J_R: np.ndarray  # (n,) at the end
    cost_rho: np.ndarray  # (n,) at the end, of the problem without the divergence constraint


def random_matrices(rng: np.random.Generator, count: int, size: int, condition: float) -> np.ndarray:
    """Symmetric positive definite, eigenvalues log-uniform between condition^-1/2 and condition^1/2."""
    rotation = np.linalg.qr(rng.normal(size=(count, size, size)))[0]
    eigenvalues = condition ** rng.uniform(-0.5, 0.5, size=(count, size))
    return np.einsum("nij,nj,nkj->nik", rotation, eigenvalues, rotation)


def random_problems(seed: int, count: int, size: int = 8) -> Problems:
    """Problems in double precision, built backwards from their solution, the origin.

    Both gradients there are Gaussian vectors, so that they are hardly ever orthogonal in any metric, and g is a
    combination of them with multipliers between 0.5 and 1.5: both constraints are active, and the conditions of Karush,
    Kuhn and Tucker hold. J_R is strictly concave and the constraints are convex, so there is no other solution.
    """
    rng = np.random.default_rng(seed)
    F = random_matrices(rng, count, size, condition=100.0)
    H, Q, M = (random_matrices(rng, count, size, condition=10.0) for _ in range(3))
    c, a = rng.normal(size=(2, count, size))
    multiplier_c, multiplier_a = rng.uniform(0.5, 1.5, size=(2, count, 1))

    def away(matrix: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Centre of the quadratic function that has this gradient at the origin."""
        return -np.linalg.solve(matrix, gradient[..., None])[..., 0]

    def value(matrix: np.ndarray, centre: np.ndarray) -> np.ndarray:
        return 0.5 * np.einsum("ni,nij,nj->n", centre, matrix, centre)

    peak, free, baseline = -away(H, multiplier_c * c + multiplier_a * a), away(Q, c), away(M, a)
    start, solution = rng.normal(size=(count, size)), np.zeros((count, size))
    limits = value(Q, free), value(M, baseline)
    return Problems(F, np.linalg.inv(F), H, peak, Q, free, M, baseline, *limits, start, solution)


def inputs_at(problem: Problems, theta: Array, delta: Array | float) -> tuple[StepInputs, Measured]:
    """What a batch without noise says at theta (P,) about one problem."""
    g = problem.H @ (problem.peak - theta)
    c = problem.Q @ (theta - problem.free)
    a = problem.M @ (theta - problem.baseline)
    J_R = -0.5 * jnp.dot(problem.peak - theta, g)
    J_C = 0.5 * jnp.dot(theta - problem.free, c)[None]
    J_D = 0.5 * jnp.dot(theta - problem.baseline, a)
    inputs = StepInputs(
        g=g,
        gain=g,
        a=a,
        b=J_D - problem.h_D,
        c=c[None],
        d=J_C - problem.h_C,
        solve=lambda rows: rows @ problem.F_inverse,
        fisher=lambda rows: rows @ problem.F,
        delta=jnp.asarray(delta),
        d_least=-problem.h_C[None],
        h_C=problem.h_C[None],
        J_R=J_R,
    )
    return inputs, Measured(J_R, J_C, problem.h_C[None], J_D)


def made(name: str, projection: str) -> Algorithm:
    """A form of SPACE as in the theorem: h_D stays as it is, projections go as far as they must.

    The guarded form keeps the bound on its projections, without which a margin that follows its own surprises can
    grow with them.
    """
    entry = ALGORITHMS[name]
    fixed = {} if name == "pcpo" else {"threshold_rule": "fixed"}
    # A step that always spends delta along the limits, as CPO's, does not come to rest; the theorem is about PCPO's.
    bound = {"ascent_factor": 1.0, "earned_trust": False} if name == "space" else {"projection_kl_bound": math.inf}
    return entry.make(entry.options(projection=projection, **bound, **fixed))


def courses(problems: Problems, name: str, projection: str, delta: float, iterations: int) -> Course:
    """`iterations` of a form of SPACE on every problem, in one program, in single precision."""
    algorithm, cost_alone = made(name, projection), made("pcpo", projection)

    def iteration(problem: Problems, carry: tuple, _: None) -> tuple[tuple, Array]:
        theta, state = carry
        inputs, measured = inputs_at(problem, theta, delta)
        proposal = algorithm.step(inputs, state)

        def judge(scale: Array) -> Trial:
            step = scale * proposal.step
            kl = 0.5 * jnp.dot(step, inputs.fisher(step[None])[0])
            return Trial(jnp.dot(inputs.g, step), inputs.c @ step, jnp.dot(inputs.a, step), kl)

        scale = algorithm.accept(judge, inputs, proposal, state)
        remembered = state if proposal.memory is None else proposal.memory
        state = algorithm.control(remembered, measured._replace(scale=scale))
        return (theta + scale * proposal.step, state), proposal.info["rho"]

    def one(problem: Problems) -> tuple[Array, ...]:
        begin = (problem.start, algorithm.init(1, UNMEASURED))
        (theta, _), rho = jax.lax.scan(functools.partial(iteration, problem), begin, None, length=iterations)
        inputs, measured = inputs_at(problem, theta, delta)
        cost_rho = cost_alone.step(inputs, cost_alone.init(1, UNMEASURED)).info["rho"]
        return rho, theta, inputs.b, inputs.d[0], measured.J_R, cost_rho

    single = jax.tree.map(lambda values: jnp.asarray(values, jnp.float32), problems)
    return Course(*(np.asarray(values, np.float64) for values in jax.jit(jax.vmap(one))(single)))


def final_rho(course: Course) -> np.ndarray:
    """(n,) median over the last twentieth: a course that has not settled on a point has none at the last iteration."""
    return np.median(course.rho[:, -max(course.rho.shape[1] // 20, 1) :], axis=1)


def distance(course: Course, points: np.ndarray) -> np.ndarray:
    """(n,) 2-norm of the way from each problem's point to where the course ended."""
    return np.linalg.norm(course.theta - points, axis=1)


def iterations_to(rho: np.ndarray, epsilons: Iterable[float]) -> np.ndarray:
    """(n, E) least K with min over k <= K of rho <= epsilon, counted from 1; infinite where there is none."""
    counts = []
    for epsilon in epsilons:
        below = rho <= epsilon
        counts.append(np.where(below.any(axis=1), below.argmax(axis=1) + 1.0, np.inf))
    return np.stack(counts, axis=1)


def median_and_range(values: np.ndarray) -> str:
    return f"{np.median(values):.2g} ({values.min():.2g} to {values.max():.2g})"


def ends_table(problems: Problems, results: Mapping[tuple[str, str, float], Course]) -> str:
    """Markdown, a row per form, metric and delta: where it ended, medians over the problems with their range."""
    head = ["form", "metric", "delta", "rho at the end", f"rho <= {STATIONARY:g}", "distance from the solution"]
    head += ["distance from the limit of space-joint", "largest J_C - h_C", "largest J_D - h_D"]
    rows = []
    for (name, projection, delta), course in results.items():
        rho, joint = final_rho(course), results["space-joint", projection, delta]
        cells = [name, METRICS[projection], f"{delta:g}", median_and_range(rho)]
        cells += [f"{np.sum(rho <= STATIONARY)} of {len(rho)}"]
        cells += [median_and_range(distance(course, np.asarray(problems.solution)))]
        cells += ["" if course is joint else median_and_range(distance(course, joint.theta))]
        rows.append([*cells, f"{course.d.max():.1g}", f"{course.b.max():.1g}"])
    return markdown(head, rows)


def iterations_table(results: Mapping[tuple[str, str, float], Course]) -> str:
    """Markdown: the median over the problems of the iterations to epsilon, and how many problems came there."""
    rows = []
    for (name, projection, delta), course in results.items():
        counts = iterations_to(course.rho, EPSILONS)
        middle, came = np.median(counts, axis=0), np.sum(np.isfinite(counts), axis=0)
        cells = [f"{k:.0f}" if np.isfinite(k) else f"{n} of {len(counts)}" for k, n in zip(middle, came, strict=True)]
        rows.append([name, METRICS[projection], f"{delta:g}", *cells])
    return markdown(["form", "metric", "delta", *(f"rho <= {epsilon:g}" for epsilon in EPSILONS)], rows)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def normal_cosines(problems: Problems, course: Course, projection: str) -> np.ndarray:
    """(n,) |cosine| in the metric of the projections between the two gradients, where the course ended."""
    c = np.einsum("nij,nj->ni", problems.Q, course.theta - problems.free)
    a = np.einsum("nij,nj->ni", problems.M, course.theta - problems.baseline)
    F_inverse = np.asarray(problems.F_inverse)
    inverse = F_inverse if projection == "kl" else np.broadcast_to(np.eye(c.shape[1]), F_inverse.shape)
    ac, aa, cc = (np.einsum("ni,nij,nj->n", x, inverse, y) for x, y in ((a, c), (a, a), (c, c)))
    return np.abs(ac) / np.sqrt(aa * cc)


def remarks(problems: Problems, results: Mapping[tuple[str, str, float], Course], delta: float, count: int) -> str:
    """What else there is to say: the two limits, and the guarded form, which asks another question."""
    kl, l2 = (results["space-joint", projection, delta] for projection in METRICS)
    apart, both = distance(l2, kl.theta), np.sum((np.abs(l2.b) < 1e-4) & (np.abs(l2.d) < 1e-4))
    lines = [
        f"space-joint, delta {delta:g}: distance between its KL and 2-norm limits {median_and_range(apart)}; "
        f"J_R lower at the 2-norm limit by {median_and_range(kl.J_R - l2.J_R)}; both constraints active there in "
        f"{both} of {len(apart)} problems",
    ]
    for projection, course in (("kl", kl), ("l2", l2)):
        cosines = normal_cosines(problems, course, projection)
        lines.append(f"|cosine| of the two gradients at the {METRICS[projection]} limit {median_and_range(cosines)}")
    for projection in METRICS:
        guarded, pcpo = (courses(problems, name, projection, delta, count) for name in ("space", "pcpo"))
        away = distance(guarded, pcpo.theta)
        lines.append(
            f"space (guarded), {METRICS[projection]}, delta {delta:g}: rho {median_and_range(final_rho(guarded))}, "
            f"without the divergence constraint {median_and_range(guarded.cost_rho)}; distance from the limit of pcpo "
            f"{median_and_range(away)}, above 0.001 in {np.sum(away > 1e-3)} of {len(away)} problems"
        )
    return "\n".join(lines)


def draw(results: Mapping[tuple[str, str, float], Course], delta: float, path: Path) -> None:
    """rho over iterations, and iterations to epsilon beside the theorem's rate; medians over the problems."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from spacerl.reporting.palette import FAINT, INK, RC, SERIES

    colours = {name: SERIES[number][0] for name, number in FORMS.items()}
    dashes = {"kl": "-", "l2": (0, (3, 1.5))}
    epsilons = np.logspace(0.0, -4.0, 81)
    last = results["space-joint", "kl", delta].rho.shape[1]
    k = np.unique(np.logspace(0.0, np.log10(last), 300).astype(int))
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(10.0, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        for (name, projection, one_delta), course in results.items():
            if one_delta != delta:
                continue
            style = {"color": colours[name], "linestyle": dashes[projection]}
            low, middle, high = np.quantile(np.maximum(course.rho[:, k - 1], 1e-9), (0.25, 0.5, 0.75), axis=0)
            left.plot(k, middle, **style)
            if projection == "kl":
                left.fill_between(k, low, high, color=colours[name], alpha=0.13, linewidth=0)
            counts = np.median(iterations_to(course.rho, epsilons), axis=0)
            came = np.isfinite(counts)
            right.plot(epsilons[came], counts[came], **style)
            if not came.all():  # more than half of the problems never come nearer
                right.plot(epsilons[came][-1:], counts[came][-1:], color=colours[name], marker="X", markersize=7)
        left.set(xscale="log", yscale="log", xlabel="iteration", ylabel="rho", xlim=(1, last), ylim=(3e-8, 60))
        left.set_title(f"How far from a stationary point, delta {delta:g}", loc="left", fontsize=10)
        left.annotate("float32 rounding", (1.3, 1e-6), color=INK, fontsize=8.5, va="center")
        left.axhspan(3e-8, 1e-5, color=FAINT, alpha=0.12, linewidth=0, zorder=0)
        anchor = float(np.median(iterations_to(results["space-joint", "kl", delta].rho, (0.5,))))
        right.plot(epsilons, anchor * (0.5 / epsilons) ** 2, color=FAINT, linestyle=":", linewidth=1.6)
        right.set(xscale="log", yscale="log", xlabel="epsilon", ylabel="iterations until rho ≤ epsilon", xlim=(1, 1e-4))
        right.set_ylim(0.3 * anchor, 300 * anchor)
        right.set_title("Iterations it takes; ✕: comes no nearer", loc="left", fontsize=10)
        right.annotate("1/epsilon², the theorem's rate", (0.05, anchor * (0.5 / 0.05) ** 2), xytext=(9, 0),
                       textcoords="offset points", color=INK, fontsize=8.5, va="center")  # fmt: skip
        for axes in (left, right):
            axes.grid(True)
            axes.set_axisbelow(True)
        forms = [Line2D([], [], color=colours[name], label=name) for name in FORMS]
        metrics = [Line2D([], [], color=INK, linestyle=dashes[p], label=f"{METRICS[p]} projection") for p in METRICS]
        figure.legend(handles=[*forms, *metrics], loc="outside lower center", ncols=5, fontsize=9.5)
        figure.savefig(path, dpi=150)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--problems", type=int, default=128)
    parser.add_argument("--size", type=int, default=8, help="parameters of each problem")
    parser.add_argument("--deltas", type=float, nargs="+", default=[1e-2, 1e-3, 1e-4])
    parser.add_argument("--iterations", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", type=Path, help="file for a picture, of the middle one of the deltas")
    chosen = parser.parse_args(arguments)
    problems = random_problems(chosen.seed, chosen.problems, chosen.size)
    middle = chosen.deltas[len(chosen.deltas) // 2]
    results = {
        (name, projection, delta): courses(problems, name, projection, delta, chosen.iterations)
        for name in FORMS
        for projection in METRICS
        for delta in chosen.deltas
    }
    print(f"{chosen.problems} problems of {chosen.size} parameters, seed {chosen.seed}, jax {jax.__version__}\n")
    print(ends_table(problems, results), iterations_table(results), sep="\n\n", end="\n\n")
    print(remarks(problems, results, middle, chosen.iterations))
    if chosen.figure is not None:
        draw(results, middle, chosen.figure)


if __name__ == "__main__":
    main()
