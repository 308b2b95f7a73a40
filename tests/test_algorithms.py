"""Each update rule as a formula on random inputs with an explicit Fisher matrix, and how they reduce to one another.

Formulas are worked in double precision and projections by a convex solver. Tolerances as in `test_steps`: 1e-5 of the
longest vector in play, times the condition number of the Gram matrix where several constraints are active.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spacerl
from spacerl.algorithms import ALGORITHMS, Algorithm, Needs
from spacerl.core.thresholds import lemma_threshold, next_weight, running_mean
from spacerl.policies.family import PolicyFamily
from spacerl.runs.fields import checked, defaults_of, names_of
from spacerl.training.critics import linear_critic
from spacerl.training.learner import Learner
from spacerl.training.settings import needs_of
from spacerl.training.update import initial_state, make_batch, step_inputs
from spacerl.types import BaselineMeasurement, Measured, Proposal, Trial
from support.convex import nearest_point, random_problems, trust_region_optimum
from support.learners import Toy, algorithm_of, collect, make_config, quick_jit, train

COUNT = 250
FORMS = ("printed", "sequential", "joint")
SPACE = {"space", *(f"space-{form}" for form in FORMS)}
NAN = float("nan")

OPTIMISED = True  # rules that are to be equal are compared to the last digits


@functools.cache
def batched(algorithm: str, **fields):
    rule = algorithm_of(make_config(algorithm, **fields))
    # Not jitted as a whole: the rules share their operations, and compiling each rule would take most of the time.
    return rule, jax.vmap(lambda problem, state: rule.step(problem.inputs(), state).step, in_axes=(0, None))


def proposals(problems, algorithm: str, state=None, **fields) -> np.ndarray:
    """Steps (count, P) of an algorithm in its initial (or the given) state."""
    rule, step = batched(algorithm, **fields)
    state = rule.init(problems.c.shape[1], BaselineMeasurement(1.0)) if state is None else state
    return np.asarray(step(problems, state))


def measured(J_R: float, J_C: float = 0.0, h_C: float = 5.0, J_D: float = 0.0) -> Measured:
    """What a batch says, with one cost."""
    return Measured(jnp.array(J_R), jnp.array([J_C]), jnp.array([h_C]), jnp.array(J_D))


def assert_identical(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal but for the last bits, which depend on how the compiler orders additions."""
    assert np.all(np.linalg.norm(found - expected, axis=-1) <= 1e-6 * np.linalg.norm(expected, axis=-1))


def ascent_of(p) -> np.ndarray:
    """Equation of step 1: sqrt(2 delta / g'F^-1 g) F^-1 g."""
    x = np.linalg.solve(p.F, p.g)
    return np.sqrt(2.0 * p.delta / (p.g @ x)) * x


def metric_of(p, projection: str) -> np.ndarray:
    return p.F if projection == "kl" else np.eye(len(p.g))


def length(L, s) -> float:
    return float(np.sqrt(max(s @ L @ s, 0.0)))


def gram_condition(L, normals) -> float:
    gram = normals @ np.linalg.solve(L, normals.T)
    return float(np.linalg.cond(gram / np.sqrt(np.outer(np.diag(gram), np.diag(gram)))))


def assert_same_step(p, projection: str, found, expected) -> None:
    L = metric_of(p, projection)
    condition = gram_condition(L, np.vstack([p.c, p.a[None]]))
    reach = length(L, ascent_of(p)) + length(L, expected)
    assert length(L, found - expected) <= 2e-5 * condition * reach


# ---------------------------------------------------------------- the printed forms of SPACE


def printed_equation(p, L) -> np.ndarray:
    """The paper's closed form for one cost: both multipliers belong to theta^{k+1/3}, the corrections are added."""
    step = ascent_of(p)
    toward, repair = np.linalg.solve(L, p.a), np.linalg.solve(L, p.c[0])
    nu_a = max(0.0, (p.a @ step + p.b) / (p.a @ toward))
    nu_c = max(0.0, (p.c[0] @ step + p.d[0]) / (p.c[0] @ repair))
    return step - nu_a * toward - nu_c * repair


def expected_space_step(p, form: str, L) -> np.ndarray:
    ascent = ascent_of(p)
    if form == "joint":
        return nearest_point(L, ascent, np.vstack([p.c, p.a[None]]), np.append(p.d, p.b))
    toward = nearest_point(L, ascent, p.a[None], p.b[None])
    if form == "sequential":
        return nearest_point(L, toward, p.c, p.d)
    return toward + nearest_point(L, ascent, p.c, p.d) - ascent


