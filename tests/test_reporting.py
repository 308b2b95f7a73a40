"""The page of the report: what it shows, what it leaves out, and what it never does."""

from __future__ import annotations

import ast
import base64
import csv
import html
import io
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
from chromium import chromium
from spacerl.reporting import (
    arenas,
    data,
    figures,
    mean_interval,
    palette,
    read_run,
    summary_table,
    svg,
    write_report,
    write_table_markdown,
)
from spacerl.reporting.groups import by_task
from spacerl.reporting.remarks import remarks
from spacerl.reporting.tables import course_cells, evaluation_cells
from spacerl.reporting.text import number_text, symbols
from support.run_folders import circle_trajectories, gather_trajectories, groups_in, two_algorithms, write_run


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


def one_point(x: float, **arena) -> str:
    episode = {"xy": [[x, 0.0]], "cost": [0.0]}
    return json.dumps({"arena": arena, "policies": [{"name": "learned", "episodes": [episode]}]})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "trajectories.json is not JSON"),
        ('{"policies": []}', "lacks the key 'arena'"),
        ('{"arena": 3, "policies": []}', "does not hold trajectories"),
        ('{"arena": {"kind": "circle"}, "policies": [7]}', "does not hold trajectories"),
        (one_point(math.nan, kind="circle"), "xy must be finite numbers"),
        (
            '{"arena": {"kind": "maze"}, "policies": []}',
            "draws arenas of kind circle and gather and traffic, not 'maze'",
        ),
        (
            '{"arena": {"kind": ["maze"]}, "policies": []}',
            "draws arenas of kind circle and gather and traffic, not ['maze']",
        ),
        (one_point(1.0, walls=4), "draws arenas of kind circle and gather and traffic, not None"),
        ('{"arena": {"kind": "circle"}, "policies": []}', "needs a number above 0 as 'radius', not None"),
        ('{"arena": {"kind": "gather", "half_width": -1.0}, "policies": []}', "'half_width', not -1.0"),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_trajectories_that_cannot_be_drawn_are_left_out_with_a_remark(tmp_path, content, reason, named):
    folder = write_run(tmp_path / "runs" / "run")
    (folder / "trajectories.json").write_text(content)
    page = write_report(folder if named else folder.parent, tmp_path / "out.html").read_text()
    said = "".join(outline_of(page).text)
    assert "runs/run: its trajectories are not drawn: " in said
    assert reason in said
    assert str(tmp_path) not in said
    assert "Where the policies go" not in said
    assert "Cumulative violation" in said


def test_the_lowest_seed_whose_trajectories_can_be_drawn_is_shown(tmp_path):
    write_run(tmp_path / "a", seed=0, trajectories={"arena": {"kind": "maze"}, "policies": []})
    write_run(tmp_path / "b", seed=1, trajectories=circle_trajectories(steps=10, episodes=1))
    said = "".join(outline_of(write_report(tmp_path, tmp_path / "out.html").read_text()).text)
    assert "SPACE (near), seed 1" in said


def test_page_is_self_contained_and_well_formed(full_page):
    assert "http://" not in full_page
    assert "https://" not in full_page
    assert not re.search(r"@import|url\((?!#)", full_page)
    parsed = outline_of(full_page)
    assert parsed.open == []
    assert len(set(parsed.ids)) == len(parsed.ids)
    assert not {"link", "iframe", "object", "base"} & set(parsed.tags)
    assert parsed.tags.count("script") == 1  # ours, in the page
    inner = {f"#{name}" for name in parsed.ids}
    held = ("data:image/png;base64,", "data:text/csv;charset=utf-8;base64,")
    assert all(reference in inner or reference.startswith(held) for reference in parsed.references)
    clipped = set(re.findall(r"url\((#[^)]*)\)", full_page))
    assert clipped
    assert clipped <= inner


