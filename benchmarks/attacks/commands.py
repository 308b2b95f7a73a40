"""Generated command lines: options at their ends, and lines that are right and run to the end."""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import math
import random
import shutil
import traceback
from pathlib import Path
from typing import Any

import spacerl
from attacks.common import QUIET, SMALL, Hangs, Outcome, complaint, patient, rows_in, so_far
from spacerl.cli.main import main
from spacerl.envs.host.single import parse_arguments
from spacerl.envs.traffic.bottleneck import Bottleneck
from spacerl.envs.traffic.grid import Grid
from spacerl.envs.traffic.networks import document
from spacerl.envs.traffic.scenario import read_settings
from spacerl.runs.config import GROUPS
from spacerl.runs.fields import names_of
from spacerl.runs.folder import RunFolder
from spacerl.training import sweep as sweeping
from spacerl.training import train as training

VALUES = [
    "0",
    "-1",
    "1",
    "2",
    "1e-300",
    "1e300",
    "inf",
    "nan",
    "2147483647",
    "2147483648",
    str(10**30),
    "",
    "x",
    "[/b]",
]
VALUES += ["\\", "é", "1.5", "true", "auto", "9" * 500, "--", "../..", "a b", "0.01", "1e6", "\x1b[2K", "/dev/null"]
RULES = ["trpo", "pcpo", "cpo", "trpo-pid", "trpo-lagrangian"]
# Values that are allowed, at the ends of what is: a run with them ends, or stops with a sentence.
ALLOWED = {
    "delta": ["1e-38", "1e-6", "1", "1e6", "3e38"],
    "cost-limit": ["0", "1e-38", "1e30"],
    "seed": ["0", "2147483647"],
    "discount": ["1e-9", "1"],
    "cost-discount": ["1e-9", "0.5"],
    "gae-lambda": ["0", "1"],
    "cost-gae-lambda": ["0", "1"],
    "initial-std": ["1e-30", "1e30"],
    "initial-gain": ["1e-30", "1e30"],
    "critic": ["linear", "neural"],
    "critic-kl": ["1e-30", "1e30"],
    "critic-steps": ["1", "3"],
    "cg-iterations": ["1", "30"],
    "cg-damping": ["0", "1e30"],
    "fisher-subsample": ["1e-9", "0.01", "1"],
    "checkpoint-every": ["1", "2147483647"],
    "keep-checkpoints": ["1", "2147483647"],
    "evaluate-every": ["0", "1", "2147483647"],
    "evaluation-episodes": ["1", "3"],
    "evaluation-mode": ["stochastic", "deterministic"],
    "preset": ["paper", "spacerl"],
    "baseline-std": ["1e-30", "1e30"],
}
# How often each command is among lines that are right: what must be compiled anew takes most of the time.
RIGHT = {"train": 2, "sweep": 1, "config": 4, "resume": 4, "evaluate": 4, "export": 4, "report": 2, "show": 3}
FLAGS = ["--normalise-observations", "--bootstrap-truncation", "--no-critic-sees-time"]


class Enough(Exception):
    """A command came as far as its first program."""


def commands(count: int, work: Path, skip: int = 0) -> Outcome:
    """Four of ten lines are right and run to the end; the others are followed up to their first program. Each ends with
    a sentence and a code, or with what it was to make, and no row is lost. The first `skip` are only generated."""
    chance, failures, codes = random.Random(3), [], collections.Counter()
    ours = Lines(work, chance)
    for i in range(count):
        whole = chance.random() < 0.4
        line = ours.right() if whole else ours.wrong()
        if i < skip:
            ours.clean()
            continue
        code, said, wrong = ended(line, whole)
        shown = " ".join(line)[:200]
        if wrong:
            failures.append(f"{shown}: {wrong}")
        if code in (2, 3) and said.rstrip("\n").count("\n") > said.count("goes on from update"):
            failures.append(f"{shown}: more than one sentence: {said[-200:]!r}")
        if whole and code == 0 and (lost := lost_rows(line)):
            failures.append(f"{shown}: {lost}")
        codes["ran to the end" if whole and code in (0, None) else f"{'right' if whole else 'wrong'}: {code}"] += 1
        ours.clean()
        so_far("command lines", i + 1, failures)
    return Outcome(
        "command lines", count - skip, failures, ", ".join(f"{name} {n}" for name, n in sorted(codes.items()))
    )


