"""Numbers at their ends: rewards huge, tiny and constant, one episode, one step, no room for cost, one observation and
300. Every algorithm learns on with finite numbers, or stops with a sentence and its last good state saved."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spacerl
from spacerl.algorithms import ALGORITHMS
from spacerl.runs.folder import RunFolder
from spacerl.types import RunStopped
from support.learners import Toy
from support.settings import NEED_BASELINE

pytestmark = pytest.mark.usefixtures("quick_compilation")


class Ends(Toy):
    """Two numbers that actions push about; reward, length and observation as asked."""

    def __init__(self, scale: float = 1.0, constant: bool = False, steps: int = 5, size: int = 3):
        self.scale, self.constant, self.horizon, self.obs_shape = scale, constant, steps, (size,)

    def reset(self, key):
        return jnp.append(jax.random.normal(key, self.obs_shape), 0.0)

    def observe(self, state):
        return state[:-1]

    def step(self, state, action):
        moved = state.at[0].add(0.1 * action[0]).at[-1].add(1.0)
        reward = self.scale * jnp.where(self.constant, 1.0, -((moved[0] - 1.0) ** 2))
        return moved, reward, jnp.abs(moved[:1]), moved[-1] >= self.horizon


CASES = {
    "huge rewards": (Ends(1e30), {}),
    "tiny rewards": (Ends(1e-30), {}),
    "constant rewards": (Ends(constant=True), {}),
    "no reward at all": (Ends(0.0), {}),
    "one episode": (Ends(), {"batch_size": 5}),
    "episodes of one step": (Ends(steps=1), {}),
    "no room for cost": (Ends(), {"cost_limit": 0.0}),
    "one observation": (Ends(size=1), {}),
    "300 observations": (Ends(size=300), {}),
}
QUICK = {("pcpo", "huge rewards"), ("space", "no room for cost")}
MARKED = [
    pytest.param(name, case, marks=() if (name, case) in QUICK else pytest.mark.slow)
    for name in ALGORITHMS
    for case in CASES
]


def still(obs):
    return np.zeros((len(obs), 1)), np.full((len(obs), 1), 0.5)


@pytest.mark.parametrize(("algorithm", "case"), MARKED)
def test_numbers_stay_finite_or_the_run_stops_with_a_sentence(algorithm, case, tmp_path):
    env, settings = CASES[case]
    usual = {"batch_size": 50, "hidden": (4,), "cost_limit": 1.0, "rollout_length": env.horizon, "updates": 3}
    given = {"baseline": still} if algorithm in NEED_BASELINE else {}
    stopped, result = [], None
    try:
        result = spacerl.train(
            env=env, algorithm=algorithm, out=tmp_path / "run", progress=False, log=(), **usual | settings, **given
        )
    except RunStopped as stop:
        stopped.append(str(stop))
    if result is None:
        assert "\n" not in stopped[0]
        assert RunFolder(tmp_path / "run").checkpoint_updates()
        return
    assert len(result.metrics) == 3
    for row in result.metrics:
        assert all(np.isfinite(row[name]) for name in ("J_R", "J_C", "kl", "entropy"))
    assert all(np.isfinite(array).all() for array in RunFolder(tmp_path / "run").checkpoint(3)[0].values()
               if array.dtype == np.float32 and array.size > 1)  # fmt: skip
