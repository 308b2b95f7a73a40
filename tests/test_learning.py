"""Long checks that the algorithms learn, at the paper's batch size: `make test-slow`."""

from __future__ import annotations

import pytest

import spacerl

UPDATES = 40


def train(out, **settings):
    return spacerl.train("point-circle", out=out, updates=UPDATES, progress=False, **settings).metrics


def mean(rows, name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)


@pytest.fixture(scope="module")
def pcpo(tmp_path_factory):
    return train(tmp_path_factory.mktemp("pcpo") / "run", algorithm="pcpo")


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    settings = {"divergence_gradient": "direct", "projection_kl_bound": 0.005}
    return train(tmp_path_factory.mktemp("space") / "run", algorithm="space-joint", baseline="reward", **settings)


@pytest.mark.slow
def test_pcpo_improves_its_reward_and_comes_down_to_its_limit(pcpo):
    """From a policy far above the limit: the cost falls to h_C and stays there while the reward grows."""
    assert pcpo[0]["J_C"] > 2 * pcpo[0]["h_C"]
    assert pcpo[-1]["J_C"] <= pcpo[-1]["h_C"] + 4 * pcpo[-1]["J_C_error"]
    assert mean(pcpo[-5:], "J_R") > mean(pcpo[:5], "J_R") + 3.0


@pytest.mark.slow
def test_space_learns_much_more_from_a_baseline_than_pcpo_alone(space, pcpo):
    """The baseline breaks the constraint; SPACE gains from it about twice PCPO's reward and ends within the limit."""
    assert space[0]["J_R"] == pytest.approx(pcpo[0]["J_R"])  # the same first policy
    assert mean(space[-5:], "J_R") > mean(pcpo[-5:], "J_R") + 4.0
    assert space[-1]["J_C"] <= space[-1]["h_C"] + 4 * space[-1]["J_C_error"]
