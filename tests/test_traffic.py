"""The traffic tasks on the real SUMO: what a traffic engineer would check, and what a run relies on.

Oracles ask SUMO by other calls than the tasks do, or are written down by hand.
"""

from __future__ import annotations

import importlib.util
import math
import shutil
import signal
import subprocess

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import spacerl
from spacerl.algorithms import ALGORITHMS
from spacerl.envs.host.in_process import InProcessEnvs
from spacerl.envs.host.single import NotFinite, Recipe
from spacerl.envs.tasks import KINDS, TASKS
from spacerl.envs.traffic import networks, simulation
from spacerl.envs.traffic.bottleneck import Bottleneck, BottleneckSettings
from spacerl.envs.traffic.grid import Grid, GridSettings
from spacerl.envs.traffic.gymnasium import GridEnv
from spacerl.envs.traffic.host import bottleneck, grid
from spacerl.envs.traffic.remote import RemoteScenario
from spacerl.policies.loading import load_policy
from spacerl.policies.sampler import Sampler
from spacerl.reporting import read_run
from spacerl.reporting.arenas import trajectory_figure
from spacerl.rollout.evaluate import Play, episode_returns
from spacerl.rollout.host import episodes, ticks, whole_episodes
from spacerl.types import InputError

pytest.importorskip("libsumo", reason="the traffic tasks need SUMO: pip install 'spacerl[traffic]'")

NEVER, ALWAYS = -np.ones(4), np.ones(4)


@pytest.fixture
def opened():
    """Makes scenarios, one at a time: a process holds one simulation."""
    made = []

    def make(scenario):
        for other in made:
            other.close()
        made.append(scenario)
        return scenario

    yield make
    for scenario in made:
        scenario.close()


def play(scenario, policy, steps, seed=1, each=lambda step: None):
    """Sum of costs, and what `each` saw after every step."""
    scenario.begin(seed)
    cost, seen = 0.0, []
    for k in range(steps):
        step = scenario.advance(policy(k))
        assert not step.terminated
        cost += step.cost
        seen.append(each(step))
    return cost, seen


# The grid -------------------------------------------------------------------------------------------------------------


def test_the_tasks_have_the_papers_sizes(opened):
    scenario = opened(Grid(GridSettings()))
    assert (scenario.begin(0).shape, scenario.action_size) == ((156,), 4)
    assert Grid(GridSettings(rows=3, columns=3)).obs_size == 339
    scenario = opened(Bottleneck(BottleneckSettings()))
    assert (scenario.begin(0).shape, scenario.action_size) == ((141,), 20)


def test_a_light_that_never_switches_starves_one_direction(opened):
    scenario = opened(Grid(GridSettings()))
    arrived = []
    cost, _ = play(scenario, lambda k: NEVER, 400, each=lambda _: arrived.extend(gone(scenario)))
    assert cost == 4 * (400 - 7)
    assert {name.split(".")[1].rstrip("_012") for name in arrived} == {"left", "right"}
    waiting = [scenario.api.edge.getLastStepHaltingNumber(edge) for edge in ("bot0_0", "bot1_0", "top0_2", "top1_2")]
    assert min(waiting) > 20


def gone(scenario):
    return scenario.api.simulation.getArrivedIDList()


def test_lights_that_always_switch_cost_nothing_and_let_everyone_through(opened):
    scenario = opened(Grid(GridSettings()))
    arrived = []

    def look(step):
        arrived.extend(gone(scenario))
        return scenario.red_time.max()

    cost, red = play(scenario, lambda k: ALWAYS, 400, each=look)
    assert cost == 0.0
    assert max(red) == 4.0  # three seconds of yellow and one of green
    assert {name.split(".")[1] for name in arrived} == set(scenario.layout.routes())


@pytest.mark.parametrize(("green", "costs"), [(4, False), (5, True)])
def test_greens_of_up_to_four_seconds_are_safe(opened, green, costs):
    scenario = opened(Grid(GridSettings()))
    cost, _ = play(scenario, lambda k: ALWAYS if k % (green + 3) == green - 1 else NEVER, 60)
    assert (cost > 0.0) == costs