@pytest.mark.parametrize("projection", ["kl", "l2"])
@pytest.mark.parametrize("costs", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_space_combines_its_projections_as_named(form, costs, projection):
    problems = random_problems(seed=1, count=COUNT, costs=costs)
    steps = proposals(problems, f"space-{form}", projection=projection)
    for i in range(COUNT):
        p = problems.one(i)
        assert_same_step(p, projection, steps[i], expected_space_step(p, form, metric_of(p, projection)))


@pytest.mark.parametrize("projection", ["kl", "l2"])
def test_space_as_printed_is_the_papers_equation(projection):
    problems = random_problems(seed=2, count=COUNT, costs=1)
    steps = proposals(problems, "space-printed", projection=projection)
    for i in range(COUNT):
        p = problems.one(i)
        assert_same_step(p, projection, steps[i], printed_equation(p, metric_of(p, projection)))


def test_the_three_ways_of_combining_differ():
    """If they agreed on these problems, the tests above would tell nothing apart."""
    problems = random_problems(seed=1, count=COUNT, costs=1)
    printed, sequential, joint = (proposals(problems, f"space-{form}") for form in FORMS)
    for one, other in ((printed, sequential), (printed, joint), (sequential, joint)):
        assert np.sum(np.linalg.norm(one - other, axis=-1) > 1e-2 * np.linalg.norm(one, axis=-1)) >= 20


def test_sequential_ends_with_the_cost_satisfied_and_printed_need_not():
    problems = random_problems(seed=3, count=COUNT, costs=1)
    after = {}
    for form in FORMS:
        steps = proposals(problems, f"space-{form}")
        after[form] = np.einsum("nki,ni->nk", problems.c, steps) + problems.d
    size = np.linalg.norm(problems.c, axis=-1)
    assert np.all(after["sequential"] <= 1e-4 * size)
    assert np.all(after["joint"] <= 1e-4 * size)
    assert np.any(after["printed"] > 1e-2 * size)


# ---------------------------------------------------------------- SPACE with bounded projections

BOUND = 1e-3


@pytest.mark.parametrize("projection", ["kl", "l2"])
@pytest.mark.parametrize("constraint", ["cost", "divergence"])
def test_a_bounded_projection_goes_the_same_way_and_stops_at_the_bound(constraint, projection):
    problems = random_problems(seed=4, count=COUNT, costs=1)
    slack = np.full(COUNT, -1e9, np.float32)
    problems = problems._replace(b=slack) if constraint == "cost" else problems._replace(d=slack[:, None])
    free = proposals(problems, "space-printed", projection=projection)
    bounded = proposals(problems, "space-printed", projection=projection, projection_kl_bound=BOUND)
    stopped = 0
    for i in range(COUNT):
        p = problems.one(i)
        whole, part = free[i] - ascent_of(p), bounded[i] - ascent_of(p)
        spends = 0.5 * length(p.F, whole) ** 2
        expected = whole * min(1.0, np.sqrt(BOUND / max(spends, 1e-30)))
        assert length(p.F, part - expected) <= 1e-4 * (length(p.F, whole) + length(p.F, ascent_of(p)))
        stopped += spends > BOUND
    assert 20 <= stopped <= COUNT - 20


@pytest.mark.parametrize(("form", "costs"), [("joint", 1), ("joint", 2), ("sequential", 2), ("printed", 2)])
def test_a_bounded_projection_onto_several_constraints_spends_at_most_the_bound(form, costs):
    """Two constraints that nearly oppose each other need a long way together, however short it is to each alone."""
    problems = random_problems(seed=5, count=COUNT, costs=costs)
    if form != "joint":
        problems = problems._replace(b=np.full(COUNT, -1e9, np.float32))  # only the costs correct
    steps = proposals(problems, f"space-{form}", projection_kl_bound=BOUND)
    spent = [0.5 * length(p.F, steps[i] - ascent_of(p)) ** 2 for i, p in ((i, problems.one(i)) for i in range(COUNT))]
    assert max(spent) <= BOUND * 1.001


# ---------------------------------------------------------------- guarded SPACE


@pytest.mark.parametrize("costs", [1, 2])
def test_guarded_space_adds_a_bounded_pull_that_promises_reward_and_keeps_the_costs(costs):
    problems = random_problems(seed=19, count=COUNT, costs=costs)
    near_enough = problems._replace(b=np.full(COUNT, -1e9, np.float32))
    safe = proposals(near_enough, "space", pull_kl=BOUND).astype(np.float64)
    steps = proposals(problems, "space", pull_kl=BOUND).astype(np.float64)
    pulled = np.linalg.norm(steps - safe, axis=-1) > 1e-4 * np.linalg.norm(safe, axis=-1)
    assert 20 <= np.sum(pulled) <= COUNT - 20
    for i in np.flatnonzero(pulled):
        p, pull = problems.one(i), steps[i] - safe[i]
        assert 0.5 * length(p.F, pull) ** 2 <= BOUND * 1.001
        assert p.g @ pull > 0.0
        before, after = (p.c @ s + p.d for s in (safe[i], steps[i]))
        size = np.linalg.norm(p.c, axis=-1) * (np.linalg.norm(safe[i]) + np.linalg.norm(steps[i]))
        assert np.all(after <= np.maximum(before, 0.0) + 1e-4 * size)


@pytest.mark.parametrize("costs", [1, 2])
def test_guarded_space_without_a_baseline_or_guards_is_pcpo(costs):
    """No error of d is given, so there is no margin."""
    problems = random_problems(seed=19, count=COUNT, costs=costs)
    problems = problems._replace(b=np.full(COUNT, -1e9, np.float32))
    unguarded = {"projection_kl_bound": math.inf, "ascent_factor": 1.0, "earned_trust": False}
    found, expected = proposals(problems, "space", **unguarded), proposals(problems, "pcpo")
    assert np.all(np.linalg.norm(found - expected, axis=1) <= 1e-3 * np.linalg.norm(expected, axis=1))


def test_guarded_space_without_a_baseline_is_cpo_where_the_limit_is_kept():
    """The most reward that the trust region and the cost allow, as far as a factor of ten on the step leads."""
    problems = random_problems(seed=24, count=COUNT, costs=1)
    problems = problems._replace(b=np.full(COUNT, -1e9, np.float32), d=-0.1 * np.abs(problems.d))
    given = {"space": {"earned_trust": False}, "cpo": {}, "pcpo": {}}  # all of the trust region from the start
    found, cpo, pcpo = (proposals(problems, name, **given[name]).astype(np.float64) for name in given)
    gains = {name: np.einsum("ni,ni->n", problems.g, s) for name, s in (("space", found), ("cpo", cpo), ("pcpo", pcpo))}
    assert np.all(gains["space"] >= 0.999 * gains["pcpo"] - 1e-6)
    assert np.all(gains["space"] <= 1.001 * gains["cpo"] + 1e-6)
    assert np.mean(gains["space"] >= 0.92 * gains["cpo"]) >= 0.97  # the others are nearly parallel
    assert np.mean(gains["pcpo"] >= 0.92 * gains["cpo"]) < 0.8  # which is not what PCPO has
    for i in range(COUNT):
        assert 0.5 * length(problems.one(i).F, found[i]) ** 2 <= 1.01 * problems.delta[i]


def test_a_bound_on_the_projection_holds_and_changes_nothing_below_it():
    problems = random_problems(seed=23, count=COUNT, costs=2)
    free, none = proposals(problems, "pcpo"), proposals(problems, "pcpo", projection_kl_bound=1e9)
    assert_identical(free, none)
    bounded = proposals(problems, "pcpo", projection_kl_bound=BOUND).astype(np.float64)
    ascent = proposals(problems, "trpo").astype(np.float64)
    shortened = 0
    for i in range(COUNT):
        F, whole, kept = problems.one(i).F, free[i] - ascent[i], bounded[i] - ascent[i]
        spent = 0.5 * length(F, whole) ** 2
        share = min(1.0, np.sqrt(BOUND / max(spent, 1e-30)))
        shortened += share < 1.0
        assert np.linalg.norm(kept - share * whole) <= 1e-3 * np.linalg.norm(free[i])
    assert 20 <= shortened


def test_a_running_mean_skips_what_is_missing():
    assert float(running_mean(jnp.array(2.0), jnp.array(4.0), 0.25)) == pytest.approx(2.5)
    assert float(running_mean(jnp.array(2.0), jnp.array(NAN), 0.25)) == 2.0


# ---------------------------------------------------------------- the other rules


def test_trpo_takes_the_natural_step():
    problems = random_problems(seed=6, count=COUNT, costs=1)
    steps = proposals(problems, "trpo")
    for i in range(COUNT):
        assert_same_step(problems.one(i), "kl", steps[i], ascent_of(problems.one(i)))


def test_cpo_solves_reward_and_cost_together():
    problems = random_problems(seed=7, count=COUNT, costs=1)
    steps = proposals(problems, "cpo")
    for i in range(COUNT):
        p, s = problems.one(i), steps[i].astype(np.float64)
        most_g, most_c = (np.sqrt(2.0 * p.delta * v @ np.linalg.solve(p.F, v)) for v in (p.g, p.c[0]))
        if p.d[0] > most_c:
            assert p.c[0] @ s <= -most_c * (1.0 - 1e-4)
            continue
        best = trust_region_optimum(p.F, p.g, p.delta, p.c, p.d)
        assert p.c[0] @ s + p.d[0] <= 1e-4 * most_c
        assert p.g @ s >= p.g @ best - 1e-4 * most_g


@pytest.mark.parametrize("projection", ["kl", "l2"])
@pytest.mark.parametrize("costs", [1, 2, 3])
def test_pcpo_projects_the_natural_step_onto_the_costs(costs, projection):
    problems = random_problems(seed=8, count=COUNT, costs=costs)
    steps = proposals(problems, "pcpo", projection=projection)
    for i in range(COUNT):
        p = problems.one(i)
        expected = nearest_point(metric_of(p, projection), ascent_of(p), p.c, p.d)
        assert_same_step(p, projection, steps[i], expected)


@pytest.mark.parametrize("weighted", ["f-pcpo", "f-cpo", "d-pcpo", "d-cpo"])
def test_weighted_rules_ascend_reward_minus_divergence(weighted):
    problems = random_problems(seed=9, count=COUNT, costs=1)
    replaced = problems._replace(g=problems.g - np.float32(0.7) * problems.a)
    found, expected = proposals(problems, weighted, divergence_weight=0.7), proposals(replaced, weighted[2:])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_a_heavy_weight_moves_toward_the_baseline():
    problems = random_problems(seed=10, count=COUNT, costs=1)
    problems = problems._replace(d=np.full_like(problems.d, -1e9))
    steps = proposals(problems, "f-pcpo", divergence_weight=1e6)
    assert np.all(np.einsum("ni,ni->n", problems.a, steps) < 0.0)


# ---------------------------------------------------------------- reductions


@pytest.mark.parametrize("costs", [1, 2])
@pytest.mark.parametrize("form", ["printed", "sequential"])
def test_space_far_inside_its_region_is_pcpo_exactly(form, costs):
    problems = random_problems(seed=11, count=COUNT, costs=costs)
    problems = problems._replace(b=np.full(COUNT, -1e9, np.float32))
    assert_identical(proposals(problems, f"space-{form}"), proposals(problems, "pcpo"))


@pytest.mark.parametrize("costs", [1, 2])
def test_joint_space_far_inside_its_region_is_pcpo(costs):
    problems = random_problems(seed=11, count=COUNT, costs=costs)
    problems = problems._replace(b=np.full(COUNT, -1e9, np.float32))
    # One more constraint changes the order of additions, nothing else.
    found, expected = proposals(problems, "space-joint"), proposals(problems, "pcpo")
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["pcpo", "space-printed", "space-sequential", "space"])
def test_pcpo_with_slack_costs_is_trpo_exactly(algorithm):
    problems = random_problems(seed=12, count=COUNT, costs=2)
    problems = problems._replace(b=np.full(COUNT, -1e9, np.float32), d=np.full((COUNT, 2), -1e9, np.float32))
    given = {"earned_trust": False} if algorithm == "space" else {}  # all of the trust region from the start
    assert_identical(proposals(problems, algorithm, **given), proposals(problems, "trpo"))


