"""The library in Python: train, resume, sweep, iterate, evaluate, export, film, load_policy, make_env, report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack

from spacerl.algorithms.contract import Algorithm
from spacerl.envs import make
from spacerl.envs.devices import computing_on
from spacerl.envs.host.check.findings import Findings
from spacerl.envs.host.description import spaces_of_spec
from spacerl.envs.tasks import TASKS, task_named
from spacerl.policies.files import read_policy_and_spaces
from spacerl.policies.loading import load_policy as load_checked
from spacerl.policies.loading import locate
from spacerl.policies.policy import NetworkPolicy
from spacerl.rollout.acting import ActingPolicy, acting, forms_of
from spacerl.runs.config import OWN_PREFIX, RunConfig, require_seed
from spacerl.runs.folder import RunFolder
from spacerl.runs.keywords import Settings
from spacerl.runs.toml import read_toml
from spacerl.training.assemble import Given, baseline_names
from spacerl.training.config import Config
from spacerl.training.iterate import iterate_runs
from spacerl.training.origin import code_named_by, named_in, require_consent, require_consent_to_file
from spacerl.training.settings import read_config, resolve
from spacerl.training.sinks import USUAL_LOGS, as_sinks
from spacerl.training.sweep import sweep_runs
from spacerl.training.train import Result, Watching, resume_run, train_run
from spacerl.types import Env, EnvSpec, InputError, JaxEnv, unknown_name

Which = Literal["last", "best"]

# Training -------------------------------------------------------------------------------------------------------------


def train(
    task: str | None = None,
    *,
    env: Any = None,
    cost: Any = None,
    baseline: Any = None,
    algorithm: str | Algorithm | None = None,
    trust: bool = False,
    out: str | Path | None = None,
    progress: bool = True,
    log: Sequence[str] | str | None = USUAL_LOGS,
    on_update: Any = None,
    config: Config | str | Path | Mapping[str, Any] | None = None,
    device: str | None = None,
    **settings: Unpack[Settings],
) -> Result:
    """Train one policy. `settings` are those of `spacerl.Settings`: updates, seed, delta, options of the algorithm, ...

    Give a `task` by name, or your own environment as `env`: a Gymnasium id, `module:factory`, a function that makes
    one, a Gymnasium environment, or one in JAX (`spacerl.JaxEnv`). `cost` says where its cost comes from: a function of
    (obs, action, next_obs, info), a text such as "info:KEY", or a dictionary of several by name.

    `baseline` is a shipped kind (cost, reward, near), a policy file, a run folder, a file of Stable-Baselines3, ONNX or
    TorchScript, a function of a batch of observations, or a list of these. `trust` allows files that can run code.

    `algorithm` is a name (space, unless a `config` says another), or a `spacerl.Algorithm` of yours. `on_update` is
    called with the metrics of every update: a function of a dictionary, a `spacerl.Sink`, or several; one that returns
    True stops the run, which can be resumed.
    `log` names what else is kept: tensorboard, wandb, mlflow; () is nothing. `config` is a `spacerl.Config`, a TOML
    file of settings such as the config.toml of a run, or a dictionary of them; what is given beside it has the last
    word. `device` is cpu, gpu or tpu, by default the one that JAX takes.
    """
    given = _given(env, baseline, cost, algorithm, trust)
    draft = resolve(_all_settings(task, given, algorithm, settings, config), given.algorithm)
    watching = Watching(progress, log, as_sinks(on_update))
    with computing_on(device):
        return train_run(draft, given, None if out is None else Path(out), watching)


def resume(
    path: str | Path,
    *,
    updates: int | None = None,
    env: Any = None,
    cost: Any = None,
    baseline: Any = None,
    algorithm: Algorithm | None = None,
    trust: bool = False,
    accept_metrics: bool = False,
    progress: bool = True,
    log: Sequence[str] | str | None = USUAL_LOGS,
    on_update: Any = None,
    device: str | None = None,
) -> Result:
    """Continue a run from its newest checkpoint, exactly as if it had never stopped. `updates` extends it.

    What was passed to `train` as an object is passed here again. `accept_metrics` goes on after changed tables.
    """
    given = Given(env, baseline, cost, algorithm, trust)
    with computing_on(device):
        watching = Watching(progress, log, as_sinks(on_update))
        return resume_run(path, given, watching, updates, accept_metrics=accept_metrics)


def sweep(
    task: str | None = None,
    *,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    baselines: str | Sequence[str] = (),
    out: str | Path = "runs/sweep",
    env: Any = None,
    cost: Any = None,
    algorithm: str | Algorithm | None = None,
    trust: bool = False,
    progress: bool = True,
    log: Sequence[str] | str | None = USUAL_LOGS,
    on_update: Any = None,
    config: Config | str | Path | Mapping[str, Any] | None = None,
    device: str | None = None,
    **settings: Unpack[Settings],
) -> list[Path]:
    """Train every seed with every baseline, a run folder each below `out`: one compiled program where there can be one.

    The same call again continues a sweep that was stopped. `on_update` is called for every run.
    """
    given = _given(env, None, cost, algorithm, trust)
    wanted = _all_settings(task, given, algorithm, settings, config)
    watching = Watching(progress, log, as_sinks(on_update))
    if isinstance(seeds, int):
        raise InputError(f"seeds is {seeds!r}: allowed are whole numbers in a list, such as [0, 1, 2]")
    several = (baselines,) if isinstance(baselines, str) and baselines else baselines
    with computing_on(device):
        return sweep_runs(wanted, seeds, several or (None,), Path(out), given, watching)


def iterate(
    rounds: int,
    task: str | None = None,
    *,
    env: Any = None,
    cost: Any = None,
    baseline: Any = None,
    algorithm: str | Algorithm | None = None,
    trust: bool = False,
    out: str | Path | None = None,
    progress: bool = True,
    log: Sequence[str] | str | None = USUAL_LOGS,
    on_update: Any = None,
    config: Config | str | Path | Mapping[str, Any] | None = None,
    device: str | None = None,
    **settings: Unpack[Settings],
) -> list[Path]:
    """`rounds` runs, each with the policy of the one before as its baseline; returns their folders."""
    given = _given(env, baseline, cost, algorithm, trust)
    wanted = _all_settings(task, given, algorithm, settings, config)
    watching = Watching(progress, log, as_sinks(on_update))
    with computing_on(device):
        return iterate_runs(wanted, rounds, None if out is None else Path(out), given, watching)


def check_env(
    env: Any,
    *,
    cost: Any = None,
    env_args: Sequence[str] = (),
    episodes: int = 5,
    max_steps: int = 5000,
    seed: int = 0,
    worker_timeout: float = 60.0,
) -> Findings:
    """Step an environment with random actions and say what a run would fail on; print what it returns.

    At least `episodes` episodes and 2,000 steps are played, or a minute. An environment that is named (a Gymnasium id,
    module:factory or file.py:factory) is checked in another process, so that one that exits or hangs is reported.
    """
    from spacerl.envs.host.check import Looking, check_recipe
    from spacerl.envs.host.check.isolated import check_in_worker

    costs = cost if isinstance(cost, list | tuple) else () if cost is None else (cost,)
    if isinstance(env, str) and not isinstance(cost, dict) and all(isinstance(each, str) for each in costs):
        asked = {"env": env, "cost": list(costs), "env_args": list(env_args), "episodes": episodes}
        return check_in_worker({**asked, "max_steps": max_steps, "seed": seed}, worker_timeout)
    recipe = make.recipe_of_env(env, cost, tuple(env_args))
    return check_recipe(recipe, make.cost_texts(cost), tuple(env_args), Looking(episodes, max_steps, seed))


def _given(env: Any, baseline: Any, cost: Any, algorithm: Any, trust: bool) -> Given:
    if algorithm is not None and not isinstance(algorithm, str | Algorithm):
        raise InputError(f"algorithm is {type(algorithm).__name__}: allowed is a name or a spacerl.Algorithm")
    return Given(env, baseline, cost, algorithm if isinstance(algorithm, Algorithm) else None, trust)


def _all_settings(
    task: str | None,
    given: Given,
    algorithm: str | Algorithm | None,
    settings: Mapping[str, Any],
    config: Config | str | Path | Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Settings by name, with what their objects are called in a config; those of a file have the first word."""
    filed = _filed(config)
    if task is not None and not isinstance(task, str):
        raise InputError(f"task is {type(task).__name__}: allowed is a task's name; an environment is given as env=")
    if task is not None and given.env is not None:
        raise InputError(f"both a task ('{task}') and an env were given: give one of them")
    if given.env is not None:
        task = make.task_name(given.env)
    if isinstance(config, str | Path):
        said = {**settings, "task": task, "cost": given.cost, "baseline": given.baseline}
        own = {name: value for name, value in filed.items() if said.get(name) is None}
        require_consent_to_file(Path(config), named_in(own), given.trust)  # but for what the call names itself
    task = task or filed.get("task")
    if task is None:
        raise InputError("neither a task nor an env was given: pass a task's name (`spacerl tasks` lists them) or env=")
    named: dict[str, Any] = {"task": task}
    if algorithm is not None or "algorithm" not in filed:
        rule = algorithm or "space"
        named["algorithm"] = rule if isinstance(rule, str) else OWN_PREFIX + rule.name
    if given.baseline is not None or "baseline" not in filed:
        named["baseline"] = baseline_names(given.baseline)
    if given.cost is not None or "cost" not in filed:
        named["cost"] = make.cost_texts(given.cost)
    return {**filed, **named, **settings}