def test_a_switch_is_three_seconds_of_yellow_during_which_requests_are_ignored(opened):
    scenario = opened(Grid(GridSettings()))
    asked = np.array([1.0, -1.0, -1.0, -1.0])
    plan = [NEVER, asked, asked, asked, NEVER, NEVER, asked, NEVER]
    states = play(scenario, lambda k: plan[k], len(plan), each=lambda _: light(scenario, "center0"))[1]
    assert states == ["GrGr", "yryr", "yryr", "yryr", "rGrG", "rGrG", "ryry", "ryry"]
    assert light(scenario, "center1") == "GrGr"


def light(scenario, name):
    return scenario.api.trafficlight.getRedYellowGreenState(name)


def test_which_red_time_counts_is_a_setting(opened):
    """North and south have green for good: seen from there, no light is ever red."""
    scenario = opened(Grid(GridSettings(red_counts="north-south")))
    assert play(scenario, lambda k: NEVER, 30)[0] == 0.0


def test_what_the_grid_observes_and_earns(opened):
    """Against SUMO's own sums over edges, and vehicles looked up from the stop line backwards."""
    scenario, rng = opened(Grid(GridSettings())), np.random.default_rng(0)
    api_of = lambda: scenario.api  # noqa: E731
    checked = 0
    scenario.begin(3)
    for _ in range(150):
        step = scenario.advance(rng.normal(size=4))
        api, obs = api_of(), step.obs
        numbers = {edge: scenario.layout.number(edge) for edge in scenario.layout.edges}
        assert sorted(numbers.values()) == list(range(1, 25))
        for place, edge in enumerate(sorted(numbers, key=numbers.__getitem__)):
            count = api.edge.getLastStepVehicleNumber(edge)
            length = api.lane.getLength(f"{edge}_0")
            assert obs[96 + place] == pytest.approx(5 * count / length)
            mean = api.edge.getLastStepMeanSpeed(edge) if count else 0.0
            assert obs[120 + place] == pytest.approx(mean / 35.0, abs=1e-5)
        for i in range(4):
            r, c = divmod(i, 2)
            for j, edge in enumerate((f"bot{r}_{c}", f"right{r}_{c}", f"top{r}_{c + 1}", f"left{r + 1}_{c}")):
                first = list(api.edge.getLastStepVehicleIDs(edge))[::-1][:2]  # SUMO lists them from the back
                for k in range(2):
                    slot = 8 * i + 2 * j + k
                    expected = np.zeros(3)
                    if k < len(first):
                        speed, position = api.vehicle.getSpeed(first[k]), api.vehicle.getLanePosition(first[k])
                        expected = np.array([speed / 35.0, (300.0 - position) / 300.0, numbers[edge] / 31.0])
                        checked += 1
                    np.testing.assert_allclose(obs[[slot, 32 + slot, 64 + slot]], expected, atol=1e-5)
        speeds = np.array([api.vehicle.getSpeed(name) for name in api.vehicle.getIDList()])
        most = 50.0 * math.sqrt(len(speeds))
        assert step.reward == pytest.approx(max(most - np.linalg.norm(speeds - 50.0), 0.0) / most)
    assert checked > 500
    np.testing.assert_allclose(obs[144:], [*scenario.timer, *scenario.direction, *scenario.yellow])


# The bottleneck -------------------------------------------------------------------------------------------------------


def test_above_capacity_a_queue_grows_and_below_none_does(opened):
    def on_the_road(inflow):
        scenario = opened(Bottleneck(BottleneckSettings(inflow=inflow)))
        return play(scenario, lambda k: np.ones(20), 500, each=lambda _: scenario.moment().queues.sum())

    cost, queue = on_the_road(3000.0)
    assert np.mean(queue[:100]) + 10 < np.mean(queue[200:300]) + 5 < np.mean(queue[400:])
    assert cost > 1000
    cost, queue = on_the_road(1000.0)
    assert cost == 0.0
    assert max(queue) < 5


