"""What a run needs at the least, against what the machine has: said before anything is made."""

from __future__ import annotations

import math

import numpy as np

from spacerl.envs.memory import device_memory
from spacerl.rollout.device import environments_per_batch
from spacerl.runs.config import RunConfig
from spacerl.runs.memory import require_memory
from spacerl.types import EnvSpec

NUMBER = 4  # bytes


def require_room(config: RunConfig, spec: EnvSpec, parameters: int, runs: int = 1) -> None:
    """A policy of so many parameters, its critics, and a batch of what they see; of so many runs at once."""
    costs = len(spec.cost_names)
    # A policy has itself, the gradients of every signal and the vectors of conjugate gradient; a critic fewer.
    vectors = parameters * (8 + costs) + parameters * (2 + costs) * 4
    steps = environments_per_batch(config.batch_size, config.rollout_length) * config.rollout_length
    # The layers of a pass forward and back, a row of numbers about each step, and what was observed.
    step = NUMBER * (2 * sum(config.hidden) + 3 * spec.action.size + 8) + observation_bytes(config, spec)
    fewer = "" if runs == 1 else "number of seeds or baselines of one sweep, "
    what = f"{fewer}--hidden, --batch-size or --rollout-length"
    require_memory(runs * (NUMBER * vectors + steps * step), device_memory(), what)


def observation_bytes(config: RunConfig, spec: EnvSpec) -> int:
    """Of one step of a batch. Images of bytes stay what they are: once as they were collected, once as they are learned
    from, and again only where something is to follow a truncation; their activations are held for a few at a time."""
    size = math.prod(spec.obs_shape)
    if spec.images and np.dtype(spec.obs_dtype) == np.uint8:
        return size * (2 + 2 * config.bootstrap_truncation)
    return 2 * NUMBER * size
