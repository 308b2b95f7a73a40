"""Which runs are one setting, how they are named, and what the sentence on top says of them."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from spacerl.reporting import headline
from spacerl.reporting.remarks import remarks
from spacerl.runs.config import BOOKKEEPING
from support.run_folders import groups_in, two_algorithms, write_run


def test_groups_gather_seeds_and_show_what_differs(tmp_path):
    two_algorithms(tmp_path, seeds=3)
    for seed in range(2):
        write_run(tmp_path / f"l2-{seed}", seed=seed, projection="l2")
        write_run(tmp_path / f"far-{seed}", seed=seed, baseline="runs/far-0/checkpoints/last.safetensors")
    groups = groups_in(tmp_path)
    assert {group.label: group.seeds for group in groups} == {
        "SPACE (near, projection=l2)": (0, 1),
        "SPACE (near, projection=kl)": (0, 1, 2),
        "SPACE (far-0)": (0, 1),
        "PCPO": (0, 1, 2),
    }
    assert groups[-1].label == "PCPO"


def test_number_of_updates_alone_does_not_split_a_group(tmp_path):
    write_run(tmp_path / "long", seed=0, updates=40)
    write_run(tmp_path / "short", seed=1, updates=15)
    (group,) = groups_in(tmp_path)
    assert len(group.updates) == 15
    assert group.curve("J_R").shape == (2, 15)
    assert any("stop where the shortest does" in remark for remark in remarks([group]))


@pytest.mark.parametrize("name", sorted(BOOKKEEPING - {"seed"}))
def test_how_a_run_was_kept_does_not_split_a_group(tmp_path, name):
    for seed in range(2):
        write_run(tmp_path / str(seed), **{"seed": seed, "updates": 12} | {name: 12 + seed})
    (group,) = groups_in(tmp_path)
    assert (group.label, group.seeds) == ("SPACE (near)", (0, 1))


def test_settings_are_compared_as_this_version_names_them(tmp_path, monkeypatch):
    def renamed(raw: dict) -> dict:
        return {"projection" if name == "metric" else name: value for name, value in raw.items()}

    monkeypatch.setattr("spacerl.runs.folder.upgraded", renamed)
    write_run(tmp_path / "new", seed=1)
    old = write_run(tmp_path / "old", seed=0)
    config = json.loads((old / "config.json").read_text())
    config["metric"] = config.pop("projection")
    (old / "config.json").write_text(json.dumps(config))
    (group,) = groups_in(tmp_path)
    assert group.seeds == (0, 1)


def test_every_form_of_space_is_space(tmp_path):
    for name in ("space", "space-printed", "space-joint", "spaced", "pcpo"):
        write_run(tmp_path / name, algorithm=name)
    groups = groups_in(tmp_path)
    labels = [group.label for group in groups]
    assert labels == ["SPACE (near)", "SPACE-joint (near)", "SPACE-printed (near)", "PCPO (near)", "spaced (near)"]
    assert [group.is_space for group in groups] == [True, True, True, False, False]
    assert "3 settings of SPACE reach J_R from" in headline(groups)


def test_headline_when_space_is_ahead_and_safe(tmp_path):
    said = headline(groups_in(two_algorithms(tmp_path)))
    assert re.match(r"After 40 updates SPACE \(near\) reaches J_R 1[78]\.\d against [89]\.\d+ for PCPO; J_C is 4", said)
    assert "of 5.00 allowed" in said
    assert "behind" not in said
    assert "breaks" not in said
    assert "could be chance" not in said


def test_headline_when_space_is_behind(tmp_path):
    said = headline(groups_in(two_algorithms(tmp_path, space={"reward": 6.0}, pcpo={"cost": 7.0})))
    assert re.search(r"SPACE \(near\) is behind: J_R [56]\.\d+ against (8|9)\.\d+ for PCPO", said)
    assert re.search(r"PCPO is over the limit: J_C [67]\.\d+ of 5\.00 allowed", said)


def test_headline_when_space_violates(tmp_path):
    said = headline(groups_in(two_algorithms(tmp_path, space={"cost": 7.0})))
    assert re.search(r"but it breaks the cost limit: J_C is (6\.9|7\.0)\d* of 5\.00 allowed, over by (39|4\d) %", said)


def test_headline_admits_chance(tmp_path):
    k = np.arange(40.0)
    for seed in range(3):
        ours, theirs = ({"J_R": 0 * k + start + 4 * seed} for start in (10, 9))
        write_run(tmp_path / f"s{seed}", seed=seed, columns=ours)
        write_run(tmp_path / f"p{seed}", seed=seed, algorithm="pcpo", baseline=None, columns=theirs)
    assert "could be chance" in headline(groups_in(tmp_path))
    assert "One seed is too few" in headline(groups_in(two_algorithms(tmp_path / "one", seeds=1))[:2])


def test_headline_compares_where_all_have_been(tmp_path):
    columns = {"J_R": np.arange(80.0)}
    write_run(tmp_path / "s", updates=80, columns=columns)
    write_run(tmp_path / "p", updates=40, algorithm="pcpo", baseline=None, reward=50.0)
    said = headline(groups_in(tmp_path))
    assert said.startswith("After 40 updates, as far as all have run, SPACE (near) is behind: J_R 34.5 against")


def test_headline_gives_the_range_of_several_space_settings(tmp_path):
    two_algorithms(tmp_path, seeds=2)
    for seed in range(2):
        write_run(tmp_path / f"bad-{seed}", seed=seed, baseline="reward", reward=5.0, cost=8.0)
    said = headline(groups_in(tmp_path))
    assert re.search(r"2 settings of SPACE reach J_R from [45]\.\d+ with SPACE \(reward\) to 1\d\.\d with SPACE", said)
    assert "1 of 2 are ahead of PCPO at" in said
    assert re.search(r"Over the cost limit: SPACE \(reward\) at [78]\.\d+ of 5\.00 allowed", said)


def test_headline_without_cost_or_reward(tmp_path):
    nan = np.full(40, np.nan)
    unlimited = {"J_C": nan, "h_C": nan, "cumulative_violation": nan}
    write_run(tmp_path / "a" / "trpo", algorithm="trpo", baseline=None, columns=unlimited)
    assert "no cost limit was measured" in headline(groups_in(tmp_path / "a"))
    write_run(tmp_path / "b" / "space", columns={"J_R": nan})
    assert headline(groups_in(tmp_path / "b")) == "None of these runs recorded a reward at its end."


def test_a_violation_is_never_rounded_away(tmp_path):
    write_run(tmp_path / "run", columns={"J_C": np.full(40, 5.0004)})
    said = headline(groups_in(tmp_path))
    assert "breaks the cost limit: J_C is 5.0004 of 5 allowed, over by less than 1 %" in said