def test_the_outflow_is_the_inflow_below_capacity_and_capped_by_the_single_lane_above(opened):
    def outflow(inflow):
        scenario = opened(Bottleneck(BottleneckSettings(inflow=inflow)))
        arrived = play(scenario, lambda k: np.ones(20), 500, each=lambda _: len(gone(scenario)))[1]
        return sum(arrived[200:]) * 3600 / 150.0

    assert outflow(1200.0) == pytest.approx(1200.0, rel=0.05)
    assert 1500.0 < outflow(4000.0) < 2100.0


def test_speed_limits_of_autonomous_vehicles_shift_by_the_action_of_their_segment(opened):
    scenario, rng = opened(Bottleneck(BottleneckSettings())), np.random.default_rng(2)
    scenario.begin(5)
    limits: dict[str, float] = {}
    inside = 0
    for _ in range(200):
        action, api = rng.uniform(-2.0, 2.0, 20), scenario.api
        expected = {}
        for name in api.vehicle.getIDList():
            if not api.vehicle.getTypeID(name).startswith("autonomous"):
                continue
            edge, lane = api.vehicle.getRoadID(name), api.vehicle.getLaneIndex(name)
            half = api.vehicle.getLanePosition(name) >= {"2": 155.0, "3": 70.0, "4": 140.0}.get(edge, 0.0)
            place = {"2": 4 * half + lane, "3": 8 + 4 * half + lane, "4": 16 + 2 * half + lane}.get(edge)
            told = 23.0
            if place is not None:
                told = float(np.clip(limits.get(name, 23.0) + np.clip(action[place], -1.5, 1.5), 0.01, 23.0))
                inside += 1
            expected[name] = told
        scenario.advance(action)
        limits = expected
        still = set(api.vehicle.getIDList())
        assert all(api.vehicle.getMaxSpeed(name) == pytest.approx(limits[name]) for name in limits if name in still)
    assert inside > 100


def test_what_the_bottleneck_observes_earns_and_costs(opened):
    scenario = opened(Bottleneck(BottleneckSettings(inflow=2500.0)))
    scenario.begin(5)
    api = scenario.api
    left, slow, total = [0] * 20, {}, 0.0
    for k in range(300):
        step = scenario.advance(np.zeros(20))
        left.append(api.simulation.getArrivedNumber())
        counts, speeds = np.zeros((2, 35)), np.zeros((2, 35))
        begins = {"1": (0, 1, 4, 100.0), "2": (4, 3, 4, 310.0), "3": (16, 3, 4, 140.0), "4": (28, 3, 2, 280.0)}
        begins["5"] = (34, 1, 1, 155.0)
        now = {}
        for name in api.vehicle.getIDList():
            robot = int(api.vehicle.getTypeID(name).startswith("autonomous"))  # of its own once it was told a speed
            speed = api.vehicle.getSpeed(name)
            if speed < 5.0 and not robot:
                now[name] = slow.get(name, 0) + 1
            edge, _, lane = api.vehicle.getLaneID(name).rpartition("_")
            if edge in begins:
                begin, segments, lanes, length = begins[edge]
                segment = int(api.vehicle.getLanePosition(name) * segments // length)
                counts[robot, begin + segment * lanes + int(lane)] += 1
                speeds[robot, begin + segment * lanes + int(lane)] += speed
        slow = now
        means = np.divide(speeds, counts, out=np.zeros_like(speeds), where=counts > 0)
        if k >= 20:  # the windows hold only steps that were looked at
            expected = [*counts.ravel() / 20, *means.ravel() / 50, 3600 * sum(left[-20:]) / 10.0 / 2000.0]
            np.testing.assert_allclose(step.obs, expected, atol=1e-5)
            assert step.reward == pytest.approx(3600 * sum(left[-10:]) / 5.0 / 2000.0)
        if k >= 40:  # slow for longer than 20 steps was slow before the first step that was looked at
            assert step.cost == sum(steps > 20 for steps in slow.values())
        total += step.cost
    assert total > 0


# Both -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "steps", "action"),
    [
        (Grid(GridSettings()), 300, ALWAYS),
        (Bottleneck(BottleneckSettings(inflow=1500.0)), 400, np.ones(20)),
    ],
)
def test_vehicles_are_conserved_and_enter_as_the_demand_says(opened, scenario, steps, action):
    opened(scenario)
    scenario.begin(11)
    warm = scenario.api.simulation.getTime()
    entered = len(scenario.api.vehicle.getIDList()) + (sum(scenario._left) if isinstance(scenario, Bottleneck) else 0)
    at_first, left = entered, 0
    for _ in range(steps):
        scenario.advance(action)
        entered += scenario.api.simulation.getDepartedNumber()
        left += scenario.api.simulation.getArrivedNumber()
        assert entered - at_first - left == len(scenario.api.vehicle.getIDList()) - at_first
    seconds = scenario.api.simulation.getTime() - warm
    per_hour = 2400.0 if isinstance(scenario, Grid) else 1500.0
    assert entered - at_first == pytest.approx(per_hour * seconds / 3600.0, abs=8.5)


