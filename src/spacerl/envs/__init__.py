"""Environments: the tasks by name (`tasks`), in JAX and on MuJoCo, and anyone's Gymnasium environment (`host`).

Importing this package imports neither jax nor a task. It makes the tasks' ids known to Gymnasium, which has no entry
points for that since its version 1.0; `gymnasium.make("spacerl.envs:spacerl/PointCircle-v0")` imports it for you.
"""

from __future__ import annotations

from gymnasium import register as register_with_gymnasium
from gymnasium import registry

from spacerl.envs.tasks import TASKS


def register() -> None:
    """Make the tasks known to Gymnasium. Calling it again changes nothing."""
    for task in TASKS.values():
        if task.gymnasium_id is not None and task.gymnasium_id not in registry:
            steps = task.settings["rollout_length"]
            register_with_gymnasium(task.gymnasium_id, entry_point=task.gymnasium_env, max_episode_steps=steps)


register()
