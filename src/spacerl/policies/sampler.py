"""A policy's actions computed by NumPy alone: quick for a few rows, and easily sent to another process. No jax."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Sampler:
    """Actions from observations (N, *obs_shape) and noise (N, size); zero noise gives the most likely ones."""

    layers: tuple[tuple[np.ndarray, np.ndarray], ...]  # weights (m, n) and biases (n,)
    std: np.ndarray | None  # (A,) of a Gaussian; None where an action is chosen by its logits

    def __call__(self, obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        x = obs.reshape(len(obs), -1)
        *inner, (weight, bias) = self.layers
        for w, b in inner:
            x = x @ w
            x += b
            np.tanh(x, out=x)
        x = x @ weight + bias
        return np.argmax(x + noise, axis=-1) if self.std is None else x + self.std * noise