def test_the_formula_as_printed_is_smaller_by_3600(opened):
    printed = opened(Bottleneck(BottleneckSettings(outflow_per="second")))
    rewards = play(printed, lambda k: np.ones(20), 100, each=lambda step: step.reward)[1]
    hourly = opened(Bottleneck(BottleneckSettings()))
    wanted = play(hourly, lambda k: np.ones(20), 100, each=lambda step: step.reward)[1]
    assert sum(wanted) > 0
    np.testing.assert_allclose(3600 * np.array(rewards), wanted)


@pytest.mark.parametrize("name", ["spacerl/Grid-v0", "spacerl/Bottleneck-v0"])
@pytest.mark.filterwarnings("ignore:.*Box observation space m.*:UserWarning")
@pytest.mark.filterwarnings("ignore:.*recommend using a symmetric and normalized space.*:UserWarning")
def test_gymnasiums_checker_passes(name):
    env = gymnasium.make(name, render_mode="rgb_array")
    try:
        check_env(env.unwrapped, skip_render_check=False)
    finally:
        env.close()


def test_several_environments_of_one_process_do_not_disturb_each_other():
    def played(env, steps=40):
        first, _ = env.reset(seed=3)
        rng, seen = np.random.default_rng(0), [first]
        for _ in range(steps):
            obs, reward, *_ = env.step(rng.uniform(-1, 1, env.action_space.shape).astype(np.float32))
            seen.append(np.append(obs, reward))
        return np.concatenate(seen)

    alone = gymnasium.make("spacerl/Grid-v0")
    expected = played(alone)
    other, another = gymnasium.make("spacerl/Bottleneck-v0"), gymnasium.make("spacerl/Grid-v0", render_mode="rgb_array")
    try:
        other.reset(seed=1)
        np.testing.assert_array_equal(played(another), expected)
        other.step(np.zeros(20, np.float32))
        image = another.render()
        assert image is not None
        assert image.ndim == 3
        np.testing.assert_array_equal(played(alone), expected)
    finally:
        for env in (alone, other, another):
            env.close()


# Collection -----------------------------------------------------------------------------------------------------------


def noisy(lanes, size):
    return lambda obs, tick: np.random.default_rng(tick).normal(size=(lanes, size)).astype(np.float32)


