"""The report room: what it reads, what it computes, what it says, and what it never does."""

from __future__ import annotations

import ast
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import spacerl.reporting
from spacerl.reporting import figures, group_runs, headline, read_run, read_runs, write_report, write_table_markdown
from spacerl.reporting import statistics as stats
from spacerl.reporting.page import number_text, remarks

# ------------------------------------------------------------------------------------------ made-up run folders


def write_run(
    folder: Path, *, algorithm="space", task="point-circle", baseline="near", seed=0, updates=40, reward=18.0,
    cost=4.5, limit=5.0, divergence=True, measured_baseline=True, trajectories=None, columns=None, **config,
) -> Path:  # fmt: skip
    """A run folder whose J_R rises to ``reward`` and whose J_C decays to ``cost``, both with a little noise."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng([seed, len(algorithm), updates])
    k = np.arange(updates, dtype=float)
    J_R = reward * (1 - np.exp(-k / (updates / 6))) + 0.02 * reward * rng.standard_normal(updates)
    J_C = cost + 6.0 * np.exp(-k / (updates / 15)) + 0.02 * cost * rng.standard_normal(updates)
    nan = np.full(updates, np.nan)
    table = {
        "update": k, "env_steps": 5000 * (k + 1), "J_R": J_R, "J_C": J_C,
        "J_D": 900 * np.exp(-k / (updates / 5)) + 8 if divergence else nan,
        "h_C": np.full(updates, limit), "h_D": np.minimum(5 + 3 * k, 60.0) if divergence else nan,
        "cumulative_violation": np.cumsum(np.maximum(0, J_C - limit)), "kl": np.full(updates, 1e-4),
        "entropy": 2.8 - 0.02 * k, "seconds_collect": np.full(updates, 0.25), "seconds_update": np.full(updates, 0.5),
    } | (columns or {})  # fmt: skip
    lines = [",".join(table)] + [",".join(repr(float(v)) for v in row) for row in zip(*table.values(), strict=True)]
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    settings = {"task": task, "algorithm": algorithm, "baseline": baseline, "updates": updates, "seed": seed}
    settings |= {"cost_limit": [limit], "divergence_threshold": 5.0, "combine": "printed", "projection": "kl"} | config
    (folder / "config.json").write_text(json.dumps(settings))
    versions = {"spacerl": "0.1.0", "python": "3.11", "commit": "abcdef0123456789", "hardware": "8-core test machine"}
    (folder / "versions.json").write_text(json.dumps(versions | {"started": f"2025-01-0{seed % 9 + 1}T12:00:00"}))
    if baseline and measured_baseline:
        (folder / "baseline.json").write_text(json.dumps({"name": baseline, "J_R": 12.0, "J_C": 3.0, "h_C": limit}))
    if trajectories:
        (folder / "trajectories.json").write_text(json.dumps(trajectories))
    return folder


def circle_trajectories(steps=120, episodes=4) -> dict:
    rng = np.random.default_rng(1)
    policies = []
    for name, squeeze in (("baseline", 0.9), ("learned", 0.46)):
        made = []
        for _ in range(episodes):
            angle = rng.uniform(0, 6.28) + np.linspace(0, 5.5, steps)
            grown = 5.0 * (1 - np.exp(-np.arange(steps) / 12))
            xy = np.stack([squeeze * grown * np.cos(angle), grown * np.sin(angle)], axis=1)
            made.append({"xy": xy.round(3).tolist(), "cost": (np.abs(xy[:, 0]) > 2.5).astype(int).tolist()})
        policies.append({"name": name, "J_R": 17.0, "J_C": 31.0 if name == "baseline" else 0.0, "episodes": made})
    arena = {"kind": "circle", "radius": 5.0, "x_limit": 2.5}
    return {"task": "point-circle", "arena": arena, "policies": policies}


def gather_trajectories() -> dict:
    rng = np.random.default_rng(2)
    policies = []
    for name in ("baseline", "learned"):
        made = []
        for _ in range(3):
            apples, bombs = rng.uniform(-5, 5, (2, 2)), rng.uniform(-5, 5, (8, 2))
            xy = np.cumsum(rng.normal(0.1, 0.5, (16, 2)), axis=0)  # one position more than steps: the start
            gap = np.linalg.norm(xy[1:, None] - bombs[None], axis=-1).min(axis=1)
            made.append({"xy": xy.tolist(), "cost": (gap < 1).astype(int).tolist()}
                        | {"apples": apples.tolist(), "bombs": bombs.tolist()})  # fmt: skip
        policies.append({"name": name, "J_R": 3.0, "J_C": 0.4, "episodes": made})
    return {"task": "point-gather", "arena": {"kind": "gather", "half_width": 6.0, "catch_range": 1.0},
            "policies": policies}  # fmt: skip


def two_algorithms(folder: Path, seeds=3, space=None, pcpo=None) -> Path:
    for seed in range(seeds):
        write_run(folder / f"space-{seed}", seed=seed, **(space or {}))
        opponent = {"algorithm": "pcpo", "baseline": None, "reward": 9.0, "divergence": False} | (pcpo or {})
        write_run(folder / f"pcpo-{seed}", seed=seed, **opponent)
    return folder


def groups_in(folder: Path):
    return group_runs(read_runs(folder).runs)


# ------------------------------------------------------------------------------------------------------- statistics


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 29, 200])
def test_t_quantile_equals_scipy(freedom):
    from scipy.stats import t

    for probability in (0.6, 0.9, 0.975, 0.995, 0.1):
        assert stats.t_quantile(probability, freedom) == pytest.approx(t.ppf(probability, freedom), rel=1e-8)


def test_mean_interval_worked_by_hand():
    # 1..5: mean 3, variance 10/4 = 2.5, t(0.975, 4) = 2.776445
    interval = stats.mean_interval([1, 2, 3, 4, 5])
    reach = 2.776445 * math.sqrt(2.5) / math.sqrt(5)
    assert (interval.mean, interval.n) == (3.0, 5)
    assert interval.std == pytest.approx(math.sqrt(2.5))
    assert (interval.low, interval.high) == pytest.approx((3 - reach, 3 + reach), rel=1e-6)


def test_difference_interval_is_welchs():
    from scipy.stats import t

    ours, theirs = [3.0, 4.0, 5.0, 8.0], [1.0, 2.0, 2.5]
    gap = stats.difference_interval(ours, theirs)
    parts = [np.var(side, ddof=1) / len(side) for side in (ours, theirs)]
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 2)
    reach = t.ppf(0.975, math.floor(freedom)) * math.sqrt(sum(parts))
    assert gap.mean == pytest.approx(5.0 - 5.5 / 3)
    assert (gap.low, gap.high) == pytest.approx((gap.mean - reach, gap.mean + reach))


def test_interquartile_mean_equals_scipy():
    from scipy.stats import trim_mean

    assert stats.interquartile_mean([100, 1, 2, 3, -50]) == 2.0
    scores = np.random.default_rng(0).standard_normal(23)
    assert stats.interquartile_mean(scores) == pytest.approx(trim_mean(scores, 0.25))


def test_not_measured_scores_are_left_out_and_counted():
    interval = stats.mean_interval([1.0, math.nan, 3.0, math.inf])
    assert (interval.mean, interval.n) == (2.0, 2)
    alone = stats.mean_interval([math.nan, 4.0])
    assert (alone.mean, alone.n) == (4.0, 1)
    assert math.isnan(alone.low)
    assert math.isnan(stats.mean_interval([math.nan]).mean)


def test_bootstrap_is_repeatable_and_brackets_the_mean():
    scores = np.random.default_rng(3).standard_normal(30)
    one, two = (stats.mean_interval(scores, method="bootstrap") for _ in range(2))
    assert one == two
    by_t = stats.mean_interval(scores)
    assert one.low == pytest.approx(by_t.low, abs=0.08)
    assert one.high == pytest.approx(by_t.high, abs=0.08)
    with pytest.raises(ValueError, match="expected 't' or 'bootstrap'"):
        stats.mean_interval(scores, method="jackknife")


@pytest.mark.parametrize(
    ("cost", "expected"),
    [([9, 4, 6, 5, 4], 13), ([1, 1, 1, 1, 1], 10), ([1, 1, 1, 1, 6], math.nan), ([9, math.nan, 4, 4, 4], 12)],
)
def test_satisfied_from_means_for_good(cost, expected):
    found = stats.satisfied_from(np.arange(10.0, 15.0), np.array(cost, float), np.full(5, 5.0))
    assert found == pytest.approx(expected, nan_ok=True)


def test_mean_over_updates_is_the_normalised_area():
    assert stats.mean_over_updates(np.array([0.0, 1.0, 3.0]), np.array([0.0, 2.0, 2.0])) == pytest.approx(5 / 3)


def test_summary_row_worked_by_hand(tmp_path):
    k = np.arange(60.0)
    cost = np.where(k < 20, 7.0, 4.0)
    for seed, offset in enumerate((0.0, 2.0)):
        columns = {"J_R": k + offset, "J_C": cost, "cumulative_violation": np.cumsum(np.maximum(0, cost - 5))}
        write_run(tmp_path / str(seed), seed=seed, updates=60, columns=columns)
    (row,) = stats.summary_table(groups_in(tmp_path))
    assert (row.seeds, row.updates, row.end_window) == (2, 60, 10)
    assert row.reward_end.mean == pytest.approx(54.5 + 1)  # updates 50..59, seeds two apart
    assert row.reward_last.mean == pytest.approx(60.0)
    assert {m: r.mean for m, r in row.reward_at.items()} == {10: 11.0, 25: 26.0, 50: 51.0}
    assert row.violation.mean == pytest.approx(40.0)
    assert row.satisfied_from.mean == 20
    assert row.share_over.mean == pytest.approx(1 / 3)
    assert row.seconds_per_update == pytest.approx(0.75)
    assert row.within_limit
    assert row.seeds_over == 0


# ---------------------------------------------------------------------------------------------------------- reading


def test_what_is_not_a_run_is_named_in_one_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"is not a run folder: expected a directory with config\.json and metrics"):
        read_run(tmp_path)
    for nothing in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ValueError, match="neither a run folder nor a folder of runs") as told:
            read_runs([nothing])
        assert str(nothing) in str(told.value)
        assert "\n" not in str(told.value)
    with pytest.raises(ValueError, match="no readable run"):
        read_runs([])


@pytest.mark.parametrize("tail", ["39.0,1.0", "39.0,200000.0,1.", "39.0,x,"])
def test_half_written_last_row_is_left_out(tmp_path, tail):
    folder = write_run(tmp_path / "run", updates=39)
    whole = read_run(folder)
    with (folder / "metrics.csv").open("a") as file:
        file.write(tail)
    cut = read_run(folder)
    assert np.array_equal(cut.column("J_R"), whole.column("J_R"))
    assert not whole.remarks
    assert "half-written" in cut.remarks[0]


def test_last_number_without_line_break_is_not_trusted(tmp_path):
    folder = write_run(tmp_path / "run", updates=12)
    text = (folder / "metrics.csv").read_text()
    (folder / "metrics.csv").write_text(text[:-2])  # all columns there, the last number one digit short
    assert len(read_run(folder).updates) == 11


def test_damage_in_the_middle_is_refused(tmp_path):
    folder = write_run(tmp_path / "run", updates=12)
    lines = (folder / "metrics.csv").read_text().splitlines()
    lines[5] = lines[5][:9]
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match="row 5"):
        read_run(folder)


def test_empty_metrics_are_refused_alone_and_left_out_of_a_folder(tmp_path):
    write_run(tmp_path / "good")
    bad = write_run(tmp_path / "just-begun")
    (bad / "metrics.csv").write_text("update,J_R\n0.0,")
    with pytest.raises(ValueError, match="no whole row yet"):
        read_runs(bad)
    reading = read_runs(tmp_path)
    assert [run.folder.name for run in reading.runs] == ["good"]
    assert "just-begun" in reading.skipped[0]
    assert "just-begun" in write_report(tmp_path, tmp_path / "out.html").read_text()


def test_rows_written_again_after_a_resume_replace_the_first(tmp_path):
    folder = write_run(tmp_path / "run", updates=5)
    header, *rows = (folder / "metrics.csv").read_text().splitlines()
    again = rows[3].split(",")
    again[header.split(",").index("J_R")] = "77.0"
    (folder / "metrics.csv").write_text("\n".join([header, *rows, ",".join(again)]) + "\n")
    assert read_run(folder).column("J_R")[3] == 77.0


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("config.json", "{", "is not JSON"),
        ("config.json", "[1]", "must hold a JSON object"),
        ("config.json", '{"task": "t", "seed": 0}', "must name 'algorithm'"),
        ("config.json", '{"task": "t", "algorithm": "space", "seed": "x"}', "whole number as 'seed'"),
        ("metrics.csv", "update,J_C\n0.0,1.0\n", "lacks the columns J_R"),
        ("metrics.csv", "update,J_R\nnan,1.0\n", "must grow"),
        ("trajectories.json", '{"policies": []}', "lacks the key 'arena'"),
        ("trajectories.json", '{"arena": {"kind": "maze"}, "policies": []}', "arena kind 'maze' is unknown"),
        ("trajectories.json", '{"arena": {"kind": "circle"}, "policies": []}', "needs the number 'radius'"),
    ],
)
def test_bad_files_stop_at_the_door(tmp_path, file, content, complaint):
    folder = write_run(tmp_path / "run")
    (folder / file).write_text(content)
    with pytest.raises(ValueError, match=complaint):
        read_run(folder)


def test_folders_of_runs_are_expanded_and_read_once(tmp_path):
    two_algorithms(tmp_path / "a" / "b", seeds=2)
    reading = read_runs([tmp_path, tmp_path / "a", tmp_path / "a" / "b" / "space-0"])
    assert len(reading.runs) == 4


def test_groups_gather_seeds_and_show_what_differs(tmp_path):
    two_algorithms(tmp_path, seeds=3)
    for seed in range(2):
        write_run(tmp_path / f"joint-{seed}", seed=seed, combine="joint")
        write_run(tmp_path / f"far-{seed}", seed=seed, baseline="runs/far-0/checkpoints/last.safetensors")
    groups = groups_in(tmp_path)
    assert {group.label: group.seeds for group in groups} == {
        "SPACE (near, combine=joint)": (0, 1),
        "SPACE (near, combine=printed)": (0, 1, 2),
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


def test_missing_columns_are_derived_or_nan(tmp_path):
    folder = write_run(tmp_path / "run", limit=3.0)
    (folder / "metrics.csv").write_text("update,J_R,J_C\n0.0,1.0,5.0\n1.0,2.0,2.0\n2.0,2.5,4.0\n")
    run = read_run(folder)
    assert run.column("h_C").tolist() == [3.0, 3.0, 3.0]
    assert run.column("cumulative_violation").tolist() == [2.0, 2.0, 3.0]
    assert np.isnan(run.column("J_D")).all()
    assert "<svg" in write_report(folder, tmp_path / "out.html").read_text()


# --------------------------------------------------------------------------------------------------- honest headline


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


def test_a_violation_is_never_rounded_away(tmp_path):
    write_run(tmp_path / "run", columns={"J_C": np.full(40, 5.0004)})
    said = headline(groups_in(tmp_path))
    assert "breaks the cost limit: J_C is 5.0004 of 5 allowed, over by less than 1 %" in said


def test_headline_without_cost_or_reward(tmp_path):
    nan = np.full(40, np.nan)
    unlimited = {"J_C": nan, "h_C": nan, "cumulative_violation": nan}
    write_run(tmp_path / "a" / "trpo", algorithm="trpo", baseline=None, columns=unlimited)
    assert "no cost limit was measured" in headline(groups_in(tmp_path / "a"))
    write_run(tmp_path / "b" / "space", columns={"J_R": nan})
    assert headline(groups_in(tmp_path / "b")) == "None of these runs recorded a reward at its end."


# --------------------------------------------------------------------------------------------------------- the page


class Outline(HTMLParser):
    """Tags that stay open, ids, and every attribute through which a page could reach outside."""

    VOID = frozenset({"meta", "br", "img", "link", "input", "hr"})

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.ids, self.references, self.text = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.open += [] if tag in self.VOID else [tag]
        self.ids += [value for name, value in attrs if name == "id"]
        self.references += [value for name, value in attrs if name in ("src", "href", "xlink:href", "data", "action")]

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open = self.open[:-1] if tag not in self.VOID else self.open

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def outline_of(page: str) -> Outline:
    parsed = Outline()
    parsed.feed(page)
    parsed.close()
    return parsed


@pytest.fixture(scope="module")
def full_page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    two_algorithms(folder / "circle", seeds=3, space={"trajectories": circle_trajectories()})
    gather = {"task": "point-gather", "limit": 0.5, "cost": 0.4}
    two_algorithms(folder / "gather", seeds=2, space=gather | {"trajectories": gather_trajectories()}, pcpo=gather)
    return write_report(folder, folder / "out" / "report.html", title="A <title> & more").read_text(encoding="utf-8")


def test_page_is_self_contained_and_well_formed(full_page):
    assert "http://" not in full_page
    assert "https://" not in full_page
    assert not re.search(r"@import|url\((?!#)", full_page)
    parsed = outline_of(full_page)
    assert parsed.open == []
    assert len(set(parsed.ids)) == len(parsed.ids)
    assert not {"script", "link", "iframe", "object", "base"} & set(parsed.tags)
    inner = {f"#{name}" for name in parsed.ids}
    assert all(reference in inner or reference.startswith("data:image/png;base64,") for reference in parsed.references)
    clipped = set(re.findall(r"url\((#[^)]*)\)", full_page))
    assert clipped
    assert clipped <= inner


def test_page_shows_both_tasks_with_all_figures(full_page):
    for heading in ("Reward", "Cost", "Cumulative violation", "Reward against violation", "Distance from the baseline"):
        assert full_page.count(f"<h3>{heading}</h3>") == 2
    assert full_page.count('class="paths') == 2
    assert "abcdef0123" in full_page
    assert "8-core test machine" in full_page
    assert "prefers-color-scheme: dark" in full_page
    assert "A &lt;title&gt; &amp; more" in full_page


def test_page_has_no_fixed_ink_left(full_page):
    drawings = "".join(re.findall(r"<svg class=\"plot\".*?</svg>", full_page, flags=re.DOTALL))
    assert set(re.findall(r"#[0-9a-f]{6}\b", drawings)) <= {"#ffffff", "#000000"}


def test_same_runs_same_bytes(tmp_path):
    two_algorithms(tmp_path / "runs", seeds=1)
    one = write_report(tmp_path / "runs", tmp_path / "one.html").read_bytes()
    assert one == write_report([tmp_path / "runs"], tmp_path / "two.html").read_bytes()


def test_everything_from_files_is_escaped(tmp_path):
    evil = "<script>alert('x')</script>\"& $\\frac{$"  # markup for the browser, and broken mathematics for matplotlib
    trajectories = circle_trajectories(steps=10, episodes=1)
    trajectories["policies"][1]["name"] = evil
    names = {"task": evil, "algorithm": evil, "baseline": evil, "note": evil}
    folder = write_run(tmp_path / "runs" / "a", trajectories=trajectories, **names)
    (folder / "versions.json").write_text(json.dumps({"commit": evil, "hardware": evil, evil: evil}))
    columns = {f"J_C_{evil.replace(',', '')}": np.ones(40), f"h_C_{evil.replace(',', '')}": np.ones(40)}
    write_run(tmp_path / "runs" / "b", task=evil, algorithm="space", baseline=evil, columns=columns, **{evil: 1})
    page = write_report(tmp_path / "runs", tmp_path / "out.html", title=evil).read_text()
    parsed = outline_of(page)
    assert "script" not in parsed.tags
    assert "<script" not in page
    assert parsed.open == []
    assert any(evil in text for text in parsed.text)


def test_nan_columns_leave_a_page_without_nan(tmp_path):
    folder = write_run(tmp_path / "pcpo", algorithm="pcpo", baseline=None, divergence=False)
    page = write_report(folder, tmp_path / "out.html").read_text()
    assert "Distance from the baseline" not in page
    assert not re.search(r"\bnan\b", "".join(outline_of(page).text), flags=re.IGNORECASE)


def test_report_is_replaced_whole_and_leaves_nothing_behind(tmp_path, monkeypatch):
    runs = two_algorithms(tmp_path / "runs", seeds=1)
    out = tmp_path / "pages"
    out.mkdir()
    assert write_report(runs, out) == out / "report.html"
    (out / "report.html").write_text("the old page")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_report(runs, out)
    assert (out / "report.html").read_text() == "the old page"
    assert [path.name for path in out.iterdir()] == ["report.html"]


def test_several_costs_get_a_figure_each(tmp_path):
    k = np.ones(40)
    columns = {"J_C_speed": 3 * k, "h_C_speed": 4 * k, "J_C_crash": k, "h_C_crash": 2 * k}
    write_run(tmp_path / "run", columns=columns, cost_limit=[4.0, 2.0])
    drawn = figures.task_figures(groups_in(tmp_path))
    assert list(drawn)[:3] == ["reward", "cost speed", "cost crash"]


def test_cost_figure_draws_limit_band_and_baseline(tmp_path):
    two_algorithms(tmp_path)
    groups = groups_in(tmp_path)
    axes = figures.cost_figure(groups, figures.group_styles(groups)).axes[0]
    level = [line for line in axes.lines if len(set(line.get_ydata())) == 1]
    assert {(line.get_ydata()[0], line.get_linestyle()) for line in level} == {(5.0, "--"), (3.0, ":")}
    assert axes.get_ylim()[1] > 5.0
    assert len(axes.collections) == 2  # one band per group
    assert {text.get_text() for text in axes.texts} == {"h_C 5", "π_B near"}


def test_divergence_axis_is_logarithmic_when_the_span_is_large(tmp_path):
    write_run(tmp_path / "wide" / "run")
    write_run(tmp_path / "narrow" / "run", columns={"J_D": np.linspace(3, 9, 40), "h_D": np.full(40, 5.0)})
    scales = {}
    for name in ("wide", "narrow"):
        groups = groups_in(tmp_path / name)
        scales[name] = figures.divergence_figure(groups, figures.group_styles(groups)).axes[0].get_yscale()
    assert scales == {"wide": "log", "narrow": "linear"}


def test_unsafe_steps_are_red_in_trajectories(tmp_path):
    run = read_run(write_run(tmp_path / "run", trajectories=circle_trajectories()))
    baseline, learned = figures.trajectory_figure(run.trajectories).axes
    red = [sum(len(l.get_xdata()) for l in axes.lines if l.get_zorder() == 5) for axes in (baseline, learned)]
    expected = int(sum(episode.cost.sum() for episode in run.trajectories.policies[0].episodes))
    assert red == [expected, 0]
    assert "J_R 17, J_C 31" in baseline.get_title(loc="left")


def test_large_drawings_become_png(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "LARGEST_SVG", 1000)
    page = write_report(write_run(tmp_path / "run"), tmp_path / "out.html").read_text()
    assert 'src="data:image/png;base64,' in page


def test_more_groups_than_colours_stay_distinct(tmp_path):
    for number in range(9):
        write_run(tmp_path / str(number), baseline=f"b{number}", updates=3)
    styles = figures.group_styles(groups_in(tmp_path))
    assert len({repr(style) for style in styles.values()}) == 9


def test_remarks_name_repeated_seeds_and_mixed_commits(tmp_path):
    for number in range(2):
        folder = write_run(tmp_path / str(number), seed=4, columns={"J_R": np.where(np.arange(40) > 35, np.nan, 1.0)})
        (folder / "versions.json").write_text(json.dumps({"commit": f"c{number}"}))
    said = " ".join(remarks(groups_in(tmp_path)))
    assert "seed 4 appears more than once" in said
    assert "different commits (c0, c1)" in said
    assert "J_R is not a number in some of the last 10 updates" in said


def test_markdown_table(tmp_path):
    table = write_table_markdown(groups_in(two_algorithms(tmp_path, space={"baseline": "a|b"}))).splitlines()
    assert len(table) == 4
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert "SPACE (a\\|b)" in table[2]
    assert "J_R at 25" in table[0]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (18.23, "18.2"), (9.1, "9.10"), (99.97, "100"), (12345.6, "12,346"), (0.0421, "0.0421")]
    + [(-3.456, "-3.46"), (math.nan, "–")],
)
def test_number_text(value, text):
    assert number_text(value) == text


# ---------------------------------------------------------------------------------------------------------- imports


def test_report_imports_only_what_it_may():
    allowed = {"numpy", "matplotlib", "spacerl.reporting"} | set(sys.stdlib_module_names)
    for file in Path(spacerl.reporting.__file__).parent.glob("*.py"):
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert all(name in allowed or name.split(".")[0] in allowed - {"spacerl.reporting"} or
                       name.startswith("spacerl.reporting") for name in names), (file.name, names)  # fmt: skip


def test_importing_the_report_loads_nothing_heavy():
    code = "import sys, spacerl.reporting; print(*{'jax', 'matplotlib', 'scipy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={
        "PYTHONPATH": str(Path(spacerl.reporting.__file__).parents[2])})  # fmt: skip
    assert done.stdout.strip() == ""
