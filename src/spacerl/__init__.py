"""Reinforcement learning that starts from a policy you already have, and keeps its constraints while it learns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from spacerl.library import evaluate, export, film, load_policy, make_env, report
    from spacerl.training import resume, train

_HOMES = {
    "train": "spacerl.training",
    "resume": "spacerl.training",
    "evaluate": "spacerl.library",
    "export": "spacerl.library",
    "film": "spacerl.library",
    "load_policy": "spacerl.library",
    "make_env": "spacerl.library",
    "report": "spacerl.library",
}
__all__ = ["evaluate", "export", "film", "load_policy", "make_env", "report", "resume", "train"]


def __getattr__(name: str) -> Any:
    """Public names are imported on first use, so that `import spacerl` and `spacerl --help` start at once.

    No module may carry a public name: importing it would put the module in the function's place.
    """
    if name not in _HOMES:
        raise AttributeError(f"module 'spacerl' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