def test_page_shows_both_tasks_with_all_figures(full_page):
    for heading in ("Cumulative violation", "Reward against violation", "Distance from the baseline"):
        assert full_page.count(f"<h3>{heading}</h3>") == 2
    for heading in ("Reward", "Cost"):  # over updates, environment steps and wall time
        assert full_page.count(f"<h3>{heading}</h3>") == 6
        assert full_page.count(f"hidden><h3>{heading}</h3>") == 4
    assert full_page.count('class="paths') == 2
    assert "abcdef0123" in full_page
    assert "8-core test machine" in full_page
    assert "prefers-color-scheme: dark" in full_page
    assert "A &lt;title&gt; &amp; more" in full_page


def test_page_has_no_fixed_ink_left(full_page):
    drawings = "".join(re.findall(r"<svg class=\"plot\".*?</svg>", full_page, flags=re.DOTALL))
    assert set(re.findall(r"#[0-9a-f]{6}\b", drawings)) <= {"#ffffff", "#000000"}


def curves_of(page: str) -> list[list[dict]]:
    """What a pointer over each figure is told."""
    return [json.loads(html.unescape(text)) for text in re.findall(r'data-curves="([^"]*)"', page)]


def test_a_pointer_is_told_the_values_that_are_drawn(tmp_path):
    write_run(tmp_path / "runs" / "a", updates=20)
    page = write_report(tmp_path / "runs", tmp_path / "out.html").read_text()
    run = read_run(tmp_path / "runs" / "a")
    over_updates, over_steps, over_time = (
        next(c for c in curves_of(page) if c and c[0]["x"] == pytest.approx(x)) for x in
        (run.updates, run.column("env_steps"), 0.75 * np.arange(1, 21))
    )  # fmt: skip
    for curves in (over_updates, over_steps, over_time):
        assert curves[0]["y"] == pytest.approx(run.column("J_R"), rel=1e-4)
        assert (curves[0]["curve"], len(curves[0]["px"])) == (0, 20)
        assert np.all(np.diff(curves[0]["px"]) > 0)
        highest, lowest = np.argmax(curves[0]["y"]), np.argmin(curves[0]["y"])
        assert curves[0]["py"][highest] < curves[0]["py"][lowest]  # down is larger in a drawing
    assert page.count('id="t0f0-curve0-line"') == 1  # what the button of the legend switches off
    assert '<button type="button" data-curve="0"' in page


def test_a_browser_shows_values_switches_curves_off_and_changes_the_axis(tmp_path):
    two_algorithms(tmp_path / "runs", seeds=1)
    page = write_report(tmp_path / "runs", tmp_path / "out.html")
    curve = "document.getElementById('t0f0-curve0-line').closest('svg')"
    shown = f"[...{curve}.querySelectorAll('[id*=\"-curve0-\"]')].every(part => part.style.display !== 'none')"
    button = "document.querySelector('button[data-curve=\"0\"]')"
    axes = "[...new Set([...document.querySelectorAll('figure[data-axis]')].filter(f => !f.hidden)"
    axes += ".map(f => f.dataset.axis))].join()"
    with chromium(tmp_path / "browser") as tab:
        tab.open(page.as_uri())
        tab.wait("document.readyState === 'complete' && document.querySelector('svg.plot') !== null")
        tab.evaluate(f"{curve}.scrollIntoView({{block: 'center'}})")
        middle = f"(frame => [frame.x + frame.width / 2, frame.y + frame.height / 2])({curve}.getBoundingClientRect())"
        x, y = tab.evaluate(middle)
        tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        told = tab.wait("document.querySelector('.values')?.textContent")
        assert re.fullmatch(r"SPACE \(near\): [\d.]+ at \d+\nPCPO: [\d.]+ at \d+", told)
        assert tab.evaluate(shown)
        tab.evaluate(f"{button}.click()")
        assert not tab.evaluate(shown)
        assert tab.evaluate(f"{button}.getAttribute('aria-pressed')") == "false"
        tab.evaluate(f"{button}.click()")
        assert tab.evaluate(shown)
        before = tab.evaluate(axes)
        choice = "document.querySelector('select[data-axes]')"
        others = tab.evaluate(f"[...{choice}.options].map(o => o.value).filter(v => v !== {choice}.value)")
        assert len(others) == 2  # environment steps and wall time
        for other in others:
            tab.evaluate(f"{choice}.value = '{other}'; {choice}.dispatchEvent(new Event('change'))")
            assert tab.evaluate(axes) == other != before


