"""Many ants side by side on a CPU: MuJoCo's threads step them all in one call, NumPy does the rest for all at once."""

from __future__ import annotations

import importlib
import time
from typing import Any

import numpy as np

from spacerl.envs.ant.model import MAX_TORQUE, NQ, NV, ant_model
from spacerl.envs.ant.robot import LARGEST, AntCircle, AntGather, AntTask, Body, Objects, is_sound, start
from spacerl.envs.cores import usable_cores
from spacerl.types import RESET, STEP, BatchEnv, EnvSpec, Tick


def uniform_numbers(seed: np.ndarray, count: int) -> np.ndarray:
    """`count` numbers in (0, 1) for each seed (n,), (n, count) float64: the stream SplitMix64 gives from a mixed seed.

    A number is a function of its seed and its index alone, so all are computed at once. A generator object per episode
    would cost more than a step of the ant.
    """
    golden = np.uint64(0x9E3779B97F4A7C15)
    index = np.arange(1, count + 1, dtype=np.uint64)
    bits = _mixed(_mixed(seed.astype(np.uint64) + golden)[:, None] + index * golden)
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _mixed(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _normal_numbers(uniform: np.ndarray) -> np.ndarray:
    """Box and Muller's transform of an even number of uniform numbers in the last axis."""
    half = uniform.shape[-1] // 2
    radius, angle = np.sqrt(-2.0 * np.log(uniform[..., :half])), 2.0 * np.pi * uniform[..., half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)


def _ignore(message: str) -> None:
    pass


class AntHost(BatchEnv):
    """`lanes` ants of one task. An episode is a function of its seed and its actions alone."""

    def __init__(self, task: AntTask, lanes: int, threads: int | None = None) -> None:
        try:
            mujoco: Any = importlib.import_module("mujoco")
            Batch: Any = importlib.import_module("mujoco.batch").Batch
        except ImportError as error:
            raise ImportError("the ant tasks need MuJoCo 3.17 or newer: pip install 'spacerl[mujoco]'") from error
        # Without a handler MuJoCo prints its warnings and appends them to a file in the working directory. They are
        # counted here; someone else's handler stays.
        if mujoco.get_mju_user_warning() is None:
            mujoco.set_mju_user_warning(_ignore)
        if lanes < 1:
            raise ValueError(f"{lanes} lanes: at least one ant is needed")
        self.task = task
        self._spec = task.spec
        self.lanes = lanes
        self.simulator_seconds = 0.0
        """Time spent inside MuJoCo so far."""

        self.model = ant_model(task.wall_distance, task.iterations)
        # One simulation per thread, reused for all lanes, stays in the processor's cache. A persistent batch has one
        # for each lane: it need not compute sensors anew for the next step, but is slower all the same.
        self._batch = Batch(self.model, lanes, min(threads or usable_cores(), lanes))
        self._until_sensors = int(mujoco.mjtStage.mjSTAGE_VEL)
        self._qpos, self._qvel = self._batch.bind("qpos"), self._batch.bind("qvel")
        self._torque, self._sensors = self._batch.bind("ctrl"), self._batch.bind("sensordata")
        self._fresh = self._batch.state[0].copy()  # what a state holds beside position and velocity: zeros
        bad = ("BADQPOS", "BADQVEL", "BADQACC", "BADCTRL")
        self._bad = [int(getattr(mujoco.mjtWarning, f"mjWARN_{name}")) for name in bad]
        self._warnings = self._batch.warning
        self._obs = np.zeros((lanes, *self.spec.obs_shape), np.float32)  # the last observation of each lane
        self._com = np.zeros((lanes, 3))
        self._objects = task.place(np, np.zeros((lanes, task.uniforms)))
        if self._objects is not None:  # lanes side by side in memory, which is how the tasks go through them
            self._objects = Objects(*(np.asfortranarray(part) for part in self._objects))
        self._diverged = 0

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def tick(self, command: Any, action: Any, last: Any, seed: Any) -> Tick:
        command, seed = np.asarray(command), np.asarray(seed)
        stepping, restarting = command == STEP, command == RESET
        reward = np.zeros(self.lanes, np.float32)
        cost = np.zeros((self.lanes, len(self._spec.cost_names)), np.float32)
        terminated = np.zeros(self.lanes, bool)
        if stepping.any():
            # Rows of the lanes that step. All of them is the common case, and views are quicker than selections.
            rows = slice(None) if stepping.all() else np.flatnonzero(stepping)
            body, diverged = self._step(rows, np.asarray(action)[rows])
            objects = self._objects_of(rows)
            body = self.task.looked_around(body, objects)
            outcome = self.task.outcome(np, self._com[rows], body, objects, diverged)
            reward[rows], cost[rows], terminated[rows] = outcome.reward, outcome.cost, outcome.terminated
            self._remember(rows, body, outcome.objects)
        truncated = stepping & np.asarray(last, bool) & ~terminated
        restarting |= (terminated | truncated) & (seed >= 0)
        # The arrays handed out are the caller's; those kept here change with the next tick.
        obs = next_obs = self._obs.copy()
        if restarting.any():
            self._restart(np.flatnonzero(restarting), seed[restarting])
            obs = self._obs.copy()
        return Tick(obs, next_obs, reward, cost, terminated, truncated, np.zeros(self.lanes, bool))

    def _step(self, rows: Any, action: np.ndarray) -> tuple[Body, np.ndarray]:
        """Advance these lanes; their bodies, and which of them diverged: those are back in the state before."""
        every = isinstance(rows, slice)
        self._torque[rows] = MAX_TORQUE * np.clip(action, -1.0, 1.0)
        began = time.perf_counter()
        self._batch.step(None if every else rows, stage=self._until_sensors)
        self.simulator_seconds += time.perf_counter() - began
        body = self._body(rows)
        # MuJoCo starts a simulation that has diverged from the beginning, which looks sound: only its warnings tell.
        warned = self._warnings[..., 1].any()
        # All lanes at once, as nearly always. Comparisons with NaN are false.
        if not warned and all(part.max() < LARGEST and part.min() > -LARGEST for part in (body.qpos, body.qvel)):
            return body, np.zeros(len(body.qpos), bool)
        diverged = ~is_sound(np, body.qpos, body.qvel)
        if warned:
            diverged |= self._warnings[rows][:, self._bad, 1].any(axis=1)
            self._warnings[...] = 0
        lanes = np.arange(self.lanes)[rows][diverged]
        self._diverged += len(lanes)
        if len(lanes):
            self._begin(lanes, self._obs[lanes, :NQ], self._obs[lanes, NQ : NQ + NV])
        return self._body(rows), diverged

    def _body(self, rows: Any) -> Body:
        # A copy: MuJoCo keeps the lanes far apart, and the formulas go through them many times.
        state, com = np.concatenate([self._qpos[rows], self._qvel[rows]], axis=1), self._sensors[rows]
        return Body(state[:, :NQ], state[:, NQ:], com[:, :3], com[:, 3:])

    def _objects_of(self, rows: Any) -> Objects | None:
        return None if self._objects is None else Objects(self._objects.placed[rows], self._objects.alive[rows])

    def _begin(self, lanes: np.ndarray, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Put these lanes into a state and compute what follows from it."""
        self._batch.state[lanes] = self._fresh
        self._qpos[lanes], self._qvel[lanes] = qpos, qvel
        began = time.perf_counter()
        self._batch.forward(lanes, stage=self._until_sensors)
        self.simulator_seconds += time.perf_counter() - began

    def _restart(self, lanes: np.ndarray, seed: np.ndarray) -> None:
        noise = NQ + NV + 1  # even, as the transform to normal numbers wants it
        uniform = uniform_numbers(seed, noise + self.task.uniforms)
        self._begin(lanes, *start(np, _normal_numbers(uniform[:, :noise])[:, : NQ + NV]))
        objects = self.task.place(np, uniform[:, noise:])
        if self._objects is not None and objects is not None:
            self._objects.placed[lanes] = objects.placed
        self._remember(lanes, self._body(lanes), objects)

    def _remember(self, rows: Any, body: Body, objects: Objects | None) -> None:
        """What the next step of these lanes will need of this one."""
        self._obs[rows] = self.task.observation(np, body, objects)
        self._com[rows] = body.com
        if self._objects is not None and objects is not None:
            self._objects.alive[rows] = objects.alive

    def counts(self) -> dict[str, int]:
        counts, self._diverged = {"diverged": self._diverged}, 0
        return counts

    def close(self) -> None:
        """MuJoCo's threads end with the batch."""
        vars(self).pop("_batch", None)

    # one lane, for images

    def body(self, lane: int) -> Body:
        return Body(*(part[0].copy() for part in self._body([lane])[:4]))

    def objects(self, lane: int) -> Objects | None:
        objects = self._objects_of([lane])
        return None if objects is None else Objects(objects.placed[0], objects.alive[0])


def ant_circle(lanes: int, threads: int | None = None) -> AntHost:
    return AntHost(AntCircle(), lanes, threads)


def ant_gather(lanes: int, threads: int | None = None) -> AntHost:
    return AntHost(AntGather(), lanes, threads)
