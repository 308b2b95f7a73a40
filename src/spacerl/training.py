"""Training: a config becomes a run folder, and the loop fills it. Whatever touches clocks or files is here."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spacerl.algorithms import make_algorithm
from spacerl.baselines import Baseline, load_baseline, save_policy
from spacerl.collect import environments_per_batch, host_episodes, native_rollout, pack
from spacerl.config import InputError, RunConfig, is_own, require_new_folder, unknown_name
from spacerl.critics import linear_critic, neural_critic
from spacerl.environments import cost_texts, environment, has_two_places, is_hosted, task_name
from spacerl.evaluation import baseline_summary, write_trajectories
from spacerl.policies import PolicyFamily
from spacerl.progress import Progress
from spacerl.runs import RunFolder, versions, write_atomically, write_json
from spacerl.types import ActionSpace, Array, TrainState
from spacerl.update import Learner, initial_state, raw_theta, update, with_policy


class RunStopped(RuntimeError):
    """Numbers stopped being finite; the last good state is saved."""


class Parts(NamedTuple):
    """What a run is assembled from, before it has a state."""

    config: RunConfig
    env: Any  # types.Env, compiled with the update, or types.HostEnv, stepped outside of it
    learner: Learner
    baselines: tuple[Baseline, ...]
    count: int  # columns of a rollout: environments that play one episode per update, where the task is native

    @property
    def baseline(self) -> Baseline | None:
        return self.baselines[0] if self.baselines else None

    @property
    def hosted(self) -> bool:
        return is_hosted(self.env)

    def close(self) -> None:
        if self.hosted:
            self.env.close()


def assemble(config: RunConfig, env: Any = None, baseline: Any = None, cost: Any = None, trust: bool = False) -> Parts:
    """All parts of a run; raises InputError for anything that does not fit together."""
    own_length = config.rollout_length is None and is_own(config.task)
    config = config.resolved()
    env = environment(config, env, cost)
    try:
        if own_length:
            config = dataclasses.replace(config, rollout_length=env.horizon)
        return _assembled(config.with_limits(tuple(env.cost_names)), env, baseline, trust)
    except BaseException:
        if is_hosted(env):
            env.close()
        raise


def _assembled(config: RunConfig, env: Any, baseline: Any, trust: bool) -> Parts:
    images, hidden = getattr(env, "images", ()), config.hidden
    assert hidden is not None
    if images and config.critic == "linear":
        raise InputError(f"critic is 'linear' and '{config.task}' observes pictures: allowed is neural")
    baselines = _loaded(config, env, baseline, trust)
    beginning: dict[str, Any] = {"initial_std": config.initial_std, "initial_gain": config.initial_gain}
    family = PolicyFamily(
        tuple(env.obs_shape), env.action_space, hidden, images=images, filters=config.filters, **beginning
    )
    if config.normalise_observations and not family.width:
        raise InputError(f"normalise-observations was given and '{config.task}' observes pictures alone: leave it out")
    signals = 1 + len(env.cost_names) + bool(baselines)
    # A regression needs less damping than a KL: it may fit what it sees.
    trust_region = (config.critic_kl, config.cg_iterations, min(config.cg_damping, CRITIC_DAMPING))  # type: ignore[type-var]
    critic = (
        neural_critic(
            signals,
            env.obs_shape,
            hidden,
            *trust_region,
            images,
            config.filters,
            config.critic_steps,  # type: ignore[arg-type]
            config.critic_sees_time,  # type: ignore[arg-type]
        )
        if config.critic == "neural"
        else linear_critic(signals, env.obs_shape)
    )
    names = tuple(f"{i}-{Path(each.name).stem}".replace(",", "-") for i, each in enumerate(baselines))
    learner = Learner(config, family, make_algorithm(config), critic, tuple(env.cost_names), names)
    count = environments_per_batch(config.batch_size, config.rollout_length)  # type: ignore[arg-type]
    return Parts(config, env, learner, baselines, count)


def _loaded(config: RunConfig, env: Any, baseline: Any, trust: bool) -> tuple[Baseline, ...]:
    """The baselines of a run: those given as objects, or those its config names."""
    given = baseline if isinstance(baseline, list | tuple) else [baseline]
    if baseline is None:
        given = config.baselines
        function = next((name for name in given if name.startswith("function:")), None)
        if function is not None:
            raise InputError(f"the baseline of this run is a Python function ('{function}'): pass it as baseline=")
    settings: dict[str, Any] = {"std": config.baseline_std, "exploration": config.baseline_exploration, "trust": trust}
    settings["raw"] = getattr(env, "raw", None)
    loaded = [load_baseline(each, config.task, env.obs_shape, env.action_space, **settings) for each in given]
    return tuple(each for each in loaded if each is not None)


# The compiled programs ---------------------------------------------------------------------------------------------


def collect_step(parts: Parts, state: TrainState) -> tuple[TrainState, Any]:
    key, rollout_key = jax.random.split(state.key)
    length, learner = parts.config.rollout_length, parts.learner
    with jax.default_matmul_precision("float32"):  # reduced-precision products would spoil conjugate gradients
        theta = raw_theta(learner, state)
        rollout = native_rollout(parts.env, learner.family, theta, rollout_key, parts.count, length)  # type: ignore[arg-type]
    return state._replace(key=key), rollout


def update_step(
    parts: Parts, state: TrainState, rollout: Any, thetas: tuple[Any, ...], dists: tuple[Any, ...]
) -> tuple[TrainState, dict[str, Array]]:
    """One update; baselines that are networks of ours are evaluated here, the distributions of others are given."""
    with jax.default_matmul_precision("float32"):
        if rollout.dist is None or parts.config.normalise_observations:
            rollout = with_policy(parts.learner, state, rollout)
        each = zip(parts.baselines, thetas, dists, strict=True)
        evaluated = tuple(b.family.apply(theta, rollout.obs) if b.native else dist for b, theta, dist in each)  # type: ignore[union-attr]
        return update(parts.learner, state, rollout, evaluated)


def fused_step(parts: Parts, state: TrainState, thetas: tuple[Any, ...]) -> tuple[TrainState, dict[str, Array]]:
    """Collection, returns, gradients, conjugate gradient and critics as one program; vmap it for several seeds."""
    state, rollout = collect_step(parts, state)
    return update_step(parts, state, rollout, thetas, (None,) * len(thetas))


CRITIC_DAMPING = 1e-3  # at most
NOISE_TICKS = 64
Stepper = Callable[[TrainState], tuple[TrainState, dict[str, Any], float, float]]


def make_stepper(parts: Parts) -> Stepper:
    """state -> (state, metrics, seconds collecting, seconds updating).

    A native task with native (or no) baselines is one program, and its collection cannot be timed apart (NaN). A
    baseline that is a function is called between two programs, once per batch. A hosted environment is stepped outside.
    """
    thetas = baseline_thetas(parts)
    # A task that can be simulated in two places says where each update's episodes are from.
    where = {"on_device": float(not parts.hosted)} if has_two_places(parts.config.task) else {}
    if not parts.hosted and all(baseline.native for baseline in parts.baselines):
        program = jax.jit(lambda state, thetas: fused_step(parts, state, thetas))

        def fused(state: TrainState):
            started = time.perf_counter()
            state, metrics = jax.block_until_ready(program(state, thetas))
            return state, jax.device_get(metrics) | where, math.nan, time.perf_counter() - started

        return fused

    collect = make_collector(parts)
    learn = jax.jit(lambda state, rollout, thetas, dists: update_step(parts, state, rollout, thetas, dists))

    def split(state: TrainState):
        started = time.perf_counter()
        state, rollout, counts = collect(state)
        collected = time.perf_counter()
        dists = tuple(None if b.native else baseline_on(b, rollout, parts.env.action_space) for b in parts.baselines)
        state, metrics = jax.block_until_ready(learn(state, rollout, thetas, dists))
        seconds = (collected - started, time.perf_counter() - collected)
        return state, jax.device_get(metrics) | counts | where, *seconds

    return split


def make_collector(parts: Parts) -> Callable[[TrainState], tuple[TrainState, Any, dict[str, int]]]:
    """state -> (state, rollout, what happened on the way and belongs into the metrics)."""
    if not parts.hosted:
        program = jax.jit(lambda state: collect_step(parts, state))

        def native(state: TrainState):
            return *jax.block_until_ready(program(state)), {}

        return native

    config, env, learner = parts.config, parts.env, parts.learner
    fold = jax.jit(lambda state: raw_theta(learner, state))

    # Noise of many ticks at once: drawn one by one it would take as long as the policy itself.
    draw = jax.jit(lambda key, block: learner.family.noise(jax.random.fold_in(key, block), (NOISE_TICKS, env.lanes)))

    @jax.jit
    def compiled(theta: Array, obs: Array, noise: Array) -> Array:
        with jax.default_matmul_precision("float32"):
            return learner.family.apply(theta, obs).sample(noise)

    def hosted(state: TrainState):
        key, seed_key, noise_key = jax.random.split(state.key, 3)
        theta, seed = fold(state), tuple(int(word) for word in np.asarray(seed_key))
        noise = np.zeros(0)
        sample = learner.family.sampler(theta) or functools.partial(compiled, theta)

        def act(obs: np.ndarray, tick: int) -> np.ndarray:
            nonlocal noise
            if tick % NOISE_TICKS == 0:
                noise = np.asarray(draw(noise_key, tick // NOISE_TICKS))
            return np.asarray(sample(obs, noise[tick % NOISE_TICKS]))

        recording = host_episodes(
            env,
            act,
            seed,
            config.rollout_length,  # type: ignore[arg-type]
            steps=config.batch_size,
            keep_next=config.bootstrap_truncation,
        )
        rollout = pack(recording, parts.count, config.rollout_length)  # type: ignore[arg-type]
        return state._replace(key=key), rollout, env.counts()

    return hosted


def baseline_thetas(parts: Parts) -> tuple[Any, ...]:
    """Parameters of the baselines that are networks of ours, None for the others."""
    return tuple(baseline.theta if baseline.native else None for baseline in parts.baselines)


def baseline_on(baseline: Baseline, rollout: Any, space: ActionSpace) -> Any:
    """A function's distribution on a rollout; it is asked about real observations only, padding gets zeros."""
    valid = np.asarray(rollout.valid)
    dist = baseline.distribution(np.asarray(rollout.obs)[valid], space)

    def spread(rows: Any) -> np.ndarray:
        full = np.zeros((*valid.shape, *rows.shape[1:]), np.float32)
        full[valid] = rows
        return full

    return jax.tree.map(spread, dist)


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
    env: Any = None,
    cost: Any = None,
    baseline: Any = None,
    trust: bool = False,
    out: str | Path | None = None,
    progress: bool = True,
    **settings: Any,
) -> Result:
    """Train one policy. `settings` are the fields of `RunConfig`: algorithm, updates, seed, cost_limit, ...

    Give a `task` by name, or your own environment as `env`: a Gymnasium id, `module:factory`, a function that makes
    one, a Gymnasium environment, or a native one (see `spacerl.types.Env`). `cost` says where its cost comes from: a
    function of (obs, action, next_obs, info), a text such as "info:KEY", or a dictionary of several by name.

    `baseline` is a shipped kind (cost, reward, near), a policy file, a run folder, a Stable-Baselines3, ONNX or
    TorchScript file, a function of a batch of observations, or a list of these. `trust` allows files that can run code
    when they are loaded.
    """
    if task is not None and env is not None:
        raise InputError(f"both a task ('{task}') and an env were given: give one of them")
    if env is not None:
        task = task_name(env)
    if task is None:
        raise InputError("neither a task nor an env was given: pass a task's name (`spacerl tasks` lists them) or env=")
    unknown = sorted(settings.keys() - {field.name for field in dataclasses.fields(RunConfig)})
    if unknown:
        raise unknown_name("setting", unknown[0], sorted(field.name for field in dataclasses.fields(RunConfig)))
    config = RunConfig(task=task, baseline=baseline_names(baseline), cost=cost_texts(cost), **settings)
    parts = assemble(config, None if isinstance(env, str) else env, baseline, cost, trust)
    try:
        config = parts.config
        out = Path(out) if out is not None else default_folder(config)
        require_new_folder(out)
        for each in parts.baselines:
            spread = each.spread(parts.env.action_space)
            if spread is not None and progress:
                print(f"baseline '{each.name}' states actions only: it gets a {spread}", file=sys.stderr)
        worth, summary = baseline_summary(parts)
        state = initial_state(parts.learner, config.seed, worth)
        create_folder(parts, out, state, summary)
        return run(parts, RunFolder(out), state, progress)
    finally:
        parts.close()