def _filed(config: Config | str | Path | Mapping[str, Any] | None) -> dict[str, Any]:
    """What a config says, of whatever kind it is."""
    if config is None:
        return {}
    if isinstance(config, Config):
        return config.given
    return dict(config) if isinstance(config, Mapping) else read_toml(Path(config))


# Policies of runs -----------------------------------------------------------------------------------------------------


def load_policy(
    path: str | Path, task: str | None = None, *, policy: Which = "last", seed: int | None = None
) -> ActingPolicy:
    """The policy of a run folder or policy file, or a shipped one such as ("reward", task="point-circle").

    `policy.predict(obs, deterministic=False)` takes what the environment gives, Dict and image observations too, and
    returns (action, state) as models of Stable-Baselines3 do. `policy` is the last one of a run, or the best of those
    that were evaluated to keep the limits. `seed` decides its random actions. Loading runs no code.
    """
    read, spaces = read_policy_and_spaces(locate(str(path), task or "", policy), str(path))
    return acting(read, spaces or _spaces_of_task(task or read.info.get("task", "")), seed)


def _spaces_of_task(name: str) -> str:
    """For files of earlier versions, which say nothing; "" for environments that are not ours, or not installed."""
    if name not in TASKS or TASKS[name].jax_env is None:
        return ""
    try:
        return spaces_of_spec(TASKS[name].make_jax_env().spec)
    except ImportError:
        return ""


