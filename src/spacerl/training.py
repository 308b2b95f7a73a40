"""Training: a config becomes a run folder, and the loop fills it. Whatever touches clocks or files is here."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spacerl.algorithms import make_algorithm
from spacerl.baselines import Baseline, load_baseline, save_policy
from spacerl.collect import environments_per_batch, native_rollout
from spacerl.config import OWN_PREFIX, InputError, RunConfig, require_new_folder, unknown_name
from spacerl.critics import linear_critic, neural_critic
from spacerl.envs import make_native
from spacerl.evaluation import baseline_summary, write_trajectories
from spacerl.policies import PolicyFamily
from spacerl.progress import Progress
from spacerl.runs import RunFolder, versions, write_atomically, write_json
from spacerl.types import Array, Env, TrainState
from spacerl.update import Learner, initial_state, update


class RunStopped(RuntimeError):
    """Numbers stopped being finite; the last good state is saved."""


class Parts(NamedTuple):
    """What a run is assembled from, before it has a state."""

    config: RunConfig
    env: Env
    learner: Learner
    baseline: Baseline | None
    count: int  # environments, each of which plays one episode per update


def environment(config: RunConfig, given: Env | None) -> Env:
    """The environment of a run: the one given, or the task's own."""
    if given is None and config.task.startswith(OWN_PREFIX):
        raise InputError(f"run of '{config.task}' needs your environment again: pass it as env=")
    return make_native(config.task) if given is None else given


def assemble(config: RunConfig, env: Env | None = None, baseline: Any = None) -> Parts:
    """All parts of a run; raises InputError for anything that does not fit together."""
    config = config.resolved()
    env = environment(config, env)
    limits = config.cost_limit
    assert isinstance(limits, tuple)
    if len(limits) != len(env.cost_names):
        named = ", ".join(env.cost_names)
        raise InputError(
            f"{len(limits)} cost limits were given and task '{config.task}' has {len(env.cost_names)} costs ({named})"
        )
    if baseline is None and (config.baseline or "").startswith("function:"):
        raise InputError(f"the baseline of this run is a Python function ('{config.baseline}'): pass it as baseline=")
    loaded = load_baseline(baseline or config.baseline, config.task, env.obs_shape, env.action_space)
    family = PolicyFamily(tuple(env.obs_shape), env.action_space, config.hidden, config.initial_std)  # type: ignore[arg-type]
    signals = 1 + len(env.cost_names) + (loaded is not None)
    critic = (
        neural_critic(signals, env.obs_shape, config.hidden, config.critic_kl, config.cg_iterations, config.cg_damping)  # type: ignore[arg-type]
        if config.critic == "neural"
        else linear_critic(signals, env.obs_shape)
    )
    learner = Learner(config, family, make_algorithm(config), critic, tuple(env.cost_names))
    count = environments_per_batch(config.batch_size, config.rollout_length)  # type: ignore[arg-type]
    return Parts(config, env, learner, loaded, count)


# The compiled programs ---------------------------------------------------------------------------------------------


def collect_step(parts: Parts, state: TrainState) -> tuple[TrainState, Any]:
    key, rollout_key = jax.random.split(state.key)
    length = parts.config.rollout_length
    with jax.default_matmul_precision("float32"):  # reduced-precision products would spoil conjugate gradients
        rollout = native_rollout(parts.env, parts.learner.family, state.theta, rollout_key, parts.count, length)  # type: ignore[arg-type]
    return state._replace(key=key), rollout


def update_step(
    parts: Parts, state: TrainState, rollout: Any, baseline_dist: Any
) -> tuple[TrainState, dict[str, Array]]:
    with jax.default_matmul_precision("float32"):
        return update(parts.learner, state, rollout, baseline_dist)


def fused_step(parts: Parts, state: TrainState, baseline_theta: Array | None) -> tuple[TrainState, dict[str, Array]]:
    """Collection, returns, gradients, conjugate gradient and critics as one program; vmap it for several seeds."""
    state, rollout = collect_step(parts, state)
    with jax.default_matmul_precision("float32"):
        family = parts.baseline.family if parts.baseline is not None else None
        baseline_dist = family.apply(baseline_theta, rollout.obs) if family is not None else None  # type: ignore[arg-type]
    return update_step(parts, state, rollout, baseline_dist)


