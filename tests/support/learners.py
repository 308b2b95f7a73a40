"""Learners for toy environments, and how to train them."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from spacerl.algorithms import ALGORITHMS, Algorithm
from spacerl.policies.family import PolicyFamily
from spacerl.rollout.device import unroll
from spacerl.runs.config import RunConfig
from spacerl.runs.fields import names_of
from spacerl.training.critics import linear_critic, neural_critic
from spacerl.training.learner import Learner
from spacerl.training.settings import Draft, make_algorithm, resolve
from spacerl.training.update import initial_state, update
from spacerl.types import ActionSpace, BaselineMeasurement, EnvSpec, JaxEnv, Rollout

# Toys run in no time; compiling them is what takes it.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def make_draft(task: str = "point-circle", algorithm: str = "trpo", **settings: Any) -> Draft:
    """Settings of a run; those that are options of another algorithm are left out."""
    options = {name for entry in ALGORITHMS.values() for name in names_of(entry.options)}
    own = names_of(ALGORITHMS[algorithm].options)
    kept = {name: value for name, value in settings.items() if name in own or name not in options}
    return resolve({"task": task, "algorithm": algorithm, **kept})


def make_config(algorithm: str = "trpo", **settings: Any) -> RunConfig:
    """A configuration for toy environments: the named task only fills in what no test looks at."""
    # All samples in the Fisher matrix and enough iterations: approximations are not what these tests are about.
    toy = {"baseline": "near", "critic": "linear", "fisher_subsample": 1.0, "cg_iterations": 20, "rollout_length": 1}
    draft = make_draft(algorithm=algorithm, **{**toy, **settings})
    limits = draft.values["cost_limit"]
    costs = tuple(limits) if isinstance(limits, dict) else tuple(f"cost-{i}" for i in range(len(limits)))
    return draft.config(EnvSpec("toy", (1,), ActionSpace("box", 1), 1, costs))


def algorithm_of(config: RunConfig) -> Algorithm:
    return make_algorithm(config.algorithm, config.options)


def make_learner(env: JaxEnv, config: RunConfig, hidden: tuple[int, ...] = (), baseline: bool = False) -> Learner:
    """`hidden` may be empty: a linear policy, whose parameters can be worked out by hand."""
    spec = env.spec
    family = PolicyFamily(spec.obs_shape, spec.action, hidden, config.initial_std)
    signals = 1 + len(spec.cost_names) + baseline
    if config.critic == "neural":
        critic = neural_critic(signals, spec.obs_shape, (8,), config.critic_kl, config.cg_iterations, config.cg_damping)
    else:
        critic = linear_critic(signals, spec.obs_shape)
    return Learner(config, family, algorithm_of(config), critic, spec.cost_names)


def train(learner: Learner, env: Any, episodes: int, updates: int, baseline_theta=None, baseline_J_R=math.nan):
    """Train from parameters that are all zero. Returns the last state and the metrics of all updates, as arrays."""

    def one(state, _):
        key, rollout_key = jax.random.split(state.key)
        rollout = collect(learner, env, state.theta, rollout_key, episodes)
        baseline = () if baseline_theta is None else (learner.family.apply(baseline_theta, rollout.obs),)
        return update(learner, state._replace(key=key), rollout, baseline)

    def run():
        state = initial_state(learner, 0, BaselineMeasurement(baseline_J_R))
        return jax.lax.scan(one, state._replace(theta=jnp.zeros_like(state.theta)), None, length=updates)

    return jax.tree.map(np.asarray, quick_jit(run)())


def collect(learner: Learner, env: JaxEnv, theta, key, episodes: int) -> Rollout:
    """Fresh episodes under theta, as an update collects them."""
    reset_key, noise_key = jax.random.split(key)
    noise = learner.family.noise(noise_key, (env.spec.horizon, episodes))
    return unroll(env, lambda obs: learner.family.apply(theta, obs), reset_key, noise)[0]


class Toy(JaxEnv):
    """Defaults of the toy environments: one real action, one cost, an observation of one number."""

    name = "toy"
    obs_shape: tuple[int, ...] = (1,)
    action_space = ActionSpace("box", 1)
    horizon = 1
    cost_names: tuple[str, ...] = ("cost",)

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(self.name, self.obs_shape, self.action_space, self.horizon, self.cost_names)

    def reset(self, key):
        return jnp.zeros(())

    def observe(self, state):
        return jnp.ones(1)

    def step(self, state, action):
        raise NotImplementedError
