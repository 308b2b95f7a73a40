"""Your own environment and your own policy: learn to move fast along a corridor without speeding for long.

    python examples/own_environment.py

The environment is pure JAX, so that a whole update compiles into one program. The policy to learn from is a plain
Python function; it is too fast and breaks the constraint.
"""

import jax.numpy as jnp
import numpy as np

import spacerl


class Corridor(spacerl.JaxEnv):
    spec = spacerl.EnvSpec("corridor", (2,), spacerl.ActionSpace("box", 1), horizon=40, cost_names=("too_fast",))

    def reset(self, key):
        return jnp.zeros(2)  # position, speed

    def observe(self, state):
        return state

    def step(self, state, action):
        speed = jnp.clip(state[1] + 0.1 * action[0], -1.0, 1.0)
        state = jnp.stack([state[0] + 0.1 * speed, speed])
        return state, speed, (speed > 0.5).astype(jnp.float32)[None], jnp.array(False)


def my_policy(obs: np.ndarray):
    return 2.0 * (1.0 - obs[:, 1:]), 0.3  # mean and standard deviation of the action


if __name__ == "__main__":
    result = spacerl.train(env=Corridor(), baseline=my_policy, cost_limit=5.0, updates=50, out="runs/corridor")
    print(f"J_R {result.metrics[-1]['J_R']:.2f}, J_C {result.metrics[-1]['J_C']:.2f} of 5 allowed")
    spacerl.report([result.folder])