Stepper = Callable[[TrainState], tuple[TrainState, dict[str, Any], float, float]]


def make_stepper(parts: Parts) -> Stepper:
    """state -> (state, metrics, seconds collecting, seconds updating).

    A native task with a native (or no) baseline is one program, and its collection cannot be timed apart (NaN). A
    baseline that is a function is called between two programs, once per batch.
    """
    if parts.baseline is None or parts.baseline.native:
        theta = None if parts.baseline is None else parts.baseline.theta
        program = jax.jit(lambda state, theta: fused_step(parts, state, theta))

        def fused(state: TrainState):
            started = time.perf_counter()
            state, metrics = jax.block_until_ready(program(state, theta))
            return state, jax.device_get(metrics), math.nan, time.perf_counter() - started

        return fused

    collect = jax.jit(lambda state: collect_step(parts, state))
    learn = jax.jit(lambda state, rollout, dist: update_step(parts, state, rollout, dist))
    baseline, space = parts.baseline, parts.env.action_space

    def split(state: TrainState):
        started = time.perf_counter()
        state, rollout = jax.block_until_ready(collect(state))
        collected = time.perf_counter()
        dist = baseline.distribution(np.asarray(rollout.obs), space)
        state, metrics = jax.block_until_ready(learn(state, rollout, dist))
        return state, jax.device_get(metrics), collected - started, time.perf_counter() - collected

    return split


# Checkpoints: a TrainState as named arrays -------------------------------------------------------------------------


def to_arrays(state: TrainState) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {jax.tree_util.keystr(path).lstrip("."): np.asarray(leaf) for path, leaf in leaves}


