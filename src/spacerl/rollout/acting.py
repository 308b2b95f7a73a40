"""A trained policy that acts in an environment: `predict` takes observations as the environment gives them.

It is called as a model of Stable-Baselines3 is, so that its `evaluate_policy`, and any loop written for such a model,
take one of ours.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from gymnasium import spaces

from spacerl.envs.host.description import spaces_of, spaces_of_spec
from spacerl.envs.host.spaces import Actions, Leaf, Observations, actions_of, at, leaves, nested
from spacerl.policies.export.exporting import Forms
from spacerl.policies.export.original import ActionPart, ObservationPart
from spacerl.policies.policy import NetworkPolicy
from spacerl.types import EnvSpec, InputError


@dataclasses.dataclass(frozen=True, repr=False)
class ActingPolicy(NetworkPolicy):
    """A network of ours that knows the spaces of its environment.

    `policy.predict(obs)` gives an action for `env.step`; `policy(obs)` is the distribution in the network's own units.
    """

    spaces: str = ""  # as `envs.host.description` writes them; "" where a file says nothing: flat numbers in and out
    generator: np.random.Generator = dataclasses.field(default_factory=np.random.default_rng, compare=False)

    def __repr__(self) -> str:
        sizes = f"{self.observation_space} -> {self.action_space}"
        return f"Policy({self.name!r}, {sizes}, {self.family.parameters:,} parameters)"

    @property
    def observation_space(self) -> spaces.Space:
        return self._spaces[0]

    @property
    def action_space(self) -> spaces.Space:
        return self._spaces[1]

    def seed(self, seed: int) -> None:
        """Random actions from now on follow from `seed`."""
        # Frozen, because a policy is a value; which random numbers it draws is not part of what it is.
        object.__setattr__(self, "generator", np.random.default_rng(seed))

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, Any]:
        """(action, state) for one observation of the environment, or for a batch with a leading axis on every part.

        `deterministic` takes the most likely action, else one is drawn as in training. There is no memory: `state` is
        handed back as it came, and with `episode_start` it is there for those who call every model alike.
        """
        rows, single = self._rows(observation)
        shape = (len(rows), self.family.action.size)
        if deterministic:
            noise = np.zeros(shape, np.float32)
        elif self.family.action.kind == "box":
            noise = self.generator.standard_normal(shape, np.float32)
        else:
            noise = self.generator.gumbel(size=shape).astype(np.float32)
        actions = [self._actions.decode(row) for row in np.asarray(self._sample(rows, noise))]
        return (_as_array(actions[0]) if single else _stacked(self.action_space, actions)), state

    @functools.cached_property
    def _spaces(self) -> tuple[spaces.Space, spaces.Space, bool]:
        flat = EnvSpec(self.name, self.family.obs_shape, self.family.action, 1)
        return spaces_of(self.spaces or spaces_of_spec(flat))

    @functools.cached_property
    def _observations(self) -> Observations:
        return Observations(self.observation_space)

    @functools.cached_property
    def _actions(self) -> Actions:
        """Scaled actions are clipped to their bounds as in training; bounds of others are the environment's to keep."""
        return actions_of(*self._spaces[1:])

    @functools.cached_property
    def _sample(self) -> Callable[[np.ndarray, np.ndarray], Any]:
        """Actions in the network's units of rows and noise; zero noise gives the most likely ones."""
        quick = self.family.sampler(self.theta)
        if quick is not None:
            return quick
        program = jax.jit(lambda theta, obs, noise: self.family.apply(theta, obs).sample(noise))
        return functools.partial(program, self.theta)

    def _rows(self, observation: Any) -> tuple[np.ndarray, bool]:
        """(B, *obs_shape) as the network takes them, and whether a single observation was given."""
        try:
            first, space = self._observations.leaves[0].path, self._observations.leaves[0].space
            if isinstance(self.observation_space, spaces.Dict):
                _require_keys(observation, self.observation_space)
            given, wanted = np.shape(at(observation, first)), space.shape or ()
            if given == wanted:
                return self._observations.encode(observation)[None], True
            if given[1:] != wanted:
                raise ValueError(f"its shape is {given}, and {wanted} or a batch of it is expected")
            split = [_row(self.observation_space, observation, i) for i in range(given[0])]
            rows = [self._observations.encode(row) for row in split]
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise InputError(f"an observation is not in the space of policy '{self.name}': {error}") from error
        return np.stack(rows) if rows else np.zeros((0, *self._observations.shape), self._observations.dtype), False


def acting(policy: NetworkPolicy, text: str, seed: int | None = None) -> ActingPolicy:
    """A policy with the spaces of its environment."""
    generator = np.random.default_rng(seed)
    return ActingPolicy(policy.family, policy.theta, policy.name, policy.info, spaces=text, generator=generator)


def _require_keys(observation: Any, space: spaces.Dict) -> None:
    keys = ", ".join(map(str, space))
    if not isinstance(observation, Mapping):
        raise ValueError(f"it is {type(observation).__name__}, and a dictionary of {keys} is expected")
    if missing := [key for key in space if key not in observation]:
        raise ValueError(f"it has no {', '.join(map(str, missing))}, and a dictionary of {keys} is expected")


def _row(space: spaces.Space, batch: Any, index: int) -> Any:
    """One observation of a batch that has a leading axis on every part."""
    return nested(space, {path: np.asarray(at(batch, path))[index] for path, _ in leaves(space)})


def _stacked(space: spaces.Space, actions: list[Any]) -> Any:
    return nested(space, {path: np.array([at(action, path) for action in actions]) for path, _ in leaves(space)})


def _as_array(action: Any) -> Any:
    return np.int64(action) if isinstance(action, int) else action


# Files that act without us --------------------------------------------------------------------------------------------


def forms_of(text: str) -> Forms:
    """The parts of what an environment observes and takes, for files that are to act without us."""
    observation, action, _ = spaces_of(text)
    observed = [_observation_part(leaf) for leaf in Observations(observation).leaves]
    plain = isinstance(observation, spaces.Box) and observed[0].kind == "numbers"
    return Forms(() if plain else tuple(observed), tuple(_action_part(path, each) for path, each in leaves(action)))


def _observation_part(leaf: Leaf) -> ObservationPart:
    space, shape = leaf.space, tuple(leaf.space.shape or ())
    if isinstance(space, spaces.Discrete):
        return ObservationPart(leaf.path, "one-hot", shape, (int(space.n),), (int(space.start),))
    if isinstance(space, spaces.MultiDiscrete):
        return ObservationPart(leaf.path, "one-hot", shape, _whole(space.nvec), _whole(space.start))
    return ObservationPart(leaf.path, "channels-first" if leaf.channels_first else "numbers", shape)


def _action_part(path: tuple[Any, ...], space: spaces.Space) -> ActionPart:
    shape = tuple(space.shape or ())
    if isinstance(space, spaces.Discrete):
        return ActionPart(path, shape, "int64", (int(space.start),))
    starts = _whole(space.start) if isinstance(space, spaces.MultiDiscrete) else ()
    return ActionPart(path, shape, np.dtype(space.dtype).name, starts)


def _whole(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in np.asarray(values).ravel())
