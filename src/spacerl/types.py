"""The records and contracts that pass between packages, and the errors every package may raise. No jax at run time.

Sign convention, everywhere: ``g`` and ``gain`` are ascent directions of reward; ``a`` and ``c`` are gradients of what
must stay *below* a threshold; ``b = J_D - h_D`` and ``d = J_C - h_C`` are positive when the threshold is exceeded.

Array shapes are given in the comments: T steps, N environments, B = T * N samples, K costs, P policy parameters.
"""

from __future__ import annotations

import abc
import dataclasses
import difflib
import math
import signal
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import jax

    Array = jax.Array
else:
    Array = Any  # run folders and reports read these names without importing jax


# Errors ---------------------------------------------------------------------------------------------------------------


class InputError(ValueError):
    """Something the user gave cannot be used; one sentence says what, what is allowed, and the nearest match."""


class RunStopped(RuntimeError):
    """A run cannot go on: numbers stopped being finite, or its environment failed. The last good state is saved."""


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C during a run, or another signal that stops it; the message says what is saved, and how to go on."""

    def __init__(self, message: str, number: int = signal.SIGINT):
        super().__init__(message)
        self.number = number


def unknown_name(kind: str, given: str, allowed: Collection[str]) -> InputError:
    small = {name.lower(): name for name in allowed}  # capitals make a word no other one
    near = difflib.get_close_matches(given.lower(), small, n=1, cutoff=0.4)
    hint = f"; did you mean '{small[near[0]]}'?" if near else ""
    return InputError(f"unknown {kind} '{given}': allowed are {', '.join(allowed)}{hint}")


# Environments ---------------------------------------------------------------------------------------------------------


class ActionSpace(NamedTuple):
    """What the policy must produce: ``size`` real numbers ("box"), one of ``size`` actions ("discrete"), or one action
    out of each of several lists ("multidiscrete"), whose lengths are ``nvec`` and sum to ``size``."""

    kind: str
    size: int
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    nvec: tuple[int, ...] = ()
    scaled: bool = False  # box: the policy acts in [-1, 1], which stands for [low, high]; others act in physical units

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one action."""
        return (self.size,) if self.kind == "box" else (len(self.nvec),) if self.nvec else ()

    @property
    def dtype(self) -> str:
        return "float32" if self.kind == "box" else "int32"


class ImageSpec(NamedTuple):
    """Where an image is in a flat observation, and by what its pixels are multiplied."""

    offset: int
    shape: tuple[int, int, int]  # height, width, channels
    scale: float


@dataclasses.dataclass(frozen=True)
class EnvSpec:
    """What an environment is, whoever steps it."""

    name: str
    obs_shape: tuple[int, ...]
    action: ActionSpace
    horizon: int  # steps after which an episode is cut
    cost_names: tuple[str, ...] = ("cost",)
    obs_dtype: str = "float32"
    images: tuple[ImageSpec, ...] = ()
    spaces: str = ""  # Gymnasium's spaces as text, where they say more than the shapes do (envs/host/description.py)

    def __post_init__(self) -> None:
        if not isinstance(self.action, ActionSpace):
            raise InputError(f"spec of '{self.name}': action is {type(self.action).__name__}, not an ActionSpace")
        if not self.cost_names or len(set(self.cost_names)) != len(self.cost_names):
            raise InputError(f"spec of '{self.name}': cost_names is {self.cost_names}: allowed is one name per cost")
        if self.horizon < 1:
            raise InputError(f"spec of '{self.name}': horizon is {self.horizon}: allowed is a whole number above 0")


class JaxEnv(abc.ABC):
    """One environment in JAX, unbatched and pure; a rollout vmaps it and compiles it into the update."""

    @property
    @abc.abstractmethod
    def spec(self) -> EnvSpec: ...

    @abc.abstractmethod
    def reset(self, key: Array) -> Any:
        """First state of an episode."""

    @abc.abstractmethod
    def observe(self, state: Any) -> Array:
        """Observation of a state, of the spec's shape."""

    @abc.abstractmethod
    def step(self, state: Any, action: Array) -> tuple[Any, Array, Array, Array]:
        """state, reward (), cost (K,), terminated (). Time limits are the rollout's: they truncate."""

    def diverged(self, state: Any) -> Array | None:
        """() whether the simulation broke down in the step that led here; None in an environment that cannot."""
        return None

    def close(self) -> None:  # noqa: B027  there need not be anything
        """Nothing to give back; a BatchEnv has processes or threads."""


