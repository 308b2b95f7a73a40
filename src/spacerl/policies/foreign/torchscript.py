"""TorchScript archives. They hold code and pickles, so they load only with --trust."""

from __future__ import annotations

import warnings
import zipfile
from typing import Any

import numpy as np

from spacerl.policies.foreign.common import (
    Foreign,
    Output,
    Raw,
    existing,
    flat_or_raw,
    in_chunks,
    need,
    probe,
    reading_of,
    require_trust,
    unchanged,
)
from spacerl.runs.names import in_words
from spacerl.types import ActionSpace, InputError


def load_torchscript(
    given: str, action: ActionSpace, obs_shape: tuple[int, ...], trust: bool, raw: Raw | None
) -> Foreign:
    path = existing(given)
    _require_program(given)
    require_trust(trust, given, "is a TorchScript archive of code and pickled objects")
    torch = need("torch", given, "a TorchScript archive", "torch")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r".*torch\.jit\.load.* is deprecated")
            module = torch.jit.load(str(path), map_location="cpu")
    except Exception as error:
        raise InputError(f"policy file '{given}' cannot be loaded by torch: {in_words(error)}") from error
    module.eval()

    def outputs(feed: Raw, obs: np.ndarray) -> dict[str, np.ndarray]:
        batch = torch.as_tensor(np.array(feed(obs), np.float32))
        try:
            with torch.no_grad():
                return _named(module(batch), given)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"policy file '{given}' fails on observations of shape {tuple(batch.shape)}: {in_words(error)}"
            ) from error

    def works(feed: Raw) -> bool:
        try:
            outputs(feed, probe(obs_shape))
        except InputError:
            return False
        return True

    # An archive does not say what it takes: the environment's observation is tried first, as for every network.
    feed = flat_or_raw(obs_shape, raw, lambda shape: True)
    if feed is None or not works(feed):
        feed = unchanged
    reading = reading_of(outputs(feed, probe(obs_shape)), 8, action, given)

    def evaluate(obs: np.ndarray) -> Output:
        return reading.read(outputs(feed, obs), len(obs))

    info = {"torch": str(torch.__version__), "output": reading.says}
    return Foreign(given, "torchscript", lambda obs: in_chunks(evaluate, obs), reading.deterministic, info)


def _named(output: Any, given: str) -> dict[str, np.ndarray]:
    """A tensor, a pair (mean, std), or a dictionary of tensors."""
    if isinstance(output, dict):
        return {str(name): _array(value, given) for name, value in output.items()}
    if isinstance(output, tuple | list) and len(output) == 2:
        return {name: _array(value, given) for name, value in zip(("mean", "std"), output, strict=True)}
    return {"output": _array(output, given)}


def _array(value: Any, given: str) -> np.ndarray:
    if not hasattr(value, "detach"):
        raise InputError(
            f"policy file '{given}' returned {type(value).__name__}: "
            "a tensor, a pair (mean, std) or a dictionary of tensors is expected"
        )
    return value.detach().cpu().numpy()


def _require_program(given: str) -> None:
    """Tell TorchScript from weights without loading anything."""
    try:
        with zipfile.ZipFile(given) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, RuntimeError, ValueError) as error:  # also of versions unknown here
        with open(given, "rb") as file:
            if file.read(2) == b"\x80\x02":  # weights as torch wrote them before 1.6
                raise _weights(given) from error
        raise InputError(
            f"policy file '{given}' is damaged or was not written by torch: a TorchScript archive is expected"
        ) from error
    if any("/code/" in name for name in names) and any(name.endswith("/constants.pkl") for name in names):
        return
    if any(name.endswith("data.pkl") for name in names):
        raise _weights(given)
    raise InputError(f"policy file '{given}' is an archive without a TorchScript program: save one with torch.jit")


def _weights(given: str) -> InputError:
    return InputError(
        f"policy file '{given}' holds weights without the network they belong to: build the network in a Python file, "
        "load the weights there and give FILE.py:FUNCTION"
    )
