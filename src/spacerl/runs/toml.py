"""Settings of a run as TOML: a file that people write, read and give again with --config."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spacerl.runs.text import LARGEST_SETTINGS, text_of
from spacerl.types import InputError

OPENING = "# Settings of a spacerl run: give this file with --config, and what is to differ as options.\n"


def toml_text(settings: Mapping[str, Any]) -> str:
    """One line per setting; a setting without a value is left out."""
    return OPENING + "".join(f"{name} = {_value(value)}\n" for name, value in settings.items() if value is not None)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return "inf" if math.isinf(value) else repr(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(name)} = {_value(each)}' for name, each in value.items())}}}"
    return json.dumps(str(value))  # a JSON text is a TOML text


def read_toml(path: Path) -> dict[str, Any]:
    """Settings by name; a table of cost limits by name is the only one that is allowed."""
    try:
        content = tomllib.loads(text_of(Path(path), LARGEST_SETTINGS))
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"config '{path}' does not exist: a TOML file is expected, every run folder has one") from None
    except (OSError, ValueError, RecursionError) as error:  # what is no text, no TOML, or a number of 5,000 digits
        raise InputError(f"config '{path}' is not TOML: {error}") from error
    for name, value in content.items():
        if isinstance(value, dict) and name != "cost_limit":
            raise InputError(f"config '{path}' has a table '{name}': settings stand at its top, NAME = VALUE")
    settings = {name.replace("-", "_"): value for name, value in content.items()}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
