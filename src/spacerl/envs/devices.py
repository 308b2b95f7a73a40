"""Which device computes: the one that JAX takes by itself, or one that was asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from spacerl.types import InputError


@contextlib.contextmanager
def computing_on(name: str | None) -> Iterator[None]:
    """Programs that are compiled in here run on `name`: cpu, gpu, tpu, or one of several, such as gpu:1."""
    if name is None:
        yield
        return
    kind, _, number = name.partition(":")
    try:
        devices = jax.devices(kind)
    except RuntimeError as error:
        found = ", ".join(sorted({device.platform for device in jax.devices()} | {"cpu"}))
        raise InputError(
            f"device is '{name}' and JAX finds none of that kind here: allowed are {found} (the extra `gpu` brings "
            "what JAX needs for an NVIDIA GPU)"
        ) from error
    if number and not (number.isdigit() and int(number) < len(devices)):
        raise InputError(
            f"device is '{name}' and there are {len(devices)}: allowed are {kind}:0 to {kind}:{len(devices) - 1}"
        )
    with jax.default_device(devices[int(number or 0)]):
        yield


def current_device() -> Any:
    """The device that computes now: where an array is made."""
    return next(iter(jnp.zeros(()).devices()))
