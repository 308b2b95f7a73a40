"""Python objects by name: `module:attribute`, or `file.py:attribute`. Naming one is asking for its code to run."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import importlib.util
import pkgutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from spacerl.types import InputError


def names_python(given: str) -> bool:
    """MODULE:NAME or FILE.py:NAME; not C:\\policy, and not a file that has a colon in its name."""
    module, colon, name = given.rpartition(":")
    is_file = module.endswith(".py")
    return bool(colon) and _dotted(name) and (is_file or _dotted(module)) and not Path(given).exists()


def _dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def python_object(given: str, what: str) -> Any:
    """The object called `given`; `what` says in messages what it was meant to be."""
    place, _, name = given.rpartition(":")
    if not place.endswith(".py") and place.partition(".")[0] in sys.stdlib_module_names:
        raise _standard(given, what)
    module = _import_file(place, given, what) if place.endswith(".py") else _import_module(place, given, what)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            there = _public(found)
            hint = nearest(part, there) or _listed(_own(found, there))
            raise InputError(f"{what} '{given}': {place} has no '{part}'{hint}")
        found = getattr(found, part)
    if callable(found) and is_of_standard_library(found):
        raise _standard(given, what)
    return found


def is_of_standard_library(found: Any) -> bool:
    """Whether calling an object calls Python's own library, under whatever name it was found."""
    while isinstance(found, functools.partial):
        found = found.func
    module = getattr(found, "__module__", None) or type(found).__module__
    return str(module).partition(".")[0] in sys.stdlib_module_names


def _standard(given: str, what: str) -> InputError:
    return InputError(
        f"{what} '{given}' is of Python's standard library, which is never called: name a module or file of yours"
    )


def nearest(given: str, candidates: list[str], ending: str = "", cutoff: float = 0.5) -> str:
    found = difflib.get_close_matches(given, candidates, n=1, cutoff=cutoff)
    return f"; did you mean '{found[0]}{ending}'?" if found else ""


def nearest_file(path: Path) -> str:
    """The file beside a missing one that has the same ending and a name like it."""
    beside = [each.stem for each in path.parent.glob(f"*{path.suffix}")] if path.parent.is_dir() else []
    return nearest(path.stem, beside, path.suffix)


def in_words(error: BaseException) -> str:
    """An exception in one line; the last one of long messages says what happened in torch, the first one elsewhere."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kind = type(error).__name__
    if not lines:
        return kind
    line = lines[-1].removeprefix(f"{kind}: ") if "Traceback" in str(error) else lines[0]
    return f"{kind}: {line[:300].rstrip('.')}"  # it becomes part of a sentence


def _import_module(name: str, given: str, what: str) -> ModuleType:
    with found_first(Path.cwd()):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if name == missing or name.startswith(f"{missing}."):
                raise InputError(
                    f"{what} '{given}': there is no module '{missing}' in this folder or among the installed ones"
                    f"{nearest(missing, _modules(missing))}"
                ) from error
            raise _failed(given, what, error) from error
        except (Exception, SystemExit) as error:
            raise _failed(given, what, error) from error


def _import_file(place: str, given: str, what: str) -> ModuleType:
    path = Path(place)
    if not path.is_file():
        raise InputError(f"{what} '{given}': there is no file '{place}'{nearest_file(path)}")
    # A name of its own, so that a policy.py of the user replaces no installed module.
    name = f"_given_{path.stem}_{abs(hash(path.resolve())):x}"
    if name in sys.modules:  # several names out of one file share its state
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with found_first(path.resolve().parent):
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise _failed(given, what, error) from error
    return module


def _failed(given: str, what: str, error: BaseException) -> InputError:
    return InputError(f"{what} '{given}' cannot be imported: {in_words(error)}")


@contextlib.contextmanager
def found_first(folder: Path) -> Iterator[None]:
    """Modules of a folder found before installed ones while something is imported, but not before Python's own: a
    random.py beside the user's module must not take the place of that of the standard library."""
    own = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    last = max((i for i, path in enumerate(sys.path) if path in own or path.endswith("lib-dynload")), default=-1)
    sys.path.insert(last + 1, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))


def _modules(missing: str) -> list[str]:
    """Names a module that was not found could have meant: its siblings."""
    parent, dot, _ = missing.rpartition(".")
    where = getattr(sys.modules.get(parent), "__path__", []) if dot else None
    return [f"{parent}{dot}{each.name}" for each in pkgutil.iter_modules(where)]


def _public(module: Any) -> list[str]:
    return [name for name in dir(module) if not name.startswith("_") and callable(getattr(module, name, None))]


def _own(module: Any, names: list[str]) -> list[str]:
    """Those of its names that a module or class defines and did not import."""
    home = getattr(module, "__name__", "")
    return [name for name in names if getattr(getattr(module, name), "__module__", None) == home]


def _listed(names: list[str], most: int = 8) -> str:
    return f"; it has {', '.join(names[:most])}{', ...' if len(names) > most else ''}" if names else ""


def printable(text: str) -> str:
    """A text for a terminal: what would move its cursor, colour it or turn its direction is written out."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
