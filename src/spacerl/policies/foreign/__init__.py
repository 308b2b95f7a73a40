"""Policies made elsewhere as pi_B: Stable-Baselines3, ONNX, TorchScript, and Python functions by name.

One file per kind. Each becomes a function of a batch of observations in the units of the environment, see `Foreign`.
"""

from __future__ import annotations

from spacerl.policies.foreign.common import Foreign, Raw
from spacerl.policies.foreign.onnx import load_onnx
from spacerl.policies.foreign.python import from_callable, load_python
from spacerl.policies.foreign.stable_baselines3 import load_stable_baselines3
from spacerl.policies.foreign.torchscript import load_torchscript
from spacerl.runs.names import names_python
from spacerl.types import ActionSpace

__all__ = ["FOREIGN_KINDS", "Foreign", "from_callable", "is_file_of_another_library", "load_foreign"]

FOREIGN_KINDS = (
    "a Stable-Baselines3 .zip",
    "an .onnx file",
    "a TorchScript .pt file",
    "MODULE:FUNCTION",
    "FILE.py:FUNCTION",
)
_BY_ENDING = {
    ".zip": load_stable_baselines3,
    ".onnx": load_onnx,
    ".pt": load_torchscript,
    ".pth": load_torchscript,
    ".ts": load_torchscript,
}


def is_file_of_another_library(given: str) -> bool:
    return _path_in(given).lower().endswith(tuple(_BY_ENDING))


def _path_in(given: str) -> str:
    """Without the statistics that may be named beside an archive."""
    return given.split(".zip+")[0] + ".zip" if ".zip+" in given else given


def load_foreign(
    given: str, action: ActionSpace, obs_shape: tuple[int, ...], trust: bool, raw: Raw | None = None
) -> Foreign | None:
    """The policy that `given` names, checked against the environment; None where `given` is of no foreign kind.

    `raw` turns a batch of our observations (B, *obs_shape) into what the environment gives; None: they are the same.
    """
    path = _path_in(given)
    for ending, load in _BY_ENDING.items():
        if path.lower().endswith(ending):
            return load(given, action, tuple(obs_shape), trust, raw)
    if names_python(given):
        return load_python(given, action, tuple(obs_shape), raw)
    return None
