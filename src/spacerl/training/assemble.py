"""The parts of a run: its environment, learner and baselines, put together and checked against each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spacerl.algorithms.contract import Algorithm
from spacerl.envs.make import make_env
from spacerl.policies.family import PolicyFamily
from spacerl.policies.loading import Loading, load_policy
from spacerl.rollout.device import environments_per_batch
from spacerl.rollout.evaluate import Play, require_room_to_play
from spacerl.runs.config import RunConfig, limits_in_order
from spacerl.training.critics import Critic, linear_critic, neural_critic
from spacerl.training.learner import Learner
from spacerl.training.memory import require_room
from spacerl.training.settings import Draft
from spacerl.types import BatchEnv, Env, EnvSpec, InputError, JaxEnv, Policy

CRITIC_DAMPING = 1e-3  # at most: a regression needs less damping than a KL, it may fit what it sees


class Given(NamedTuple):
    """What a user passed as objects, and must pass again to resume."""

    env: Any = None
    baseline: Any = None
    cost: Any = None
    algorithm: Algorithm | None = None
    trust: bool = False  # load baselines from files that can run code when they are loaded


class Parts(NamedTuple):
    """What a run is assembled from, before it has a state."""

    config: RunConfig
    env: Env
    learner: Learner
    baselines: tuple[Policy, ...]

    @property
    def columns(self) -> int:
        """Columns of a rollout: environments that play one episode per update, where one program steps them."""
        return environments_per_batch(self.config.batch_size, self.config.rollout_length)

    @property
    def fits_one_program(self) -> bool:
        """Whether collection and update compile into one program."""
        return not isinstance(self.env, BatchEnv) and all(baseline.compiles for baseline in self.baselines)

    def close(self) -> None:
        self.env.close()


def assemble(draft: Draft, given: Given = Given()) -> Parts:  # noqa: B008  a record without state
    """All parts of a new run; raises InputError for anything that does not fit together."""
    env = make_env(draft.task, draft.env_settings(), given.env, given.cost)
    try:
        return _assembled(draft.config(env.spec), draft.algorithm, env, given)
    except BaseException:
        env.close()
        raise


def reassemble(config: RunConfig, algorithm: Algorithm, given: Given = Given()) -> Parts:  # noqa: B008
    """All parts of a run that has a config already."""
    env = make_env(config.task, config, given.env, given.cost)
    try:
        limits_in_order(config.cost_limit, env.spec.cost_names, config.task)
        return _assembled(config, algorithm, env, given)
    except BaseException:
        env.close()
        raise


def _assembled(config: RunConfig, algorithm: Algorithm, env: Env, given: Given) -> Parts:
    spec = env.spec
    if spec.images and config.critic == "linear":
        raise InputError(f"critic is 'linear' and '{config.task}' observes images: allowed is neural")
    family = policy_family(config, spec)
    require_room(config, spec, family.parameters)
    if 0 < config.evaluate_every <= config.updates and isinstance(env, JaxEnv):
        require_room_to_play(spec, Play(config.evaluation_episodes, config.rollout_length, config.seed))
    baselines = _baselines(config, env, given)
    if config.normalise_observations and not family.width:
        raise InputError(f"normalise-observations was given and '{config.task}' observes images alone: leave it out")
    signals = 1 + len(spec.cost_names) + bool(baselines)
    names = tuple(f"{i}-{Path(each.name).stem}".replace(",", "-") for i, each in enumerate(baselines))
    learner = Learner(config, family, algorithm, make_critic(config, spec, signals), spec.cost_names, names)
    return Parts(config, env, learner, baselines)


def policy_family(config: RunConfig, spec: EnvSpec) -> PolicyFamily:
    """The architecture of a run's policy."""
    return PolicyFamily(
        spec.obs_shape,
        spec.action,
        config.hidden,
        initial_std=config.initial_std,
        images=spec.images,
        filters=config.filters,
        initial_gain=config.initial_gain,
    )


def make_critic(config: RunConfig, spec: EnvSpec, signals: int) -> Critic:
    if config.critic == "linear":
        return linear_critic(signals, spec.obs_shape)
    return neural_critic(
        signals,
        spec.obs_shape,
        config.hidden,
        kl=config.critic_kl,
        iterations=config.cg_iterations,
        damping=min(config.cg_damping, CRITIC_DAMPING),
        images=spec.images,
        filters=config.filters,
        repeats=config.critic_steps,
        sees_time=config.critic_sees_time,
    )


def _baselines(config: RunConfig, env: Env, given: Given) -> tuple[Policy, ...]:
    """The baselines of a run: those given as objects, or those its config names."""
    objects: Sequence[Any] = config.baseline
    if given.baseline is not None:
        objects = given.baseline if isinstance(given.baseline, list | tuple) else [given.baseline]
    else:
        function = next((name for name in config.baseline if name.startswith("function:")), None)
        if function is not None:
            raise InputError(
                f"the baseline of this run is a Python function ('{function}'): it goes on in Python, with "
                "spacerl.resume(run, baseline=...), not on the command line"
            )
    how = loading_of(config, env, given.trust)
    return tuple(load_policy(each, config.task, env.spec, how) for each in objects)


def loading_of(config: RunConfig, env: Env, trust: bool) -> Loading:
    as_given = env.as_given if isinstance(env, BatchEnv) else None
    return Loading(config.baseline_std, config.baseline_exploration, as_given, trust)


def baseline_names(baseline: Any) -> tuple[str, ...]:
    """What the config says about baselines, which may be objects."""
    if baseline is None:
        return ()
    given = baseline if isinstance(baseline, list | tuple) else [baseline]
    return tuple(_baseline_name(each) for each in given)


def _baseline_name(baseline: Any) -> str:
    if dataclasses.is_dataclass(baseline) and isinstance(getattr(baseline, "name", None), str):
        return str(getattr(baseline, "name"))  # noqa: B009  one of our policies
    if callable(baseline):
        return f"function:{getattr(baseline, '__name__', type(baseline).__name__)}"
    return str(baseline)