def make_env(task: str) -> JaxEnv:
    """The environment of a task, in JAX."""
    return task_named(task).make_jax_env()


def evaluate(
    run: str | Path,
    *,
    episodes: int | Mapping[str, int] = 1000,
    seed: int = 1,
    policy: Which = "last",
    env: Any = None,
    cost: Any = None,
    baseline: Any = None,
    trust: bool = False,
    progress: bool = False,
    device: str | None = None,
) -> dict[str, Any]:
    """Play a policy of a run: mean, standard deviation and 95 % interval of J_R, return, length and every J_C.

    `episodes` is a number for each mode, or a dictionary: {"stochastic": 1000, "deterministic": 100}; 0 leaves one out.
    `policy` is the last or the best. Its baselines play the stochastic episodes too; one that cannot be loaded (a
    function that is not passed as `baseline`, a file that needs `trust`) is given as it was measured before training.
    The environment is built as in training; one that was passed to `train` as an object is passed here again. `trust`
    also allows code that the folder of somebody else names.
    """
    from spacerl.training.judging import Judging, judge_run

    counts = _episodes_of_modes(episodes)
    require_seed(seed)
    with computing_on(device):
        config, made = _env_of_run(run, env, cost, trust)
        try:
            judged = _policy_of_run(run, config, made.spec, policy)
            judging = Judging(RunFolder.open(run), config, made, counts, seed, baseline, trust, progress)
            update = judged.info.get("update")
            return {"run": str(run), "policy": policy, "update": update, **judge_run(judging, judged)}
        finally:
            made.close()