def test_cpo_with_a_slack_cost_is_trpo():
    problems = random_problems(seed=12, count=COUNT, costs=1)
    problems = problems._replace(d=np.full((COUNT, 1), -1e9, np.float32))
    np.testing.assert_allclose(proposals(problems, "cpo"), proposals(problems, "trpo"), rtol=1e-5)


def test_weight_zero_is_the_plain_rule_exactly():
    problems = random_problems(seed=13, count=COUNT, costs=1)
    for base in ("pcpo", "cpo"):
        found = proposals(problems, f"f-{base}", divergence_weight=0.0)
        assert_identical(found, proposals(problems, base))


def test_as_printed_a_decaying_weight_of_one_never_decays():
    rule = algorithm_of(make_config("d-pcpo", weight_schedule="printed", divergence_weight=1.0))
    state = rule.init(1, BaselineMeasurement(0.0))
    for _ in range(20):
        state = rule.control(state, measured(1.0, 2.0, 3.0, 4.0))
    assert float(rule.weight(state)) == 1.0
    problems = random_problems(seed=14, count=COUNT, costs=1)
    assert_identical(proposals(problems, "d-pcpo", state=state), proposals(problems, "f-pcpo"))


# ---------------------------------------------------------------- degenerate input


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_vanished_gradients_give_finite_steps(algorithm):
    problems = random_problems(seed=15, count=COUNT, costs=1)
    for vanished in ("g", "a", "c", "g a c"):
        zeros = {name: np.zeros_like(getattr(problems, name)) for name in vanished.split()}
        steps = proposals(problems._replace(**zeros), algorithm)
        assert np.all(np.isfinite(steps))
    assert np.all(steps == 0.0)  # of the last: nothing to follow at all


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - SPACE))
def test_rules_without_a_region_do_not_read_its_value(algorithm):
    """Their threshold is NaN, so b is."""
    rule = algorithm_of(make_config(algorithm))
    assert np.isnan(rule.threshold(rule.init(1, BaselineMeasurement(1.0))))
    problems = random_problems(seed=16, count=COUNT, costs=1)
    unknown = problems._replace(b=np.full(COUNT, np.nan, np.float32))
    assert_identical(proposals(unknown, algorithm), proposals(problems, algorithm))