def baseline_names(baseline: Any) -> str | tuple[str, ...] | None:
    """What the config says about a baseline, which may be an object."""
    if isinstance(baseline, list | tuple):
        return tuple(str(baseline_names(each)) for each in baseline)
    if isinstance(baseline, Baseline):
        return baseline.name
    if callable(baseline):
        return f"function:{getattr(baseline, '__name__', type(baseline).__name__)}"
    return None if baseline is None else str(baseline)


def resume(
    path: str | Path,
    *,
    updates: int | None = None,
    env: Any = None,
    cost: Any = None,
    baseline: Any = None,
    trust: bool = False,
    progress: bool = True,
) -> Result:
    """Continue a run from its newest checkpoint, exactly as if it had never stopped. `updates` extends it."""
    folder = RunFolder.open(path)
    config = folder.config()
    arrays, done = folder.newest_checkpoint()
    if updates is not None:
        if updates < done:
            raise InputError(f"updates is {updates} and the run already has {done}: allowed is that or more")
        config = dataclasses.replace(config, updates=updates)
    parts = assemble(config, env, baseline, cost, trust)
    try:
        template = jax.eval_shape(lambda: initial_state(parts.learner, 0))
        state = from_arrays(arrays, template, f"checkpoint of update {done} in '{path}'")
        if int(state.update) != done:
            raise InputError(
                f"checkpoint of update {done} in '{path}' is foreign: the state in it is of update {int(state.update)}"
            )
        folder.keep_metrics_until(done)
        if updates is not None:
            write_atomically(folder.path / "config.json", parts.config.to_json())
        return run(parts, folder, state, progress)
    finally:
        parts.close()


