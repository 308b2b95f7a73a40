"""Whose words a run folder speaks: the code that its config names, and whether this user asked for it on this machine.

A run folder may come from anybody. Code that it names is run when the user agrees (`trust`), or when the folder is
signed: whoever makes a run signs the code that it names, and where that code lies, with a key of their own that never
leaves their machine. See docs/security.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import importlib.util
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spacerl.envs.host.costs import is_function, named_sources
from spacerl.envs.host.single import parse_arguments
from spacerl.envs.make import FUNCTION
from spacerl.policies.foreign import is_file_of_another_library
from spacerl.runs.config import ENV_PREFIX, RunConfig
from spacerl.runs.folder import RunFolder, is_run
from spacerl.runs.names import found_first, names_python
from spacerl.types import InputError


class Code(NamedTuple):
    """Code that a config names: as which setting, by which name, and the file that has it."""

    setting: str
    name: str
    place: str

    def __str__(self) -> str:
        return f"{self.setting} '{self.name}'"


class Named(NamedTuple):
    """The settings that can name code, of a config or of a file of settings."""

    task: str = ""
    env_args: tuple[str, ...] = ()
    cost: tuple[str, ...] = ()
    baseline: tuple[str, ...] = ()


def code_named_by(config: RunConfig | Named, env: Any = None, cost: Any = None, baseline: Any = None) -> list[Code]:
    """What would be imported and called to make a run again, but for what is given as an object."""
    named: list[Code] = []
    if env is None and config.task.startswith(ENV_PREFIX):
        named += _environment(config.task.removeprefix(ENV_PREFIX), config.env_args)
    if cost is None and config.cost:
        texts = tuple(text for text in config.cost if not text.endswith(f"={FUNCTION}"))  # an object, to be given again
        sources = [str(source) for _, source in named_sources(texts)]
        named += [Code("cost", source, place_of(source)) for source in sources if is_function(source)]
    if baseline is None:
        own = (name for name in config.baseline if names_python(name) and not is_file_of_another_library(name))
        named += [Code("baseline", name, place_of(name)) for name in own]
    return named


def _environment(given: str, env_args: tuple[str, ...]) -> list[Code]:
    """A plain Gymnasium id is made by installed packages; numbers and switches do not make it something else."""
    plain = all(isinstance(value, bool | int | float) for _, value in parse_arguments(env_args))
    if ":" not in given and plain:
        return []
    arguments = f" with {', '.join(env_args)}" if env_args else ""
    return [Code("environment", given + arguments, place_of(given) if ":" in given else "")]


def place_of(name: str) -> str:
    """The file that a module or file.py with a colon after it names now; nothing is imported."""
    module = name.rpartition(":")[0]
    if module.endswith(".py"):
        return str(Path(module).resolve())
    with found_first(Path.cwd()), contextlib.suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(module.partition(".")[0])
        return str(spec.origin) if spec is not None else ""
    return ""


def require_consent(folder: RunFolder, code: Sequence[Code], trust: bool) -> None:
    """Code that a folder names is run for a user who trusts it, or who asked for it when the run was made."""
    if not code or trust or _is_signed(folder, code):
        return
    raise InputError(
        f"run folder '{folder.path}' names code that would be run: {', '.join(map(str, code))}; it is not known to be "
        "of your own making on this machine: pass --trust (trust=True) if you trust its origin"
    )


def named_in(settings: Mapping[str, Any]) -> Named:
    """What settings name, as they are written: a single text for a list of one, and an environment for a task."""
    env = settings.get("env")
    lists = {name: settings.get(name) or () for name in ("env_args", "cost", "baseline")}
    texts = {name: (each,) if isinstance(each, str) else tuple(map(str, each)) for name, each in lists.items()}
    return Named(f"{ENV_PREFIX}{env}" if env else str(settings.get("task", "")), **texts)


def require_consent_to_file(path: Path, named: Named, trust: bool) -> None:
    """Settings that lie in a file are not the command's own words: what they name is run as for the folder of a run."""
    code, folder = code_named_by(named), RunFolder(path.parent)
    if not code or trust or (is_run(folder.path) and _is_signed(folder, code)):
        return
    raise InputError(
        f"config '{path}' names code that would be run: {', '.join(map(str, code))}; name it in the command itself, or "
        "pass --trust (trust=True) if you trust its origin"
    )


def sign(folder: RunFolder, config: RunConfig) -> None:
    """Remember in a folder that the code it names was asked for by this user."""
    code = code_named_by(config)
    key = _user_key() if code else None
    if key is not None:
        folder.write_origin({"signature": _signature(key, code)})


def _is_signed(folder: RunFolder, code: Sequence[Code]) -> bool:
    """Whether this user has signed all of the code, or more."""
    given, key = folder.origin().get("signature"), _user_key()
    if not isinstance(given, str) or key is None or not given.isascii():
        return False
    whole = code_named_by(folder.config())
    return set(code) <= set(whole) and hmac.compare_digest(given, _signature(key, whole))


def _signature(key: bytes, code: Sequence[Code]) -> str:
    return hmac.new(key, json.dumps([list(each) for each in code]).encode(), hashlib.sha256).hexdigest()


def _user_key() -> bytes | None:
    """This user's key on this machine, made when it is first needed; None where nothing can be kept."""
    try:
        home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        path = home / "spacerl" / "key"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            made = path.with_name(f".key.{os.getpid()}.{secrets.token_hex(4)}")
            handle = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.write(handle, secrets.token_bytes(32))
                os.close(handle)
                with contextlib.suppress(FileExistsError):
                    os.link(made, path)  # whole or not at all, and never over another one
            finally:
                os.unlink(made)
        key = path.read_bytes()
    except (OSError, RuntimeError):
        return None
    return key if len(key) == 32 else None
