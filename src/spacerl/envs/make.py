"""The environment of a run: a task's, the user's in JAX, or the user's Gymnasium environment on the host."""

from __future__ import annotations

from typing import Any

from spacerl.envs.host.costs import named_sources
from spacerl.envs.host.environment import HostedEnv
from spacerl.envs.host.single import Recipe, is_vector, parse_arguments, recipe_of_instance, vector_message
from spacerl.envs.memory import require_room_for_environments
from spacerl.envs.tasks import Task, task_named
from spacerl.runs.config import ENV_PREFIX, OWN_PREFIX, EnvSettings, is_own
from spacerl.types import ARENAS, BatchEnv, DrawableEnv, Env, InputError, JaxEnv

FUNCTION = "function"  # stands in a config for a cost that was passed as a Python function


def task_name(env: Any) -> str:
    """What a run calls an environment that was given instead of a task."""
    if isinstance(env, type) and issubclass(env, JaxEnv | BatchEnv):
        raise InputError(f"env is the class {env.__name__}: pass an environment, {env.__name__}(...)")
    if isinstance(env, str):
        return ENV_PREFIX + env
    if isinstance(env, JaxEnv | BatchEnv):
        return OWN_PREFIX + env.spec.name
    return OWN_PREFIX + gymnasium_recipe(env, None).name


def make_env(task: str, settings: EnvSettings, given: Any = None, cost: Any = None, lanes: int | None = None) -> Env:
    """The environment of a run; the same one whether it trains, resumes or is evaluated."""
    if isinstance(given, JaxEnv | BatchEnv):
        return _checked(given)
    if given is None and task.startswith(OWN_PREFIX):
        raise InputError(
            f"run of '{task}' needs your environment again, which was an object: use it in Python, where resume, "
            "evaluate and export take env=..., or name the environment as file.py:function when you train"
        )
    lanes = lanes or settings.environments
    require_room_for_environments(lanes)
    if given is None and not is_own(task):
        return _task_env(task_named(task), settings, lanes)
    recipe = recipe_of_run(task, settings, given, cost)
    return HostedEnv(recipe, lanes, settings.workers, settings.worker_timeout)


def _checked(env: Env) -> Env:
    if isinstance(env, DrawableEnv):
        arena = env.arena()
        kind = str(arena.get("kind")) if isinstance(arena, dict) else ""
        if kind not in ARENAS or not all(isinstance(arena.get(key), int | float) for key in ARENAS[kind]):
            known = "; ".join(f"{name} with {' and '.join(keys)}" for name, keys in ARENAS.items())
            raise InputError(f"arena of '{env.spec.name}' is {arena}: allowed is one that can be drawn ({known})")
    return env


def _task_env(task: Task, settings: EnvSettings, lanes: int) -> Env:
    """A task of ours: inside the compiled program, or, where it has a simulator of its own, on the host."""
    try:
        if task.jax_env is None or (task.has_two_simulators and not on_device(settings)):
            threads = None if settings.workers == "auto" else max(1, settings.workers)
            return task.make_batch_env(lanes, threads, **_hosted_options(task, settings))
        return task.make_jax_env()
    except ImportError as error:
        raise InputError(f"task '{task.name}' cannot be simulated: {error}") from error


def _hosted_options(task: Task, settings: EnvSettings) -> dict[str, Any]:
    if not task.hosted:
        return {}
    return {"timeout": settings.worker_timeout, "settings": dict(parse_arguments(settings.env_args))}


def on_device(settings: EnvSettings) -> bool:
    """Whether a task that can be simulated in two places is simulated with the update."""
    if settings.simulator != "auto":
        return settings.simulator == "device"
    from spacerl.envs.devices import current_device

    return current_device().platform != "cpu"


def recipe_of_run(task: str, settings: EnvSettings, given: Any = None, cost: Any = None) -> Recipe:
    """How the Gymnasium environment of a run is built."""
    lost = next((text for text in settings.cost if text.endswith(f"={FUNCTION}")), None)
    if cost is None and lost is not None:
        raise InputError(
            f"the cost '{lost.partition('=')[0]}' of this run is a Python function: use it in Python, where resume, "
            "evaluate and export take cost=..., or name the function as file.py:function when you train"
        )
    sources = named_sources(settings.cost if cost is None or cost == () else cost)
    arguments = parse_arguments(settings.env_args)
    if given is None or isinstance(given, str):
        return Recipe(given or task.removeprefix(ENV_PREFIX), sources, arguments)
    return gymnasium_recipe(given, sources, arguments)


def recipe_of_env(given: Any, cost: Any, env_args: tuple[str, ...] = ()) -> Recipe:
    """How an environment is built that no run has yet: a name, a factory or an environment."""
    sources, arguments = named_sources(cost), parse_arguments(env_args)
    return Recipe(given, sources, arguments) if isinstance(given, str) else gymnasium_recipe(given, sources, arguments)


def is_instance(given: Any) -> bool:
    """Whether what was given is an environment itself, not something that makes one."""
    return hasattr(given, "step") and hasattr(given, "reset") and not isinstance(given, type)


def gymnasium_recipe(given: Any, sources: Any, arguments: tuple[tuple[str, Any], ...] = ()) -> Recipe:
    """How to build an environment that was given as an object: a factory, or an environment to be copied."""
    if is_instance(given) and is_vector(given):
        raise InputError(vector_message(given))
    if is_instance(given) and hasattr(given, "action_space") and hasattr(given, "observation_space"):
        return recipe_of_instance(given, sources)
    if is_instance(given):
        raise InputError(
            f"env is {type(given).__name__}, which has reset and step but no observation_space and action_space: a "
            "Gymnasium environment has these, and one in JAX is a subclass of spacerl.JaxEnv with a spec"
        )
    if callable(given):
        return Recipe(given, sources, arguments)
    raise InputError(
        f"env is {type(given).__name__}: allowed are a Gymnasium id, module:factory, a function that makes one, "
        "a Gymnasium environment, or a spacerl.JaxEnv or BatchEnv"
    )


def cost_texts(cost: Any) -> tuple[str, ...]:
    """What a config says about costs; functions are named, so that a resumed run asks for them again."""
    if cost is None or cost == () or cost == []:
        return ()
    return tuple(f"{name}={source if isinstance(source, str) else FUNCTION}" for name, source in named_sources(cost))
