"""What a policy is worth: evaluation against sums worked out by hand, and against what training logged."""

from __future__ import annotations

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as stats
from safetensors.numpy import load_file

import spacerl
from spacerl.cli import main
from spacerl.core.distributions import Gaussian
from spacerl.policies.policy import NetworkPolicy, RulePolicy
from spacerl.rollout.adapter import JaxBatchEnv
from spacerl.rollout.evaluate import (
    Play,
    episode_returns,
    episode_sums,
    evaluate_policy,
    play_episodes,
    play_on_device,
    summarise,
    verdict,
)
from spacerl.runs.folder import RunFolder
from spacerl.training.assemble import reassemble
from spacerl.training.settings import read_config
from support.learners import Toy
from support.runs import made

pytestmark = pytest.mark.usefixtures("quick_compilation")


@dataclasses.dataclass(frozen=True)
class Countdown(Toy):
    """Episodes of one to five steps, drawn at reset. Reward is the action; costs are 1 and the step's number."""

    name = "countdown"
    obs_shape = (2,)
    horizon = 5
    cost_names = ("step", "number")

    def reset(self, key):
        return jnp.stack([jax.random.randint(key, (), 1, 6), 0]).astype(jnp.float32)

    def observe(self, state):
        return state

    def step(self, state, action):
        left, number = state
        return jnp.stack([left - 1, number + 1]), action[0], jnp.stack([1.0, number]), left <= 1


def number_plus_noise(obs) -> Gaussian:
    """Mean is ten times the number of steps left, standard deviation a half."""
    return Gaussian(10.0 * obs[..., :1], jnp.full_like(obs[..., :1], math.log(0.5)))


EPISODES = 400
PLAY = Play(EPISODES, 5, seed=3)
STOCHASTIC = RulePolicy(number_plus_noise)


def played(**changes) -> tuple[np.ndarray, ...]:
    """Rewards, costs and which steps are valid."""
    return tuple(map(np.asarray, play_on_device(Countdown(), STOCHASTIC, PLAY._replace(**changes))[:3]))


def lengths_played(seed: int) -> np.ndarray:
    """Steps of every episode, read off the states themselves."""
    *_, states = play_on_device(Countdown(), STOCHASTIC, PLAY._replace(seed=seed), look=lambda state: state)
    return np.asarray(states)[0, :, 0].astype(int)


def test_deterministic_episodes_are_sums_one_can_work_out():
    lengths = lengths_played(3)
    assert set(lengths) == {1, 2, 3, 4, 5}
    rewards, costs, valid = played(deterministic=True)
    J_R, J_C = episode_sums(rewards, costs, 0.9)
    discounted = [sum(10.0 * (n - t) * 0.9**t for t in range(n)) for n in lengths]
    assert J_R == pytest.approx(np.array(discounted), rel=1e-6)
    assert np.array_equal(J_C, np.stack([lengths, lengths * (lengths - 1) / 2], axis=1))
    assert np.array_equal(valid, np.arange(5)[:, None] < lengths[None])


def test_a_shorter_length_cuts_episodes():
    _, costs, valid = played(length=2)
    assert np.array_equal(costs[..., 0].sum(0), np.minimum(lengths_played(3), 2))
    assert valid.shape == (2, EPISODES)


def test_evaluate_policy_is_what_the_rows_of_play_give():
    report = evaluate_policy(Countdown(), STOCHASTIC, (2.0, 4.0), 0.9, PLAY)
    assert (report["episodes"], report["seed"]) == (EPISODES, 3)
    for mode in ("stochastic", "deterministic"):
        rewards, costs, _ = (row.astype(np.float64) for row in played(deterministic=mode == "deterministic"))
        episodes = {"J_R": sum(0.9**t * rewards[t] for t in range(5))}
        episodes |= {name: costs[:, :, k].sum(0) for k, name in enumerate(("step", "number"))}
        given = {"J_R": report[mode]["J_R"], **report[mode]["J_C"]}
        for name, values in episodes.items():
            spread = math.sqrt(((values - values.mean()) ** 2).sum() / (EPISODES - 1))
            assert given[name]["mean"] == pytest.approx(values.mean(), rel=1e-6)
            assert given[name]["std"] == pytest.approx(spread, rel=1e-6)
            reach = stats.t.ppf(0.975, EPISODES - 1) * spread / math.sqrt(EPISODES)
            assert given[name]["interval"] == pytest.approx(reach, rel=1e-6)
        assert (given["step"]["limit"], given["number"]["limit"]) == (2.0, 4.0)