def test_the_data_can_be_downloaded(tmp_path):
    two_algorithms(tmp_path / "runs", seeds=2)
    page = write_report(tmp_path / "runs", tmp_path / "out.html").read_text()
    (encoded,) = re.findall(r'href="data:text/csv;charset=utf-8;base64,([^"]*)"', page)
    rows = list(csv.DictReader(io.StringIO(base64.b64decode(encoded).decode())))
    assert len(rows) == 4 * 40
    run = read_run(tmp_path / "runs" / "space-1")
    mine = [row for row in rows if (row["setting"], row["seed"]) == ("SPACE (near)", "1")]
    assert [float(row["J_R"]) for row in mine] == pytest.approx(run.column("J_R"), rel=1e-6)
    assert {row["J_D"] for row in rows if row["setting"] == "PCPO"} == {""}


def test_videos_of_a_run_are_part_of_the_page(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "runs" / "a")
    (folder / "film.gif").write_bytes(b"GIF89a moving")
    (folder / "film.mp4").write_bytes(b"film")
    page = write_report(folder, tmp_path / "out.html").read_text()
    assert f'src="data:image/gif;base64,{base64.b64encode(b"GIF89a moving").decode()}"' in page
    assert '<video class="plot" controls muted src="data:video/mp4;base64,ZmlsbQ=="></video>' in page
    monkeypatch.setattr(data, "LARGEST_VIDEO", 5)
    page = write_report(folder, tmp_path / "out.html").read_text()
    assert "data:image/gif" not in page
    assert "film.gif is too large to be part of this page." in page


HULL_AND_FUEL = {
    "J_C_hull": np.full(40, 3.0), "h_C_hull": np.full(40, 5.0), "J_C_fuel": np.full(40, 44.0),
    "h_C_fuel": np.full(40, 20.0), "J_C": np.full(40, 44.0), "h_C": np.full(40, 20.0),
}  # fmt: skip


def test_every_cost_is_shown_by_its_name_with_its_own_limit(tmp_path):
    folder = write_run(tmp_path / "runs" / "a", columns=HULL_AND_FUEL, cost_limit=[5.0, 20.0])
    costs = {"hull": {"J_C": 1.5, "h_C": 5.0}, "fuel": {"J_C": 30.0, "h_C": 20.0}}
    (folder / "baseline.json").write_text(json.dumps({"name": "near", "J_R": 12.0, "J_C": 30.0, "costs": costs}))
    page = write_report(folder, tmp_path / "out.html").read_text()
    said = "".join(outline_of(page).text)
    assert "hull 3.00 of 5.00, fuel 44.0 of 20.0 allowed" in said
    assert "hull 3.00; fuel 44.0" in said
    (row,) = summary_table(groups_in(tmp_path / "runs"))
    assert [(cost.name, cost.end.mean, cost.limit) for cost in row.costs] == [("hull", 3, 5), ("fuel", 44, 20)]
    assert (row.cost_end.mean, row.limit_end, row.within_limit) == (44.0, 20.0, False)
    levels = figures._baseline_levels(groups_in(tmp_path / "runs"), "J_C_hull")
    assert [(height, name) for height, name, _ in levels] == [(1.5, "π_B near")]


def test_every_cost_at_the_last_update_has_its_name(tmp_path):
    hull, fuel = np.linspace(9, 2, 40), np.linspace(3, 17, 40)
    write_run(tmp_path / "runs" / "a", columns=HULL_AND_FUEL | {"J_C_hull": hull, "J_C_fuel": fuel})
    (row,) = summary_table(groups_in(tmp_path / "runs"))
    assert course_cells(row, [])["J_C at the last"] == "hull 2.00; fuel 17.0"