@pytest.mark.parametrize(("make", "size"), [(grid, 4), (bottleneck, 20)])
def test_the_same_seed_gives_the_same_bits_whatever_the_number_of_workers(make, size):
    recordings = []
    for workers in (None, 1):
        env = make(3, workers)
        try:
            recordings.append(episodes(env, noisy(3, size), 7, 12, count=5))
            assert env.spec.horizon in (400, 500)
        finally:
            env.close()
    for one, other in zip(*(recording[:-1] for recording in recordings), strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(recordings[0].episodes) == 5


def a_policy(size, observed):
    """Arrays that act as a policy of two layers does."""
    rng = np.random.default_rng(1)
    shapes = ((observed, 8), (8, size))
    layers = tuple((rng.normal(size=(m, n)) / m**0.5, np.zeros(n)) for m, n in shapes)
    float32 = tuple((weight.astype(np.float32), bias.astype(np.float32)) for weight, bias in layers)
    return Sampler(float32, np.full(size, 0.5, np.float32))


@pytest.mark.parametrize(("make", "size", "observed"), [(grid, 4, 156), (bottleneck, 20, 141)])
def test_episodes_that_workers_play_alone_are_those_of_ticks(make, size, observed, monkeypatch):
    """From the same seeds and the same noise, with both numbers of workers, and one of them killed on the way."""
    act, length, noises = a_policy(size, observed), 12, np.random.default_rng(2).normal(size=(5, 12, size))
    noises = noises.astype(np.float32)
    recordings = []
    for workers in (None, 1):
        env, reports = make(5, workers), []
        env.report_faults_to(reports.append)
        try:
            if workers is None:
                monkeypatch.setattr(env._env.workers[0], "connection", Severed(env._env.workers[0]))
                by_ticks = episodes(
                    env, lambda obs, tick: act(obs, noises[:, max(tick - 1, 0) % length]), 7, length, 60
                )
                assert env.counts() == {"worker_restarts": 0, "lost_episodes": 0}
                env._env.workers[0].connection.armed = True
            recordings.append(whole_episodes(env, act, noises.__getitem__, 7, length, 60, keep_next=True))
            assert env.counts() == {"worker_restarts": len(reports), "lost_episodes": 0}
            assert len(reports) == (workers is None)
        finally:
            env.close()
    for one, other in zip(*recordings, strict=True):
        np.testing.assert_array_equal(one, other)
    for name in ("obs", "action", "reward", "cost", "terminated", "truncated"):
        one = getattr(by_ticks, name)[1:13]  # the first tick resets
        np.testing.assert_allclose(getattr(recordings[0], name), one, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(recordings[0].obs[1:], recordings[0].next_obs[:-1])


@pytest.mark.parametrize(("scenario", "size", "observed"), [(Grid, 4, 156), (Bottleneck, 20, 141)])
def test_an_episode_played_at_once_is_that_of_its_actions_one_by_one(scenario, size, observed, opened):
    """For as long as queues take to form, here and by a simulation in another process."""
    kind = scenario
    settings = kind.settings_type()
    noise = np.random.default_rng(3).normal(size=(120, size)).astype(np.float32)
    here, act = opened(kind(settings)), a_policy(size, observed)
    played = here.play(act, 4, noise)
    remote = RemoteScenario(kind, settings)
    try:
        elsewhere = remote.play(act, 4, noise)
    finally:
        remote.close()
    for one, other in zip(played, elsewhere, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(played.action, act(played.obs, noise), rtol=1e-4, atol=1e-5)
    obs, scale = here.begin(4), here.action_high
    for k, action in enumerate(played.action):
        np.testing.assert_allclose(obs, played.obs[k], rtol=1e-4, atol=1e-4)
        step = here.advance(np.clip(action, -1.0, 1.0) * scale)
        assert step.reward == pytest.approx(played.reward[k], rel=1e-4)
        assert step.cost == played.cost[k]
        assert not step.terminated
        obs = step.obs
    np.testing.assert_allclose(obs, played.last_obs, rtol=1e-4, atol=1e-4)
    assert played.obs[60:].any(axis=0).sum() > observed // 2


def test_an_episode_played_at_once_is_looked_at_for_numbers_that_are_not_finite():
    envs, noise = InProcessEnvs(Recipe(GridEnv, (("cost", "info"),)), 1), np.zeros((5, 4), np.float32)
    try:
        whole = envs.singles[0].env.play_episode

        def broken(*arguments):
            episode = whole(*arguments)
            episode.obs[2, 7] = np.inf
            return episode

        (fine,) = envs.play(a_policy(4, 156), [1], [noise])
        assert fine is not None
        assert len(fine.reward) == 5
        envs.singles[0].env.play_episode = broken
        with pytest.raises(NotFinite, match="an episode has a number in its obs that is not finite"):
            envs.play(a_policy(4, 156), [1], [noise])
    finally:
        envs.close()


class Severed:
    """A connection whose worker is killed with the first episode that it is given once it is armed."""

    def __init__(self, worker):
        self.worker, self.inner, self.armed = worker, worker.connection, False

    def send(self, message, timeout=None):
        self.inner.send(message, timeout)
        if self.armed and isinstance(message, tuple):
            self.worker.process.kill()

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_a_crashed_sumo_disturbs_its_episode_at_most_and_not_the_run():
    """Its process is replaced and the episode played again up to where it was: not even the numbers change."""

    def played(crashing: bool) -> tuple[np.ndarray, list[str], int]:
        env, rewards, reports = grid(2), [], []
        env.report_faults_to(reports.append)
        ended = 0
        try:
            for moment in ticks(env, noisy(2, 4), 3, 10, count=4):
                if crashing and moment.tick == 4:
                    process = env._env.workers[0].process
                    process.send_signal(signal.SIGSEGV)
                    process.wait()
                rewards.append(moment.result.reward)
                ended += int(moment.ended.sum())
            assert env.counts()["worker_restarts"] == int(crashing)
        finally:
            env.close()
        return np.array(rewards), reports, ended

    expected, quiet, episodes_ended = played(crashing=False)
    rewards, reports, ended = played(crashing=True)
    assert (quiet, episodes_ended, ended) == ([], 4, 4)
    assert "SIGSEGV" in reports[0]
    np.testing.assert_array_equal(rewards, expected)


# Rules ----------------------------------------------------------------------------------------------------------------


def test_the_rules_do_what_they_say(opened):
    scenario = opened(Grid(GridSettings()))
    obs = scenario.begin(1)
    actuated = jax.jit(TASKS["grid"].rule("actuated-rule"))
    np.testing.assert_array_equal(TASKS["grid"].rule("rule")(obs).mean, ALWAYS)
    near = np.zeros(156, np.float32)
    near[[32, 64]] = 80.0 / 300.0, 0.2  # a vehicle from the west at the first light, which is red for it
    assert np.sign(actuated(near).mean).tolist() == [1, -1, -1, -1]
    near[[34, 66]] = 20.0 / 300.0, 0.2  # and one from the south, which has green
    assert np.sign(actuated(near).mean).tolist() == [-1, -1, -1, -1]
    near[148] = 1.0  # now the west has green, and is further away
    assert np.sign(actuated(near).mean).tolist() == [1, -1, -1, -1]
    scenario = opened(Bottleneck(BottleneckSettings()))
    feedback = jax.jit(TASKS["bottleneck"].rule("rule"))
    obs = np.zeros(141, np.float32)
    assert np.all(np.asarray(feedback(obs).mean) > 0)
    obs[28:34] = 4 / 20.0
    slower = np.asarray(feedback(obs).mean)
    assert np.all(slower[:16] < 0) and np.all(slower[16:] == 1)  # noqa: PT018
    metered = jax.jit(TASKS["bottleneck"].rule("metered-rule"))
    obs = np.zeros(141, np.float32)
    obs[35 + 8 + 1], obs[105 + 8 + 1] = 2 / 20.0, 16.0 / 50.0  # two of them on edge 2, in the middle of its second lane
    for crowd, change in {0: 1.0, 8: -0.3, 20: -1.0}.items():  # at 16 m/s, and 23, 15 and 6.5 are wanted
        obs[28] = crowd / 20.0
        changes = np.asarray(metered(obs).mean)
        np.testing.assert_allclose(changes[[1, 5]], change, atol=1e-5)
        assert not np.delete(changes, [1, 5]).any()  # nobody else is there
    assert not np.any(TASKS["bottleneck"].rule("constant-rule")(obs).mean)


@pytest.mark.parametrize(("task", "make"), [("grid", grid), ("bottleneck", bottleneck)])
def test_shipped_baselines_say_what_they_are(task, make):
    """Each is what its file says of it: a few episodes lie within what so few can say."""
    shipped = TASKS[task].shipped()
    assert set(shipped) == set(KINDS)
    env = make(5)
    try:
        found = {}
        for kind in KINDS:
            policy = load_policy(kind, task, env.spec)
            assert (policy.info["task"], policy.info["kind"]) == (task, kind)
            J_R, J_C = episode_returns(env, policy, 0.999, Play(10, TASKS[task].settings["rollout_length"], seed=5))
            error = J_R.std(ddof=1) / math.sqrt(len(J_R))
            assert abs(J_R.mean() - policy.info["J_R"]) < 5.0 * error + 1.0
            found[kind] = (policy.info["J_R"], policy.info["J_C"], J_C.mean())
    finally:
        env.close()
    assert found["cost"][1] <= found["near"][1] + 1.0
    assert found["near"][1] <= found["reward"][1]


# Runs -----------------------------------------------------------------------------------------------------------------

TINY = {"rollout_length": 8, "batch_size": 24, "environments": 2, "progress": False}


def train(task, out, **settings):
    return spacerl.train(task, out=out, **{**TINY, **settings})


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("task", ["grid", "bottleneck"])
def test_a_run_resumes_exactly(task, tmp_path):
    settings = {"algorithm": "space", "baseline": "rule", "start": "fresh"}
    whole = train(task, tmp_path / "whole", updates=3, workers=1, **settings)
    train(task, tmp_path / "part", updates=1, **settings)
    part = spacerl.resume(tmp_path / "part", updates=3, progress=False)
    np.testing.assert_array_equal(whole.policy.theta, part.policy.theta)
    for one, other in zip(whole.metrics, part.metrics, strict=True):
        same = [name for name in one if not name.startswith(("seconds", "steps_per"))]
        np.testing.assert_array_equal([one[name] for name in same], [other[name] for name in same])


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize(("task", "panels"), [("grid", 6), ("bottleneck", 4)])
def test_the_report_draws_an_episode_before_and_after(task, panels, tmp_path):
    train(task, tmp_path, algorithm="space-printed", baseline="rule", updates=1, rollout_length=30, batch_size=60)
    trajectories = read_run(tmp_path).trajectories
    assert trajectories is not None
    assert [policy.name for policy in trajectories.policies] == ["baseline", "learned"]
    for policy in trajectories.policies:
        traffic = policy.episodes[0].traffic
        assert traffic is not None
        assert len(traffic.vehicles) > 1
        for points in traffic.vehicles:
            time, place, speed, _ = points.T
            moved = np.diff(place) / np.diff(time)
            assert np.all(moved >= -0.1)  # nobody drives backwards
            assert np.all(moved <= np.maximum(speed[1:], speed[:-1]) + 8.0)  # or jumps, but over what junctions hide
        assert len(traffic.time) == len(traffic.queues) == len(traffic.red)
    assert len(trajectory_figure(trajectories).axes) == panels
    page = spacerl.report([tmp_path]).read_text()
    assert "One episode, before and after" in page


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("task", ["grid", "bottleneck"])
def test_every_algorithm_runs(task, tmp_path):
    for algorithm in ALGORITHMS:
        result = train(task, tmp_path / algorithm, algorithm=algorithm, baseline="rule", updates=2)
        assert all(math.isfinite(row["J_R"]) and math.isfinite(row["J_C"]) for row in result.metrics)


def test_settings_of_a_task_reach_its_simulation():
    settings = {"inflow": 3000.0, "warm_up": 100}
    env = bottleneck(1, settings=settings)
    try:
        many = episodes(env, noisy(1, 20), 1, 3, count=1)
    finally:
        env.close()
    assert 20 * many.obs[1, 0, :70].sum() > 15


# Bad input ------------------------------------------------------------------------------------------------------------


def test_no_sumo_is_one_sentence(monkeypatch, tmp_path):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "libsumo" else found(name, *a))
    with pytest.raises(InputError, match=r"task 'grid' cannot be simulated: .* pip install 'spacerl\[traffic\]'"):
        train("grid", tmp_path / "run", algorithm="pcpo")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is not there"),
        ("<net><edge id='a'></net>", "cannot be read"),
        ("<net/>", "holds no road network"),
        ("grid without a light", "has no traffic light 'center3'"),
        ("bottleneck", "has no edge"),
    ],
)
def test_a_broken_network_is_one_sentence_and_no_segmentation_fault(tmp_path, content, said):
    file = tmp_path / "mine.net.xml"
    ours = networks.network_file(Grid(GridSettings()).plain_network()).read_text()
    texts = {
        "bottleneck": networks.network_file(Bottleneck(BottleneckSettings()).plain_network()).read_text(),
        "grid without a light": ours.replace('<tlLogic id="center3"', '<tlLogic id="another"'),
    }
    if content is not None:
        file.write_text(texts.get(content, content))
    with pytest.raises(InputError, match=f"network '.*mine.net.xml' {said}"):
        grid(1, settings={"network": str(file)})


