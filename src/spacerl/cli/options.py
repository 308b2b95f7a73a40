"""The settings of a run as options of a command: in groups, with the real defaults of the task and the algorithm.

`--help` shows what everyone needs; `--help-all` every group. Which defaults are real depends on the task and the
algorithm, so these are looked for among the words of the command before the options are declared.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from spacerl.runs.config import ENV_PREFIX, GROUPS, MainSettings
from spacerl.runs.fields import check_value, hints_of, names_of
from spacerl.runs.toml import read_toml
from spacerl.types import InputError, unknown_name

HELP_ALL = "--help-all"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MainOptions(MainSettings):
    """What everyone sets. --help-all shows the rest, with the defaults of the task and the algorithm."""

    task: str = ""
    env: str = ""
    """Your own environment instead of a task: a Gymnasium id, module:factory or file.py:factory."""
    cost: tuple[str, ...] = ()
    """Where the cost of your own environment comes from, each SOURCE or NAME=SOURCE with SOURCE one of info, info:KEY,
    info:KEY=0 (a key that is only there when it is not zero), step (Safety-Gymnasium's six values), none,
    file.py:function or module:function of (obs, action, next_obs, info).
    By default what its step or its info calls cost."""
    baseline: tuple[str, ...] = ()
    """Policy to learn from (pi_B): cost, reward or near (shipped), rule, a policy file, a run folder, a
    Stable-Baselines3 .zip, .onnx, TorchScript .pt, module:function, file.py:function. Of several the nearest leads."""
    cost_limit: tuple[str, ...] = ()  # type: ignore[assignment]
    """Threshold h_C on the undiscounted episode cost: a number, one per cost, or NAME=NUMBER for each."""
    rollout_length: int = 0  # type: ignore[assignment]
    """Time limit of an episode, in steps; 0: the environment's own."""


def likely_words(arguments: Sequence[str], usual: str, filed: Mapping[str, Any]) -> Words:
    """Task, algorithm and preset as they seem to be given. The parser has the last word: see `words_of`."""
    from spacerl.envs.tasks import TASKS

    task = next((word for word in arguments if word in TASKS), filed.get("task", ""))
    algorithm = _likely("--algorithm", arguments) or usual
    return _known(Words(task, algorithm, _likely("--preset", arguments) or filed.get("preset", "")), usual)


def _likely(option: str, arguments: Sequence[str]) -> str:
    """The last value that seems to be given to an option."""
    pairs = itertools.pairwise([*arguments, ""])
    given = [word.partition("=")[2] or next_ for word, next_ in pairs if word.partition("=")[0] == option]
    return given[-1] if given else ""


def _known(words: Words, usual: str) -> Words:
    """What there is not is left to the parser to complain of."""
    from spacerl.algorithms import ALGORITHMS
    from spacerl.envs.tasks import PRESETS, TASKS

    return Words(
        words.task if words.task in TASKS else "",
        words.algorithm if words.algorithm in ALGORITHMS else usual,
        words.preset if words.preset in PRESETS else "spacerl",
    )


def words_of(command: Any, usual: str) -> Words:
    """Task, algorithm and preset of a command that was parsed."""
    return _known(Words(command.task, command.main.algorithm, command.main.preset), usual)


def defaults_for(words: Words, changed: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and options that a run has when nothing but these words is given."""
    from spacerl.algorithms import ALGORITHMS
    from spacerl.envs.tasks import preset_settings
    from spacerl.runs.config import SETTINGS, RunConfig
    from spacerl.runs.fields import defaults_of

    preset = preset_settings(words.task or None, words.preset) | dict(changed or {})
    options = ALGORITHMS[words.algorithm].options
    settings = defaults_of(RunConfig) | {"rollout_length": 0} | {k: v for k, v in preset.items() if k in SETTINGS}
    chosen = defaults_of(options) | {k: v for k, v in preset.items() if k in names_of(options)}
    return settings, chosen


class Words(NamedTuple):
    """What the options of a command depend on."""

    task: str  # "" without one
    algorithm: str
    preset: str


def with_settings(
    command: type, words: Words, arguments: Sequence[str], changed: Mapping[str, Any] | None = None
) -> Any:
    """`command` with an option for every setting."""
    from spacerl.algorithms import ALGORITHMS

    algorithm, changed = words.algorithm, dict(changed or {})
    settings, options = defaults_for(words, changed)
    settings |= {"env": changed["env"]} if "env" in changed else {}
    settings |= {"algorithm": algorithm, "preset": words.preset, "cost_limit": _as_text(settings.get("cost_limit", ()))}
    # A hidden option cannot be parsed either: options are hidden where help is all that is asked for.
    hidden = not {"-h", "--help"}.isdisjoint(arguments)
    groups: list[tuple[str, Any]] = [("main", documented(MainOptions, settings, leave_out=("task",)))]
    for group in GROUPS[1:]:
        kind = documented(group, settings, leave_out=names_of(MainOptions))
        groups.append((group.__name__.removesuffix("Settings").lower(), _visible(kind, hidden)))
    kind = documented(ALGORITHMS[algorithm].options, options)
    kind.__doc__ = f"{algorithm}: {ALGORITHMS[algorithm].summary}."
    groups.append((algorithm.replace("-", "_"), _visible(kind, hidden)))
    own = {"task": changed["task"]} if "task" in changed else {}
    return dataclasses.make_dataclass(
        command.__name__, groups, bases=(documented(command, own),), frozen=True, kw_only=True
    )


def documented(settings: type, defaults: Mapping[str, Any], leave_out: Sequence[str] = ()) -> type:
    """A dataclass with these defaults, whose help texts are the strings under its fields, and name real defaults."""
    hints, texts, fields = hints_of(settings), docs_of(settings), []
    for field in dataclasses.fields(settings):
        if field.name in leave_out:
            continue
        default = defaults.get(field.name, field.default)
        shown = default if isinstance(default, tuple) else () if default is dataclasses.MISSING else (default,)
        words = " ".join(f"{each:g}" if isinstance(each, float) else str(each) for each in shown if each is not None)
        hint = f"(default: {words})" if words and not isinstance(default, bool) else ""
        metavar = _metavar_of_optional(hints[field.name])
        explained = tyro.conf.arg(help=texts.get(field.name, ""), help_behavior_hint=hint, metavar=metavar)
        fields.append((field.name, Annotated[hints[field.name], explained], dataclasses.field(default=default)))
    made = dataclasses.make_dataclass(settings.__name__, fields, frozen=True, kw_only=True, bases=_methods_of(settings))
    made.__doc__ = settings.__doc__
    return made


def _metavar_of_optional(hint: Any) -> str | None:
    """What may be left out is shown as what it is where it is given; None leaves the name to the parser."""
    metavars = {Path: "PATH", str: "TEXT", int: "INT", float: "FLOAT"}
    kinds = typing.get_args(hint)
    return metavars.get(kinds[0]) if type(None) in kinds else None


def _methods_of(settings: type) -> tuple[type, ...]:
    """A command keeps its methods; plain settings have none, and a field that is left out must not come back."""
    return (settings,) if any("__call__" in vars(kind) for kind in settings.__mro__) else ()


def docs_of(settings: type) -> dict[str, str]:
    """The string under each field of a dataclass, as one line."""
    texts: dict[str, str] = {}
    for kind in reversed(settings.__mro__[:-1]):
        (declared,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(declared, ast.ClassDef)
        for field, text in itertools.pairwise(declared.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                texts[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return texts


def _visible(group: type, hidden: bool) -> Any:
    return Annotated[group, tyro.conf.Suppress] if hidden else group


def _as_text(limit: Any) -> tuple[str, ...]:
    if isinstance(limit, Mapping):
        return tuple(f"{name}={value!r}" for name, value in limit.items())
    if isinstance(limit, tuple):
        return tuple(repr(value) for value in limit)
    return (f"{limit:g}",) if isinstance(limit, int | float) else ()


def split_config(arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """The words of a command without --config FILE, and the settings of that file as defaults of its options."""
    from spacerl.envs.tasks import TASKS

    words, files = [], []
    remaining = iter(arguments)
    for word in remaining:
        if word == "--config":
            files.append(next(remaining, ""))
        elif word.startswith("--config="):
            files.append(word.partition("=")[2])
        else:
            words.append(word)
    if not files:
        return words, {}
    if len(files) > 1 or not files[0]:
        raise InputError(f"--config was given {len(files)} times: give one TOML file after it")
    settings = read_toml(Path(files[0]))
    _require_settings(settings, files[0])
    if str(settings.get("task", "")).startswith(ENV_PREFIX):
        settings["env"] = settings.pop("task").removeprefix(ENV_PREFIX)
    if any(word in TASKS or word.partition("=")[0] == "--env" for word in words):  # the command has the last word
        settings = {name: value for name, value in settings.items() if name not in ("task", "env")}
    return words, settings


def require_consent_to_config(arguments: Sequence[str], filed: Mapping[str, Any], trust: bool) -> None:
    """Code that the file of --config names and the command does not."""
    from spacerl.training.origin import named_in, require_consent_to_file

    said = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in arguments if word.startswith("--")}
    pairs = itertools.pairwise([*arguments, ""])
    files = [word.partition("=")[2] or after for word, after in pairs if word.partition("=")[0] == "--config"]
    own = {name: value for name, value in filed.items() if name not in said}
    require_consent_to_file(Path(files[0]), named_in(own), trust)


def _require_settings(settings: Mapping[str, Any], file: str) -> None:
    """Every name of a file must be a setting or an option, with a value that is allowed; limits are checked later."""
    from spacerl.algorithms import ALGORITHMS
    from spacerl.runs.config import SETTINGS, RunConfig

    hints = {name: hint for entry in ALGORITHMS.values() for name, hint in hints_of(entry.options).items()}
    hints |= {name: hints_of(RunConfig)[name] for name in SETTINGS}
    for name, value in settings.items():
        try:
            if name not in hints:
                raise unknown_name("setting", name, sorted(hints))
            if name != "cost_limit":
                check_value(name, value, hints[name])
        except InputError as error:
            raise InputError(f"config '{file}': {error}") from error


def settings_of(command: Any) -> dict[str, Any]:
    """The settings that a command made by `with_settings` was given, as `spacerl.train` takes them."""
    settings: dict[str, Any] = {}
    for field in dataclasses.fields(command):
        group = getattr(command, field.name)
        if dataclasses.is_dataclass(group):
            settings |= {name: getattr(group, name) for name in names_of(type(group))}
    settings["rollout_length"] = settings["rollout_length"] or None
    settings["cost_limit"] = parse_limits(settings["cost_limit"])
    task, env = command.task or None, settings.pop("env") or None
    if task is not None and env is not None:
        raise InputError(f"both a task ('{task}') and --env {env} were given: give one of them")
    if task is None and env is None:
        raise InputError("neither a task nor --env was given: `spacerl tasks` lists the tasks")
    return {**settings, "task": task, "env": env}


def parse_limits(texts: tuple[str, ...]) -> Any:
    """Limits as numbers in the order of the costs, or by name."""
    if not texts:
        return None
    named = [text.rpartition("=") for text in texts]
    try:
        values = [float(value) for _, _, value in named]
    except ValueError:
        wrong = next(text for text, (_, _, value) in zip(texts, named, strict=True) if not _is_float(value))
        raise InputError(f"cost-limit is '{wrong}': allowed is a number, or NAME=NUMBER for every cost") from None
    if any(name for name, _, _ in named):
        nameless = next((text for text, (name, _, _) in zip(texts, named, strict=True) if not name), None)
        if nameless is not None:
            raise InputError(f"cost-limit is '{nameless}' beside limits with names: name all of them or none")
        return {name: value for (name, _, _), value in zip(named, values, strict=True)}
    return values[0] if len(values) == 1 else tuple(values)


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def owners_of(option: str) -> list[str]:
    """Algorithms that have an option."""
    from spacerl.algorithms import ALGORITHMS

    name = option.lstrip("-").partition("=")[0].removeprefix("no-").replace("-", "_")
    return [algorithm for algorithm, entry in ALGORITHMS.items() if name in names_of(entry.options)]
