"""What flows between the rooms of the house: one record per hand-over.

Sign convention, everywhere: ``g`` is the ascent direction of reward; ``a`` and ``c`` are gradients of what must stay
*below* a threshold; ``b = J_D - h_D`` and ``d = J_C - h_C`` are positive when the threshold is exceeded.

Array shapes are given in the comments: T steps, N environments, B = T * N samples, K costs, P policy parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import jax

    Array = jax.Array
else:
    Array = Any  # the report room reads these names without importing jax


class ActionSpace(NamedTuple):
    """What the policy must produce: ``size`` real numbers ("box"), one of ``size`` choices ("discrete"), or one choice
    out of each of several lists ("multidiscrete"), whose lengths are ``choices`` and sum to ``size``."""

    kind: str
    size: int
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    choices: tuple[int, ...] = ()
    scaled: bool = False  # box: the policy acts in [-1, 1], which stands for [low, high]; others act in physical units

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one action."""
        return (self.size,) if self.kind == "box" else (len(self.choices),) if self.choices else ()

    @property
    def dtype(self) -> str:
        return "float32" if self.kind == "box" else "int32"


class Env(Protocol):
    """One native environment, unbatched and pure; the collector vmaps it."""

    @property
    def name(self) -> str: ...

    @property
    def obs_shape(self) -> tuple[int, ...]: ...

    @property
    def action_space(self) -> ActionSpace: ...

    @property
    def horizon(self) -> int: ...

    @property
    def cost_names(self) -> tuple[str, ...]: ...

    def reset(self, key: Array) -> Any: ...

    def observe(self, state: Any) -> Array: ...

    def step(self, state: Any, action: Array) -> tuple[Any, Array, Array, Array]:
        """state, reward (), cost (K,), terminated (). Time limits are the collector's: they truncate."""
        ...


IDLE, STEP, RESET = 0, 1, 2  # commands to a lane of a HostEnv


class Tick(NamedTuple):
    """What one tick of a HostEnv gives back, NumPy arrays over its N lanes; rows of idle lanes mean nothing."""

    obs: Any  # (N, ...) observation to act on next: after the step, or the first of a new episode
    next_obs: Any  # (N, ...) true observation after the step, before any reset
    reward: Any  # (N,)
    cost: Any  # (N, K)
    terminated: Any  # (N,) bool
    truncated: Any  # (N,) bool
    lost: Any  # (N,) bool: the lane's episode was lost to a fault (a dead worker); the lane is idle now


class HostEnv(Protocol):
    """N environments side by side outside of JAX: worker processes, or a simulator with threads of its own."""

    name: str
    obs_shape: tuple[int, ...]
    obs_dtype: Any
    action_space: ActionSpace
    horizon: int
    cost_names: tuple[str, ...]
    lanes: int

    def tick(self, command: Any, action: Any, last: Any, seed: Any) -> Tick:
        """Advance every lane by its command (N,): IDLE, STEP with its row of `action`, or RESET with its `seed`.

        `last` (N,) marks a step on which the time limit falls: it truncates unless the task terminates. A step that
        ends an episode begins a new one at once where `seed` (N,) int64 is not negative, and leaves the lane idle
        where it is. The same commands with the same seeds give the same numbers.
        """
        ...

    def counts(self) -> dict[str, int]:
        """What happened since the last call and belongs into the metrics: restarted workers, diverged simulations."""
        ...

    def close(self) -> None: ...


class Rollout(NamedTuple):
    """Experience of the acting policy, time-major. Who stepped the environments is invisible downstream."""

    obs: Array  # (T, N, ...)
    action: Array  # (T, N, A) or (T, N)
    log_prob: Array  # (T, N) under the acting policy
    dist: Any  # distribution of the acting policy, leaves (T, N, A)
    reward: Array  # (T, N)
    cost: Array  # (T, N, K)
    next_obs: Array  # (T, N, ...) true observation after the step, before any reset
    terminated: Array  # (T, N) the task ended the episode: nothing follows
    truncated: Array  # (T, N) a time limit ended it: something would have followed
    valid: Array  # (T, N) False for padding after an episode that ended before the last row
    diverged: Any = None  # (T, N) steps whose simulation broke down; None where the environment cannot tell