@pytest.mark.parametrize(
    ("task", "settings", "said"),
    [
        ("grid", {"inflow": 0}, "inflow is 0.0: allowed is a number above 0 and at most 3600"),
        ("grid", {"inflow": 90_000}, "inflow is 90000.0: allowed is"),
        ("bottleneck", {"inflow": -5.0}, "inflow is -5.0: allowed is"),
        ("bottleneck", {"inflo": 1}, "unknown setting of this task 'inflo': .* did you mean 'inflow'?"),
        ("grid", {"red_counts": "all"}, "red-counts"),
    ],
)
def test_an_impossible_demand_is_one_sentence(task, settings, said):
    with pytest.raises(InputError, match=said):
        {"grid": grid, "bottleneck": bottleneck}[task](1, settings=settings)


def test_env_args_are_for_tasks_that_take_them(tmp_path):
    with pytest.raises(InputError, match=r"inflow is 0\.0"):
        train("grid", tmp_path / "run", algorithm="pcpo", env_args=("inflow=0",))
    with pytest.raises(InputError, match="env-args was given and task 'point-circle' has its own"):
        train("point-circle", tmp_path / "run", algorithm="pcpo", env_args=("radius=3",))


def test_a_window_needs_a_screen(monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(InputError, match="sumo-gui needs a screen"):
        gymnasium.make("spacerl/Grid-v0", window=True)


def has_netconvert():
    try:
        return bool(networks.sumo_program("netconvert", "a test"))
    except InputError:
        return False


def two_episodes(**how):
    env = gymnasium.make("spacerl/Grid-v0", **how)
    seen = []
    for seed in (3, 4):
        seen.append(env.reset(seed=seed)[0])
        seen += [env.step(np.ones(4, np.float32))[0] for _ in range(6)]
    env.close()
    return np.array(seen)


@pytest.mark.skipif(not has_netconvert(), reason="another process needs SUMO's programs: make test-traffic")
def test_a_window_shows_the_same_simulation(monkeypatch):
    """Through a socket, with the program that has no window in the place of sumo-gui: there is no screen here."""
    found = simulation.sumo_program
    monkeypatch.setenv("DISPLAY", ":99")
    monkeypatch.setattr(simulation, "sumo_program", lambda name, purpose: found("sumo", purpose))

    np.testing.assert_array_equal(two_episodes(window=True), two_episodes())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("Xvfb") is None, reason="needs a screen: Xvfb is one that nobody sees")
