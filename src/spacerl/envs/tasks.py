"""The tasks: one row each, with its settings, how it is made, its Gymnasium id, drawing, rules and baselines. No jax.

What is made is named as `module:attribute` and imported when it is wanted, so that listing the tasks is quick.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from spacerl.types import BatchEnv, InputError, JaxEnv, unknown_name

KINDS = ("cost", "reward", "near")  # of baselines that `baseline make` trains
DEMONSTRATED = "demos"  # the kind that `baseline from-demos` learns


@dataclasses.dataclass(frozen=True)
class Task:
    """One task. `settings` are its column of the paper's parameter table, with what its text says about networks and
    projections, and what it does not say; an algorithm takes those that are its options."""

    name: str
    summary: str
    settings: Mapping[str, Any]
    jax_env: str | None = None  # makes a JaxEnv: the task inside a compiled program
    batch_env: str | None = None  # makes a BatchEnv of (lanes, threads): the task on the host
    gymnasium_id: str | None = None
    gymnasium_env: str | None = None  # makes a gymnasium.Env
    drawing: str | None = None  # drawing.Scene -> image
    rules: Mapping[str, str] = dataclasses.field(default_factory=dict)  # name -> observations to distribution
    baselines: str | None = None  # package whose folder holds NAME-KIND.safetensors
    tracing: str | None = None  # module whose `trace` writes an episode down, and whose `arena` says how to draw it
    hosted: bool = False
    """Whether its environments are Gymnasium's in worker processes, like a user's own: `env_args` are their arguments,
    and a policy acts in [-1, 1] for the bounds of an action."""

    @property
    def available(self) -> bool:
        """Whether there is an environment, not only its parameters."""
        return self.jax_env is not None or self.batch_env is not None

    @property
    def has_two_simulators(self) -> bool:
        """Whether it can be simulated on the host and with the update."""
        return self.jax_env is not None and self.batch_env is not None

    def make_jax_env(self, **settings: Any) -> JaxEnv:
        """`settings` replace defaults of the environment, such as `radius=10.0`."""
        if self.jax_env is None:
            raise InputError(f"task '{self.name}' is not written in JAX: it is simulated on the host")
        return imported(self.jax_env)(**settings)

    def make_batch_env(self, lanes: int, threads: int | None, **options: Any) -> BatchEnv:
        """`options` are for hosted tasks: `timeout` of a worker, and `settings` of the environment."""
        if self.batch_env is None:
            raise InputError(f"task '{self.name}' has no simulator on the host")
        return imported(self.batch_env)(lanes, threads, **options)

    def cost_names(self) -> tuple[str, ...]:
        env = self.make_jax_env() if self.jax_env is not None else self.make_batch_env(1, 1)
        try:
            return env.spec.cost_names
        finally:
            env.close()

    def draw_frame(self) -> Callable[[Any], Any]:
        if self.drawing is None:
            raise InputError(f"task '{self.name}' draws no images")
        return imported(self.drawing)

    def rule(self, name: str) -> Callable[[Any], Any]:
        return imported(self.rules[name])

    def shipped(self) -> dict[str, Path]:
        """Baselines that come with the package, by kind."""
        if self.baselines is None:
            return {}
        folder = Path(str(resources.files(self.baselines) / "baselines"))
        paths = {kind: folder / f"{self.name}-{kind}.safetensors" for kind in (*KINDS, DEMONSTRATED)}
        return {kind: path for kind, path in paths.items() if path.is_file()}


def imported(name: str) -> Any:
    """What `module:attribute` names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


