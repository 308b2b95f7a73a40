"""A policy's actions computed by NumPy alone: quick for a few rows, and easily sent to another process. No jax."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

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

    def along(self, noise: np.ndarray, actions: np.ndarray) -> Callable[[int, np.ndarray], np.ndarray]:
        """For an episode of a Gaussian policy: a function of a step and its observation (n,) that fills in the step's
        row of `actions` (T, A) and returns it. Nothing is allocated from step to step."""
        assert self.std is not None
        *inner, (weight, bias) = self.layers
        shifts = bias + self.std * noise
        hidden = [(w, b, np.empty(w.shape[1], np.result_type(w, noise))) for w, b in inner]
        dot, add, tanh = np.dot, np.add, np.tanh

        def act(step: int, obs: np.ndarray) -> np.ndarray:
            x = obs
            for w, b, following in hidden:
                dot(x, w, following)
                add(following, b, following)
                tanh(following, following)
                x = following
            row = actions[step]
            dot(x, weight, row)
            return add(row, shifts[step], row)

        return act