def ended(line: list[str], whole: bool) -> tuple[Any, str, str]:
    """How a command ended: its code, what it said, and what is wrong with that."""
    said = io.StringIO()
    try:
        with (
            contextlib.redirect_stderr(said),
            contextlib.redirect_stdout(io.StringIO()),
            stopped_before_it_begins(not whole),
            patient(180),
        ):
            main(line)
    except Enough:
        return "began", said.getvalue(), ""
    except SystemExit as stop:
        return stop.code or 0, said.getvalue(), ""
    except Hangs as error:
        return "hung", said.getvalue(), str(error)
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return "traceback", said.getvalue(), f"{type(error).__name__} in {place.name}: {str(error)[:100]}"
    return 0, said.getvalue(), ""


@contextlib.contextmanager
def stopped_before_it_begins(wanted: bool) -> Any:
    def enough(*given: Any, **named: Any) -> Any:
        raise Enough

    kept = training.begin
    if wanted:
        training.begin = sweeping.begin = enough
    try:
        yield
    finally:
        training.begin = sweeping.begin = kept


def lost_rows(line: list[str]) -> str:
    """What is missing of a run that ended well."""
    if line[0] not in ("train", "resume"):
        return ""
    folder = Path(line[1] if line[0] == "resume" else line[line.index("--out") + 1])
    updates = RunFolder(folder).config().updates
    if rows_in(folder) != updates or RunFolder(folder).newest_update() != updates:
        return f"{rows_in(folder)} rows of {updates} updates, the newest checkpoint {RunFolder(folder).newest_update()}"
    if any(not math.isfinite(row["J_R"]) for row in RunFolder(folder).metrics()):
        return "a row is not finite"
    return ""


def traffic(count: int, work: Path) -> Outcome:
    """Settings of the traffic tasks: refused in a sentence, or a road and its traffic are written down for SUMO."""
    chance, failures, allowed = random.Random(7), [], 0

    def described(kind: Any, texts: tuple[str, ...]) -> None:
        nonlocal allowed
        scenario = kind(read_settings(kind.settings_type, dict(parse_arguments(texts))))
        document("routes", scenario.demand())
        if not scenario.settings.network:
            scenario.plain_network().documents()
        allowed += 1

    for _ in range(count):
        kind = chance.choice([Grid, Bottleneck])
        names = [*names_of(kind.settings_type), "x"]
        usual = ["2", "3", "10", "0.5", "7.5", "300", "hour", "either", "max"]
        texts = tuple(
            f"{name}={chance.choice([*usual, *VALUES])}" for name in chance.sample(names, chance.randrange(1, 3))
        )
        if wrong := complaint(functools.partial(described, kind, texts)):
            failures.append(f"{kind.__name__} {texts}: {wrong}")
    return Outcome("settings of traffic tasks", count, failures, f"{allowed} of them allowed")