def require_same_run(path: Path, settings: dict[str, Any]) -> None:
    """A run that is there must be the one that was asked for."""
    there = RunFolder.open(path).config()
    for name, value in settings.items():
        has = getattr(there, name)
        if has != value:
            raise InputError(f"'{path}' is a run with {name} {has!r} and {value!r} was asked for: give a new --out")


def run(parts: Parts, folder: RunFolder, state: TrainState, progress: bool) -> Result:
    config, step = parts.config, make_stepper(parts)
    done = int(state.update)
    source = " or ".join(config.baselines)
    title = f"{config.algorithm} on {config.task}" + (f" from {source}" if source else "") + f", seed {config.seed}"
    if hasattr(parts.env, "set_report"):
        parts.env.set_report(lambda text: report_fault(folder, text))
    with Progress(title, config.updates, done, progress) as show, event_writer(folder, done) as log:  # type: ignore[arg-type]
        try:
            while done < config.updates:  # type: ignore[operator]
                try:
                    following, metrics, collecting, updating = step(state)
                except InputError as error:
                    raise RunStopped(
                        f"{error}; the state before update {done + 1} is saved in '{folder.path}': mend it and go on "
                        f"with `spacerl resume {folder.path}`"
                    ) from error
                row = metrics_row(done, int(following.env_steps), metrics, collecting, updating)
                if not metrics["finite"]:
                    raise RunStopped(
                        f"numbers stopped being finite in update {done + 1}; the state before it is saved in "
                        f"'{folder.path}': try a smaller delta or a projection-kl-bound, or look at the rewards"
                    )
                with undisturbed():
                    folder.append_metrics(row)
                    log(row)
                    state, done = following, done + 1
                    if done % config.checkpoint_every == 0 or done == config.updates:
                        save(parts, folder, state)
                show(row)
        except BaseException:  # Ctrl-C, and whatever a user's own function or environment raises
            save(parts, folder, state)
            raise
    write_trajectories(parts, raw_theta(parts.learner, state), folder.path)
    return Result(folder.path, folder.metrics(), trained_policy(parts, state))


