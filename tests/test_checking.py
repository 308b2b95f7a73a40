"""`spacerl check-env`: one toy environment without fault, and the same with one fault each, which must be found."""

from __future__ import annotations

import math
import os
import re
import shlex
import signal
import time
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import spacerl
from spacerl.cli.main import main, parse
from spacerl.envs.host.check import NOTE, OK, PROBLEM, Findings, check_environment, play
from spacerl.envs.host.costs import cost_function, named_sources
from spacerl.types import InputError

LENGTH = 10


class Toy(gymnasium.Env):
    """A number pushed about for ten steps; `fault` breaks one thing."""

    metadata = {"render_modes": []}  # noqa: RUF012
    made = 0

    def __init__(self, fault: str = ""):
        self.fault = fault
        Toy.made += 1
        self.number = Toy.made  # differs from environment to environment
        self.episodes = 0
        self.observation_space: Any = spaces.Box(-4.0, 4.0, (2,), np.float32)
        self.action_space: Any = spaces.Box(-1.0, 3.0, (1,), np.float32)
        if fault == "infinite action":
            self.action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        if fault == "text action":
            self.action_space = spaces.Text(3)
        if fault == "text observation":
            self.observation_space = spaces.Dict(words=spaces.Text(3))
        if fault == "fraction in bytes":
            self.observation_space = spaces.Box(0, 255, (2,), np.uint8)
        if fault in ("value too large", "value of another dtype"):
            self.observation_space = spaces.MultiDiscrete([3, 3])
        if fault == "part missing":
            self.observation_space = spaces.Dict(place=self.observation_space, extra=spaces.Discrete(2))
        self._buffer = np.zeros(2, np.float32)

    def observe(self) -> Any:
        obs = np.array([self.x, self.t / LENGTH], np.float32)
        match self.fault:
            case "shape":
                return obs[:, None]
            case "dtype":
                return obs.astype(np.float64)
            case "fraction in bytes":
                return np.abs(obs) + 0.5
            case "text in observation":
                return np.array(["a", "b"])
            case "bounds":
                return obs + 10
            case "nan observation" if self.t == 3:
                return obs * math.nan
            case "value too large":
                return np.array([self.t, 0])
            case "value of another dtype":
                return np.array([self.t % 3, 0], np.uint8)
            case "part missing":
                return {"place": obs}
            case "reset differs":
                return obs + 1e-3 * self.number
            case "reused array":
                self._buffer[:] = obs
                return self._buffer
        return obs

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        self.x, self.t = float(self.np_random.uniform(-1, 1)), 0
        self.episodes += 1
        if self.fault == "reset raises":
            raise RuntimeError("no fuel")
        return self.observe() if self.fault == "old reset" else (self.observe(), {})

    def step(self, action: Any) -> Any:
        self.t += 1
        push = float(action[0])
        self.x = float(np.clip(self.x + 0.1 * push, -1, 1))
        if self.fault == "step differs" and self.t == 4:
            self.x += 1e-3 * self.episodes
        if self.fault == "step raises" and self.t == 5:
            raise ZeroDivisionError("no mass")
        if self.fault == "raises in two lines":
            raise ValueError("no mass:\n  0 kg")
        if self.fault == "slow":
            time.sleep(0.01)
        if self.fault == "warns":
            warnings.warn("the battery is old", stacklevel=1)
        info = {} if self.fault == "no cost" else {"cost": self.cost(push)}
        ended = self.t >= LENGTH and self.fault != "endless"
        values = (self.observe(), self.reward(), False, ended, info)
        match self.fault:
            case "old step":
                return values[0], values[1], ended, info
            case "three values":
                return values[:3]
            case "no info":
                return *values[:4], None
            case "six values":
                return values[0], values[1], self.cost(push), *values[2:4], {}
        return values

    def cost(self, push: float) -> Any:
        return {
            "nan cost": math.nan,
            "text cost": "much",
            "constant cost": 0.25,
            "zero cost": 0,
            "negative cost": -push,
            "arrays of one number": np.array([float(push > 0)]),
        }.get(self.fault, float(push > 0))

    def reward(self) -> Any:
        odd = {"nan reward": math.inf, "text reward": None, "constant reward": 1.0}
        odd["arrays of one number"] = np.array([self.x])
        return odd.get(self.fault, -abs(self.x))


