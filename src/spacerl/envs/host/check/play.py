"""Episodes with random actions, through the translation that training uses, that do not stop at the first fault."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from typing import Any

import numpy as np

from spacerl.envs.host.check.findings import NOTE, PROBLEM, CannotContinue, Recorder
from spacerl.envs.host.check.form import called, error_and_place, random_action, require_reset, require_step
from spacerl.envs.host.check.values import check_observation, checked_number
from spacerl.envs.host.costs import AUTOMATIC, MissingCost
from spacerl.envs.host.single import SingleEnv

SECONDS_OF_PLAY = 60.0  # stepping longer than this would try the user's patience
LEAST_STEPS = 2000  # a fault that shows now and then is not found in a few short episodes


@dataclasses.dataclass
class Played:
    """What the episodes gave. Numbers that were none are NaN."""

    names: tuple[str, ...]
    lengths: list[int] = dataclasses.field(default_factory=list)
    rewards: list[list[float]] = dataclasses.field(default_factory=list)
    costs: list[list[list[float]]] = dataclasses.field(default_factory=list)
    endless: int = 0
    seconds: float = 0.0
    largest: dict[str, float] = dataclasses.field(default_factory=dict)  # entry of the observation -> size
    sixth: bool = False
    info: dict[str, int] = dataclasses.field(default_factory=dict)  # key with a number in it -> steps that had it

    def begin(self) -> None:
        self.lengths.append(0)
        self.rewards.append([])
        self.costs.append([])

    def add(self, reward: float, costs: list[float]) -> None:
        self.lengths[-1] += 1
        self.rewards[-1].append(reward)
        self.costs[-1].append(costs)

    @property
    def speed(self) -> float:
        return sum(self.lengths) / max(self.seconds, 1e-9)

    def all_rewards(self) -> np.ndarray:
        return np.array([reward for episode in self.rewards for reward in episode])

    def all_costs(self) -> np.ndarray:
        flat = [row for episode in self.costs for row in episode]
        return np.array(flat, float).reshape(len(flat), len(self.names))

    def mean_costs(self) -> np.ndarray:
        sums = [np.sum(np.array(episode).reshape(-1, len(self.names)), axis=0) for episode in self.costs]
        return np.mean(sums, axis=0) if sums else np.full(len(self.names), math.nan)


@dataclasses.dataclass(frozen=True)
class Transition:
    """One step as the environment gives it, and when that was."""

    when: str
    obs: Any
    action: Any
    next_obs: Any
    reward: Any
    sixth: Any  # Safety-Gymnasium's cost, None where a step has five values
    terminated: Any
    truncated: Any
    info: Any


def play_episodes(
    single: SingleEnv, episodes: int, max_steps: int, seed: int, recorder: Recorder, least_steps: int = LEAST_STEPS
) -> Played:
    """At least so many episodes and steps, or as many as a minute holds."""
    player = Player(single, max_steps, seed, recorder)
    with contextlib.suppress(CannotContinue):
        index = 0
        while index < episodes or sum(player.played.lengths) < least_steps:
            player.episode(index + 1, seed + index)
            index += 1
    return player.played


class Player:
    """Plays episodes, and records what is wrong with what the environment gives."""

    def __init__(self, single: SingleEnv, max_steps: int, seed: int, recorder: Recorder):
        self.single, self.max_steps, self.recorder = single, max_steps, recorder
        self.played, self.rng = Played(single.cost_names), np.random.default_rng(seed)

    def episode(self, number: int, seed: int) -> None:
        where = f"of episode {number}"
        answer = called(lambda: self.single.env.reset(seed=seed), f"reset {where}", self.recorder)
        require_reset(answer, self.recorder)
        obs = answer[0]
        self._check_observation(obs, f"reset {where}")
        self.played.begin()
        for step in range(1, self.max_steps + 1):
            transition = self._step(obs, f"step {step} {where}")
            self._check(transition)
            if self._ends(transition):
                return
            obs = transition.next_obs
        self.played.endless += 1

    def _step(self, obs: Any, when: str) -> Transition:
        if self.played.seconds > SECONDS_OF_PLAY:
            text = f"the check ended with {when}: {SECONDS_OF_PLAY:g} seconds had passed"
            self.recorder.note("patience", text)
            raise CannotContinue
        action = self.single.actions.decode(random_action(self.single.actions.space, self.rng))
        began = time.perf_counter()
        answer = called(lambda: self.single.env.step(action), when, self.recorder)
        self.played.seconds += time.perf_counter() - began
        require_step(answer, self.recorder)
        next_obs, reward, *sixth, terminated, truncated, info = answer
        self.played.sixth = bool(sixth)
        return Transition(
            when=when,
            obs=obs,
            action=action,
            next_obs=next_obs,
            reward=reward,
            sixth=sixth[0] if sixth else None,
            terminated=terminated,
            truncated=truncated,
            info=info,
        )

    def _check(self, step: Transition) -> None:
        reward = checked_number(step.reward, "reward", step.when, self.recorder)
        self.played.add(reward, self._costs(step))
        for key, value in step.info.items():
            if isinstance(key, str) and isinstance(value, int | float | np.number | np.bool_):
                self.played.info[key] = self.played.info.get(key, 0) + 1
        if _share_memory(step.obs, step.next_obs):
            level = PROBLEM if _reads_observations(self.single) else NOTE
            text = f"{step.when} gave the very array it gave before, with new numbers in it"
            fix = "return a copy: a cost function of (obs, action, next_obs, info) would see the next one twice"
            self.recorder.add(level, "reuse", text, fix)
        self._check_observation(step.next_obs, step.when)

    def _check_observation(self, obs: Any, when: str) -> None:
        check_observation(self.single.observations, obs, when, self.played.largest, self.recorder)

    def _ends(self, step: Transition) -> bool:
        when = f"whether {step.when} ended the episode"
        return called(lambda: bool(step.terminated) or bool(step.truncated), when, self.recorder)

    def _costs(self, step: Transition) -> list[float]:
        pairs = zip(self.single.cost_names, self.single.costs, strict=True)
        return [self._cost(name, read, step) for name, read in pairs]

    def _cost(self, name: str, read: Any, step: Transition) -> float:
        try:
            value = read(step.obs, step.action, step.next_obs, step.info, step.sixth)
        except MissingCost as error:
            text, _, fix = str(error).partition("; ")
            self.recorder.problem(f"missing {name}", text, fix or "name another source with --cost, or --cost none")
            return math.nan
        except Exception as error:
            text = f"the cost '{name}' raised {error_and_place(error)} on {step.when}"
            fix = "fix the function there; it takes (obs, action, next_obs, info) and returns a number"
            self.recorder.problem(f"cost {name}", text, fix)
            return math.nan
        return checked_number(value, f"cost '{name}'", step.when, self.recorder)


def _reads_observations(single: SingleEnv) -> bool:
    """Whether a cost is a function, which is given the observation before and after a step."""
    texts = ("none", "info", "step", AUTOMATIC)
    return any(source not in texts and not str(source).startswith("info:") for _, source in single.recipe.costs)


def _share_memory(one: Any, other: Any) -> bool:
    arrays = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
    return arrays and one.size > 0 and np.shares_memory(one, other)
