"""One environment of the user's, as it is: built from a name, its steps translated and looked at."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from spacerl.envs.host.costs import MissingCost, Named, cost_function, is_function
from spacerl.envs.host.description import spaces_text
from spacerl.envs.host.spaces import Observations, actions_of
from spacerl.runs.names import names_python, python_object
from spacerl.types import EnvSpec, Episode, InputError

USUAL_HORIZON = 1000  # steps, where neither the environment nor the user says


class BadStep(InputError):
    """The environment gave what no run can go on with; one sentence says what."""


class NotFinite(BadStep):
    """A number that is not finite: nothing can be learned from its episode, and the next one may be well."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to build an environment, again and again and in other processes."""

    env: str | Callable[..., Any]  # a Gymnasium id, `module:factory`, or a factory
    costs: Named
    arguments: tuple[tuple[str, Any], ...] = ()
    scaled: bool = True  # whether a policy acts in [-1, 1] for the bounds of a box; ours on named tasks do not

    @property
    def name(self) -> str:
        if isinstance(self.env, str):
            return self.env
        return getattr(self.env, "__name__", type(self.env).__name__)


def recipe_of_instance(env: Any, costs: Named) -> Recipe:
    """Copies of an environment that was given as an object: made again from its spec, or copied as it is."""
    name, spec = type(getattr(env, "unwrapped", env)).__name__, getattr(env, "spec", None)
    if spec is not None:
        name = spec.id
    # A wrapper of the user's own does not record what it was made with: the whole is copied.
    if spec is not None and all(wrapper.kwargs is not None for wrapper in spec.additional_wrappers):

        def factory(render_mode: str | None = None) -> Any:
            mode: dict[str, Any] = {"render_mode": render_mode} if render_mode else {}
            return gymnasium.make(spec, disable_env_checker=True, **mode)
    else:

        def factory(render_mode: str | None = None) -> Any:
            return copy.deepcopy(env)

    factory.__name__ = name
    return Recipe(factory, costs)


def parse_arguments(given: tuple[str, ...]) -> tuple[tuple[str, Any], ...]:
    """`name=value` texts; a value that reads as JSON is one, everything else is a text."""
    parsed = []
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"env-args '{text}' is not NAME=VALUE, such as continuous=true")
        try:
            parsed.append((name, json.loads(value)))
        except (ValueError, RecursionError):  # no JSON, or more of it than Python reads
            parsed.append((name, value))
    return tuple(parsed)


def construct(recipe: Recipe, render_mode: str | None = None) -> Any:
    """The environment itself; every way to fail is one sentence."""
    arguments = dict(recipe.arguments) | ({"render_mode": render_mode} if render_mode else {})
    try:
        env = _constructed(recipe.env, arguments)
    except InputError:
        raise
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise _unknown(recipe.name, error) from error
    except Exception as error:
        raise InputError(
            f"environment '{recipe.name}' cannot be built: {type(error).__name__}: {_one_line(error)}"
        ) from error
    if isinstance(env, type):
        name = env.__name__
        raise InputError(f"environment '{recipe.name}' gave the class {name}: return one made of it, {name}()")
    if is_vector(env):
        raise InputError(f"environment '{recipe.name}': {vector_message(env)}")
    for needed in ("reset", "step", "observation_space", "action_space"):
        if not hasattr(env, needed):
            raise InputError(
                f"environment '{recipe.name}' is {type(env).__name__} and has no {needed}: a Gymnasium environment, or "
                "a function that returns one, is expected"
            )
    return env


def is_vector(env: Any) -> bool:
    """Whether it steps several environments at once, as Gymnasium's vector environments and Stable-Baselines3's do."""
    return isinstance(env, gymnasium.vector.VectorEnv) or (hasattr(env, "num_envs") and hasattr(env, "step_wait"))


def vector_message(env: Any) -> str:
    return (
        f"env is {type(env).__name__}, a vector environment of {env.num_envs}: give a single one, or a function that "
        "makes one; as many copies as `environments` says are stepped side by side"
    )


def _constructed(given: str | Callable[..., Any], arguments: dict[str, Any]) -> Any:
    if not isinstance(given, str):
        return _call(given, arguments)
    module, colon, attribute = given.rpartition(":")
    if colon and names_python(given):
        return _call(_factory(given), arguments)
    safe = _safety_gymnasium(given)
    if safe is not None:
        return safe.make(given, **arguments)
    if colon and module.endswith(".py"):
        python_object(f"{module}:__name__", "environment")  # a file that registers ids
        return gymnasium.make(attribute, disable_env_checker=True, **arguments)
    return gymnasium.make(given, disable_env_checker=True, **arguments)