def test_updates_are_whole_numbers_on_their_axis(tmp_path):
    for updates in (1, 2, 3):
        write_run(tmp_path / str(updates) / "a", updates=updates)
        groups = groups_in(tmp_path / str(updates))
        axes = figures.reward_figure(groups, palette.group_styles(groups)).axes[0]
        left, right = axes.get_xlim()
        shown = [tick for tick in axes.get_xticks() if left <= tick <= right]
        assert shown
        assert all(tick == round(tick) for tick in shown)


def test_a_run_that_switches_between_its_costs_is_not_averaged_over_their_limits(tmp_path):
    half = np.arange(40) % 2 == 0
    switching = HULL_AND_FUEL | {
        "J_C_fuel": np.full(40, 19.0),
        "J_C": np.where(half, 3, 19),
        "h_C": np.where(half, 5, 20),
    }
    write_run(tmp_path / "runs" / "a", columns=switching)
    (row,) = summary_table(groups_in(tmp_path / "runs"))
    assert (row.cost_end.mean, row.limit_end, row.within_limit) == (19.0, 20.0, True)


def test_runs_with_other_costs_are_not_compared(tmp_path):
    for name, algorithm in (("effort", "space"), ("speed", "pcpo")):
        folder = write_run(tmp_path / name, algorithm=algorithm)
        config = json.loads((folder / "config.json").read_text()) | {"cost": [name]}
        (folder / "config.json").write_text(json.dumps(config))
    tasks = by_task(groups_in(tmp_path))
    assert {name: len(members) for name, members in tasks.items()} == {
        "point-circle, cost effort": 1,
        "point-circle, cost speed": 1,
    }
    said = "".join(outline_of(write_report(tmp_path, tmp_path / "out.html").read_text()).text)
    assert said.count("There is no other algorithm here to compare with.") == 2


def test_seeds_that_differ_in_workers_alone_are_one_setting(tmp_path):
    for seed, workers in enumerate(("auto", 0, 3)):
        write_run(tmp_path / str(seed), seed=seed, workers=workers)
    (group,) = groups_in(tmp_path)
    assert group.seeds == (0, 1, 2)


@pytest.mark.parametrize(
    ("falling", "feasible", "said"),
    [
        (True, False, "its cost was still falling, so give it more updates"),
        (False, False, "try a smaller --delta, a larger --batch-size"),
        (False, True, "its best policy kept it when evaluated (--policy best); otherwise try a smaller --delta"),
    ],
)
def test_a_run_above_its_limit_is_told_what_to_try(tmp_path, falling, feasible, said):
    cost = np.linspace(60.0, 9.0, 40) if falling else np.full(40, 9.0)
    folder = write_run(tmp_path / "a", columns={"J_C": cost})
    if feasible:
        table = "update,env_steps,J_R,J_C,h_C,episode_return,episode_length,excess,best\n"
        (folder / "evaluations.csv").write_text(table + "10,1,7.5,4,5,9.5,50,-0.2,1\n20,2,8.5,9,5,12.5,50,0.8,0\n")
    page = "".join(outline_of(write_report(folder, tmp_path / "out.html").read_text()).text)
    assert "SPACE (near) ends above its limit (JC " in page
    assert said in page
    assert ("Best and last policy" in page) == feasible
    kept = write_report(write_run(tmp_path / "b", cost=2.0), tmp_path / "out.html").read_text()
    assert "ends above its limit" not in kept


