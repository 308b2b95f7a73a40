"""A road of four lanes that narrows to two and to one: slow autonomous vehicles down in time, so that many get through
and no human driver crawls below 5 m/s for more than 10 seconds.

Geometry, demand, observations and actions are those of Flow's bottleneck0, as its version 0.4 has them, which is the
last with the runners that the paper's authors used. What the paper leaves open:

- *The missing 3600.* The paper writes the reward as outflow / (lanes * 500) and leaves out that Flow's outflow is in
  vehicles per hour. `outflow_per` is "hour" as in Flow: 0.36 for every vehicle that left within the last 5 s. "second"
  is the formula as printed, smaller by 3600.
- *Windows.* The paper says that the outflow observed is that of the last 5 s; Flow's code has 10 s, and so do we.
- *"Mean positions".* The paper lists them among what is observed; Flow's code has numbers of vehicles, and so do we.
- *Who is slow.* A human driver costs in every step in which the speed has been below 5 m/s for more than 10 s. Steps
  before the first action count for the 10 s, but cost nothing.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from spacerl.envs.traffic.networks import PlainNetwork, element
from spacerl.envs.traffic.scenario import Action, Moment, Outcome, Scenario, TrafficSettings, Vehicles, vehicle_type
from spacerl.runs.fields import Count, Fraction, Positive, Range

EDGES = ("1", "2", "3", "4", "5")
NODES = (0.0, 100.0, 410.0, 550.0, 830.0, 985.0)  # m, where edges begin and end
LENGTHS: dict[str, float] = dict(zip(EDGES, (100.0, 310.0, 140.0, 280.0, 155.0), strict=True))
LANES: dict[str, int] = dict(zip(EDGES, (4, 4, 4, 2, 1), strict=True))
ZIPPERS = ("4", "5")  # nodes where lanes merge by turns
SPEED_LIMIT = 23.0  # m/s
OBSERVED = {"1": 1, "2": 3, "3": 3, "4": 3, "5": 1}  # segments of equal length
CONTROLLED = {"2": 2, "3": 2, "4": 2}
SPEED_MODE, LANE_CHANGE_MODE = 9, 0  # of SUMO: keep right of way; never change lanes
LEAST_SPEED = 0.01  # m/s that a vehicle can be told
REWARD_WINDOW, OBSERVED_WINDOW = 10, 20  # steps whose outflow is rewarded, and observed
Demand = Annotated[float, Range(lambda x: 0 < x <= 14_400, "a number above 0 and at most 14400, one a second and lane")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BottleneckSettings(TrafficSettings):
    """Settings of the bottleneck; those that differ between versions of Flow have the values of 0.4."""

    inflow: Demand = 2000.0
    """Vehicles per hour; 1900 until Flow 0.3, 2500 in its last version."""
    autonomous: Fraction = 0.1
    """Share of them that are autonomous."""
    largest_change: Positive = 1.5
    """m/s by which an action changes a speed limit at most; until Flow 0.3 from -1.5 to 1.0."""
    slow: Positive = 5.0
    """m/s below which a human driver is slow."""
    slow_limit: Positive = 10.0
    """Seconds of it from which on a human driver costs."""
    outflow_per: Literal["hour", "second"] = "hour"
    """Unit of the outflow in the reward: Flow's, or the one of the formula as printed."""
    accel: Positive = 2.6
    """m/s2 of vehicles; 1.0 until Flow 0.3."""
    decel: Positive = 4.5
    """m/s2 of vehicles; 1.5 until Flow 0.3."""
    warm_up: Count = 40
    """Steps before the first action."""


def _segments(numbers: dict[str, int]) -> tuple[dict[str, int], int]:
    """Where each edge's lane-segments begin in an array, segments first and lanes within, and how many there are."""
    begins, total = {}, 0
    for edge, count in numbers.items():
        begins[edge] = total
        total += count * LANES[edge]
    return begins, total


SEEN_FROM, SEEN = _segments(OBSERVED)
CONTROLLED_FROM, ACTIONS = _segments(CONTROLLED)