class NoSeed(Toy):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class Unseeded(Toy):
    """Draws its random numbers itself, and well."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        self.x, self.t = float(np.random.default_rng(seed).uniform(-1, 1)), 0
        return self.observe(), {}


class Large(Toy):
    """Observations far from zero, within bounds that say so."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)

    def observe(self) -> Any:
        return super().observe() * 1000


class Long(Toy):
    """Ends by itself, but later than runs wait without being told."""

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return np.clip(obs, -4, 4), reward, False, self.t >= 1200, info


def far(obs: Any, action: Any, following: Any, info: Any) -> float:
    return abs(following[0])


def raising(obs: Any, action: Any, following: Any, info: Any) -> float:
    return info["speed"]


def forgetful(obs: Any, action: Any, following: Any, info: Any) -> None:
    """A cost function without a return."""


def check(fault: str = "", cost: tuple[str, ...] = (), env: str = "test_checking:Toy", episodes: int = 3) -> Findings:
    arguments = (f'fault="{fault}"',) if fault else ()
    return check_environment(env, cost, arguments, episodes, 1500 if env.endswith("Long") else 40, 0, least_steps=0)


def test_an_environment_without_fault_has_no_findings_and_a_command_that_can_be_typed():
    findings = check()
    assert [(finding.level, finding.kind) for finding in findings.found] == [(OK, "fine")]
    assert not findings.broken
    text = findings.text()
    for line in (
        "environment 'test_checking:Toy': no problems, no notes",
        "  observation  2 numbers",
        "  action       1 number; the policy's [-1, 1] stands for [-1, 3]",
        "  episode      10 steps in 3 episodes; no time limit stated",
        "steps a second in one process",
        "from info['cost']",
    ):
        assert line in text
    given = parse(shlex.split(findings.command)[1:]).arguments()
    assert (given["env"], given["algorithm"]) == ("test_checking:Toy", "pcpo")
    assert text.endswith(f"train with: {findings.command}")