POINT = {
    "discount": 0.995,
    "gae_lambda": 0.95,
    "cost_gae_lambda": 1.0,
    "divergence_gae_lambda": 0.95,
    "delta": 1e-4,
    "batch_size": 50_000,
    "hidden": (64, 32),
    "critic": "neural",
    "projection": "kl",
    # What the paper does not say is taken from the original CPO scripts.
    "cg_damping": 1e-5,
    "fisher_subsample": 0.2,
    "critic_steps": 1,
    "critic_sees_time": False,
}
ANT = POINT | {
    "cost_gae_lambda": 0.5,
    "batch_size": 100_000,
    "rollout_length": 500,
    "environments": 200,
    # Under a fresh policy with standard deviation 1 an ant throws itself about and falls, and an algorithm that must
    # lower the cost learns to fall sooner. Ants begin calm.
    "initial_std": 0.15,
    "initial_gain": 0.01,
}
TRAFFIC = POINT | {
    "discount": 0.999,
    "gae_lambda": 0.97,
    "divergence_gae_lambda": 0.90,
    "cost_limit": 0.0,
    "divergence_threshold": 10.0,
    "critic": "linear",
    "projection": "l2",
    "environments": 13,  # the 25 episodes of the grid's batch take two rounds, the 50 of the bottleneck's four
}

POINT_CIRCLE = Task(
    name="point-circle",
    summary="point robot rewarded for a wide circle, kept between two walls",
    settings=POINT
    | {"rollout_length": 50, "cost_limit": 5.0, "divergence_threshold": 5.0, "updates": 1000}
    # Its policies circle by their randomness: without it most stand still, at no cost.
    | {"evaluation_mode": "stochastic", "evaluation_episodes": 200},
    jax_env="spacerl.envs.point.robot:PointCircle",
    gymnasium_id="spacerl/PointCircle-v0",
    gymnasium_env="spacerl.envs.point.gymnasium:PointCircleEnv",
    drawing="spacerl.envs.drawing:point_frame",
    rules={"rule": "spacerl.envs.point.rules:circle_follower"},
    baselines="spacerl.envs.point",
)
POINT_GATHER = Task(
    name="point-gather",
    summary="point robot collects green apples and must avoid red ones",
    settings=POINT | {"rollout_length": 15, "cost_limit": 0.5, "divergence_threshold": 3.0, "updates": 1200},
    jax_env="spacerl.envs.point.robot:PointGather",
    gymnasium_id="spacerl/PointGather-v0",
    gymnasium_env="spacerl.envs.point.gymnasium:PointGatherEnv",
    drawing="spacerl.envs.drawing:point_frame",
    rules={"rule": "spacerl.envs.point.rules:nearest_apple"},
    baselines="spacerl.envs.point",
)
ANT_CIRCLE = Task(
    name="ant-circle",
    summary="MuJoCo ant rewarded for a wide circle, kept between two walls",
    settings=ANT | {"cost_limit": 5.0, "divergence_threshold": 5.0, "updates": 2500},
    jax_env="spacerl.envs.ant.robot:AntCircle",
    batch_env="spacerl.envs.ant.host:ant_circle",
    gymnasium_id="spacerl/AntCircle-v0",
    gymnasium_env="spacerl.envs.ant.gymnasium:AntCircleEnv",
    drawing="spacerl.envs.ant.drawing:ant_frame",
    rules={
        "rule": "spacerl.envs.ant.rules:ant_circle_gait",
        "careful-rule": "spacerl.envs.ant.rules:ant_circle_loop",
    },
    baselines="spacerl.envs.ant",
)
ANT_GATHER = Task(
    name="ant-gather",
    summary="MuJoCo ant collects green apples and must avoid red ones",
    settings=ANT | {"cost_limit": 0.2, "divergence_threshold": 3.0, "updates": 1500},
    jax_env="spacerl.envs.ant.robot:AntGather",
    batch_env="spacerl.envs.ant.host:ant_gather",
    gymnasium_id="spacerl/AntGather-v0",
    gymnasium_env="spacerl.envs.ant.gymnasium:AntGatherEnv",
    drawing="spacerl.envs.ant.drawing:ant_frame",
    rules={
        "rule": "spacerl.envs.ant.rules:ant_gather_gait",
        "careful-rule": "spacerl.envs.ant.rules:ant_gather_detour",
    },
    baselines="spacerl.envs.ant",
)
GRID = Task(
    name="grid",
    summary="traffic lights of a road grid, no light red for more than 7 seconds",
    settings=TRAFFIC
    | {"cost_gae_lambda": 0.5, "batch_size": 10_000, "rollout_length": 400, "updates": 200, "hidden": (16, 16)}
    | {"cost_tolerance": 16.0},  # 1 % of what could cost, as below: nobody meets a limit of zero exactly
    batch_env="spacerl.envs.traffic.host:grid",
    gymnasium_id="spacerl/Grid-v0",
    gymnasium_env="spacerl.envs.traffic.gymnasium:GridEnv",
    tracing="spacerl.envs.traffic.tracing",
    rules={
        "rule": "spacerl.envs.traffic.rules:fixed_time_lights",
        "actuated-rule": "spacerl.envs.traffic.rules:actuated_lights",
    },
    baselines="spacerl.envs.traffic",
    hosted=True,
)
BOTTLENECK = Task(
    name="bottleneck",
    summary="autonomous vehicles in a traffic merge, no human slow for more than 10 seconds",
    settings=TRAFFIC
    | {"batch_size": 25_000, "rollout_length": 500, "updates": 300, "hidden": (50, 25), "cost_tolerance": 150.0},
    batch_env="spacerl.envs.traffic.host:bottleneck",
    gymnasium_id="spacerl/Bottleneck-v0",
    gymnasium_env="spacerl.envs.traffic.gymnasium:BottleneckEnv",
    tracing="spacerl.envs.traffic.tracing",
    rules={
        "rule": "spacerl.envs.traffic.rules:feedback_speed",
        "metered-rule": "spacerl.envs.traffic.rules:metered_speed",
        "constant-rule": "spacerl.envs.traffic.rules:constant_speed",
    },
    baselines="spacerl.envs.traffic",
    hosted=True,
)
CAR_RACING = Task(
    name="car-racing",
    summary="race track from pixels, at most five uses of the brake",
    settings=POINT
    | {
        "discount": 0.990,
        "delta": 5e-4,
        "batch_size": 10_000,
        "rollout_length": 1000,
        "cost_limit": 5.0,
        "divergence_threshold": 5.0,
        "updates": 600,
        "hidden": (32, 16),
        "environments": 10,
    },
    batch_env="spacerl.envs.racing.host:car_racing",
    gymnasium_id="spacerl/CarRacing-v0",
    gymnasium_env="spacerl.envs.racing.gymnasium:CarRacingEnv",
    baselines="spacerl.envs.racing",
    hosted=True,
)

