"""The environment of a run: a task's own, the user's native one, or the user's Gymnasium environment on the host."""

from __future__ import annotations

from typing import Any

from spacerl.config import ENV_PREFIX, OWN_PREFIX, InputError, RunConfig
from spacerl.envs import NATIVE, make_native
from spacerl.hosted.costs import named_sources
from spacerl.hosted.environment import HostedEnv
from spacerl.hosted.single import Recipe, parse_arguments, recipe_of_instance

FUNCTION = "function"  # stands in a config for a cost that was passed as a Python function


def is_hosted(env: Any) -> bool:
    """Whether an environment is stepped outside of the compiled program."""
    return callable(getattr(env, "tick", None)) and hasattr(env, "lanes")  # a user's may well have a tick of its own


def is_native(env: Any) -> bool:
    return hasattr(env, "observe") and hasattr(env, "obs_shape")


def task_name(env: Any) -> str:
    """What a run calls an environment that was given instead of a task."""
    if isinstance(env, str):
        return ENV_PREFIX + env
    if is_native(env) or is_hosted(env):
        return OWN_PREFIX + env.name
    return OWN_PREFIX + gymnasium_recipe(env, None).name


def environment(config: RunConfig, given: Any = None, cost: Any = None, lanes: int | None = None) -> Any:
    """The environment of a run; the same one whether it trains, resumes or is evaluated."""
    if given is not None and (is_native(given) or is_hosted(given)):
        return given
    if given is None and config.task.startswith(OWN_PREFIX):
        raise InputError(f"run of '{config.task}' needs your environment again: pass it as env=")
    if given is None and not config.task.startswith(ENV_PREFIX):
        return task_environment(config, lanes)
    recipe = recipe_of_run(config, given, cost)
    assert config.environments is not None
    return HostedEnv(recipe, lanes or config.environments, config.workers, config.worker_timeout)


def task_environment(config: RunConfig, lanes: int | None = None) -> Any:
    """A task of ours: inside the compiled program, or, where a simulator has threads of its own, on the host."""
    try:
        env = make_native(config.task)
        if not hasattr(env, "host") or on_device(config):
            return env
        assert config.environments is not None
        return env.host(lanes or config.environments, config.workers or None)
    except ImportError as error:
        raise InputError(f"task '{config.task}' cannot be simulated: {error}") from error


def has_two_places(task: str) -> bool:
    """Whether a task can be simulated on the host and with the update."""
    return task in NATIVE and hasattr(make_native(task), "host")


def on_device(config: RunConfig) -> bool:
    """Whether a task that can be simulated in two places is simulated with the update."""
    if config.simulator != "auto":
        return config.simulator == "device"
    import jax

    return jax.default_backend() != "cpu"


def recipe_of_run(config: RunConfig, given: Any = None, cost: Any = None) -> Recipe:
    """How the Gymnasium environment of a run is built."""
    lost = next((text for text in config.cost if text.endswith(f"={FUNCTION}")), None)
    if cost is None and lost is not None:
        raise InputError(f"the cost '{lost.partition('=')[0]}' of this run is a Python function: pass it as cost=")
    sources = named_sources(config.cost if cost is None or cost == () else cost)
    arguments = parse_arguments(config.env_args)
    if given is None or isinstance(given, str):
        return Recipe(given or config.task.removeprefix(ENV_PREFIX), sources, arguments)
    return gymnasium_recipe(given, sources, arguments)


def gymnasium_recipe(given: Any, sources: Any, arguments: tuple[tuple[str, Any], ...] = ()) -> Recipe:
    """How to build an environment that was given as an object: a factory, or an environment to be copied."""
    if hasattr(given, "step") and hasattr(given, "reset") and not isinstance(given, type):
        return recipe_of_instance(given, sources)
    if callable(given):
        return Recipe(given, sources, arguments)
    raise InputError(
        f"env is {type(given).__name__}: allowed are a Gymnasium id, module:factory, a function that makes one, "
        "a Gymnasium environment, or a native one"
    )


def cost_texts(cost: Any) -> tuple[str, ...]:
    """What a config says about costs; functions are named, so that a resumed run asks for them again."""
    if cost is None or cost == () or cost == []:
        return ()
    return tuple(f"{name}={source if isinstance(source, str) else FUNCTION}" for name, source in named_sources(cost))