# fault of the toy -> level, kind, a part of what is said, a part of how to fix it
FAULTS = {
    "infinite action": (PROBLEM, "space", "2 of 2 action dimensions have infinite bounds", "TransformAction"),
    "text action": (PROBLEM, "space", "the action space holds Text", "allowed are Box"),
    "text observation": (PROBLEM, "space", "the observation space at 'words' is Text", "ObservationWrapper"),
    "reset raises": (PROBLEM, "exception", "reset raised RuntimeError: no fuel (", "fix the environment there"),
    "old reset": (PROBLEM, "reset", "reset returns ndarray and not the pair", "return observation, {}"),
    "step raises": (PROBLEM, "exception", "step 5 of episode 1 raised ZeroDivisionError: no mass (", "there"),
    "raises in two lines": (PROBLEM, "exception", "raised ValueError: no mass: 0 kg (", "fix the environment there"),
    "old step": (PROBLEM, "step", "step returns four values, as environments of the old Gym", "terminated, truncated"),
    "three values": (PROBLEM, "step", "step returns a tuple of 3", "terminated, truncated"),
    "no info": (PROBLEM, "step", "the last value of a step is NoneType", "info"),
    "shape": (PROBLEM, "shape observation", "shape (2, 1), its space says (2,)", "observation_space"),
    "dtype": (NOTE, "dtype observation", "observation of float64, its space says float32", "return float32"),
    "fraction in bytes": (PROBLEM, "dtype observation", "of float32, its space says uint8", "after the point"),
    "text in observation": (PROBLEM, "dtype observation", "which are not numbers", "array of numbers"),
    "bounds": (NOTE, "bounds observation", "outside of its bounds, by", "widen the bounds"),
    "value too large": (PROBLEM, "bounds observation", "step 3 of episode 1 gave the observation [3, 0]", "as large"),
    "part missing": (PROBLEM, "part observation['extra']", "gave no observation['extra']", "every part"),
    "nan observation": (PROBLEM, "finite observation", "step 3 of episode 1 gave an observation with a number", ""),
    "reused array": (NOTE, "reuse", "gave the very array it gave before", "return a copy"),
    "nan reward": (PROBLEM, "reward", "step 1 of episode 1 gave the reward inf, which is not", "division by zero"),
    "text reward": (PROBLEM, "reward", "gave the reward None, which is not a number", "return a float"),
    "nan cost": (PROBLEM, "cost 'cost'", "gave the cost 'cost' nan, which is not finite", "division by zero"),
    "text cost": (PROBLEM, "cost 'cost'", "gave the cost 'cost' 'much', which is not a number", "return a float"),
    "no cost": (PROBLEM, "missing cost", "it gives no cost: info['cost'] is missing", "--cost FILE.py:FUNCTION"),
    "constant cost": (NOTE, "constant cost", "the cost 'cost' is 0.25 on all 30 steps", "right values"),
    "zero cost": (NOTE, "constant cost", "the cost 'cost' is 0 on all 30 steps", "too timid"),
    "negative cost": (NOTE, "negative cost", "the cost 'cost' is negative at times", "start it at 0"),
    "constant reward": (NOTE, "constant reward", "the reward is 1 on all 30 steps", "nothing to learn"),
    "endless": (NOTE, "endless", "3 of 3 episodes had not ended after 40 steps", "--rollout-length"),
    "reset differs": (NOTE, "repeat reset", "reset(seed=0) of two environments gave different", "self.np_random"),
    "step differs": (NOTE, "repeat step", "something else in a second environment, first on step 4", "self.np_random"),
    "slow": (NOTE, "slow", "steps a second, so a batch of 10,000 takes", "--workers"),
    "warns": (NOTE, "gymnasium: the battery is old", "Gymnasium's checker says: the battery is old", ""),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.filterwarnings("ignore:the battery is old")
def test_every_fault_is_found_and_told_how_to_fix(fault):
    level, kind, said, fix = FAULTS[fault]
    findings = check(fault)
    found = {finding.kind: finding for finding in findings.found}
    assert kind in found, findings.text()
    assert found[kind].level == level
    assert said in found[kind].text
    assert fix in found[kind].fix
    assert findings.broken == (level == PROBLEM)
    assert found[kind].text in findings.text()
    own = [each for each in found if not each.startswith("gymnasium") and each != "fine"]
    assert own == ([] if kind.startswith("gymnasium") else [kind])  # nothing else is blamed


def test_an_array_of_one_number_is_one_as_in_training():
    findings = check("arrays of one number")
    assert not findings.broken
    assert [finding.kind for finding in findings.found if not finding.kind.startswith("gymnasium")] == []


def expensive(obs: Any, action: Any, following: Any, info: Any) -> float:
    return 133.7


def test_a_large_limit_is_written_out():
    command = check(cost=("test_checking:expensive",)).command
    assert command.endswith("--cost-limit 670")
    assert parse(shlex.split(command)[1:]).arguments()["cost_limit"] == 670.0


def normalised() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(
        gymnasium.wrappers.NormalizeReward(gymnasium.wrappers.NormalizeObservation(Toy())), LENGTH
    )


def test_a_wrapper_with_statistics_of_its_own_is_noted():
    (noted,) = (each for each in check(env="test_checking:normalised").found if each.kind == "statistics")
    assert noted.level == NOTE
    assert "(NormalizeReward, NormalizeObservation), which no policy or export holds" in noted.text
    assert "--normalise-observations" in noted.fix


def test_what_gymnasium_asserts_is_passed_on():
    findings = check(env="test_checking:Unseeded")
    texts = [finding.text for finding in findings.found if finding.kind == "gymnasium"]
    assert len(texts) == 1
    assert texts[0].startswith("Gymnasium's checker stopped: ")
    assert "super().reset(seed=seed)" in texts[0]
    assert "\x1b" not in texts[0]
    assert not findings.broken  # runs repeat all the same


def test_an_array_used_again_is_a_problem_for_a_cost_function():
    assert check("reused array", cost=("test_checking:far",)).broken


def test_a_reset_without_seed_is_told_what_to_take():
    findings = check(env="test_checking:NoSeed")
    finding = next(each for each in findings.found if each.kind == "exception")
    assert "reset raised TypeError" in finding.text
    assert "super().reset(seed=seed)" in finding.fix


def test_large_observations_suggest_normalisation():
    findings = check(env="test_checking:Large")
    finding = next(each for each in findings.found if each.kind == "scale")
    assert "--normalise-observations" in finding.fix
    assert "--normalise-observations" in findings.command
    assert not findings.broken


def test_episodes_that_would_be_cut_are_told():
    findings = check(env="test_checking:Long", episodes=1)
    finding = next(each for each in findings.found if each.kind == "endless")
    assert "an episode lasted 1200 steps" in finding.text
    assert "--rollout-length 1000" in findings.command


def test_six_values_are_understood_and_gymnasiums_checker_is_left_out():
    findings = check("six values")
    assert not findings.broken
    assert [finding.kind for finding in findings.found] == ["gymnasium"]
    assert "left out" in findings.text()
    assert "from the third of the six values of a step" in findings.text()


def test_discrete_values_of_another_dtype_are_as_good():
    assert not check("value of another dtype").of_level(PROBLEM)


def test_several_costs_are_looked_at_by_name():
    findings = check(cost=("far=test_checking:far", "info"))
    assert not findings.broken
    far_line, info_line = (line for line in findings.text().splitlines() if line.startswith("  cost"))
    assert "far, from the function test_checking:far" in far_line
    assert "cost, from info['cost']" in info_line
    assert "--cost far=test_checking:far info" in findings.command
    limits = dict(word.split("=") for word in findings.command.split("--cost-limit ")[1].split()[:2])
    assert list(limits) == ["far", "cost"]
    mean = float(info_line.split(", ")[2].split()[0])
    assert float(limits["cost"]) == pytest.approx(mean / 2, rel=0.1)


def test_a_cost_function_that_raises_is_told_with_its_line():
    findings = check(cost=("test_checking:raising",))
    finding = next(each for each in findings.found if each.kind == "cost raising")
    assert "the cost 'raising' raised KeyError: 'speed' (" in finding.text
    assert finding.level == PROBLEM


def test_a_cost_function_that_returns_nothing_is_a_problem():
    findings = check(cost=("test_checking:forgetful",))
    finding = next(each for each in findings.found if each.level == PROBLEM)
    assert "gave the cost 'forgetful' None, which is not a number" in finding.text


def test_a_step_without_sixth_value_misses_the_cost_that_was_asked_for():
    finding = next(each for each in check(cost=("step",)).found if each.kind == "missing cost")
    assert "sixth" in finding.text
    assert "--cost" in finding.fix


class Dangerous(Toy):
    """Tells of a collision on the steps that have one, exits or hangs, or looks at bytes."""

    def __init__(self, kind: str = ""):
        super().__init__()
        self.kind = kind
        if kind == "hang in init":
            time.sleep(600)
        if kind == "bytes":
            self.observation_space = spaces.Box(0, 255, (16, 16, 3), np.uint8)

    def observe(self):
        return np.full((16, 16, 3), 25 * self.t, np.uint8) if self.kind == "bytes" else super().observe()

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        if self.kind == "exit" and self.t == 4:
            os._exit(7)
        if self.kind == "crash" and self.t == 4:
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.kind == "hang" and self.t == 4:
            time.sleep(600)
        if self.kind == "rare":
            info = {"speed": 1.0} | ({"collision": 2.0} if self.t == 3 else {}) | {"note": "text"}
        return obs, reward, terminated, truncated, info


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("exit", r"step 4 of episode 1: the process exited with code 7"),
        ("crash", r"step 4 of episode 1: the process was killed by SIGSEGV \(.*in step"),
        ("hang", r"step 4 of episode 1 did not return within 5 seconds \(.*in step"),
        ("hang in init", r"building the environment did not return within 5 seconds \(.*__init__"),
    ],
)
def test_an_environment_that_exits_or_hangs_is_reported(kind, said):
    timeout = 5.0 if kind.startswith("hang") else 60.0  # this file is imported in it
    findings = spacerl.check_env("test_checking:Dangerous", env_args=(f"kind={kind}",), worker_timeout=timeout)
    assert findings.broken
    assert re.match(said, findings.found[0].text), findings.found[0].text