class Batch(NamedTuple):
    """A rollout digested: advantages and episode sums in the units the step needs."""

    obs: Array  # (B, ...) as the environment gives them: what critics see
    inputs: Array  # (B, ...) the same, normalised where the run normalises: what the policy sees
    action: Array  # (B, A) or (B,)
    log_prob: Array  # (B,)
    dist: Any  # leaves (B, A)
    baseline_dist: Any  # leaves (B, A), or None without a baseline
    weight: Array  # (B,) sums to one over valid samples, zero on padding
    step_index: Array  # (B,) step within the episode
    reward_advantage: Array  # (B,) centred
    cost_advantage: Array  # (B, K) centred, never rescaled
    divergence_advantage: Array  # (B,) centred, never rescaled
    targets: Array  # (S, B) critic targets: reward, K costs, divergence
    values: Array  # (S, B) the critics' predictions before their fit
    J_R: Array  # () mean discounted episode reward
    J_C: Array  # (K,) mean undiscounted episode cost
    J_D: Array  # () mean undiscounted episode divergence, NaN without a baseline
    J_C_error: Array  # (K,) standard error of J_C over the batch's episodes
    episode_length: Array  # () mean number of steps


class StepInputs(NamedTuple):
    """All a policy step may look at. g, a, c are gradients of per-episode sums; b and d are in the same units."""

    g: Array  # (P,) gradient of J_R
    a: Array  # (P,) gradient of J_D (zero without a baseline)
    b: Array  # () J_D - h_D
    c: Array  # (K, P) gradients of J_C
    d: Array  # (K,) J_C - h_C
    solve: Callable[[Array], Array]  # (M, P) -> (M, P), applies F^-1 to each row
    fisher: Callable[[Array], Array]  # (M, P) -> (M, P), applies F to each row
    delta: Array  # () trust-region radius
    d_error: Array | float = 0.0  # (K,) standard error of d over the batch's episodes


class Evaluation(NamedTuple):
    """A candidate policy judged on the batch: changes of the surrogates, and the KL it spends."""

    reward: Array  # () change of the reward surrogate, per episode
    cost: Array  # (K,) change of the cost surrogates, per episode
    divergence: Array  # () change of the divergence surrogate, per episode
    kl: Array  # () mean KL(old || new)


class Proposal(NamedTuple):
    """What an algorithm's step proposes: a change of the parameters and what `accept` must know about it."""

    step: Array  # (P,)
    recovering: Array  # () True where the step repairs a violation and need not improve the objective
    info: dict[str, Array]  # metrics of the step
    memory: Any = None  # state with what the step wants `control` to know; None: the state it was given


class Needs(NamedTuple):
    cost: bool
    baseline: bool
    many_costs: bool = True


class Worth(NamedTuple):
    """What was measured of a baseline before training; NaN where nothing is known."""

    J_R: float | Array = math.nan
    excess: float | Array = math.nan  # by which part of h_C its cost exceeds it


UNKNOWN = Worth()


class Algorithm(NamedTuple):
    """A policy-update rule as a value. All functions are pure; the state is a NamedTuple of arrays."""

    needs: Needs
    init: Callable[[int, Worth], Any]  # number of costs, what the baseline is worth -> state
    step: Callable[[StepInputs, Any], Proposal]
    accept: Callable[[Callable[[Array], Evaluation], StepInputs, Proposal, Any], Array]  # -> scale of the step, ()
    control: Callable[[Any, Array, Array, Array, Array], Any]  # state, J_R, J_C, h_C, J_D -> next state
    threshold: Callable[[Any], Array]  # state -> h_D in force, NaN where there is none
    weight: Callable[[Any], Array]  # state -> weight of the divergence in the objective, NaN where there is none


class TrainState(NamedTuple):
    """Everything a run is; a checkpoint is exactly this, so a resumed run equals an uninterrupted one."""

    theta: Array  # (P,) policy parameters
    critics: Any
    algorithm: Any
    key: Array  # raw key data, uint32
    update: Array  # () updates done
    env_steps: Array  # () uint32, steps taken
    cumulative_violation: Array  # ()
    normaliser: Any = ()  # statistics of the observations where the run normalises them


Metrics = dict[str, Array]