@pytest.mark.skipif(not has_netconvert(), reason="needs SUMO's programs: make test-traffic")
def test_sumos_own_window_plays_one_episode_after_the_other(monkeypatch):
    with subprocess.Popen(["Xvfb", "-displayfd", "1", "-screen", "0", "800x600x24"], stdout=subprocess.PIPE) as screen:
        assert screen.stdout is not None
        try:
            monkeypatch.setenv("DISPLAY", f":{int(screen.stdout.readline())}")
            np.testing.assert_array_equal(two_episodes(window=True), two_episodes())
        finally:
            screen.terminate()


@pytest.mark.skipif(not has_netconvert(), reason="building networks needs SUMO's programs: make test-traffic")
@pytest.mark.parametrize("scenario", [Grid(GridSettings()), Bottleneck(BottleneckSettings())])
def test_shipped_networks_are_what_netconvert_builds(scenario, tmp_path):
    plain = scenario.plain_network()
    shipped = networks.network_file(plain)
    assert shipped.parent == networks.SHIPPED
    assert networks.build(plain) == shipped.read_text()
    wide = Grid(GridSettings(rows=1, columns=3)).plain_network()
    built = networks.network_file(wide, tmp_path)
    assert built.parent == tmp_path
    assert [file.name for file in tmp_path.iterdir()] == [wide.file_name]