def test_the_best_and_the_last_policy_are_in_the_tables(tmp_path):
    folder = write_run(tmp_path / "a")
    table = "update,env_steps,J_R,J_C,h_C,episode_return,episode_length,excess,best\n"
    (folder / "evaluations.csv").write_text(table + "10,1,7.5,4,5,9.5,50,-0.2,1\n20,2,8.5,9,5,12.5,50,0.8,0\n")
    (group,) = groups_in(tmp_path)
    cells = evaluation_cells(group)
    assert [cells[f"best: {name}"] for name in ("update", "J_R", "return", "J_C", "limits kept")] == [
        "10", "7.50", "9.50", "4.00", "1 of 1"]  # fmt: skip
    assert [cells[f"last: {name}"] for name in ("update", "J_R", "J_C", "limits kept")] == [
        "20", "8.50", "9.00", "0 of 1"]  # fmt: skip
    (folder / "evaluations.csv").write_text("broken\n1,2\n3\n4\n")
    page = write_report(folder, tmp_path / "out.html").read_text()
    assert "its evaluations are not shown: evaluations.csv" in page


def test_bands_are_the_interval_of_the_tables(tmp_path):
    two_algorithms(tmp_path, seeds=3)
    groups = groups_in(tmp_path)
    axes = figures.reward_figure(groups, palette.group_styles(groups)).axes[0]
    band = next(each for each in axes.collections if each.get_gid() == "curve0-band")
    ends = band.get_paths()[0].vertices
    last = ends[ends[:, 0] == 39, 1]
    interval = mean_interval([run.column("J_R")[39] for run in groups[0].runs])
    assert (last.min(), last.max()) == pytest.approx((interval.low, interval.high))


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
    assert parsed.tags.count("script") == 1  # ours
    assert "alert" not in re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)[0]
    assert page.count("<script") == 1
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
    old = (out / "report.html").read_text() + "the old page"
    (out / "report.html").write_text(old)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_report(runs, out)
    assert (out / "report.html").read_text() == old
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
    axes = figures.cost_figure(groups, palette.group_styles(groups)).axes[0]
    level = [line for line in axes.lines if len(set(line.get_ydata())) == 1]
    assert {(line.get_ydata()[0], line.get_linestyle()) for line in level} == {(5.0, "--"), (3.0, ":")}
    assert axes.get_ylim()[1] > 5.0
    assert len(axes.collections) == 2  # one band per group
    assert {text.get_text() for text in axes.texts} == {"h_C 5", "π_B near"}


def test_cost_figure_marks_what_is_tolerated_above_the_limit(tmp_path):
    write_run(tmp_path / "run", limit=0.0, cost_tolerance=16.0)
    groups = groups_in(tmp_path)
    axes = figures.cost_figure(groups, palette.group_styles(groups)).axes[0]
    assert {"h_C 0", "tolerated 16"} <= {text.get_text() for text in axes.texts}
    (zone,) = axes.patches
    assert zone.get_y() == 16.0


def test_divergence_axis_is_logarithmic_when_the_span_is_large(tmp_path):
    write_run(tmp_path / "wide" / "run")
    write_run(tmp_path / "narrow" / "run", columns={"J_D": np.linspace(3, 9, 40), "h_D": np.full(40, 5.0)})
    scales = {}
    for name in ("wide", "narrow"):
        groups = groups_in(tmp_path / name)
        scales[name] = figures.divergence_figure(groups, palette.group_styles(groups)).axes[0].get_yscale()
    assert scales == {"wide": "log", "narrow": "linear"}


@pytest.mark.parametrize(
    ("rho", "scale"),
    [
        (np.geomspace(80.0, 1e-3, 40), "log"),
        (np.append(np.geomspace(80.0, 1e-3, 39), 0.0), "symlog"),
        (np.append(np.geomspace(80.0, 1e-3, 39), np.nan), "log"),
        (np.linspace(1.2, 0.3, 40), "linear"),
        (np.zeros(40), "linear"),
    ],
)
def test_rho_is_drawn_on_a_log_axis_when_the_span_is_large(tmp_path, rho, scale):
    for seed in range(2):
        write_run(tmp_path / str(seed), seed=seed, columns={"rho": rho * (1.0 + 3.0 * seed)})
    write_run(tmp_path / "older", algorithm="pcpo", baseline=None)
    axes = figures.task_figures(groups_in(tmp_path))["stationarity"].axes[0]
    assert axes.get_yscale() == scale
    bottom, top = axes.get_ylim()
    assert 0.0 < bottom < 3e-3 if scale == "log" else bottom == 0.0
    assert top >= 1.0
    assert [line.get_label() for line in axes.lines if not line.get_label().startswith("_")] == ["SPACE (near)"]
    assert len(axes.collections) == 1  # a band over the two seeds


