"""The steps of a dataset as the networks take them, checked against the task's spaces."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from spacerl.envs.host.description import spaces_of, spaces_of_spec
from spacerl.envs.host.spaces import Observations
from spacerl.policies.policy import to_policy_units
from spacerl.rollout.demos.dataset import Demonstrations
from spacerl.rollout.demos.episode import Episode
from spacerl.types import EnvSpec, InputError

HELD_OUT = 10  # every so many-th episode is for judging and not for learning


class Steps(NamedTuple):
    """B steps; observations are those before and after them in one array, so that images are held once."""

    observations: np.ndarray  # (B + episodes, *obs_shape)
    before: np.ndarray  # (B,) rows of `observations`; the one after a step follows it
    action: np.ndarray  # (B, A) in the policy's units, or (B,)
    reward: np.ndarray  # (B,) float32
    terminated: np.ndarray  # (B,) float32
    held_out: np.ndarray  # (B,) bool
    drivers: tuple[str, ...]  # who demonstrated


class _Growing:
    """Rows of one array, which is made larger where it lies: the images of a dataset are not held twice."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype):
        self._rows = np.zeros((0, *shape), dtype)

    def add(self, rows: np.ndarray) -> None:
        before = len(self._rows)
        self._rows.resize((before + len(rows), *self._rows.shape[1:]), refcheck=False)  # nobody else has it yet
        self._rows[before:] = rows

    def rows(self) -> np.ndarray:
        return self._rows


def steps_of(demos: Demonstrations, spec: EnvSpec, task: str) -> Steps:
    """All steps of a dataset whose spaces are those of the task."""
    observation, action, _ = spaces_of(spaces_of_spec(spec))
    _require_same(demos, task, "observations", demos.observation_space, observation)
    _require_same(demos, task, "actions", demos.action_space, action)
    encode = Observations(observation)
    count = demos.total_episodes
    seen, parts, drivers = _Growing(spec.obs_shape, encode.dtype), [], set()
    for episode in demos:
        drivers.add(episode.driver)
        observed, *others = _of_episode(episode, encode, spec, action)
        seen.add(observed)
        parts.append(others)
    lengths = np.array([len(reward) for _, reward, _ in parts])
    starts = np.concatenate([[0], np.cumsum(lengths + 1)[:-1]])
    judged = np.arange(count) % HELD_OUT == HELD_OUT - 1
    return Steps(
        observations=seen.rows(),
        before=np.concatenate([start + np.arange(length) for start, length in zip(starts, lengths, strict=True)]),
        action=np.concatenate([part[0] for part in parts]),
        reward=np.concatenate([part[1] for part in parts]),
        terminated=np.concatenate([part[2] for part in parts]),
        held_out=np.repeat(judged, lengths),
        drivers=tuple(sorted(drivers)),
    )


def _of_episode(episode: Episode, encode: Observations, spec: EnvSpec, space: spaces.Space) -> tuple[np.ndarray, ...]:
    if encode.dtype == np.uint8 and episode.observations.shape[1:] == spec.obs_shape:
        seen = episode.observations
    else:
        seen = np.stack([encode.encode(each) for each in episode.observations]).reshape(-1, *spec.obs_shape)
    terminated = np.zeros(episode.steps, np.float32)
    terminated[-1] = episode.terminated
    action = episode.actions
    if spec.action.kind == "box":
        scale, shift = to_policy_units(spec.action)
        action = action.reshape(episode.steps, -1).astype(np.float32) * scale + shift
    else:
        first = np.asarray(getattr(space, "start", 0))
        action = (action - first).astype(np.int32).reshape(episode.steps, *spec.action.shape)
    return seen, action, episode.rewards.astype(np.float32), terminated


def _require_same(demos: Demonstrations, task: str, what: str, has: spaces.Space, wanted: spaces.Space) -> None:
    """Shapes and kinds must be equal; the bounds of observations say nothing about what was observed."""
    if _kind(has) != _kind(wanted):
        raise InputError(
            f"dataset '{demos.name}' has {what} of {_named(has)}, task '{task}' has {_named(wanted)}: give a dataset "
            "of the task, or the task of the dataset"
        )
    if what == "actions" and isinstance(has, spaces.Box) and isinstance(wanted, spaces.Box):
        same = np.allclose(has.low, wanted.low, atol=1e-5) and np.allclose(has.high, wanted.high, atol=1e-5)
        if not same:
            raise InputError(
                f"dataset '{demos.name}' has actions from {has.low.tolist()} to {has.high.tolist()}, task '{task}' "
                f"from {wanted.low.tolist()} to {wanted.high.tolist()}: they do not mean the same"
            )


def _kind(space: spaces.Space) -> tuple:
    if isinstance(space, spaces.Box):
        return "Box", space.shape, "image" if space.dtype == np.uint8 else "numbers"
    if isinstance(space, spaces.Discrete):
        return "Discrete", int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return "MultiDiscrete", tuple(space.nvec.ravel().tolist())
    return (type(space).__name__,)


def _named(space: spaces.Space) -> str:
    if isinstance(space, spaces.Box):
        return f"kind Box{space.shape} {space.dtype}"
    return f"kind {space}"
