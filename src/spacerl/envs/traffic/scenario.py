"""What both traffic tasks share: an episode in SUMO, vehicle types, what is seen of a moment."""

from __future__ import annotations

import abc
import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from spacerl.envs.to_gymnasium import Step
from spacerl.envs.traffic.networks import PlainNetwork, checked_network, document, element, network_file
from spacerl.envs.traffic.simulation import Simulation
from spacerl.runs.fields import Range, checked, names_of
from spacerl.types import Episode, InputError, unknown_name

Action = Callable[[int], float]  # by place in it: what is not asked for is not computed

# A lane passes less than one vehicle a second: cars are 5 m long and keep a gap of a second.
Inflow = Annotated[float, Range(lambda x: 0 < x <= 3600, "a number above 0 and at most 3600, one vehicle a second")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrafficSettings:
    """Settings of both tasks. Each is an argument of the Gymnasium environment and can be given with --env-args."""

    network: str = ""
    """Road network to drive on instead of the task's own: a file made by SUMO's netconvert with the same edges."""


class Light(NamedTuple):
    """The light of one lane."""

    place: tuple[float, float]  # m, the stop line
    angle: float  # rad, where the lane leads
    state: str  # r, y or G


class Moment(NamedTuple):
    """What can be drawn of one moment of a simulation."""

    time: float  # s since the episode began
    names: tuple[str, ...]  # of the vehicles
    position: np.ndarray  # (vehicles, 2) m, front bumpers
    angle: np.ndarray  # (vehicles,) rad, counter-clockwise from +x
    speed: np.ndarray  # (vehicles,) m/s
    autonomous: np.ndarray  # (vehicles,) bool
    lights: tuple[Light, ...]
    red_time: np.ndarray  # (lights,) s that the light has been red; of no length without lights
    along: np.ndarray  # (vehicles,) m along the road that a space-time diagram shows; NaN for those not on it
    queues: np.ndarray  # (approaches,) vehicles that stand or crawl


class Player(Protocol):
    """A policy that can play whole episodes."""

    def along(self, noise: np.ndarray, actions: np.ndarray) -> Callable[[int, np.ndarray], np.ndarray]:
        """A function of a step and its observation that fills in and returns the step's row of `actions`."""
        ...


class Outcome(NamedTuple):
    """What a step came to."""

    reward: float
    cost: float
    crashed: bool


class Vehicles(NamedTuple):
    """All vehicles on the road, as plain lists: at fifty vehicles they are quicker than arrays."""

    names: tuple[str, ...]
    lane: list[str]
    position: list[float]  # m on the lane
    speed: list[float]  # m/s


def read_settings(kind: type, given: Mapping[str, Any]) -> Any:
    """Settings of a task by name, checked."""
    allowed = names_of(kind)
    for name in given:
        if name not in allowed:
            raise unknown_name("setting of this task", name, allowed)
    return kind(**checked(kind, given))


class Scenario(abc.ABC):
    """One episode after the other of a traffic task, simulated in this process."""

    name: ClassVar[str]
    settings_type: ClassVar[type]
    obs_size: int
    action_low: float
    action_high: float
    action_size: int
    step_length: float  # s
    slow: ClassVar[float] = 5.0  # m/s, below which a vehicle is taken to queue in drawings

    def __init__(self, settings: Any):
        self.settings = settings
        self._simulation: Simulation | None = None
        self._scratch: Any = None
        self._roads: tuple[tuple[np.ndarray, float], ...] = ()

    # what a task says about itself

    @abc.abstractmethod
    def plain_network(self) -> PlainNetwork: ...

    @abc.abstractmethod
    def demand(self) -> list[str]:
        """Elements of SUMO's route file: vehicle types, routes, flows, the vehicles that are there at first."""

    @abc.abstractmethod
    def network_needs(self) -> tuple[list[str], list[str]]:
        """Edges and traffic lights that a network of the user's must have."""

    @abc.abstractmethod
    def restart(self, seed: int) -> None:
        """An episode as it is before its first action."""

    @abc.abstractmethod
    def command(self, action: Action) -> None:
        """Tell lights or vehicles what is to be done."""

    @abc.abstractmethod
    def proceed(self) -> Outcome:
        """Simulate one step."""

    @abc.abstractmethod
    def observe(self, obs: np.ndarray) -> None:
        """Write what is observed into zeros (obs_size,)."""

    @abc.abstractmethod
    def moment(self) -> Moment: ...

    def begin(self, seed: int) -> np.ndarray:
        """Start an episode; its first observation."""
        self.restart(seed)
        return self._observation()

    def advance(self, action: np.ndarray) -> Step:
        low, high, given = self.action_low, self.action_high, action.tolist()
        self.command(lambda i: min(max(given[i], low), high))
        outcome = self.proceed()
        return Step(self._observation(), *outcome)

    def _observation(self) -> np.ndarray:
        obs = np.zeros(self.obs_size, np.float32)
        self.observe(obs)
        return obs

    def play(self, policy: Player, seed: int, noise: np.ndarray) -> Episode:
        """An episode of at most as many steps as there are rows of noise, by a policy that acts in [-1, 1].

        What it does is what `begin` and `advance` do; the time of a step is that of SUMO as far as Python allows.
        """
        length = len(noise)
        obs, actions = (
            np.zeros((length + 1, self.obs_size), np.float32),
            np.zeros((length, self.action_size), np.float32),
        )
        rewards, costs, crashed, steps = [], [], False, 0
        act, command, proceed, observe = policy.along(noise, actions), self.command, self.proceed, self.observe
        low, half = self.action_low, 0.5 * (self.action_high - self.action_low)
        numbers: list[float] = []

        def meant(i: int) -> float:
            number = numbers[i]
            return low + (1.0 + (-1.0 if number < -1.0 else 1.0 if number > 1.0 else number)) * half

        self.restart(seed)
        observe(obs[0])
        while steps < length and not crashed:
            numbers = act(steps, obs[steps]).tolist()
            command(meant)
            reward, cost, crashed = proceed()
            rewards.append(reward)
            costs.append(cost)
            steps += 1
            observe(obs[steps])
        earned, cost = np.array(rewards, np.float32), np.array(costs, np.float32)[:, None]
        return Episode(obs[:steps], actions[:steps], earned, cost, obs[steps], crashed)

    # what they share

    def prepare(self) -> Path:
        """The network file: checked where it is the user's, built where it is not there yet."""
        own = self.settings.network
        return checked_network(own, *self.network_needs()) if own else network_file(self.plain_network())

    def open(self, window: bool = False) -> None:
        """Take the simulation of this process; an error where somebody else has it."""
        if self._simulation is not None:
            return
        network = self.prepare()
        self._scratch = tempfile.TemporaryDirectory(prefix="spacerl-")
        routes = Path(self._scratch.name) / "routes.rou.xml"
        routes.write_text(document("routes", self.demand()))
        arguments = ["--net-file", str(network), "--route-files", str(routes), "--begin", "0"]
        arguments += ["--step-length", f"{self.step_length:g}", "--time-to-teleport", "-1"]
        arguments += ["--collision.check-junctions", "true"]
        arguments += ["--no-step-log", "true", "--no-warnings", "true", "--duration-log.disable", "true"]
        try:
            self._simulation = Simulation(arguments, window)
        except BaseException:
            self.close()
            raise

    @property
    def api(self) -> Any:
        return self.simulation.api

    @property
    def simulation(self) -> Simulation:
        if self._simulation is None:
            self.open()
        assert self._simulation is not None
        return self._simulation

    def roads(self) -> tuple[tuple[np.ndarray, float], ...]:
        """Every lane as a line (points, 2) and its width, m."""
        if not self._roads:
            lane = self.api.lane
            self._roads = tuple((np.array(lane.getShape(name)), lane.getWidth(name)) for name in lane.getIDList())
        return self._roads

    def vehicles(self) -> Vehicles:
        vehicle = self.api.vehicle
        names = vehicle.getIDList()
        read = (vehicle.getLaneID, vehicle.getLanePosition, vehicle.getSpeed)
        return Vehicles(names, *[list(map(each, names)) for each in read])

    def instruct(self, speed_mode: int, lane_change_mode: int | None = None) -> None:
        """Tell vehicles that just entered how to drive, as SUMO's modes have it."""
        vehicle = self.api.vehicle
        for name in self.api.simulation.getDepartedIDList():
            vehicle.setSpeedMode(name, speed_mode)
            if lane_change_mode is not None:
                vehicle.setLaneChangeMode(name, lane_change_mode)

    def crashed(self) -> bool:
        """Whether vehicles collided in the last step: SUMO then takes them off the road, which it calls a teleport."""
        return self.api.simulation.getStartingTeleportNumber() > 0

    def places(self, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Front bumpers (vehicles, 2) m and directions (vehicles,) rad."""
        vehicle = self.api.vehicle
        position = np.array([vehicle.getPosition(v) for v in names], float).reshape(-1, 2)
        heading = np.array([vehicle.getAngle(v) for v in names], float)  # degrees clockwise from north
        return position, np.radians(90.0 - heading)

    def close(self) -> None:
        if self._simulation is not None:
            self._simulation.close()
            self._simulation = None
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None


def vehicle_type(name: str, accel: float, decel: float) -> str:
    """Flow's defaults of its version 0.4: IDM with a headway of a second, speeds that vary by a tenth."""
    return element(
        "vType",
        id=name,
        carFollowModel="IDM",
        accel=accel,
        decel=decel,
        tau=1.0,
        minGap=2.5,
        maxSpeed=30.0,
        speedFactor=1.0,
        speedDev=0.1,
        impatience=0.5,
        laneChangeModel="LC2013",
        lcStrategic=1.0,
        lcCooperative=1.0,
        lcSpeedGain=1.0,
        lcKeepRight=1.0,
    )


def finite_action(action: Any, size: int) -> np.ndarray:
    given = np.asarray(action, np.float64)
    if given.shape != (size,) or not np.isfinite(given).all():
        raise InputError(f"an action is {size} finite numbers, and {given!r} was given")
    return given