def test_the_stochastic_policy_has_its_standard_deviation_and_the_deterministic_none():
    noisy, _, valid = played()
    plain, _, _ = played(deterministic=True)
    noise = (noisy - plain)[valid]
    assert abs(noise.mean()) < 5 * 0.5 / math.sqrt(noise.size)
    assert noise.std() == pytest.approx(0.5, rel=5 / math.sqrt(2 * noise.size))


def test_another_seed_plays_other_episodes_and_the_same_seed_the_same():
    assert np.array_equal(lengths_played(3), lengths_played(3))
    assert not np.array_equal(lengths_played(3), lengths_played(4))


def test_a_policy_that_cannot_be_compiled_plays_the_same_episodes():
    def policy(obs):
        assert not isinstance(obs, jax.core.Tracer)
        return number_plus_noise(jnp.asarray(obs))

    play = PLAY._replace(episodes=20)
    for deterministic in (False, True):
        asked = play._replace(deterministic=deterministic)
        called = episode_returns(Countdown(), RulePolicy(policy, compiles=False), 0.9, asked)
        compiled = episode_returns(Countdown(), STOCHASTIC, 0.9, asked)
        for one, other in zip(compiled, called, strict=True):
            assert len(one) == 20
            assert one == pytest.approx(other, rel=1e-5, abs=1e-5)
    # These are whole episodes of the environment: the sums of the deterministic ones follow from their lengths.
    lengths = called[1][:, 0].astype(int)
    assert len(set(lengths)) > 2
    assert called[0] == pytest.approx([sum(10.0 * (n - t) * 0.9**t for t in range(n)) for n in lengths], rel=1e-6)
    assert np.array_equal(called[1][:, 1], lengths * (lengths - 1) / 2)


@pytest.mark.parametrize(
    ("mean", "interval", "said"),
    [(0.5015, 0.028, "at"), (0.45, 0.028, "within"), (0.54, 0.028, "above"), (0.6, math.nan, "above"), (0.5, 0, "at")],
)
def test_a_cost_is_at_its_limit_where_its_interval_holds_it(mean, interval, said):
    assert verdict(mean, interval, 0.5) == said
    assert verdict(mean, interval, 0.2, tolerance=0.3) == said


def test_returns_and_lengths_are_those_of_the_episodes():
    lengths = lengths_played(3)
    played = play_episodes(Countdown(), STOCHASTIC, 0.9, PLAY._replace(deterministic=True))
    assert np.array_equal(played.episode_length, lengths)
    assert played.episode_return == pytest.approx(np.array([10.0 * n * (n + 1) / 2 for n in lengths]))


def test_episodes_on_the_host_are_summed_as_those_on_the_device_are():
    heard = []
    batch = JaxBatchEnv(Countdown(), 7)
    play = Play(40, 5, seed=3, deterministic=True)
    played = play_episodes(batch, STOCHASTIC, 0.9, play, heard.append)
    lengths = played.episode_length.astype(int)
    assert heard[-1] == 40
    assert sorted(heard) == heard
    assert len(set(lengths)) > 2
    assert played.J_R == pytest.approx([sum(10.0 * (n - t) * 0.9**t for t in range(n)) for n in lengths], rel=1e-6)
    assert played.episode_return == pytest.approx([10.0 * n * (n + 1) / 2 for n in lengths])
    assert np.array_equal(played.J_C, np.stack([lengths, lengths * (lengths - 1) / 2], axis=1))


def test_one_episode_has_no_spread():
    summary = summarise(np.array([3.0]))
    assert summary["mean"] == 3.0
    assert math.isnan(summary["std"])
    assert math.isnan(summary["interval"])


def test_an_interval_of_few_episodes_holds_the_mean_as_often_as_it_says():
    """Of 4,000 times three episodes; with the normal's 1.96 it would be four times in five."""
    rng = np.random.default_rng(0)
    summaries = [summarise(rng.normal(5.0, 2.0, 3)) for _ in range(4000)]
    assert abs(np.mean([abs(each["mean"] - 5.0) <= each["interval"] for each in summaries]) - 0.95) < 0.015


# ---------------------------------------------------------------- against training


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    settings = {"algorithm": "pcpo", "batch_size": 20_000, "hidden": (4,), "updates": 1, "progress": False}
    return spacerl.train("point-circle", out=tmp_path_factory.mktemp("run") / "run", **settings).folder


@pytest.fixture(scope="module")
def parts(run):
    return reassemble(*read_config(RunFolder(run)))