def _lanes(numbers: dict[str, int], begins: dict[str, int]) -> dict[str, tuple[float, int, tuple[int, ...]]]:
    """Of every lane by SUMO's name for it: its length, m, how many segments it has, and where they are in an array.
    Plain tuples, which Python takes apart quickest. On a network of the user's a lane may be longer."""
    return {
        f"{edge}_{lane}": (LENGTHS[edge], count, tuple(begins[edge] + lane + i * LANES[edge] for i in range(count)))
        for edge, count in numbers.items()
        for lane in range(LANES[edge])
    }


SEEN_LANES, CONTROLLED_LANES = _lanes(OBSERVED, SEEN_FROM), _lanes(CONTROLLED, CONTROLLED_FROM)


def _is_autonomous(name: str) -> bool:
    return name[0] == "a"  # of "autonomous"; the others are "human"


class Bottleneck(Scenario):
    """The bottleneck in this process. An action changes the speed limits of the autonomous vehicles in 20 segments."""

    name: ClassVar[str] = "bottleneck"
    settings_type: ClassVar[type] = BottleneckSettings
    step_length = 0.5
    obs_size = 4 * SEEN + 1
    action_size = ACTIONS

    def __init__(self, settings: BottleneckSettings):
        super().__init__(settings)
        self.settings: BottleneckSettings = settings
        self.action_low, self.action_high = -settings.largest_change, settings.largest_change
        self._slow_steps: dict[str, int] = {}  # human drivers that are slow now -> for how many steps
        self._limit: dict[str, float] = {}  # autonomous vehicles -> speed limit they were told
        self._left: collections.deque[int] = collections.deque(maxlen=OBSERVED_WINDOW)  # vehicles that left, by step
        self._seen = Vehicles((), [], [], [])

    # the road and who drives on it

    def plain_network(self) -> PlainNetwork:
        nodes = []
        for i, x in enumerate(NODES):
            name = str(i + 1)
            merging = {"type": "zipper", "radius": 20.0} if name in ZIPPERS else {}
            nodes.append(element("node", id=name, x=x, y=0.0, **merging))
        edges = [
            element(
                "edge",
                id=name,
                from_=name,
                to=str(int(name) + 1),
                numLanes=LANES[name],
                speed=SPEED_LIMIT,
                length=LENGTHS[name],
                spreadType="center",
            )
            for name in EDGES
        ]
        merges = [
            element("connection", from_=a, to=b, fromLane=lane, toLane=lane // 2)
            for a, b in (("3", "4"), ("4", "5"))
            for lane in range(LANES[a])
        ]
        return PlainNetwork("bottleneck", tuple(nodes), tuple(edges), tuple(merges))

    def network_needs(self) -> tuple[list[str], list[str]]:
        return list(EDGES), []

    def demand(self) -> list[str]:
        settings = self.settings
        elements = [vehicle_type(kind, settings.accel, settings.decel) for kind in ("human", "autonomous")]
        elements.append(element("route", id="all", edges=" ".join(EDGES)))
        # Flow begins with one of each, evenly spaced on edges 2 to 5.
        for kind, edge in (("human", "2"), ("autonomous", "4")):
            rest = EDGES[EDGES.index(edge) :]
            elements.append(element("route", id=f"from {edge}", edges=" ".join(rest)))
            first = {"depart": 0, "departPos": 6.0, "departSpeed": 0, "departLane": 0}
            elements.append(element("vehicle", id=f"{kind}.first", type=kind, route=f"from {edge}", **first))
        for kind, share in (("human", 1.0 - settings.autonomous), ("autonomous", settings.autonomous)):
            if share > 0.0:
                enters = {"begin": 1, "end": 86400, "vehsPerHour": share * settings.inflow}
                how = {"departLane": "random", "departSpeed": 10}
                elements.append(element("flow", id=kind, type=kind, route="all", **enters, **how))
        return elements

    # an episode

    def restart(self, seed: int) -> None:
        self.simulation.begin(seed)
        self._slow_steps, self._limit = {}, {}
        self._left.clear()
        for _ in range(self.settings.warm_up):
            self._simulate()

    def proceed(self) -> Outcome:
        self._simulate()
        crashed = self.crashed()
        return Outcome(0.0 if crashed else self._reward(), self._cost(), crashed)

    def _simulate(self) -> None:
        self.simulation.step()
        self.instruct(SPEED_MODE, LANE_CHANGE_MODE)
        self._left.append(self.api.simulation.getArrivedNumber())
        seen = self._seen = self.vehicles()
        before, slow = self._slow_steps, self.settings.slow
        self._slow_steps = {
            name: before.get(name, 0) + 1
            for name, speed in zip(seen.names, seen.speed, strict=True)
            if speed < slow and not _is_autonomous(name)
        }

    def command(self, action: Action) -> None:
        """Shift the speed limit of every autonomous vehicle in a controlled segment; elsewhere it is the road's."""
        limits, (names, roads, positions, _) = {}, self._seen
        for i in [i for i, name in enumerate(names) if name[0] == "a"]:  # `_is_autonomous` without a call
            name, limit = names[i], SPEED_LIMIT
            lane, told = CONTROLLED_LANES.get(roads[i]), self._limit.get(name)
            if lane is not None:
                length, segments, places = lane
                segment = int(positions[i] / length * segments)
                change = action(places[segment if segment < segments else -1])
                limit = min(max((SPEED_LIMIT if told is None else told) + change, LEAST_SPEED), SPEED_LIMIT)
            if limit != told:
                self.api.vehicle.setMaxSpeed(name, limit)
            limits[name] = limit
        self._limit = limits

    def _outflow(self, steps: int) -> float:
        """Vehicles per hour that left within the last steps; fewer steps where there are not as many yet."""
        recent = list(self._left)[-steps:]
        return 3600.0 * sum(recent) / (len(recent) * self.step_length) if recent else 0.0

    def _reward(self) -> float:
        unit = 1.0 if self.settings.outflow_per == "hour" else 3600.0
        return self._outflow(REWARD_WINDOW) / (2000.0 * unit)

    def _cost(self) -> float:
        limit = self.settings.slow_limit / self.step_length
        return float(sum(steps > limit for steps in self._slow_steps.values()))

    def observe(self, obs: np.ndarray) -> None:
        """Numbers of human drivers and of autonomous vehicles in every lane-segment, their mean speeds, the outflow."""
        count: dict[int, int] = {}
        total: dict[int, float] = {}
        lane_of = SEEN_LANES.get
        for name, road, position, speed in zip(*self._seen, strict=True):
            lane = lane_of(road)
            if lane is None:
                continue
            length, segments, places = lane
            segment = int(position / length * segments)
            index = places[segment if segment < segments else -1]
            if name[0] == "a":
                index += SEEN
            if index in count:
                count[index] += 1
                total[index] += speed
            else:
                count[index], total[index] = 1, speed
        out: Any = obs.data  # quicker for single numbers than the array
        for index, number in count.items():
            out[index] = number / 20.0
            out[2 * SEEN + index] = total[index] / number / 50.0
        out[4 * SEEN] = self._outflow(OBSERVED_WINDOW) / 2000.0

    # drawings

    def moment(self) -> Moment:
        seen = self._seen
        position, angle = self.places(seen.names)
        return Moment(
            time=self.api.simulation.getTime(),
            names=seen.names,
            position=position,
            angle=angle,
            speed=np.array(seen.speed),
            autonomous=np.array([_is_autonomous(name) for name in seen.names], bool),
            lights=(),
            red_time=np.zeros(0),
            along=self._along(),
            queues=self._queues(),
        )

    def _edges(self) -> list[str]:
        return [lane.rpartition("_")[0] for lane in self._seen.lane]

    def _along(self) -> np.ndarray:
        """m along the road; inside a junction unknown."""
        starts: dict[str, float] = dict(zip(EDGES, NODES[:-1], strict=True))
        pairs = zip(self._edges(), self._seen.position, strict=True)
        return np.array([starts.get(edge, math.nan) + at for edge, at in pairs], float)

    def _queues(self) -> np.ndarray:
        """(5,) slow vehicles on every edge."""
        pairs = list(zip(self._edges(), self._seen.speed, strict=True))
        return np.array([sum(edge == name and speed < self.slow for edge, speed in pairs) for name in EDGES], float)
