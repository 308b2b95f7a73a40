"""One step of the ant's physics in JAX: positions, velocities and contacts by MJX, constraint forces by our own solver.

`mjx.step` works on this model, but a batch of environments waits for it: each of its line searches is a chain of small
dependent operations, and on an accelerator a chain costs its length, whatever the number of environments. Two
properties of the ant remove the chains:

- With pyramidal friction cones the cost along a search direction is convex and piecewise quadratic, with one kink per
  constraint row. Evaluating its slope at all kinks side by side brackets the minimum and makes the line search exact.
- A constraint touches the torso and at most one leg, so the Hessian is an arrow: four 2 x 2 blocks of legs around the
  6 x 6 block of the torso. It is solved in closed form, without a factorisation by a library call.

The minimum is the one MuJoCo finds (the problem is strictly convex); tests hold the two together.
"""

from __future__ import annotations

import contextlib
import functools
import io
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spacerl.envs.ant.model import MOTOR_LEGS, NV, TIME_STEP, ant_model
from spacerl.types import Array

PYRAMID = 4  # rows of a contact with friction: the edges of a pyramid
BASE = 6  # degrees of freedom of the torso; two of each leg follow

# Classical Runge-Kutta: stage i starts from the derivative of stage i - 1, taken over this part of the step ...
STAGE_FRACTION = (0.0, 0.5, 0.5, 1.0)
# ... and counts with this weight.
STAGE_WEIGHT = (1 / 6, 1 / 3, 1 / 3, 1 / 6)
_MOTOR_DOF = np.array([BASE + 2 * leg + joint for leg in MOTOR_LEGS for joint in (0, 1)])


@functools.lru_cache(maxsize=1)
def _mjx() -> Any:
    # Importing MJX prints that its second engine, which is not used here, is not installed.
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            from mujoco import mjx  # type: ignore[import-not-found]
        except ImportError as error:
            raise ImportError("the ant inside a compiled program needs MJX: pip install mujoco mujoco-mjx") from error
    return mjx


class Walls(NamedTuple):
    """Rows of the constraints, by what they are about. Those of opposite walls are in the same order."""

    others: np.ndarray  # joint limits and the floor
    east: np.ndarray
    west: np.ndarray
    north: np.ndarray
    south: np.ndarray


@functools.lru_cache(maxsize=8)
def _device_model(wall_distance: float | None) -> tuple[Any, Any, Walls | None]:
    """MJX's model, an empty state of it and where its walls are, made outside of any trace so that they can be kept."""
    mjx = _mjx()
    model = ant_model(wall_distance)
    with jax.ensure_compile_time_eval():
        on_device, empty = mjx.put_model(model), mjx.make_data(model)
        if wall_distance is None:
            return on_device, empty, None
        contact = jax.jit(lambda data: mjx.fwd_position(on_device, data)._impl.contact)(empty)
        planes, first_rows = np.asarray(contact.geom)[:, 0], np.asarray(contact.efc_address)

    def rows_of(name: str) -> np.ndarray:
        first = first_rows[planes == model.geom(f"wall_{name}").id]
        return (first[:, None] + np.arange(PYRAMID)).reshape(-1)

    sides = [rows_of(name) for name in ("east", "west", "north", "south")]
    others = np.setdiff1d(np.arange(empty._impl.efc_J.shape[0]), np.concatenate(sides))
    return on_device, empty, Walls(others, *sides)


def _within_reach(rows: Array, walls: Walls | None, qpos: Array) -> Array:
    """The constraints without those of the two walls behind the centre, which an ant on this side of it cannot touch.

    The line search looks at every pair of rows, so this makes it less than half as dear.
    """
    if walls is None:
        return rows
    in_x = jnp.where(qpos[0] > 0.0, rows[walls.east], rows[walls.west])
    in_y = jnp.where(qpos[1] > 0.0, rows[walls.north], rows[walls.south])
    return jnp.concatenate([rows[walls.others], in_x, in_y])