LAGRANGIAN = {"trpo-lagrangian", "trpo-pid"}
WEIGHTED = {"f-cpo", "f-pcpo", "d-cpo", "d-pcpo"}


def test_the_table_of_rules_is_complete_and_says_what_they_need():
    assert set(ALGORITHMS) == SPACE | WEIGHTED | LAGRANGIAN | {"trpo", "cpo", "pcpo", "pretrain", "space-alone"}
    for name in ALGORITHMS:
        needs = algorithm_of(make_config(name)).needs
        assert needs == needs_of(name)
        assert needs.baseline == (name in SPACE | WEIGHTED | {"pretrain"})
        assert needs.many_costs == (name not in {"cpo", "f-cpo", "d-cpo"})
        assert needs.many_baselines == (name != "pretrain")
        assert needs.cost == (name != "trpo")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_entry_of_the_registry_describes_its_rule(name):
    entry = ALGORITHMS[name]
    assert entry.summary.strip() == entry.summary
    assert 0 < len(entry.summary) < 120
    assert entry.summary.splitlines() == [entry.summary]
    assert dataclasses.is_dataclass(entry.options)
    assert set(defaults_of(entry.options)) == set(names_of(entry.options))
    assert checked(entry.options, defaults_of(entry.options)) == defaults_of(entry.options)  # which it allows itself
    rule = entry.make(entry.options())
    assert isinstance(rule, Algorithm)
    assert isinstance(rule.needs, Needs)
    assert all(isinstance(need, bool) for need in rule.needs)
    assert algorithm_of(make_config(name)).name == name