def test_bytes_do_not_wrap_around_at_the_check_of_their_bounds():
    findings = check_environment("test_checking:Dangerous", (), ("kind=bytes",), 2, 40, 0, least_steps=0)
    assert not [finding for finding in findings.found if finding.kind.startswith("bounds")]


def test_keys_of_info_are_suggested_and_one_that_is_not_always_there_gets_its_default():
    findings = check_environment("test_checking:Dangerous", (), ("kind=rare",), 5, 40, 0, least_steps=0)
    (missing,) = [finding for finding in findings.found if finding.kind == "missing cost"]
    assert missing.fix.startswith("pass --cost info:collision=0 (it is there on 5 of 50 steps; 0 where it is not) or ")
    assert "--cost info:speed;" in missing.fix
    assert "info:note" not in missing.fix
    again = check_environment("test_checking:Dangerous", ("info:collision=0",), ("kind=rare",), 5, 40, 0, least_steps=0)
    assert not again.broken
    assert "collision, from info['collision'], 0 where it is missing, 2 per episode" in again.text()


@pytest.mark.parametrize(
    ("source", "info", "cost"),
    [("info:hit=0", {}, 0.0), ("info:hit=0", {"hit": 3}, 3.0), ("info:hit=1.5", {}, 1.5), ("bump=info:a=b=0", {}, 0.0)],
)
def test_a_cost_has_the_default_that_was_asked_for(source, info, cost):
    ((name, given),) = named_sources(source)
    assert name == ("bump" if source.startswith("bump") else "hit")
    assert cost_function(name, given)(None, None, None, info, None) == cost