def integrate(qpos: Array, moved: Array) -> Array:
    """The position (15,) after a displacement (14,): the torso's in m and, in its own frame, rad, then the joints'."""
    half_turn = 0.5 * moved[3:6]
    angle = jnp.sqrt(jnp.sum(half_turn**2))
    # sin(angle) / angle, which is 1 in the limit; the first `where` keeps a zero out of the division
    small = angle < 1e-6
    ratio = jnp.where(small, 1.0, jnp.sin(angle) / jnp.where(small, 1.0, angle))
    w, v = qpos[3], qpos[4:7]
    dw, dv = jnp.cos(angle), ratio * half_turn
    real = w * dw - jnp.sum(v * dv)
    imaginary = w * dv + dw * v + jnp.cross(v, dv)
    quaternion = jnp.concatenate([real[None], imaginary])
    quaternion = quaternion / jnp.sqrt(jnp.sum(quaternion**2))
    return jnp.concatenate([qpos[:3] + moved[:3], quaternion, qpos[7:] + moved[6:]])


def _turning_rate(turned: Array, angular_velocity: Array) -> Array:
    """How fast the rotation vector `turned` (rad) since the beginning of the step grows at this angular velocity.

    Rotation vectors of turns about different axes do not add up, so Runge and Kutta's mean of angular velocities would
    be second order only. This correction (Munthe-Kaas') makes it fourth; MuJoCo has it since version 4.
    """
    bend = jnp.cross(turned, angular_velocity)
    return angular_velocity + bend / 2.0 + jnp.cross(turned, bend) / 12.0


def _solve_positive(matrix: Array, right: Array) -> Array:
    """Solution of a small symmetric positive definite system, written out element by element.

    Under `vmap` every element is an array over environments, so the compiler sees arithmetic it can fuse into one
    kernel. A library's batched factorisation is several launches and, for matrices this small, mostly waiting.
    """
    n = right.shape[0]
    lower: list[list[Array]] = []
    forward: list[Array] = []
    for i in range(n):
        row: list[Array] = []
        for j in range(i):
            rest = matrix[i, j] - sum(row[k] * lower[j][k] for k in range(j))
            row.append(rest / lower[j][j])
        pivot = matrix[i, i] - sum(x * x for x in row)
        row.append(jnp.sqrt(jnp.maximum(pivot, 1e-12)))
        lower.append(row)
        forward.append((right[i] - sum(row[k] * forward[k] for k in range(i))) / row[i])
    back: list[Array] = [right[0]] * n
    for i in reversed(range(n)):
        back[i] = (forward[i] - sum(lower[k][i] * back[k] for k in range(i + 1, n))) / lower[i][i]
    return jnp.stack(back)


def solve_arrow(matrix: Array, right: Array) -> Array:
    """Solution (14,) of matrix x = right, where legs are coupled to the torso but not to each other."""
    legs = (NV - BASE) // 2
    to_base = matrix[BASE:, :BASE].reshape(legs, 2, BASE)
    rows = [matrix[BASE + 2 * leg : BASE + 2 * leg + 2, BASE + 2 * leg : BASE + 2 * leg + 2] for leg in range(legs)]
    block = jnp.stack(rows)
    a, b, c = block[:, 0, 0], block[:, 0, 1], block[:, 1, 1]
    determinant = a * c - b * b
    inverse = jnp.stack([c, -b, -b, a], axis=-1).reshape(legs, 2, 2) / determinant[:, None, None]
    right_leg = right[BASE:].reshape(legs, 2)
    # The products below are sums over two or eight terms; written as sums, not as matrix products, they fuse.
    inverse_to_base = jnp.sum(inverse[:, :, :, None] * to_base[:, None, :, :], axis=2)
    inverse_right = jnp.sum(inverse * right_leg[:, None, :], axis=2)
    schur = matrix[:BASE, :BASE] - jnp.sum(to_base[:, :, :, None] * inverse_to_base[:, :, None, :], axis=(0, 1))
    base = _solve_positive(schur, right[:BASE] - jnp.sum(to_base * inverse_right[:, :, None], axis=(0, 1)))
    leg = inverse_right - jnp.sum(inverse_to_base * base, axis=2)
    return jnp.concatenate([base, leg.reshape(-1)])


def _exact_line_search(slope: Array, curvature: Array, residual: Array, change: Array, stiffness: Array) -> Array:
    """The minimum over t >= 0 of slope t + curvature t^2 / 2 + sum_i stiffness_i min(residual_i + t change_i, 0)^2 / 2.

    The derivative rises with t and is linear between the kinks t_i = -residual_i / change_i.
    """
    moves = jnp.abs(change) > 1e-20
    kink = jnp.where(moves, -residual / jnp.where(moves, change, 1.0), 0.0)
    kink = jnp.maximum(kink, 0.0)

    def derivative(t: Array) -> Array:
        force = stiffness * jnp.minimum(residual + t * change, 0.0)
        return slope + curvature * t + jnp.sum(force * change)

    rising = jax.vmap(derivative)(kink) > 0.0
    low = jnp.max(jnp.where(rising, 0.0, kink))
    high = jnp.min(jnp.where(rising, kink, jnp.inf))
    inside = jnp.where(jnp.isinf(high), low + 1.0, 0.5 * (low + high))
    active = stiffness * (residual + inside * change < 0.0)
    bend = curvature + jnp.sum(active * change**2)
    # Once the gradient vanishes there is no direction to search, and 0 / 0 would follow.
    minimum = -(slope + jnp.sum(active * residual * change)) / jnp.maximum(bend, 1e-30)
    return jnp.clip(minimum, low, high)


