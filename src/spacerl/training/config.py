"""`spacerl.Config`: the settings of a run as one value, before there is a run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from spacerl.algorithms import AnyOptions
from spacerl.envs.make import cost_texts
from spacerl.runs.config import OWN_PREFIX, RunSettings
from spacerl.runs.folder import write_atomically
from spacerl.runs.keywords import ConfigSettings
from spacerl.runs.lock import require_new_file
from spacerl.runs.toml import read_toml, toml_text
from spacerl.training.settings import completed
from spacerl.types import InputError


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Config(AnyOptions, RunSettings):
    """Settings of a run that `spacerl.train`, `sweep` and `iterate` take as `config`; checked when they are given.

        config = spacerl.Config(task="point-circle", baseline="near", updates=50)
        config.batch_size                          # 10000: what is not given is the task's or the algorithm's own
        config.replace(algorithm="pcpo").to_toml("pcpo.toml")

    A config holds what a file can hold, an environment of yours as task="env:ID" or "env:file.py:factory". Objects are
    passed beside it: `spacerl.train(env=my_env, baseline=my_policy, config=config)`. An option that its algorithm does
    not have is None; so is a `rollout_length` that is the environment's own.
    """

    task: str = ""

    def __init__(self, **settings: Unpack[ConfigSettings]):
        given = _as_texts(settings)
        values, options = completed(given, str(given.get("algorithm", "")).startswith(OWN_PREFIX))
        complete = {field.name: None for field in dataclasses.fields(self)} | values | options
        for name, value in complete.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_given", tuple(given))

    @property
    def given(self) -> dict[str, Any]:
        """The settings that were given, by name."""
        return {name: getattr(self, name) for name in vars(self)["_given"]}

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self.given.items())})"

    def replace(self, **changes: Unpack[ConfigSettings]) -> Config:
        """Another config, which differs in these settings."""
        changed: dict[str, Any] = {**self.given, **changes}
        return Config(**changed)

    def to_toml(self, path: str | Path | None = None) -> str:
        """The settings that were given as TOML, also written to a new file `path`: --config takes it."""
        text = toml_text(self.given)
        if path is not None:
            require_new_file(Path(path))
            write_atomically(Path(path), text)
        return text

    @classmethod
    def from_toml(cls, path: str | Path) -> Config:
        """The settings of a TOML file, such as the config.toml of a run."""
        settings = read_toml(Path(path))
        try:
            return cls(**settings)
        except InputError as error:
            raise InputError(f"config '{path}': {error}") from error


def _as_texts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, with policies and costs named as a file of settings names them."""
    given = {name: value for name, value in settings.items() if value is not None}
    if "env" in given:
        raise InputError("env is no setting: name an environment as task='env:ID', or pass it beside the config")
    for name in ("task", "algorithm", "baseline", "cost"):
        _require_names(name, given.get(name, ""))
    if "baseline" in given:
        baseline = given["baseline"]
        given["baseline"] = tuple(map(str, baseline if isinstance(baseline, list | tuple) else [baseline]))
    if "cost" in given:
        given["cost"] = cost_texts(given["cost"])
    return given


def _require_names(setting: str, value: Any) -> None:
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else [value]
    wrong = next((part for part in parts if not isinstance(part, str | os.PathLike)), None)
    if wrong is not None:
        raise InputError(
            f"{setting} is {type(wrong).__name__}, and a config holds names alone: pass an object beside the config"
        )