def test_stationarity_is_shown_where_runs_recorded_it(tmp_path):
    write_run(tmp_path / "older", algorithm="pcpo", baseline=None)
    assert not {"stationarity", "predicted gain"} & set(figures.task_figures(groups_in(tmp_path)))
    measured = {"rho": np.linspace(2.0, 0.1, 40), "predicted_gain": np.linspace(3.0, -1.0, 40)}
    write_run(tmp_path / "new", columns=measured)
    write_run(tmp_path / "unmeasured", algorithm="trpo", columns={name: np.full(40, np.nan) for name in measured})
    page = write_report(tmp_path, tmp_path / "out.html").read_text()
    for heading in ("How far from a stationary point", "What a step may still gain"):
        assert page.count(f"<h3>{heading}</h3>") == 1
    assert not re.search(r"\bnan\b", "".join(outline_of(page).text), flags=re.IGNORECASE)


def test_unsafe_steps_are_red_in_trajectories(tmp_path):
    run = read_run(write_run(tmp_path / "run", trajectories=circle_trajectories()))
    baseline, learned = arenas.trajectory_figure(run.trajectories).axes
    red = [sum(len(l.get_xdata()) for l in axes.lines if l.get_zorder() == 5) for axes in (baseline, learned)]
    expected = int(sum(episode.cost.sum() for episode in run.trajectories.policies[0].episodes))
    assert red == [expected, 0]
    assert "J_R 17, J_C 31" in baseline.get_title(loc="left")


def test_large_drawings_become_png(tmp_path, monkeypatch):
    monkeypatch.setattr(svg, "LARGEST_SVG", 1000)
    page = write_report(write_run(tmp_path / "run"), tmp_path / "out.html").read_text()
    assert 'src="data:image/png;base64,' in page


def test_more_groups_than_colours_stay_distinct(tmp_path):
    for number in range(9):
        write_run(tmp_path / str(number), baseline=f"b{number}", updates=3)
    styles = palette.group_styles(groups_in(tmp_path))
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


def test_symbols_are_cut_out_of_text():
    assert symbols("J_R is 3 of h_C") == [("", "J", "R"), (" is 3 of ", "h", "C"), ("", "", "")]
    assert symbols("no_J_R") == [("no_J_R", "", "")]


def test_report_imports_only_what_it_may():
    allowed = {"numpy", "matplotlib", "scipy", "jinja2", "markupsafe"} | set(sys.stdlib_module_names)
    for file in Path(spacerl.reporting.__file__).parent.glob("*.py"):
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            ours = tuple(
                name for name in names if name.startswith(("spacerl.reporting", "spacerl.runs", "spacerl.types"))
            )
            assert all(name in ours or name.split(".")[0] in allowed for name in names), (file.name, names)


def test_markup_is_in_templates_and_in_svg_alone():
    for file in Path(spacerl.reporting.__file__).parent.glob("*.py"):
        texts = [node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant)]
        markup = [text for text in texts if isinstance(text, str) and re.search(r"</|<\w+[ >]", text)]
        assert not markup or file.name == "svg.py", (file.name, markup)


def test_importing_the_report_loads_nothing_heavy():
    code = "import sys, spacerl.reporting; print(*{'jax', 'matplotlib', 'scipy', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={
        "PYTHONPATH": str(Path(spacerl.reporting.__file__).parents[2])})  # fmt: skip
    assert done.stdout.strip() == ""