def constrained_acceleration(
    mass: Array, force: Array, jacobian: Array, stiffness: Array, reference: Array, start: Array, iterations: int
) -> Array:
    """The acceleration a that minimises Gauss' cost plus the penalties of violated constraints, by Newton's method:

    a' M a / 2 - force' a + sum_i stiffness_i min(J_i a - reference_i, 0)^2 / 2
    """

    def iterate(_: Any, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        # The residuals J a - reference and M a are carried along: each would cost a product anew.
        acceleration, residual, inertia = carry
        weight = jnp.where(residual < 0.0, stiffness, 0.0)
        gradient = inertia - force + _times(jacobian.T, weight * residual)
        direction = -solve_arrow(mass + (jacobian.T * weight) @ jacobian, gradient)
        change, inertia_change = _times(jacobian, direction), _times(mass, direction)
        slope, curvature = jnp.sum(direction * (inertia - force)), jnp.sum(direction * inertia_change)
        t = _exact_line_search(slope, curvature, residual, change, stiffness)
        return acceleration + t * direction, residual + t * change, inertia + t * inertia_change

    first = (start, _times(jacobian, start) - reference, _times(mass, start))
    return jax.lax.fori_loop(0, iterations, iterate, first)[0]


def _times(matrix: Array, vector: Array) -> Array:
    """A product with a vector, written so that the compiler fuses it with what surrounds it."""
    return jnp.sum(matrix * vector, axis=-1)


def step(
    wall_distance: float | None, iterations: int, qpos: Array, qvel: Array, guess: Array, torque: Array
) -> tuple[Array, Array, Array]:
    """One Runge-Kutta step under `torque` (8,): position, velocity, and the acceleration the next step starts from."""
    mjx = _mjx()
    model, empty, walls = _device_model(wall_distance)
    actuation = jnp.zeros(NV, qvel.dtype).at[_MOTOR_DOF].set(torque)

    def acceleration(qpos: Array, qvel: Array, guess: Array) -> Array:
        data = mjx.fwd_velocity(model, mjx.fwd_position(model, empty.replace(qpos=qpos, qvel=qvel)))
        force = data.qfrc_passive - data.qfrc_bias + actuation
        rows = data._impl
        jacobian, stiffness, reference = (
            _within_reach(part, walls, qpos) for part in (rows.efc_J, rows.efc_D, rows.efc_aref)
        )
        return constrained_acceleration(
            mjx.full_m(model, data), force, jacobian, stiffness, reference, guess, iterations
        )

    def stage(carry: tuple[Array, ...], tableau: tuple[Array, Array]) -> tuple[tuple[Array, ...], None]:
        rate, guess, mean_rate, mean_acceleration = carry
        fraction, weight = tableau
        moved = fraction * TIME_STEP * rate
        velocity = qvel + fraction * TIME_STEP * guess
        guess = acceleration(integrate(qpos, moved), velocity, guess)
        rate = velocity.at[3:6].set(_turning_rate(moved[3:6], velocity[3:6]))
        return (rate, guess, mean_rate + weight * rate, mean_acceleration + weight * guess), None

    # Accelerators round the factors of matrix products to ten bits of mantissa unless told otherwise.
    with jax.default_matmul_precision("highest"):
        tableau = (jnp.array(STAGE_FRACTION, qvel.dtype), jnp.array(STAGE_WEIGHT, qvel.dtype))
        start = (qvel, guess, jnp.zeros_like(qvel), jnp.zeros_like(qvel))
        # A loop, not four copies: the program is a quarter of the size and compiles that much faster.
        (_, guess, mean_rate, mean_acceleration), _ = jax.lax.scan(stage, start, tableau)
    return integrate(qpos, TIME_STEP * mean_rate), qvel + TIME_STEP * mean_acceleration, guess
