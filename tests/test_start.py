"""Where a run begins: the choice by hand, and our policy fitted to every kind of baseline on its own episodes."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spacerl
from spacerl.core.distributions import Gaussian
from spacerl.policies.family import PolicyFamily
from spacerl.policies.policy import NetworkPolicy
from spacerl.training import start
from spacerl.training.assemble import Given, assemble
from spacerl.training.settings import resolve
from spacerl.training.start import at_baseline, begin, choose
from spacerl.training.update import initial_state, raw_theta
from spacerl.types import InputError

pytestmark = pytest.mark.usefixtures("quick_compilation")
SMALL = {"task": "point-circle", "algorithm": "space", "batch_size": 1000, "baseline": "near"}


def parts_of(baseline=None, **settings):
    return assemble(resolve({**SMALL, **settings}), Given(baseline=baseline))


def summary_of(name="a", J_R=2.0, J_C=4.0, h_C=5.0, J_R_error=0.1, J_C_error=0.0, tolerance=0.0, costly=False):
    """Of a baseline; `costly`: a fresh policy breaks the limit."""
    errors = {"J_R_error": J_R_error, "J_C_error": J_C_error, "cost_tolerance": tolerance}
    return {"name": name, "J_R": J_R, "J_C": J_C, "h_C": h_C, "costly": costly, "episodes": 100, **errors}


@pytest.mark.parametrize(
    ("given", "summary", "expected"),
    [
        ("auto", summary_of(), 0),
        ("auto", summary_of(J_C=7.4), 0),  # nearly safe
        ("auto", summary_of(J_C=7.6), None),
        ("auto", summary_of(J_C=8.4, J_C_error=0.5), 0),  # by chance, perhaps
        ("auto", summary_of(J_C=8.6, J_C_error=0.5), None),
        ("auto", summary_of(J_R=1.1), None),  # more than a fresh policy's 1, but not for certain
        ("auto", summary_of(J_R=0.0), None),
        ("auto", summary_of(J_R=1.75), None),  # more for certain, but less than episodes differ by: 0.79
        ("auto", summary_of(J_R=1.83), 0),
        ("auto", summary_of(J_R=1.75, costly=True), 0),  # and where a fresh policy breaks the limit
        ("auto", summary_of(J_C=0.0, h_C=0.0), 0),
        ("auto", summary_of(J_C=0.1, h_C=0.0), None),
        ("auto", summary_of(J_C=23.9, h_C=0.0, tolerance=16.0), 0),  # nearly safe, as at any other limit
        ("auto", summary_of(J_C=24.1, h_C=0.0, tolerance=16.0), None),
        ("fresh", summary_of(), None),
        ("baseline", summary_of(J_R=0.0, J_C=99.0), 0),
        ("auto", summary_of() | {"all": [summary_of(J_C=9.0, J_R=9.0), summary_of(J_R=2.0), summary_of(J_R=3.0)]}, 2),
        ("baseline", summary_of() | {"all": [summary_of(J_C=9.0, J_R=9.0), summary_of(J_R=2.0)]}, 1),
        # A fresh policy has J_C 30 with a standard error of 0.5.
        ("auto", summary_of(J_C=10.9, costly=True), 0),  # a quarter of 25, less one of two standard errors, above 5
        ("auto", summary_of(J_C=11.1, costly=True), None),  # less, but not for certain
        ("auto", summary_of(J_C=10.5, J_C_error=0.3, costly=True), None),
        ("auto", summary_of(J_C=20.0, costly=True), None),  # safer, but not by far
        ("auto", summary_of(J_C=10.0, J_R=1.1, costly=True), None),  # earns no more for certain
        ("auto", summary_of(J_C=7.0, h_C=0.0, costly=True), 0),
        ("auto", summary_of(J_C=10.0, J_R=9.0, costly=True) | {"all": [summary_of(J_C=10.0), summary_of(J_R=3.0)]}, 1),
        (
            "auto",
            summary_of(costly=True) | {"all": [summary_of(J_C=10.0, J_R=3.0), summary_of(J_C=9.0, J_R=2.5)]},
            0,
        ),
    ],
)
def test_the_choice_by_hand(given, summary, expected, monkeypatch):
    """A fresh policy earns 1 with a standard error of 0.05, at no cost unless it is a costly one."""
    spread = 10.0 * np.tile([-1.0, 1.0], 50) * np.sqrt(99 / 100)
    costs = (30.0 + 0.5 * spread if summary["costly"] else 0.0 * spread)[:, None]
    monkeypatch.setattr(start, "episode_returns", lambda *_: (1.0 + 0.05 * spread, costs))
    parts = parts_of(start=given, cost_limit=summary["h_C"], cost_tolerance=summary["cost_tolerance"])
    choice = choose(parts, initial_state(parts.learner, 0), summary)
    assert choice.baseline == expected
    assert choice.better == (summary["J_R"] != 1.75 or summary["costly"])
    assert bool(choice.why) == (given != "fresh")
    assert "\n" not in choice.why


def test_other_algorithms_begin_fresh_unless_asked():
    assert (
        resolve({"task": "point-circle", "algorithm": "space-printed", "baseline": "near"}).values["start"] == "fresh"
    )
    assert resolve({"task": "point-circle", "algorithm": "space", "baseline": "near"}).values["start"] == "auto"
    with pytest.raises(InputError, match="start is 'baseline' and there is none"):
        begin(assemble(resolve({"task": "point-circle", "algorithm": "pcpo", "start": "baseline", "batch_size": 200})))


def divergence(parts, state, baseline, count: int = 400) -> float:
    """KL(pi_B, pi) on observations that pi_B comes to, the first ones of which its fit has not seen."""
    rollout = start.episodes_of(parts._replace(config=parts.config), baseline)
    obs = rollout.obs.reshape(-1, *rollout.obs.shape[2:])[:count]
    ours = parts.learner.family.apply(raw_theta(parts.learner, state), obs)
    return float(jnp.mean(baseline(obs).kl(ours)))


def test_a_network_of_our_architecture_is_taken_as_it_is():
    parts = parts_of(start="baseline")
    fresh = initial_state(parts.learner, 0)
    state = at_baseline(parts, fresh, parts.baselines[0])
    assert np.array_equal(state.theta, parts.baselines[0].theta)
    assert int(state.env_steps) == 1000
    assert float(state.cumulative_violation) >= 0.0
    assert not np.allclose(state.critics.theta, fresh.critics.theta)


def test_runs_that_differ_in_seed_and_baseline_share_a_program():
    start._preparation.cache_clear()
    for seed, baseline in ((0, "near"), (1, "near"), (0, "cost")):
        parts = parts_of(start="baseline", seed=seed, baseline=baseline)
        at_baseline(parts, initial_state(parts.learner, seed), parts.baselines[0])
    assert start._preparation.cache_info().misses == 1
    other = parts_of(start="baseline", discount=0.9)
    at_baseline(other, initial_state(other.learner, 0), other.baselines[0])
    assert start._preparation.cache_info().misses == 2


def centre(obs):
    """Turns and drives by what it sees: a rule whose actions are not ours."""
    return np.stack([0.5 * np.tanh(obs[:, 0]), 0.3 + 0.2 * obs[:, 1]], axis=-1)


@pytest.mark.parametrize("kind", ["another architecture", "a function", "the rule", "normalised"])
def test_every_kind_of_baseline_is_fitted_on_its_own_episodes(kind):
    settings = {"normalise_observations": True} if kind == "normalised" else {}
    if kind == "another architecture":
        family = PolicyFamily(
            *(lambda spec: (spec.obs_shape, spec.action))(spacerl.make_env("point-circle").spec), (8,)
        )
        given = NetworkPolicy(family, family.init(jax.random.PRNGKey(3)), "other")
    else:
        given = {"a function": centre, "the rule": "rule", "normalised": None}[kind]
    parts = parts_of(given, start="baseline", **settings)
    fresh = initial_state(parts.learner, 0)
    state = at_baseline(parts, fresh, parts.baselines[0])
    assert divergence(parts, state, parts.baselines[0]) < 0.05
    if kind != "normalised":
        assert divergence(parts, fresh, parts.baselines[0]) > 0.5
    assert np.all(np.isfinite(state.theta))


def test_what_is_hard_to_imitate_is_fitted_for_longer(monkeypatch):
    """Stripes take a network longer than a straight line; rows that it was not fitted to say when it is done."""
    parts = parts_of(centre, start="baseline")
    state = initial_state(parts.learner, 0)
    obs, other = (jax.random.normal(jax.random.PRNGKey(i), (4000, 9)) for i in (1, 2))

    def stripes(seen):
        return Gaussian(jnp.sign(jnp.sin(3.0 * seen[:, :2])), jnp.full((len(seen), 2), np.log(0.3)))

    found = []
    for rounds in (1, 3):
        monkeypatch.setattr(start, "ROUNDS", rounds)
        theta = start.fitted(parts, state, parts.baselines[0], obs, stripes(obs), jnp.ones(len(obs), bool))
        found.append(float(jnp.mean(stripes(other).kl(parts.learner.family.apply(theta, other)))))
    assert found[1] < 0.9 * found[0]


def lean(obs):
    """CartPole: toward where the pole falls."""
    return (obs[:, 2] + 0.2 * obs[:, 3] > 0.0).astype(int)


def test_discrete_actions_on_the_host(tmp_path):
    cost = spacerl.train(
        env="CartPole-v1",
        cost=lambda obs, action, next_obs, info: float(abs(next_obs[0]) > 0.2),
        cost_limit=500.0,
        baseline=lean,
        updates=1,
        batch_size=1000,
        environments=4,
        workers=0,
        out=tmp_path / "run",
        progress=False,
        log=(),
    )
    kept = json.loads((tmp_path / "run" / "baseline.json").read_text())
    assert kept["start"]["chosen"] == "baseline"
    assert "earns J_R" in kept["start"]["why"]
    first = cost.metrics[0]
    assert first["J_R"] > 0.7 * kept["J_R"]  # a fresh policy stands for 20 steps, this one far longer
    assert first["J_D"] < 0.3 * first["episode_length"]
    assert first["env_steps"] >= 2000  # the baseline's own episodes count


def test_a_run_that_begins_at_its_baseline_says_so_and_is_as_good_at_once(tmp_path, capsys):
    settings = {key: value for key, value in SMALL.items() if key != "task"}
    fresh, begun = (
        spacerl.train("point-circle", updates=1, start=how, out=tmp_path / how, log=(), **settings)
        for how in ("fresh", "auto")
    )
    assert "begins at the baseline" in capsys.readouterr().err
    assert begun.metrics[0]["J_R"] > fresh.metrics[0]["J_R"] + 10.0
    assert begun.metrics[0]["env_steps"] == 2000
    assert fresh.metrics[0]["env_steps"] == 1000
    assert json.loads((tmp_path / "fresh" / "baseline.json").read_text())["start"]["chosen"] == "fresh"