TASKS: dict[str, Task] = {
    task.name: task for task in (POINT_CIRCLE, POINT_GATHER, ANT_CIRCLE, ANT_GATHER, GRID, BOTTLENECK, CAR_RACING)
}

# A user's own environment: the settings' own defaults, with projections bounded. Its cost may start far above the
# limit, where an unbounded projection would leap; and its batches may be smaller than its network, whose Fisher matrix
# then needs the whole batch and the damping that other libraries use.
OWN_ENVIRONMENT: Mapping[str, Any] = {"projection_kl_bound": 0.05}

# The rows above are the paper's table. What helps every algorithm alike is the default, and the table one option away.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "spacerl": {"delta": 1e-2, "cost_gae_lambda": 0.95, "critic_steps": 5, "critic_sees_time": True},
    "paper": {},
}


def preset_settings(task: str | None, preset: str) -> dict[str, Any]:
    """Settings of a task that nobody gave, or of a user's own environment (None)."""
    return {**(OWN_ENVIRONMENT if task is None else TASKS[task].settings), **PRESETS[preset]}


def task_named(name: str, only: bool = False) -> Task:
    """The row of a task whose environment exists. `only` where an environment of the user's cannot be given instead."""
    if name not in TASKS:
        unknown = unknown_name("task", name, TASKS)
        if re.search(r"-v\d+$|[:/]", name) and not only:
            said = str(unknown).partition("; did you mean")[0]
            raise InputError(f"{said}; your own environment is not a task: give it as --env {name} (env= in Python)")
        raise unknown
    task = TASKS[name]
    if not task.available:
        ready = ", ".join(each.name for each in TASKS.values() if each.available)
        raise InputError(f"task '{name}' has its parameters here but no environment yet: allowed are {ready}")
    return task