def _episodes_of_modes(episodes: int | Mapping[str, int]) -> dict[str, int]:
    from spacerl.rollout.evaluate import MODES

    given: dict[str, int] = {mode: episodes for mode in MODES} if isinstance(episodes, int) else dict(episodes)
    for mode, count in given.items():
        if mode not in MODES:
            raise unknown_name("mode of episodes", mode, MODES)
        least = 0 if isinstance(episodes, Mapping) else 1
        if not isinstance(count, int) or isinstance(count, bool) or count < least:
            raise InputError(f"episodes is {count}: allowed is a whole number of at least {least}")
    counts = {mode: given.get(mode, 0) for mode in MODES}
    if not any(counts.values()):
        raise InputError(f"episodes is 0 for every mode: give at least one to {' or '.join(MODES)}")
    return counts


def export(
    run: str | Path,
    out: str | Path,
    *,
    policy: Which = "last",
    env: Any = None,
    cost: Any = None,
    trust: bool = False,
) -> float:
    """Write the last policy of a run, or its best: .onnx, .py (NumPy only) or .npz, by the name of `out`.

    The file takes the environment's observations, states the order of their parts, and gives actions in its units: the
    .py file by `predict(obs)`, as a model of Stable-Baselines3 does, and by `act(obs)`. Returns by how much it differs
    from the policy at most, on random observations. No environment is made where the folder says what it is; otherwise
    `env`, `cost` and `trust` are as for `evaluate`.
    """
    from spacerl.policies.export.exporting import export_policy

    folder = RunFolder.open(run)
    spec = folder.environment()
    if spec is None or env is not None:  # a folder of an earlier version does not say what its environment is
        _, made = _env_of_run(run, env, cost, trust, lanes=1)
        spec = made.spec
        made.close()
    exported = _policy_of_run(run, folder.config(), spec, policy)
    # Bounds that actions are not scaled to are the environment's to keep: clipped, the policy would be another one.
    action = spec.action if spec.action.scaled else spec.action._replace(low=(), high=())
    return export_policy(exported.family, exported.theta, out, exported.info, action, forms_of(spaces_of_spec(spec)))


def film(
    run: str | Path,
    out: str | Path,
    *,
    episodes: int = 1,
    seed: int = 1,
    policy: Which = "last",
    beside_baseline: bool = False,
    trust: bool = False,
    env: Any = None,
    cost: Any = None,
) -> Path:
    """Film the last policy of a run, or its best, stochastic as in training: an .mp4 (extra `video`) or a .gif.

    No screen is needed. Reward and costs so far are written below the image. `beside_baseline` shows pi_B in the same
    episodes to the left of it. `env`, `cost` and `trust` are as for `evaluate`.
    """
    from spacerl.rollout.film import Film, film_run

    _require_episodes(episodes, seed)
    folder = RunFolder.open(run)
    config = folder.config()
    require_consent(folder, code_named_by(config, env, cost, None if beside_baseline else ()), trust)
    shown = locate(str(run), config.task, policy)
    return film_run(Film(Path(run), config, episodes, seed, shown, beside_baseline, trust, env, cost), Path(out))


def report(runs: str | Path | Sequence[str | Path], out: str | Path | None = None, title: str | None = None) -> Path:
    """One self-contained HTML page about one or several runs."""
    from spacerl.reporting import write_report

    folders = [Path(run) for run in ([runs] if isinstance(runs, str | Path) else runs)]
    return Path(write_report(folders, folders[0] / "report.html" if out is None else Path(out), title))


def _require_episodes(episodes: int, seed: int) -> None:
    if episodes < 1:
        raise InputError(f"episodes is {episodes}: allowed is a whole number of at least 1")
    require_seed(seed)


def _env_of_run(run: str | Path, env: Any, cost: Any, trust: bool, lanes: int | None = None) -> tuple[RunConfig, Env]:
    folder = RunFolder.open(run)
    config = folder.config()
    require_consent(folder, code_named_by(config, env, cost, ()), trust)
    if not config.algorithm.startswith(OWN_PREFIX):
        config, _ = read_config(folder)
    return config, make.make_env(config.task, config, env, cost, lanes)


def _policy_of_run(run: str | Path, config: RunConfig, spec: EnvSpec, which: str) -> NetworkPolicy:
    """The last or the best policy of a run, checked against its environment."""
    policy = load_checked(str(locate(str(run), "", which)), config.task, spec)
    assert isinstance(policy, NetworkPolicy)
    return policy