# ---------------------------------------------------------------- accepting a step

TRIAL_DELTA = 0.01


def accepted_scale(algorithm: str, judge, d=-1.0, recovering=False, **fields) -> float:
    rule = algorithm_of(make_config(algorithm, backtrack_factor=0.8, backtrack_tries=15, **fields))
    problem = random_problems(seed=17, count=1, costs=1).one(0)
    inputs = problem._replace(d=np.array([d]), delta=np.array(TRIAL_DELTA)).inputs()
    proposal = Proposal(jnp.zeros(6), jnp.array(recovering), {})
    return float(rule.accept(judge, inputs, proposal, rule.init(1, BaselineMeasurement(1.0))))


def trial(reward=1.0, cost=0.0, divergence=0.0, kl=0.0):
    """A judge from numbers or functions of the scale."""

    def at(value, scale):
        return jnp.asarray(value(scale) if callable(value) else value, jnp.float32)

    return lambda s: Trial(at(reward, s), at(cost, s)[None], at(divergence, s), at(kl, s))


@pytest.mark.parametrize("algorithm", ["trpo", "cpo", "f-cpo", "d-cpo"])
def test_line_search_keeps_a_good_step_and_drops_a_hopeless_one(algorithm):
    assert accepted_scale(algorithm, trial()) == 1.0
    assert accepted_scale(algorithm, trial(reward=-1.0)) == 0.0