def from_arrays(arrays: dict[str, np.ndarray], template: TrainState, source: str) -> TrainState:
    wanted = to_shapes(template)
    given = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    if wanted != given:
        differing = sorted(name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
        raise InputError(f"{source} does not fit its config: {', '.join(differing[:4])} differ in name, shape or type")
    return jax.tree.unflatten(jax.tree.structure(template), [jnp.asarray(arrays[name]) for name in wanted])


def to_shapes(state: Any) -> dict[str, tuple]:
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {jax.tree_util.keystr(path).lstrip("."): (leaf.shape, np.dtype(leaf.dtype)) for path, leaf in leaves}


# The loop ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Result:
    """A finished run: where it is and what it learned."""

    folder: Path
    metrics: list[dict[str, float]]
    policy: Baseline


def train(
    task: str | None = None,
    *,
    env: Env | None = None,
    baseline: Any = None,
    out: str | Path | None = None,
    progress: bool = True,
    **settings: Any,
) -> Result:
    """Train one policy. `settings` are the fields of `RunConfig`: algorithm, updates, seed, cost_limit, ...

    Give a `task` by name or your own native environment as `env` (see `spacerl.types.Env`). `baseline` is a shipped
    kind (cost, reward, near), a policy file, a run folder, or a function from observations (B, O) to (mean, std).
    """
    if env is not None:
        task = task or OWN_PREFIX + env.name
        settings.setdefault("rollout_length", env.horizon)
    if task is None:
        raise InputError("neither a task nor an env was given: pass a task's name (`spacerl tasks` lists them) or env=")
    unknown = sorted(settings.keys() - {field.name for field in dataclasses.fields(RunConfig)})
    if unknown:
        raise unknown_name("setting", unknown[0], sorted(field.name for field in dataclasses.fields(RunConfig)))
    named = f"function:{getattr(baseline, '__name__', type(baseline).__name__)}" if callable(baseline) else baseline
    named = baseline.name if isinstance(baseline, Baseline) else named
    config = RunConfig(task=task, baseline=None if named is None else str(named), **settings)
    parts = assemble(config, env, baseline)
    config = parts.config
    out = Path(out) if out is not None else default_folder(config)
    require_new_folder(out)
    target, summary = baseline_summary(parts)
    state = initial_state(parts.learner, config.seed, target)
    create_folder(parts, out, state, summary)
    return run(parts, RunFolder(out), state, progress)


def resume(
    path: str | Path, *, updates: int | None = None, env: Env | None = None, baseline: Any = None, progress: bool = True
) -> Result:
    """Continue a run from its newest checkpoint, exactly as if it had never stopped. `updates` extends it."""
    folder = RunFolder.open(path)
    config = folder.config()
    arrays, done = folder.newest_checkpoint()
    if updates is not None:
        if updates < done:
            raise InputError(f"updates is {updates} and the run already has {done}: allowed is that or more")
        config = dataclasses.replace(config, updates=updates)
    parts = assemble(config, env, baseline)
    template = jax.eval_shape(lambda: initial_state(parts.learner, 0, math.nan))
    state = from_arrays(arrays, template, f"checkpoint of update {done} in '{path}'")
    if int(state.update) != done:
        raise InputError(
            f"checkpoint of update {done} in '{path}' is foreign: the state in it is of update {int(state.update)}"
        )
    folder.keep_metrics_until(done)
    if updates is not None:
        write_atomically(folder.path / "config.json", parts.config.to_json())
    return run(parts, folder, state, progress)


def run(parts: Parts, folder: RunFolder, state: TrainState, progress: bool) -> Result:
    config, step = parts.config, make_stepper(parts)
    done = int(state.update)
    title = (
        f"{config.algorithm} on {config.task}"
        + (f" from {config.baseline}" if config.baseline else "")
        + f", seed {config.seed}"
    )
    with Progress(title, config.updates, done, progress) as show, event_writer(folder, done) as log:  # type: ignore[arg-type]
        try:
            while done < config.updates:  # type: ignore[operator]
                following, metrics, collecting, updating = step(state)
                row = metrics_row(done, int(following.env_steps), metrics, collecting, updating)
                if not metrics["finite"]:
                    save(parts, folder, state)
                    raise RunStopped(
                        f"numbers stopped being finite in update {done + 1}; the state before it is saved in "
                        f"'{folder.path}': try a smaller delta or a projection-kl-bound, or look at the rewards"
                    )
                folder.append_metrics(row)
                log(row)
                state, done = following, done + 1
                if done % config.checkpoint_every == 0 or done == config.updates:
                    save(parts, folder, state)
                show(row)
        except KeyboardInterrupt:
            save(parts, folder, state)
            raise
    write_trajectories(parts, state.theta, folder.path)
    return Result(folder.path, folder.metrics(), trained_policy(parts, state))


def metrics_row(
    done: int, env_steps: int, metrics: dict[str, Any], collecting: float, updating: float
) -> dict[str, float | int]:
    leading = ("J_R", "J_C", "J_D", "h_C", "h_D", "cumulative_violation", "kl", "entropy")
    row: dict[str, float | int] = {"update": done, "env_steps": env_steps}
    row |= {name: float(metrics[name]) for name in leading}
    row |= {"seconds_collect": collecting, "seconds_update": updating}
    return row | {name: float(metrics[name]) for name in metrics if name not in row and name != "finite"}


def create_folder(parts: Parts, out: Path, state: TrainState, summary: dict[str, Any] | None) -> None:
    with RunFolder.created(out, parts.config, versions(device_name())) as folder:
        if summary is not None:
            write_json(folder.path / "baseline.json", summary)
        save(parts, folder, state)


def save(parts: Parts, folder: RunFolder, state: TrainState) -> None:
    """Policy first: a checkpoint says that everything up to its update is on disk."""
    info = {"task": parts.config.task, "algorithm": parts.config.algorithm, "update": int(state.update)}
    save_policy(folder.path / "policy.safetensors", parts.learner.family, state.theta, info)
    folder.save_checkpoint(to_arrays(state), int(state.update), parts.config.keep_checkpoints)


def trained_policy(parts: Parts, state: TrainState) -> Baseline:
    return Baseline(f"{parts.config.algorithm}-{parts.config.task}", parts.learner.family, state.theta)


@contextlib.contextmanager
def event_writer(folder: RunFolder, done: int):
    """TensorBoard events of every row; a resumed run continues after the rows that are kept."""
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(folder.path / "events"), purge_step=done or None) as writer:

        def log(row: dict[str, float | int]) -> None:
            for name, value in row.items():
                if name != "update" and not math.isnan(value):
                    writer.add_scalar(name, value, int(row["update"]))

        yield log


def default_folder(config: RunConfig) -> Path:
    baseline = Path(config.baseline).name if config.baseline else "none"
    stem = f"{config.task}-{config.algorithm}-{baseline}-seed{config.seed}".replace(":", "-")
    return Path("runs") / stem


def device_name() -> str:
    device = jax.devices()[0]
    return f"{device.platform} ({device.device_kind})"