def test_the_logged_cost_is_the_cost_of_the_policy_that_acted(run, parts):
    """Row 0 describes the first policy, from 400 episodes; 4,000 fresh ones of that policy must agree."""
    row = RunFolder(run).metrics()[0]
    theta = load_file(run / "checkpoints" / "update-000000.safetensors")["theta"]
    policy = NetworkPolicy(parts.learner.family, theta)
    J_R, J_C = episode_sums(*play_on_device(parts.env, policy, Play(4000, 50, seed=99))[:2], 0.995)
    error = J_C.std() * math.sqrt(1 / 4000 + 1 / 400)
    assert abs(row["J_C"] - J_C.mean()) < 4 * error
    assert row["J_C_error"] == pytest.approx(J_C.std() / math.sqrt(400), rel=0.3)
    assert abs(row["J_R"] - J_R.mean()) < 4 * J_R.std() * math.sqrt(1 / 4000 + 1 / 400)
    assert row["J_C"] > 1.0, "a policy without cost would prove nothing"
    returns = play_episodes(parts.env, policy, 0.995, Play(4000, 50, seed=99)).episode_return
    assert abs(row["episode_return"] - returns.mean()) < 4 * returns.std() * math.sqrt(1 / 4000 + 1 / 400)
    assert abs(row["episode_return"]) > 1.05 * abs(row["J_R"]), "the discount makes a difference"


def test_evaluate_plays_the_newest_policy_of_the_run(run, parts):
    report = spacerl.evaluate(run, episodes=200, seed=5)
    theta = load_file(run / "checkpoints" / "update-000001.safetensors")["theta"]
    policy = NetworkPolicy(parts.learner.family, theta)
    J_R, J_C = episode_sums(*play_on_device(parts.env, policy, Play(200, 50, seed=5))[:2], 0.995)
    assert report["stochastic"]["J_R"]["mean"] == pytest.approx(J_R.mean(), rel=1e-4)
    assert report["stochastic"]["J_C"]["outside_walls"]["mean"] == pytest.approx(J_C.mean(), rel=1e-4)
    assert report["stochastic"]["J_C"]["outside_walls"]["limit"] == 5.0
    assert report["stochastic"] != report["deterministic"]


def test_evaluate_shows_the_baseline_played_or_as_it_was_measured(tmp_path, capsys):
    given = {"task": "point-circle", "algorithm": "space-printed"}
    folder = made(tmp_path / "shipped", baseline="near", **given)
    (played,) = spacerl.evaluate(folder, episodes=200)["baselines"]
    expected = play_episodes(spacerl.make_env("point-circle"), spacerl.load_policy("near", task="point-circle"),
                             0.995, Play(200, 50, seed=1))  # fmt: skip
    assert (played["name"], played["recorded"]) == ("near", False)
    assert played["J_R"]["mean"] == pytest.approx(expected.J_R.mean(), rel=1e-4)
    main(["evaluate", str(folder), "--episodes", "deterministic=20", "--quiet"])
    assert "pi_B near " in capsys.readouterr().out
    # Its baseline is gone: what was measured of it before training is shown, and is said to be that.
    config = json.loads((folder / "config.json").read_text()) | {"baseline": ["gone.safetensors"]}
    (folder / "config.json").write_text(json.dumps(config))
    costs = {"outside_walls": {"J_C": 9.0, "h_C": 5.0}}
    measured = {"name": "gone", "J_R": 7.5, "J_R_error": 0.5, "J_C": 9.0, "h_C": 5.0, "costs": costs, "episodes": 30}
    (folder / "baseline.json").write_text(json.dumps(measured))
    (recorded,) = spacerl.evaluate(folder, episodes=20)["baselines"]
    assert recorded["recorded"]
    assert (recorded["J_R"]["mean"], recorded["J_R"]["interval"]) == (7.5, pytest.approx(0.5 * stats.t.ppf(0.975, 29)))
    assert recorded["J_C"]["outside_walls"]["verdict"] == "above"
    main(["evaluate", str(folder), "--episodes", "20", "--quiet"])
    shown = capsys.readouterr().out
    assert "pi_B gone, as measured before training" in shown
    assert "pi_B gone was not played: " in shown
    assert "gone.safetensors" in shown.partition("not played")[2]
    # Its single cost has the error that was measured: 9 is within two of them of a limit of 5.
    (folder / "baseline.json").write_text(json.dumps(measured | {"J_C_error": 2.0}))
    (recorded,) = spacerl.evaluate(folder, episodes=20)["baselines"]
    assert recorded["J_C"]["outside_walls"]["verdict"] == "at"


def test_evaluate_takes_the_seed_and_the_number_of_episodes(run):
    one, again = (spacerl.evaluate(run, episodes=20, seed=5) for _ in range(2))
    assert one == again
    assert spacerl.evaluate(run, episodes=20, seed=6)["stochastic"]["J_R"] != one["stochastic"]["J_R"]
    assert spacerl.evaluate(run, episodes=20)["seed"] == 1
