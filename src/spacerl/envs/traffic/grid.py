"""Lights of a road grid: switch them so that vehicles are fast, and no light is red for more than 7 seconds.

Geometry, demand and observations are those of Flow's partially observed traffic-light grid, as its version 0.4 has
them, which is the last with the runners that the paper's authors used. What the paper leaves open:

- *Whose red time counts.* One direction of a crossing is always red, so "light i is red" needs a choice. `red_counts`
  is "either" by default: the time since the direction that is red now turned red, which no traffic can escape by being
  on the other road. "north-south" counts that direction alone.
- *Yellow is not red.* A direction is red from the end of its yellow to its next green: after g seconds of green and
  `switch_time` of yellow of the other one it has been red for g + `switch_time`.
- *What an episode begins with.* Flow keeps timers and directions of the episode before; here every episode begins with
  green from north to south, timers at zero.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np

from spacerl.envs.traffic.layout import INNER, SPEED_LIMIT, Layout
from spacerl.envs.traffic.networks import PlainNetwork, element
from spacerl.envs.traffic.scenario import (
    Action,
    Inflow,
    Light,
    Moment,
    Outcome,
    Scenario,
    TrafficSettings,
    Vehicles,
    vehicle_type,
)
from spacerl.runs.fields import NotNegative, Positive, Range

OBSERVED = 2  # vehicles nearest to the stop line, on each approach
SPEED_MODE = 25  # of SUMO: keep right of way and stop at red
GREEN, YELLOW = ("GrGr", "rGrG"), ("ryry", "yryr")  # by direction: what it has, and what leads to it
Size = Annotated[int, Range(lambda x: 1 <= x <= 10, "a whole number from 1 to 10")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridSettings(TrafficSettings):
    """Settings of the grid; those that differ between versions of Flow have the values of 0.4."""

    rows: Size = 2
    """Crossings from south to north."""
    columns: Size = 2
    """Crossings from west to east."""
    inflow: Inflow = 300.0
    """Vehicles per hour on each entry."""
    switch_time: Positive = 3.0
    """Seconds of yellow; 2 until Flow 0.3."""
    red_limit: Positive = 7.0
    """Seconds of red from which on a light costs."""
    red_counts: Literal["either", "north-south"] = "either"
    """Directions whose red time counts."""
    target_speed: Positive = 50.0
    """m/s that the reward compares with."""
    accel: Positive = 2.6
    """m/s2 of vehicles; 1.0 until Flow 0.3."""
    decel: Positive = 7.5
    """m/s2 of vehicles; 1.5 until Flow 0.3."""
    depart_speed: Annotated[float | Literal["max"], Range(lambda x: x >= 0, "a number that is not negative")] = 30.0
    """m/s at which vehicles enter; max until Flow 0.3."""
    junction_radius: NotNegative = 6.2
    """m; 3.1 in Flow 0.3."""


class _Lane(NamedTuple):
    """One lane, and where it is in what is observed."""

    density: int
    slot: int  # of its vehicle nearest to the stop line; negative where there is none
    length: float  # m
    number: float  # of its edge, as it is observed
    per_vehicle: float  # density


class Grid(Scenario):
    """The grid in this process. An action above zero asks its light to switch; asking during yellow changes nothing."""

    name: ClassVar[str] = "grid"
    settings_type: ClassVar[type] = GridSettings
    step_length = 1.0
    action_low, action_high = -1.0, 1.0

    def __init__(self, settings: GridSettings):
        super().__init__(settings)
        self.settings: GridSettings = settings
        self.layout = Layout(settings.rows, settings.columns)
        self.crossings = self.layout.crossings
        count = len(self.crossings)
        self.action_size = count
        self.obs_size = 3 * 4 * OBSERVED * count + 2 * len(self.layout.edges) + 3 * count
        # Where the vehicles of an edge appear among those nearest to a stop line.
        self._approach = {name: i for i, name in enumerate(sum((c.approaches for c in self.crossings), ()))}
        self._lane = self._places()
        self._seen = Vehicles((), [], [], [])
        self._wanted = [settings.target_speed] * 64
        self._reset_lights()

    def _places(self) -> dict[str, _Lane]:
        """Of every lane by SUMO's name for it."""
        first, edges, places = 3 * OBSERVED * len(self._approach), self.layout.edges, {}
        for i, (name, length) in enumerate(zip(edges, self.layout.lengths, strict=True)):
            slot = OBSERVED * self._approach[name] if name in self._approach else -1
            number = self.layout.number(name) / (self.layout.numbered - 1)
            places[f"{name}_0"] = _Lane(first + i, slot, length, number, 5.0 / length)
        return places

    def _reset_lights(self) -> None:
        # Lists and not arrays: for so few numbers they are several times quicker.
        count = len(self.crossings)
        self.timer = [0.0] * count
        self.direction = [0] * count  # 0: north and south have green, or are about to
        self.yellow = [False] * count
        self.red = [[0.0, 0.0] for _ in range(count)]  # s that north-south and east-west have been red

    # the road and who drives on it

    def plain_network(self) -> PlainNetwork:
        return self.layout.plain_network(self.settings.junction_radius)

    def network_needs(self) -> tuple[list[str], list[str]]:
        return list(self.layout.edges), [crossing.name for crossing in self.crossings]

    def demand(self) -> list[str]:
        settings = self.settings
        elements = [vehicle_type("human", settings.accel, settings.decel)]
        routes = self.layout.routes()
        elements += [element("route", id=name, edges=" ".join(edges)) for name, edges in routes.items()]
        elements += [
            element("vehicle", id=f"first.{name}", type="human", route=name, depart=0, departPos=6.0, departSpeed=0)
            for name in routes
        ]
        elements += [
            element(
                "flow",
                id=f"flow.{name}",
                type="human",
                route=name,
                begin=1,
                end=86400,
                vehsPerHour=settings.inflow,
                departLane="free",
                departSpeed=settings.depart_speed,
            )
            for name in routes
        ]
        return elements

    # an episode

    def restart(self, seed: int) -> None:
        self.simulation.begin(seed)
        self._reset_lights()
        for crossing in self.crossings:
            self.api.trafficlight.setRedYellowGreenState(crossing.name, GREEN[0])
        self._simulate()

    def command(self, action: Action) -> None:
        self._switch([action(i) > 0.0 for i in range(len(self.crossings))])

    def proceed(self) -> Outcome:
        self._simulate()
        crashed = self.crashed()
        return Outcome(0.0 if crashed else self._reward(self._seen.speed), self._cost(), crashed)

    def _simulate(self) -> None:
        self.simulation.step()
        self.instruct(SPEED_MODE)
        self._seen = self.vehicles()

    def _switch(self, asked: list[bool]) -> None:
        """Lights in yellow count on; the others toggle where they are asked to."""
        for i, crossing in enumerate(self.crossings):
            state = None
            if self.yellow[i]:
                self.timer[i] += self.step_length
                if self.timer[i] >= self.settings.switch_time:
                    self.yellow[i] = False
                    state = GREEN[self.direction[i]]
            elif asked[i]:
                self.direction[i] = 1 - self.direction[i]
                self.yellow[i], self.timer[i] = True, 0.0
                state = YELLOW[self.direction[i]]
            if state is not None:
                self.api.trafficlight.setRedYellowGreenState(crossing.name, state)
            # Of a light in yellow the direction is the one to come, which is red still.
            waiting = self.direction[i] if self.yellow[i] else 1 - self.direction[i]
            red = self.red[i]
            red[waiting] += self.step_length
            red[1 - waiting] = 0.0

    def _red_times(self) -> list[float]:
        """s that each light has been red, of the directions that count."""
        north_south = self.settings.red_counts == "north-south"
        return [red[0] if north_south else max(red) for red in self.red]

    @property
    def red_time(self) -> np.ndarray:
        """(lights,) s that each has been red, of the directions that count."""
        return np.array(self._red_times())

    def _cost(self) -> float:
        limit = self.settings.red_limit
        return float(sum([seconds > limit for seconds in self._red_times()]))

    def _reward(self, speeds: list[float]) -> float:
        """How near all vehicles are to the speed wanted: 1 where all have it, 0 where all stand or none is there."""
        if not speeds:
            return 0.0
        while len(speeds) > len(self._wanted):
            self._wanted += self._wanted
        worst = self.settings.target_speed * math.sqrt(len(speeds))
        return max(worst - math.dist(speeds, self._wanted[: len(speeds)]), 0.0) / worst

    def observe(self, obs: np.ndarray) -> None:
        """Speeds, distances and edge numbers of the vehicles nearest to each stop line; density and mean speed of every
        edge; timer, direction and yellow of every light."""
        out: Any = obs.data  # quicker for single numbers than the array
        edges, slots, lane_of = len(self.layout.edges), OBSERVED * len(self._approach), self._lane.get
        for name, vehicles in self._by_lane().items():
            lane = lane_of(name)
            if lane is None:  # inside a crossing
                continue
            density, slot, length, number, per_vehicle = lane
            count, total = len(vehicles), 0.0
            for _, speed in vehicles:
                total += speed
            out[density] = count * per_vehicle
            out[density + edges] = total / (SPEED_LIMIT * count)
            if slot < 0:
                continue
            if count > 1:
                vehicles.sort(reverse=True)
            for position, speed in vehicles if count <= OBSERVED else vehicles[:OBSERVED]:
                out[slot] = speed / SPEED_LIMIT
                out[slots + slot] = (length - position) / INNER
                out[2 * slots + slot] = number
                slot += 1
        obs[3 * slots + 2 * edges :] = self.timer + self.direction + self.yellow

    def _by_lane(self) -> dict[str, list[tuple[float, float]]]:
        """Place, m, and speed, m/s, of all vehicles."""
        lanes: dict[str, list[tuple[float, float]]] = {}
        seen = self._seen
        for name, vehicle in zip(seen.lane, zip(seen.position, seen.speed, strict=True), strict=True):
            if name in lanes:
                lanes[name].append(vehicle)
            else:
                lanes[name] = [vehicle]
        return lanes

    # drawings

    def moment(self) -> Moment:
        seen = self._seen
        position, angle = self.places(seen.names)
        speed = np.array(seen.speed)
        return Moment(
            time=self.api.simulation.getTime(),
            names=seen.names,
            position=position,
            angle=angle,
            speed=speed,
            autonomous=np.zeros(len(speed), bool),
            lights=self._stop_lines(),
            red_time=self.red_time,
            along=self._along(seen),
            queues=self._queues(seen),
        )

    def _stop_lines(self) -> tuple[Light, ...]:
        light, lane = self.api.trafficlight, self.api.lane
        lines = []
        for crossing in self.crossings:
            state = light.getRedYellowGreenState(crossing.name)
            for controlled, letter in zip(light.getControlledLanes(crossing.name), state, strict=True):
                (x, y), end = lane.getShape(controlled)[-2:]
                lines.append(Light(end, math.atan2(end[1] - y, end[0] - x), letter))
        return tuple(lines)

    def _along(self, seen: Vehicles) -> np.ndarray:
        """m along the southernmost road to the east."""
        starts, begin = {}, 0.0
        for name in self.layout.routes()["bot0_0"]:
            starts[f"{name}_0"] = begin
            begin += self.layout.length(name)
        return np.array(
            [starts.get(lane, math.nan) + at for lane, at in zip(seen.lane, seen.position, strict=True)], float
        )

    def _queues(self, seen: Vehicles) -> np.ndarray:
        """(approaches,) vehicles slower than 5 m/s on every edge that leads to a light."""
        queues = np.zeros(len(self._approach))
        for name, speed in zip(seen.lane, seen.speed, strict=True):
            lane = self._lane.get(name)
            if lane is not None and lane.slot >= 0 and speed < self.slow:
                queues[lane.slot // OBSERVED] += 1
        return queues