class DrawableEnv(JaxEnv):
    """A robot on a plane whose episodes a report can draw."""

    @abc.abstractmethod
    def arena(self) -> dict[str, str | float]:
        """What a drawing of the task needs; `ARENAS` has the kinds that can be drawn and their numbers."""

    @abc.abstractmethod
    def position(self, state: Any) -> Array:
        """(2,) m."""

    @abc.abstractmethod
    def heading(self, state: Any) -> Array:
        """() rad."""

    def objects(self, state: Any) -> tuple[Array, Array] | None:
        """Where apples and bombs were placed, (objects, 2) m, apples first, and which are left; None without any."""
        return None

    @property
    def apples(self) -> int:
        """How many of the objects are apples."""
        return 0

    @property
    def sensor(self) -> tuple[float, float] | None:
        """Range in m and field of view in rad of what sees the objects."""
        return None


ARENAS = {"circle": ("radius", "x_limit"), "gather": ("half_width", "catch_range")}  # kind -> its numbers

IDLE, STEP, RESET = 0, 1, 2  # commands to a lane of a BatchEnv


class Tick(NamedTuple):
    """What one tick of a BatchEnv gives back, NumPy arrays over its N lanes; rows of idle lanes mean nothing."""

    obs: Any  # (N, ...) observation to act on next: after the step, or the first of a new episode
    next_obs: Any  # (N, ...) true observation after the step, before any reset
    reward: Any  # (N,)
    cost: Any  # (N, K)
    terminated: Any  # (N,) bool
    truncated: Any  # (N,) bool
    lost: Any  # (N,) bool: the lane's episode was lost to a fault (a dead worker); the lane is idle now


class Episode(NamedTuple):
    """One whole episode of T steps, NumPy arrays with time as their first axis."""

    obs: Any
    action: Any
    reward: Any
    cost: Any
    last_obs: Any  # (...) after the last step
    terminated: bool  # by the task; otherwise by a time limit


class BatchEnv(abc.ABC):
    """N environments side by side outside of JAX, one per lane: worker processes, a simulator with its own threads."""

    lanes: int
    plays_episodes = False  # whether it has `play`, so that a policy is sent to where its simulators are

    @property
    @abc.abstractmethod
    def spec(self) -> EnvSpec: ...

    @abc.abstractmethod
    def tick(self, command: Any, action: Any, last: Any, seed: Any) -> Tick:
        """Advance every lane by its command (N,): IDLE, STEP with its row of `action`, or RESET with its `seed`.

        `last` (N,) marks steps on which the time limit falls: they truncate unless the task terminates. Where an
        episode ends the next begins if `seed` (N,) int64 is not negative. Same commands and seeds, same numbers.
        """

    def play(self, act: Callable[[Any, Any], Any], seeds: Sequence[int], noises: Sequence[Any]) -> list[Episode | None]:
        """A whole episode of `act`(observations, noise) for each seed and its noise (T, ...); None for one lost."""
        raise NotImplementedError

    def counts(self) -> dict[str, int]:
        """What happened since the last call and belongs into the metrics: restarted workers, diverged simulations."""
        return {}

    def as_given(self, obs: Any) -> Any:
        """Observations (B, *obs_shape) as the environment itself gives them, for policies of other libraries."""
        return obs

    def report_faults_to(self, report: Callable[[str], None]) -> None:
        """Send what is known about a lost worker to `report` instead of the screen."""
        return

    def render(self) -> Any:
        """An image of the first lane; None where the environment draws none."""
        return None

    def close(self) -> None:
        return


Env = JaxEnv | BatchEnv


# Policies -------------------------------------------------------------------------------------------------------------


class Policy(Protocol):
    """Observations (..., *obs_shape) -> a distribution with leaves (..., A). A baseline is a policy in that role.

    One that compiles is a pure function of its parameters and the observations; two of equal `architecture` differ in
    their parameters alone. One that does not is called outside of compiled programs, with NumPy arrays."""

    @property
    def name(self) -> str: ...

    @property
    def info(self) -> dict[str, Any]: ...

    @property
    def compiles(self) -> bool: ...

    @property
    def parameters(self) -> Any: ...

    @property
    def architecture(self) -> Hashable: ...

    def apply(self, parameters: Any, obs: Any) -> Any: ...

    def __call__(self, obs: Any) -> Any:
        """`apply` with its own parameters."""


class BaselineMeasurement(NamedTuple):
    """What was measured of a baseline before training; NaN where nothing is known."""

    J_R: float | Array = math.nan
    excess: float | Array = math.nan  # by which part of h_C its cost exceeds it
    begun: bool = False  # whether the run begins at it
    better: bool = True  # whether it earns more than a fresh policy by more than chance


UNMEASURED = BaselineMeasurement()


# From a rollout to a step ---------------------------------------------------------------------------------------------


