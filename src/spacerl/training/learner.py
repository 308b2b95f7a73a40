"""The fixed parts of a run."""

from __future__ import annotations

from typing import NamedTuple

from spacerl.algorithms.contract import Algorithm
from spacerl.policies.family import PolicyFamily
from spacerl.runs.config import RunConfig
from spacerl.training.critics import Critic


class Learner(NamedTuple):
    """The fixed parts of a run that an update is made of."""

    config: RunConfig
    family: PolicyFamily
    algorithm: Algorithm
    critic: Critic
    cost_names: tuple[str, ...]
    baseline_names: tuple[str, ...] = ()