@pytest.mark.parametrize("algorithm", ["trpo", "cpo"])
def test_line_search_shrinks_until_the_kl_fits(algorithm):
    # kl = 0.02 s^2 <= 0.01 from s = 0.8^2 on
    assert accepted_scale(algorithm, trial(kl=lambda s: 0.02 * s * s)) == pytest.approx(0.64)


def test_line_search_of_cpo_lets_the_cost_grow_by_its_slack_only():
    growing = trial(cost=lambda s: 2.0 * s)
    assert accepted_scale("cpo", growing, d=-2.0) == 1.0
    assert accepted_scale("cpo", growing, d=-1.1) == pytest.approx(0.512)
    assert accepted_scale("cpo", growing, d=0.5) == 0.0  # violated already: it must not grow at all
    assert accepted_scale("trpo", growing, d=0.5) == 1.0


def test_line_search_of_a_recovering_step_ignores_the_reward_and_keeps_the_smallest_trial():
    assert accepted_scale("cpo", trial(reward=-1.0, cost=-0.1), d=1.0, recovering=True) == 1.0
    assert accepted_scale("cpo", trial(kl=1.0), d=1.0, recovering=True) == pytest.approx(0.8**14)
    assert accepted_scale("cpo", trial(kl=1.0), d=1.0, recovering=False) == 0.0


def test_line_search_of_the_weighted_rule_counts_the_divergence():
    diverging = trial(reward=1.0, divergence=3.0)
    assert accepted_scale("f-cpo", diverging, divergence_weight=0.5) == 0.0
    assert accepted_scale("f-cpo", diverging, divergence_weight=0.25) == 1.0


@pytest.mark.parametrize(
    "algorithm", ["pcpo", "space-printed", "space-sequential", "space-joint", "f-pcpo", "d-pcpo", "pretrain"]
)
def test_projection_rules_take_every_step_whole(algorithm):
    assert accepted_scale(algorithm, trial(reward=-1.0, cost=10.0, kl=10.0), d=1.0) == 1.0


# ---------------------------------------------------------------- thresholds, weights and phases


@pytest.mark.parametrize(
    ("J_R", "J_C", "previous_J_R", "previous_J_C", "expected"),
    [
        (1.0, [7.0], NAN, [NAN], 3.0),  # the first update has nothing to compare with
        (2.0, [7.0], 1.0, [8.0], 3.0),  # more reward, less cost: keep the region
        (2.0, [7.0], 1.0, [6.0], 3.0 + 10.0 * 2.0**2),  # the cost rose
        (0.5, [6.0], 1.0, [6.0], 3.0 + 10.0 * 1.0**2),  # the reward fell
        (0.5, [2.0], 1.0, [6.0], 3.0 + 10.0 * 3.0**2),  # the square does not ask on which side of h_C
        (2.0, [6.0, 9.0], 1.0, [7.0, 8.0], 3.0 + 10.0 * (1.0 + 16.0)),  # one of two costs rose
        (2.0, [6.0, 8.0], 1.0, [6.0, 8.0], 3.0),  # equal is not worse
    ],
)
def test_lemma_threshold_by_hand(J_R, J_C, previous_J_R, previous_J_C, expected):
    arguments = [jnp.asarray(x) for x in (3.0, J_R, J_C, previous_J_R, previous_J_C, [5.0] * len(J_C))]
    assert float(lemma_threshold(*arguments, 10.0)) == pytest.approx(expected)


@pytest.mark.parametrize("algorithm", sorted(SPACE))
def test_space_remembers_the_last_update_and_widens_its_region(algorithm):
    rule = algorithm_of(make_config(algorithm, divergence_threshold=3.0, threshold_constant=10.0))
    state = rule.init(1, BaselineMeasurement(NAN))
    seen = []
    for J_R, J_C in [(1.0, 7.0), (2.0, 6.0), (1.5, 6.0), (2.0, 5.5)]:
        state = rule.control(state, measured(J_R, J_C, h_C=5.0))
        seen.append(float(rule.threshold(state)))
    assert seen == [3.0, 3.0, 13.0, 13.0]