class Lines:
    """Command lines, of commands that train and of those that look at a run."""

    def __init__(self, work: Path, chance: random.Random):
        self.chance, self.scratch, self.made = chance, work / "lines", 0
        self.scratch.mkdir()
        settings = {**SMALL, **QUIET, "evaluate_every": 1, "evaluation_episodes": 2}
        self.run = spacerl.train("point-circle", updates=2, out=work / "to-look-at", **settings).folder
        self.options = [f"--{name.replace('_', '-')}" for group in GROUPS for name in names_of(group)]
        self.options = [name for name in self.options if name not in ("--task", "--workers")]

    def clean(self) -> None:
        shutil.rmtree(self.scratch)
        self.scratch.mkdir()

    def new(self, ending: str = "") -> str:
        self.made += 1
        return str(self.scratch / f"new-{self.made}{ending}")

    def wrong(self) -> list[str]:
        """One or two options with values that may be anything."""
        some, chance = self.options, self.chance
        command = chance.choice(["train", "train", "train", "sweep", "iterate", "looking", "config", "demos"])
        if command == "config":
            return ["train", "--config", self.damaged_config(), "--quiet", "--out", self.new()]
        if command == "demos":
            words = [
                "baseline",
                "from-demos",
                chance.choice([*VALUES, str(self.run)]),
                "--out",
                self.new(".safetensors"),
            ]
            return words + [
                chance.choice(["--updates", "--batch", "--std", "--task", "--method"]),
                chance.choice(VALUES),
            ]
        if command == "looking":
            place = chance.choice([*VALUES, str(self.run.parent), str(self.run)])
            name = chance.choice(["resume", "evaluate", "export", "report", "check-env", "demos show", "baseline show"])
            option = chance.choice(["--seed", "--x", "--out", "--episodes", "--updates", "--policy", "--device"])
            # Nothing is to be played for hours, nor a file made where somebody works.
            return [*name.split(), place, option, chance.choice([*VALUES[:2], "x", "", "nan", "[/b]", "\\", "1.5"])]
        task = ["--env", "Pendulum-v1", "--cost", "none"] if chance.random() < 0.3 else ["point-circle"]
        words = [command, *task, "--algorithm", chance.choice(RULES), "--workers", "0", "--out", self.new(), "--quiet"]
        words += ["--cost-limit", "1"]
        for option in chance.sample(some, chance.randrange(1, 3)):
            words += [option, chance.choice(VALUES)]
        return words

    def damaged_config(self) -> str:
        from attacks.files import of_toml

        path = Path(self.new(".toml"))
        path.write_bytes(of_toml((self.run / "config.toml").read_bytes(), self.chance))
        return str(path)

    def right(self) -> list[str]:
        """Options with values at the ends of what is allowed; the run is small, and ends."""
        chance, small = self.chance, ["--batch-size", "100", "--hidden", "4", "--quiet"]
        command = chance.choices(list(RIGHT), list(RIGHT.values()))[0]
        copy = Path(shutil.copytree(self.run, self.new()))
        if command == "resume":
            return ["resume", str(copy), "--updates", str(chance.randrange(2, 6)), "--quiet"]
        if command == "evaluate":
            how = ["--policy", chance.choice(["last", "best"]), "--seed", chance.choice(["0", "2147483647"])]
            return ["evaluate", str(copy), "--episodes", str(chance.randrange(1, 4)), *how, "--quiet"]
        if command == "export":
            return ["export", str(copy), self.new(chance.choice([".py", ".npz", ".onnx"]))]
        if command == "report":
            return ["report", str(copy), "--title", chance.choice(VALUES[11:15])]
        if command == "show":
            return chance.choice([["baseline", "show", str(copy)], ["tasks"], ["algorithms"]])
        if command == "config":
            words = ["train", "--config", str(copy / "config.toml"), "--updates", "1", "--out", self.new()]
            return [*words, "--seed", str(chance.randrange(100)), "--quiet"]
        words = [command, "point-circle", *small, "--algorithm", chance.choice(RULES), "--updates", "2"]
        words += ["--out", self.new(), *(("--seeds", "0", "1") if command == "sweep" else ())]
        for name in chance.sample(sorted(ALLOWED), chance.randrange(1, 3)):
            words += [f"--{name}", chance.choice(ALLOWED[name])]
        return words + ([chance.choice(FLAGS)] if chance.random() < 0.3 else [])
