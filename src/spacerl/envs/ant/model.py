"""The ant's body and arena as a MuJoCo model, the same one for a CPU and for an accelerator.

Sizes, masses, limits and gains are those of the ant the original tasks used. The model differs from it where a cheaper
description means the same, or where MuJoCo has changed since:

- **Contacts.** Against a plane a capsule is its two end spheres, and neighbouring capsules of a leg share an end. The
  original lets 13 shapes touch the floor (25 points, many of them twice the same); here 13 massless spheres do: the
  torso, and the hip, knee and foot of each leg. A point counted once is slightly softer than one counted twice.
- **Walls** of the gather arena are four planes that face inwards where the original has boxes one metre high. An ant
  whose torso stays below one metre cannot tell. Knees, feet and the torso touch them; hips never reach them first.
- **Bodies.** The original hangs a body without a joint between torso and hip; its shape is part of the torso here.
- **Margin.** MuJoCo has since changed from the larger to the sum of two shapes' margins: all 0.01 m is on the planes.
- **Time constants.** MuJoCo now raises a contact's time constant (0.02 s) to two steps (0.04 s), because shorter ones
  are unstable. The original's version did not have this guard. It stays on.
- **Solver.** Newton's method with at most six iterations and six steps of line search, where MuJoCo would allow 100
  and 50. The constraint cost is piecewise quadratic and each step starts from the last one's solution: six give the
  result of a hundred to the last digit in all but a few steps of ten thousand, while four leave errors of 0.5 rad/s.
  A CPU stops as soon as it can, but a compiled program runs all iterations for every environment.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np

TIME_STEP = 0.02  # s; one step of the task is one step of the integrator, 50 a second
MAX_TORQUE = 150.0  # Nm on every joint; with the armature of 1 kg m^2 it speeds a joint up by 3 rad/s in a step
TORSO_RADIUS = 0.25  # m
LIMB_RADIUS = 0.08  # m
THIGH = 0.2  # m along x and along y, from the torso's centre to the hip, and again from the hip to the knee
SHIN = 0.4  # m along x and along y, from the knee to the foot
DENSITY = 5.0  # kg / m^3
START_HEIGHT = 0.55  # m, of the torso; the feet then just touch the floor

# Legs in the order of their joints in the state: the quadrant they point to in the torso's frame. A knee bends about
# the horizontal axis across its leg; the sign of its angle follows from the axis, which is (-1, 1, 0) or (1, 1, 0).
LEG_X = np.array([1.0, -1.0, -1.0, 1.0])
LEG_Y = np.array([1.0, 1.0, -1.0, -1.0])
KNEE_AXIS_X = -LEG_X * LEG_Y
KNEE_SIGN = LEG_X  # of the angle that bends the shin down
# Motors in the order of the action: (hip, knee) of the last leg first, as in the original.
MOTOR_LEGS = (3, 0, 1, 2)

ITERATIONS, LINE_SEARCH_ITERATIONS = 6, 6

NQ, NV, NU = 15, 14, 8  # coordinates, velocities, motors
START_QPOS = np.array([0.0, 0.0, START_HEIGHT, 1.0] + [0.0] * (NQ - 4))  # upright; hips straight ...
START_QPOS[8::2] = KNEE_SIGN  # ... and knees bent by one radian


def _leg_xml(leg: int) -> str:
    x, y, sign = LEG_X[leg], LEG_Y[leg], KNEE_SIGN[leg]
    low, high = sorted((30 * sign, 70 * sign))
    joint, shin = f"{THIGH * x} {THIGH * y} 0", f"{SHIN * x} {SHIN * y} 0"
    return f"""
      <body name="thigh_{leg}" pos="{joint}">
        <joint name="hip_{leg}" axis="0 0 1" range="-30 30"/>
        <geom class="limb" fromto="0 0 0 {joint}"/>
        <body name="shin_{leg}" pos="{joint}">
          <joint name="knee_{leg}" axis="{KNEE_AXIS_X[leg]} 1 0" range="{low} {high}"/>
          <geom class="limb" fromto="0 0 0 {shin}"/>
          <geom class="bumper" name="knee_ball_{leg}" contype="3"/>
          <geom class="bumper" name="foot_ball_{leg}" contype="3" pos="{shin}"/>
        </body>
      </body>"""


def _walls_xml(distance: float) -> str:
    """Planes that face the centre, at `distance` m from it."""
    faces = {"east": (1, 0), "north": (0, 1), "west": (-1, 0), "south": (0, -1)}
    return "".join(
        f'<geom class="plane" name="wall_{name}" conaffinity="2" pos="{x * distance} {y * distance} 0" '
        f'zaxis="{-x} {-y} 0" rgba="0 0 0 0"/>'
        for name, (x, y) in faces.items()
    )


def ant_xml(
    wall_distance: float | None = None,
    iterations: int = ITERATIONS,
    line_search_iterations: int = LINE_SEARCH_ITERATIONS,
) -> str:
    """The model in MuJoCo's format; with walls at `wall_distance` m from the centre where it is given."""
    hips = "".join(
        f'<geom class="limb" fromto="0 0 0 {THIGH * x} {THIGH * y} 0"/>'
        f'<geom class="bumper" name="hip_ball_{leg}" pos="{THIGH * x} {THIGH * y} 0"/>'
        for leg, (x, y) in enumerate(zip(LEG_X, LEG_Y, strict=True))
    )
    motors = "".join(f'<motor joint="hip_{leg}"/><motor joint="knee_{leg}"/>' for leg in MOTOR_LEGS)
    return f"""
<mujoco model="ant">
  <compiler angle="degree" inertiafromgeom="true"/>
  <option timestep="{TIME_STEP}" integrator="RK4" solver="Newton" cone="pyramidal" jacobian="dense"
          iterations="{iterations}" ls_iterations="{line_search_iterations}"/>
  <size memory="1M"/>
  <visual><global offwidth="640" offheight="640"/></visual>
  <default>
    <joint armature="1" damping="1" limited="true"/>
    <geom contype="0" conaffinity="0" condim="3" friction="1 0.5 0.5" solref="0.02 1" solimp="0.8 0.8 0.01"/>
    <motor ctrllimited="true" ctrlrange="-{MAX_TORQUE} {MAX_TORQUE}"/>
    <default class="limb"><geom type="capsule" size="{LIMB_RADIUS}" density="{DENSITY}" rgba="0.8 0.6 0.4 1"/></default>
    <default class="bumper"><geom type="sphere" size="{LIMB_RADIUS}" mass="0" contype="1" group="3"/></default>
    <default class="plane"><geom type="plane" size="40 40 1" margin="0.01"/></default>
  </default>
  <worldbody>
    <light directional="true" diffuse="0.9 0.9 0.9" pos="0 0 10" dir="0 0 -1"/>
    <geom class="plane" name="floor" conaffinity="1" rgba="0.93 0.94 0.93 1"/>
    {"" if wall_distance is None else _walls_xml(wall_distance)}
    <body name="torso" pos="0 0 {START_HEIGHT}">
      <freejoint/>
      <geom name="torso_ball" type="sphere" size="{TORSO_RADIUS}" density="{DENSITY}" contype="3" rgba="0.8 0.6 0.4 1"/>
      {hips}{"".join(_leg_xml(leg) for leg in range(4))}
    </body>
  </worldbody>
  <actuator>{motors}</actuator>
  <sensor><subtreecom body="torso"/><subtreelinvel body="torso"/></sensor>
</mujoco>"""


@functools.lru_cache(maxsize=32)
def ant_model(
    wall_distance: float | None = None,
    iterations: int = ITERATIONS,
    line_search_iterations: int = LINE_SEARCH_ITERATIONS,
) -> Any:
    """The compiled `mujoco.MjModel`, shared by all who ask for the same one: read it, do not write."""
    return importlib.import_module("mujoco").MjModel.from_xml_string(
        ant_xml(wall_distance, iterations, line_search_iterations)
    )