@pytest.mark.parametrize("algorithm", sorted(SPACE))
def test_a_fixed_region_stays(algorithm):
    rule = algorithm_of(make_config(algorithm, divergence_threshold=3.0, threshold_rule="fixed"))
    state = rule.init(1, BaselineMeasurement(NAN))
    for J_R in (3.0, 2.0, 1.0):
        state = rule.control(state, measured(J_R, 9.0, h_C=5.0))
    assert float(rule.threshold(state)) == 3.0


@pytest.mark.parametrize(("schedule", "expected"), [("fixed", 0.25), ("printed", 0.5), ("decay", 0.125)])
def test_weight_schedules_by_hand(schedule, expected):
    assert float(next_weight(jnp.array(0.25), 0.5, schedule)) == pytest.approx(expected)


@pytest.mark.parametrize(("algorithm", "following_weight"), [("f-cpo", 0.8), ("d-cpo", 0.4), ("d-pcpo", 0.4)])
def test_only_the_d_rules_change_their_weight(algorithm, following_weight):
    rule = algorithm_of(make_config(algorithm, divergence_weight=0.8, weight_schedule="decay", weight_decay=0.5))
    state = rule.init(1, BaselineMeasurement(NAN))
    following = rule.control(state, measured(0.0, h_C=0.0))
    assert [float(rule.weight(s)) for s in (state, following)] == pytest.approx([0.8, following_weight])


@pytest.mark.parametrize(("baseline_J_R", "short", "enough"), [(10.0, 8.9, 9.1), (-10.0, -11.1, -10.9)])
def test_pretraining_ends_near_the_baselines_reward(baseline_J_R, short, enough):
    rule = algorithm_of(make_config("pretrain", pretrain_tolerance=0.1))

    def after(state, J_R):
        return rule.control(state, measured(J_R, h_C=0.0))

    imitating = after(rule.init(1, BaselineMeasurement(baseline_J_R)), short)
    learning = after(imitating, enough)
    assert [float(rule.weight(s)) for s in (imitating, learning)] == [1.0, 0.0]
    assert float(rule.weight(after(learning, short))) == 0.0  # there is no way back


def test_pretraining_ends_after_its_last_update():
    rule = algorithm_of(make_config("pretrain", pretrain_updates=3))
    state, phases = rule.init(1, BaselineMeasurement(10.0)), []
    for _ in range(5):
        phases.append(float(rule.weight(state)))
        state = rule.control(state, measured(-1.0, h_C=0.0))
    assert phases == [1.0, 1.0, 1.0, 0.0, 0.0]


def test_pretraining_imitates_then_is_pcpo():
    problems = random_problems(seed=18, count=COUNT, costs=2)
    rule = algorithm_of(make_config("pretrain"))
    imitating = rule.init(2, BaselineMeasurement(10.0))
    learning = imitating._replace(imitating=jnp.array(False))
    toward = problems._replace(g=-problems.a, d=np.full_like(problems.d, -1e9))
    assert_identical(proposals(problems, "pretrain", state=imitating), proposals(toward, "trpo"))
    assert_identical(proposals(problems, "pretrain", state=learning), proposals(problems, "pcpo"))


def test_pretraining_may_imitate_with_a_trust_region_of_its_own():
    problems = random_problems(seed=19, count=COUNT, costs=1)
    imitating = algorithm_of(make_config("pretrain")).init(1, BaselineMeasurement(10.0))
    learning = imitating._replace(imitating=jnp.array(False))
    wide = {"pretrain_delta": 0.25}
    toward = problems._replace(
        g=-problems.a, d=np.full_like(problems.d, -1e9), delta=np.full_like(problems.delta, 0.25)
    )
    assert_identical(proposals(problems, "pretrain", state=imitating, **wide), proposals(toward, "trpo"))
    assert_identical(proposals(problems, "pretrain", state=learning, **wide), proposals(problems, "pcpo"))


# ---------------------------------------------------------------- a rule of the user's own


class Copying(Toy):
    """Three steps, each with another observation from -1 to 1; the reward is highest where the action equals it."""

    horizon = 3

    def reset(self, key):
        return key

    def observe(self, key):
        return jax.random.uniform(key, (1,), minval=-1.0, maxval=1.0)

    def step(self, key, action):
        reward = -((action[0] - self.observe(key)[0]) ** 2)
        return jax.random.split(key)[0], reward, jnp.zeros(1), jnp.array(False)


