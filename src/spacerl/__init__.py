"""Reinforcement learning that starts from a policy you already have, and keeps its constraints while it learns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from spacerl.algorithms.contract import Algorithm, Needs
    from spacerl.api import (
        check_env,
        evaluate,
        export,
        film,
        iterate,
        load_policy,
        make_env,
        report,
        resume,
        sweep,
        train,
    )
    from spacerl.runs.keywords import Settings
    from spacerl.training.config import Config
    from spacerl.training.sinks import Sink
    from spacerl.training.train import Result
    from spacerl.types import ActionSpace, BatchEnv, EnvSpec, InputError, JaxEnv, Proposal, StepInputs

__all__ = [
    "ActionSpace",
    "Algorithm",
    "BatchEnv",
    "Config",
    "EnvSpec",
    "InputError",
    "JaxEnv",
    "Needs",
    "Proposal",
    "Result",
    "Settings",
    "Sink",
    "StepInputs",
    "check_env",
    "evaluate",
    "export",
    "film",
    "iterate",
    "load_policy",
    "make_env",
    "report",
    "resume",
    "sweep",
    "train",
]
_ELSEWHERE = {
    "Algorithm": "spacerl.algorithms.contract",
    "Config": "spacerl.training.config",
    "Needs": "spacerl.algorithms.contract",
    "Result": "spacerl.training.train",
    "Settings": "spacerl.runs.keywords",
    "Sink": "spacerl.training.sinks",
} | dict.fromkeys(
    ("ActionSpace", "BatchEnv", "EnvSpec", "InputError", "JaxEnv", "Proposal", "StepInputs"), "spacerl.types"
)


def __getattr__(name: str) -> Any:
    """Public names are imported on first use, so that `import spacerl` and `spacerl --help` start at once.

    No module may carry a public name: importing it would put the module in the function's place.
    """
    if name not in __all__:
        raise AttributeError(f"module 'spacerl' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_ELSEWHERE.get(name, "spacerl.api")), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
