"""The commands and the Python of the README and the pages: every command is one that there is, and the tutorials are
walked from the first block to the last, with fewer and smaller updates."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from pathlib import Path

import pytest

from spacerl.cli import main, training
from spacerl.cli.main import parse
from spacerl.training.settings import resolve

pytestmark = pytest.mark.usefixtures("quick_compilation")

ROOT = Path(__file__).parent.parent
PAGES = [page.relative_to(ROOT) for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))]
BLOCK = re.compile(r"(?:`(\w+\.py)`:\n\n)?^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def lines_of(text: str) -> list[list[str]]:
    """Commands of spacerl and Python as lists of words, without remarks. `spacerl a | b`, which is how pages write
    several, is two of them."""
    several = [line for line in text.replace("\\\n", " ").splitlines() if re.match(r"(spacerl|python) ", line)]
    lines = [shlex.split(line, comments=True) for line in several]
    return [words for line in lines for words in either(line)]


def either(line: list[str]) -> list[list[str]]:
    if "|" not in line:
        return [line]
    at = line.index("|")
    return [line[:at], *either([line[0], *line[at + 1 :]])]


def blocks_of(page: Path | str) -> list[tuple[str, str, str]]:
    """Blocks of a page: the file they are where the line above names one, their language, and what is in them."""
    return BLOCK.findall((ROOT / page).read_text())


def commands_of(page: Path) -> list[list[str]]:
    shells = [text for _, language, text in blocks_of(page) if not language]
    return [line[1:] for text in shells for line in lines_of(text) if line[0] == "spacerl"]


def test_lines_of_a_page_are_read_as_a_shell_reads_them():
    text = "spacerl tasks | baseline show x\nspacerl train --out 'a b' \\\n    --seed 1  # why\n# nothing\n\n"
    assert lines_of(text) == [
        ["spacerl", "tasks"], ["spacerl", "baseline", "show", "x"], ["spacerl", "train", "--out", "a b", "--seed", "1"],
    ]  # fmt: skip


@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)], ids=str)
def test_every_command_of_a_page_is_one_the_command_line_takes(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in commands_of(page):
        if "--config" in words:  # needs its file: the tutorials are walked below
            continue
        command = parse(words)
        if isinstance(command, training.Train):
            how = ("env", "cost", "out", "trust", "log", "progress", "device")
            given = {name: value for name, value in command.arguments().items() if name not in how}
            baselines = getattr(command, "baselines", ()) or given.get("baseline")
            resolve(given | {"baseline": baselines} | ({} if command.task else {"task": f"env:{command.env}"}))


def smaller(words: list[str]) -> list[str]:
    """The same command with one update of few steps, and few episodes."""
    text = "\0".join(words)
    for option, few in (("updates", "1"), ("episodes", "4"), ("rounds", "2"), ("seeds", "0\0" + "1")):
        text = re.sub(rf"\0--{option}(\0\d+)+", f"\0--{option}\0{few}", text)
    small = ["--batch-size", "400", "--hidden", "4", "--evaluate-every", "1", "--evaluation-episodes", "2", "--log"]
    trains = words[0] in ("train", "sweep", "iterate") and "--config" not in words
    updates = [] if "--updates" in words or words[0] == "iterate" else ["--updates", "1"]
    return [*text.split("\0"), *(small + updates if trains else [])]


def walk(page: str, left_out: str = "$^", finds: str = "$^") -> list[str]:
    """A page from top to bottom: its files are written, its Python and its commands run. Returns the commands. Those
    that are left out, and those that end with something found, are given as patterns."""
    ran, names = [], {"__name__": "page"}
    for file, language, text in blocks_of(page):
        if file:
            Path(file).write_text(text)
        elif language == "python" and not re.search(left_out, text):
            small = re.sub(r"updates=\d+", "updates=1, batch_size=400, hidden=(4,)", text)
            exec(compile(small, page, "exec"), names)
        elif not language:
            for line in lines_of(text):
                if re.search(left_out, " ".join(line)):
                    continue
                ran.append(" ".join(line))
                if line[0] == "python":
                    exec(line[2].replace("learn(4000)", "learn(200)"), {})
                    continue
                with pytest.raises(SystemExit) if re.search(finds, ran[-1]) else contextlib.nullcontext():
                    main(smaller(line[1:]))
    return ran


@pytest.fixture
def workplace(tmp_path, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "programs"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_the_tutorials_are_walked_in_the_order_of_the_site(workplace, capsys):
    """Two paths start from a file of Stable-Baselines3, which is not there: the slow test below."""
    first = walk("docs/tutorials/first-run.md")
    assert [line.split()[1] for line in first] == ["train", "evaluate", "report", "export"]
    for name in ("config.toml", "metrics.csv", "evaluations.csv", "policy.safetensors", "checkpoints", "report.html"):
        assert (workplace / "runs/first" / name).exists(), name
    assert (workplace / "policy.py").stat().st_size > 0
    walk("docs/tutorials/own-environment.md", finds="check-env Pendulum-v1$")
    assert "it gives no cost" in capsys.readouterr().out
    assert (workplace / "runs/own/metrics.csv").is_file()
    assert (workplace / "runs/object/metrics.csv").is_file()
    walk("docs/tutorials/own-policy.md", left_out=r"pendulum\.zip")
    assert (workplace / "runs/rule/baseline.json").is_file()
    assert "'rule.py:my_policy'" in (out := capsys.readouterr()).out + out.err
    walk("docs/tutorials/reading-a-report.md")
    assert "2 seeds" in (workplace / "compare.html").read_text()


@pytest.mark.slow
def test_the_paths_that_start_from_stable_baselines3(workplace):
    pytest.importorskip("stable_baselines3")
    walk("docs/tutorials/own-environment.md", finds="check-env Pendulum-v1$")
    ran = walk("docs/tutorials/own-policy.md")
    assert sum("pendulum.zip" in line for line in ran) == 2
    assert (workplace / "runs/mine/baseline.json").is_file()
    main(["evaluate", "runs/mine", "--episodes", "2", "--trust", "--video", "film.gif", "--video-baseline"])
    assert (workplace / "film.gif").is_file()


@pytest.mark.slow
def test_the_commands_of_the_readme_in_their_order(workplace):
    """But for MuJoCo, SUMO and what waits for a driver, which have tests of their own, and the comparisons of hours."""
    pytest.importorskip("stable_baselines3")
    ran = walk("README.md", left_out=r"ant-circle|grid|record|reproduce")
    assert len(ran) == 18, ran
    for name in ("runs/pendulum/policy.safetensors", "pendulum_policy.py", "gather.gif", "runs/gather/report.html"):
        assert (workplace / name).is_file(), name