@contextlib.contextmanager
def undisturbed():
    """Ctrl-C waits until this is done: metrics and state stay together, and TensorBoard's writer, which a Ctrl-C can
    leave with a lock held, closes afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *arguments: came.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came and callable(before):
        before(*came[0])


def report_fault(folder: RunFolder, text: str) -> None:
    """A worker's traceback, on the screen and kept with the run."""
    print(text, file=sys.stderr)
    with open(folder.path / "faults.log", "a") as file:
        file.write(text + "\n\n")


def metrics_row(
    done: int, env_steps: int, metrics: dict[str, Any], collecting: float, updating: float
) -> dict[str, float | int]:
    leading = ("J_R", "J_C", "J_D", "h_C", "h_D", "cumulative_violation", "kl", "entropy")
    row: dict[str, float | int] = {"update": done, "env_steps": env_steps}
    row |= {name: float(metrics[name]) for name in leading}
    row |= {"seconds_collect": collecting, "seconds_update": updating}
    # In the order of their names: a run that goes on elsewhere writes the same columns.
    return row | {name: float(metrics[name]) for name in sorted(metrics) if name not in row and name != "finite"}


def create_folder(parts: Parts, out: Path, state: TrainState, summary: dict[str, Any] | None) -> None:
    with RunFolder.created(out, parts.config, versions(device_name())) as folder:
        if summary is not None:
            write_json(folder.path / "baseline.json", summary)
        save(parts, folder, state)


def save(parts: Parts, folder: RunFolder, state: TrainState) -> None:
    """Policy first: a checkpoint says that everything up to its update is on disk."""
    info = {"task": parts.config.task, "algorithm": parts.config.algorithm, "update": int(state.update)}
    theta, normaliser = raw_theta(parts.learner, state), state.normaliser or None
    save_policy(folder.path / "policy.safetensors", parts.learner.family, theta, info, normaliser)
    folder.save_checkpoint(to_arrays(state), int(state.update), parts.config.keep_checkpoints)


def trained_policy(parts: Parts, state: TrainState) -> Baseline:
    name = f"{parts.config.algorithm}-{parts.config.task}"
    return Baseline(name, parts.learner.family, raw_theta(parts.learner, state))


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
    baseline = "+".join(Path(name).name for name in config.baselines) or "none"
    stem = f"{config.task}-{config.algorithm}-{baseline}-seed{config.seed}"
    return Path("runs") / stem.replace(":", "-").replace("/", "-")


def device_name() -> str:
    device = jax.devices()[0]
    return f"{device.platform} ({device.device_kind})"