class Rollout(NamedTuple):
    """Experience of the acting policy, time-major. Who stepped the environments is invisible downstream."""

    obs: Array  # (T, N, ...)
    action: Array  # (T, N, A) or (T, N)
    log_prob: Any  # (T, N) under the acting policy; None where the update is to compute it
    dist: Any  # distribution of the acting policy, leaves (T, N, A); None likewise
    reward: Array  # (T, N)
    cost: Array  # (T, N, K)
    next_obs: Array  # (T, N, ...) true observation after the step, before any reset
    terminated: Array  # (T, N) the task ended the episode: nothing follows
    truncated: Array  # (T, N) a time limit ended it: something would have followed
    valid: Array  # (T, N) False for padding after an episode that ended before the last row
    diverged: Any = None  # (T, N) steps whose simulation broke down; None where the environment cannot tell


class Batch(NamedTuple):
    """A rollout with its advantages and episode sums, in the units the step needs, flattened to B samples."""

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
    J_C_error: Array  # (K,) standard error of J_C over the batch's episodes; NaN where one episode says nothing of it
    J_C_least: Array  # (K,) least that J_C can be: zero, unless costs below zero were seen
    discounting: Array  # (B,) discount of the reward to the power of the step within the episode: its weight in J_R
    contrast: Array  # (B,) factors on `weight` that make of a mean a sample of its error, see `contrast_of_halves`
    episode_length: Array  # () mean number of steps
    episode_return: Array  # () mean undiscounted episode reward


class StepInputs(NamedTuple):
    """All a policy step may look at. g, a, c are gradients of per-episode sums; b and d are in the same units.

    Two gradients of reward, which differ where its discount is below 1. `gain` is the gradient of J_R: every step of
    an episode has the weight it has in J_R, discount^t. What a step says it will change J_R by is gain.s. `g` is where
    steps go: every step of an episode counts alike, as everywhere in the field, because J_R forgets all but the first
    steps of a long episode; times the mean of discount^t, so that it is of the size of `gain` and may be added to a, c.

    What a step does not use the compiler leaves out. First-order methods descend on a loss of their own: `batch` etc.
    """

    g: Array  # (P,) direction of reward
    gain: Array  # (P,) gradient of J_R; g where nothing is discounted
    a: Array  # (P,) gradient of J_D (zero without a baseline)
    b: Array  # () J_D - h_D
    c: Array  # (K, P) gradients of J_C
    d: Array  # (K,) J_C - h_C
    solve: Callable[[Array], Array]  # (M, P) -> (M, P), applies F^-1 to each row
    fisher: Callable[[Array], Array]  # (M, P) -> (M, P), applies F to each row
    delta: Array  # () trust-region radius
    d_error: Array | float = 0.0  # (K,) standard error of d over the batch's episodes; NaN where it is unknown
    d_least: Array | float = -math.inf  # (K,) least that d can be
    h_C: Array | float = 0.0  # (K,) limits
    tolerance: Array | float = 0.0  # above a limit, up to which it counts as kept
    J_R: Array | float = math.nan  # () of the batch
    c_noise: Array | float = 0.0  # (K, P) a sample of the error of each c, for rules that need it
    g_noise: Array | float = 0.0  # (P,) and that of g, from the same episodes
    batch: Any = None  # Batch
    policy: Any = None  # (step (P,), rows (n,)) -> distribution at theta + step on those rows of the batch
    key: Any = None  # for steps that draw random numbers


class Trial(NamedTuple):
    """A candidate step judged on the batch: changes of the surrogates, and the KL it spends."""

    reward: Array  # () change of the reward surrogate, per episode
    cost: Array  # (K,) change of the cost surrogates, per episode
    divergence: Array  # () change of the divergence surrogate, per episode
    kl: Array  # () mean KL(old || new)


class Proposal(NamedTuple):
    """What an algorithm's step proposes: a change of the parameters and what `accept` must know about it."""

    step: Array  # (P,)
    recovering: Array | bool = False  # () True where the step repairs a violation and need not improve the objective
    info: dict[str, Array] = {}  # noqa: RUF012  metrics of the step; never written to
    memory: Any = None  # state with what the step wants `control` to know; None: the state it was given


class Measured(NamedTuple):
    """What a batch says about the policy that collected it, for an algorithm's state."""

    J_R: Array  # ()
    J_C: Array  # (K,)
    h_C: Array  # (K,)
    J_D: Array  # () NaN without a baseline
    scale: Array | float = 1.0  # () share of the newest step that was taken; NaN where the policy became another one


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
    gradients: Any = ()  # of the costs, as means over batches, where the algorithm needs those


Metrics = dict[str, Array]
Row = dict[str, float | int]  # the metrics of one update as a file or a display takes them