def _factory(given: str) -> Callable[..., Any]:
    """What makes an environment: a function, or a class that is one. Nothing else is called."""
    found = python_object(given, "environment")
    if not callable(found) or (isinstance(found, type) and not (hasattr(found, "reset") and hasattr(found, "step"))):
        raise InputError(
            f"environment '{given}' is {'a class' if isinstance(found, type) else type(found).__name__} without reset "
            "and step: a Gymnasium environment, or a function that returns one, is expected"
        )
    return found


def _safety_gymnasium(given: str) -> Any:
    """Safety-Gymnasium where it is installed and knows this id as one of its own, whose steps have six values.

    Gymnasium knows the same ids once it is imported, but its wrappers take five values only.
    """
    if not given.startswith("Safety"):
        return None
    try:
        import safety_gymnasium  # type: ignore[import-not-found]
        from safety_gymnasium.utils.registration import safe_registry  # type: ignore[import-not-found]
    except ImportError:
        return None
    return safety_gymnasium if given in safe_registry else None


def _call(factory: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    if "render_mode" not in arguments:
        return factory(**arguments)
    try:
        return factory(**arguments)
    except TypeError as error:
        if "render_mode" not in str(error):
            raise
        return factory(**{name: value for name, value in arguments.items() if name != "render_mode"})


def _unknown(name: str, error: Exception) -> InputError:
    if name.endswith(".py") and Path(name).is_file():
        return InputError(f"environment '{name}' is a file: name what makes the environment in it, as in {name}:make")
    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        return InputError(f"environment '{name}' lacks a package: {_install(str(error))}")
    if isinstance(error, ModuleNotFoundError) and (extra := _extra_of(name)):
        return InputError(
            f"environment '{name}' lacks the package {error.name}: install it with `pip install \"gymnasium[{extra}]\"`"
        )
    space = name.partition("/")[0] if "/" in name else ""
    if isinstance(error, gymnasium.error.NamespaceNotFound) and space in NAMESPACES:
        package, module = NAMESPACES[space]
        return InputError(
            f"environment '{name}' lacks a package: install it with `pip install {package}` and name it as "
            f"'{module}:{name}', which imports it"
        )
    unknown = isinstance(error, gymnasium.error.UnregisteredEnv | gymnasium.error.NamespaceNotFound)
    if not unknown:
        return InputError(f"environment '{name}' cannot be built: {type(error).__name__}: {_one_line(error)}")
    if re.fullmatch(r"Safety[A-Za-z0-9]+-v\d+", name):
        return InputError(
            f"environment '{name}' is one of Safety-Gymnasium, which needs Python 3.10 at most: give it as "
            f"--env examples/safety_bridge.py:make --env-args id={name} python=PATH (docs/environments.md)"
        )
    near = difflib.get_close_matches(name, list(gymnasium.registry), n=1, cutoff=0.4)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return InputError(
        f"environment '{name}' is unknown: allowed are ids Gymnasium knows, module:factory and file.py:factory{hint}"
    )


# Environments that other packages register: what to install, and what to import.
NAMESPACES = {"ALE": ('"gymnasium[atari]"', "ale_py")}


def _extra_of(name: str) -> str:
    """The extra of Gymnasium that one of its own environments needs."""
    entry = getattr(gymnasium.registry.get(name), "entry_point", "")
    family = re.match(r"gymnasium\.envs\.(mujoco|box2d|classic_control|toy_text)[.:]", str(entry))
    return family[1].replace("_", "-") if family else ""


def _install(said: str) -> str:
    """What Gymnasium says about a missing package, and the command that installs it."""
    commands = re.findall(r"pip install [^`]+", said)
    if not commands:
        return " ".join(said.split())
    return f"install it with `{' && '.join(command.strip() for command in commands)}`"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _all_finite(obs: np.ndarray) -> bool:
    """Squares are summed in a fraction of the time of a look at every number; their sum may also be too large."""
    return math.isfinite(np.vdot(obs, obs)) or bool(np.isfinite(obs).all())


class SingleEnv:
    """One environment with our arrays: observations encoded, actions decoded, costs found, numbers looked at."""

    def __init__(self, recipe: Recipe, render_mode: str | None = None):
        self.recipe = recipe
        self.env = construct(recipe, render_mode)
        try:
            self.observations = Observations(self.env.observation_space)
            self.actions = actions_of(self.env.action_space, recipe.scaled)
        except InputError as error:
            raise InputError(f"environment '{recipe.name}': {error}") from error
        self.costs = [cost_function(name, source) for name, source in recipe.costs]
        self.cost_names = tuple(name for name, _ in recipe.costs)
        # An environment may hand out one array again and again: what a cost function is to compare is kept apart.
        self._kept = copy.deepcopy if any(is_function(source) for _, source in recipe.costs) else lambda raw: raw
        self._raw: Any = None
        self._steps = 0

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            name=self.recipe.name,
            obs_shape=self.observations.shape,
            action=self.actions.space,
            horizon=self.horizon or USUAL_HORIZON,
            cost_names=self.cost_names,
            obs_dtype=np.dtype(self.observations.dtype).name,
            images=self.observations.images,
            spaces=spaces_text(self.env.observation_space, self.env.action_space, self.recipe.scaled),
        )

    @property
    def horizon(self) -> int | None:
        """The environment's own time limit, where it states one."""
        spec = getattr(self.env, "spec", None)
        steps = getattr(spec, "max_episode_steps", None)
        return int(steps) if steps else None

    def reset(self, seed: int) -> np.ndarray:
        answer = self.env.reset(seed=seed)
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise BadStep(self._say("reset returned something that is not the pair (observation, info)"))
        self._raw, self._steps = self._kept(answer[0]), 0
        return self._encoded(answer[0], "reset")

    def step(self, row: np.ndarray) -> tuple[np.ndarray, float, np.ndarray, bool, bool]:
        """True next observation, reward, costs (K,), terminated, truncated."""
        action = self.actions.decode(row)
        answer = self.env.step(action)
        self._steps += 1
        sixth = None
        if isinstance(answer, tuple) and len(answer) == 6:  # Safety-Gymnasium: the cost is the third value
            following, reward, sixth, terminated, truncated, info = answer
        elif isinstance(answer, tuple) and len(answer) == 5:
            following, reward, terminated, truncated, info = answer
        else:
            count = len(answer) if isinstance(answer, tuple) else type(answer).__name__
            raise BadStep(
                self._say(
                    f"step returned {count} values: (observation, reward, terminated, truncated, info) is expected, or "
                    "six with Safety-Gymnasium's cost after the reward"
                )
            )
        cost = np.array([self._cost(read, action, following, info, sixth) for read in self.costs], np.float32)
        reward = self._number(reward, "reward")
        self._raw, obs = self._kept(following), self._encoded(following, f"step {self._steps} of an episode")
        return obs, reward, cost, bool(terminated), bool(truncated)

    def looked_at(self, episode: Episode) -> Episode:
        """An episode that the environment played by itself; all its numbers are finite."""
        for name in ("obs", "reward", "cost", "last_obs"):
            if not _all_finite(getattr(episode, name).ravel()):
                raise NotFinite(self._say(f"an episode has a number in its {name} that is not finite"))
        return episode

    def _cost(self, read: Callable, action: Any, following: Any, info: dict[str, Any], sixth: Any) -> float:
        try:
            value = read(self._raw, action, following, info, sixth)
        except MissingCost as error:
            raise MissingCost(f"environment '{self.recipe.name}': {error}") from error
        return self._number(value, "cost")

    def _number(self, value: Any, what: str) -> float:
        try:
            number = float(value.item() if isinstance(value, np.ndarray) else value)
        except (TypeError, ValueError):
            raise BadStep(
                self._say(f"step {self._steps} of an episode gave the {what} {value!r}, which is not a number")
            ) from None
        if not math.isfinite(number):
            raise NotFinite(
                self._say(f"step {self._steps} of an episode gave the {what} {number}, which is not finite")
            )
        return number

    def _encoded(self, raw: Any, when: str) -> np.ndarray:
        try:
            obs = self.observations.encode(raw)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise BadStep(self._say(f"{when} gave an observation that is not in its space: {error}")) from error
        if obs.dtype != np.uint8 and not _all_finite(obs):
            raise NotFinite(self._say(f"{when} gave an observation with a number that is not finite"))
        return obs

    def _say(self, text: str) -> str:
        return f"environment '{self.recipe.name}': {text}"

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()
