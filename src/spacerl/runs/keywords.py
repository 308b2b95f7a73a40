"""The settings of a run as keyword arguments, for editors and type checkers. `runs.config` says what they mean.

tests/test_first_day.py compares this list with the settings that there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Literal, TypedDict


class Settings(TypedDict, total=False):
    """Settings that `spacerl.train`, `sweep` and `iterate` take; what is not given has the task's own value."""

    # What everyone sets.
    start: Literal["auto", "fresh", "baseline"]
    preset: Literal["spacerl", "paper"]
    updates: int
    seed: int
    cost_limit: float | Sequence[float] | Mapping[str, float]
    cost_tolerance: float
    delta: float
    batch_size: int
    rollout_length: int
    # The environment, and who steps it.
    env_args: Sequence[str]
    environments: int
    workers: int | Literal["auto"]
    worker_timeout: float
    simulator: Literal["auto", "host", "device"]
    # Returns and advantages.
    discount: float
    cost_discount: float
    divergence_discount: float
    gae_lambda: float
    cost_gae_lambda: float
    divergence_gae_lambda: float
    bootstrap_truncation: bool
    # Policy network and critics.
    hidden: Sequence[int]
    filters: Sequence[int]
    normalise_observations: bool
    initial_std: float
    initial_gain: float
    critic: Literal["neural", "linear"]
    critic_kl: float
    critic_steps: int
    critic_sees_time: bool
    # The Fisher matrix and its inverse.
    cg_iterations: int
    cg_damping: float
    fisher_subsample: float
    # What a baseline that states actions only is given to be a distribution.
    baseline_std: float
    baseline_exploration: float
    # Checkpoints and evaluations.
    checkpoint_every: int
    keep_checkpoints: int
    evaluate_every: int
    evaluation_episodes: int
    evaluation_mode: Literal["deterministic", "stochastic"]
    # Options of algorithms; `spacerl train --algorithm NAME --help-all` says what they mean.
    ascent_factor: float
    backtrack_factor: float
    backtrack_tries: int
    cost_margin: float
    derivative_gain: float
    divergence_gradient: Literal["full", "direct", "score"]
    divergence_threshold: float
    divergence_weight: float
    earned_trust: bool
    filter_costs: bool
    integral_gain: float
    margin_rate: float
    mean_cost_gradients: bool
    multiplier_rate: float
    pretrain_delta: float | Literal["delta"]
    pretrain_tolerance: float
    pretrain_updates: int
    projection: Literal["kl", "l2"]
    projection_kl_bound: float
    promise_rate: float
    proportional_gain: float
    pull_kl: float
    pull_kl_max: float
    seek_baseline: bool
    shrink_cost_gradients: bool
    threshold_constant: float
    threshold_rule: Literal["lemma", "fixed"]
    weight_decay: float
    weight_schedule: Literal["printed", "decay"]


class ConfigSettings(Settings, total=False):
    """Settings that `spacerl.Config` takes."""

    task: str
    algorithm: str
    baseline: str | PathLike[str] | Sequence[str | PathLike[str]]
    cost: str | Sequence[str] | Mapping[str, str]