def test_a_default_that_is_no_number_is_refused():
    with pytest.raises(InputError, match="allowed is a number, such as info:hit=0"):
        named_sources("info:hit=none")


def test_many_steps_are_looked_at():
    findings = spacerl.check_env(Toy)
    assert "2000 steps with random actions showed nothing wrong" in str(findings)
    assert "in 200 episodes" in str(findings)


def test_patience_has_an_end(monkeypatch):
    monkeypatch.setattr(play, "SECONDS_OF_PLAY", 0.03)
    findings = check("slow")
    assert "patience" in {finding.kind for finding in findings.found}
    assert "in 1 episode;" in findings.text()


def test_registered_environments_have_nothing_wrong_but_their_cost():
    with_cost = check_environment("CartPole-v1", ("none",), (), 5, 1000, 0)
    assert [finding.level for finding in with_cost.found] == [OK]
    assert "--algorithm trpo" in with_cost.command
    assert "one of 2 actions (Discrete)" in with_cost.text()
    assert "time limit 500" in with_cost.text()
    without = check_environment("Pendulum-v1", (), (), 1, 1000, 0)
    assert [finding.kind for finding in without.found] == ["missing cost"]


def test_the_command_prints_and_answers_with_an_exit_code(capsys):
    main(["check-env", "test_checking:Toy", "--episodes", "2"])
    assert "no problems" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["check-env", "test_checking:Toy", "--env-args", "fault=no cost"])
    assert stop.value.code == 2
    assert capsys.readouterr().out.rstrip().endswith("fix the problems before training")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("NoSuch-v0", (), (), 1, 1, 0), "is unknown"),
        (("test_checking:Toy", ("nonsense",), (), 1, 1, 0), "cost 'nonsense' is unknown"),
        (("test_checking:Toy", (), (), 0, 1, 0), "episodes is 0"),
        (("test_checking:Toy", (), (), 1, 0, 0), "max-steps is 0"),
        (("test_checking:Toy", (), (), 1, 1, -1), "seed is -1"),
    ],
)
def test_what_cannot_be_built_is_bad_input(arguments, said):
    with pytest.raises(InputError, match=said):
        check_environment(*arguments)