def clipped_ascent(minibatches: int = 20, rows: int = 128, rate: float = 0.01, clip: float = 0.2) -> Algorithm:
    """First-order: plain gradient ascent on minibatches of the clipped surrogate of PPO."""

    def step(inputs: spacerl.StepInputs, state) -> spacerl.Proposal:
        batch = inputs.batch
        samples = batch.weight.shape[0]
        advantage = batch.reward_advantage / jnp.sqrt(batch.weight @ batch.reward_advantage**2)

        def surrogate(step, some):
            ratio = jnp.exp(inputs.policy(step, some).log_prob(batch.action[some]) - batch.log_prob[some])
            gains = jnp.minimum(ratio * advantage[some], jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage[some])
            return samples / rows * batch.weight[some] @ gains

        def ascend(step, key):
            some = jax.random.choice(key, samples, (rows,), replace=False)
            return step + rate * jax.grad(surrogate)(step, some), None

        step = jax.lax.scan(ascend, jnp.zeros_like(inputs.g), jax.random.split(inputs.key, minibatches))[0]
        return spacerl.Proposal(step, info={"length": jnp.linalg.norm(step)})

    return spacerl.Algorithm(spacerl.Needs(cost=False, baseline=False), step, name="clipped-ascent")


def learner_with(rule: Algorithm, env: Toy) -> Learner:
    config = make_config("trpo", rollout_length=env.horizon, discount=1.0, gae_lambda=1.0)
    family = PolicyFamily(env.obs_shape, env.action_space, ())
    return Learner(config, family, rule, linear_critic(2, env.obs_shape), env.cost_names)


def test_a_first_order_rule_of_the_users_own_learns():
    env = Copying()
    learner = learner_with(clipped_ascent(), env)
    # Not for ever: at a fixed rate the steps become too long as the standard deviation shrinks.
    state, metrics = train(learner, env, episodes=300, updates=16)
    assert np.all(metrics["finite"] == 1.0)
    # At first the action is a standard normal: -(1 + 1/3) a step; whoever copies exactly gets 0.
    assert metrics["J_R"][0] == pytest.approx(-3.0 * (1.0 + 1.0 / 3.0), rel=0.15)
    assert metrics["J_R"][-1] > 0.25 * metrics["J_R"][0]
    assert np.all(np.diff(metrics["J_R"].reshape(4, 4).mean(1)) > 0.0)  # and it grew all the way
    weight, bias, log_std = state.theta
    assert weight == pytest.approx(1.0, abs=0.3)
    assert bias == pytest.approx(0.0, abs=0.2)
    assert log_std < -0.3
    # Without an `accept` of its own the whole step is taken, and what the rule says about it is in the metrics.
    assert np.all(metrics["step_scale"] == 1.0)
    assert np.all(metrics["length"] > 0.0)
    assert np.all(np.isnan(metrics["h_D"]))


def test_what_a_first_order_rule_is_given():
    """The policy that collected the batch at a step of zero, on the rows asked for; another key, another step."""
    env = Copying()
    learner = learner_with(clipped_ascent(minibatches=2, rows=16), env)
    theta, rows = jnp.array([0.3, -0.2, 0.1]), jnp.array([5, 0, 17, 5])

    @quick_jit
    def given(key):
        state = initial_state(learner, 0)._replace(theta=theta)
        batch = make_batch(learner, state, collect(learner, env, theta, jax.random.key(1), 20), None)
        inputs = step_inputs(learner, batch, state, jnp.arange(60), key)
        moved = jnp.array([0.0, 1.0, 0.0])
        same, other = (inputs.policy(step, rows) for step in (jnp.zeros(3), moved))
        return batch, same, other, learner.algorithm.step(inputs, state.algorithm).step

    batch, same, other, step = given(jax.random.key(2))
    np.testing.assert_allclose(same.mean, batch.dist.mean[rows], rtol=1e-6)
    np.testing.assert_allclose(same.log_prob(batch.action[rows]), batch.log_prob[rows], rtol=1e-5)
    np.testing.assert_allclose(other.mean, batch.dist.mean[rows] + 1.0, rtol=1e-5)
    assert np.array_equal(step, given(jax.random.key(2))[-1])
    assert not np.allclose(step, given(jax.random.key(3))[-1])
