"""An attack on runs: killed at every file operation, damaged files, command lines at the ends of every option, two
writers, a full disk, orphans. Prints what was tried and what failed; exit code 1 where anything did.

    python benchmarks/attack.py --kills 100 --files 10000 --commands 1000     # make attack is a smaller one
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import functools
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental.compilation_cache.compilation_cache import reset_cache

import spacerl
from spacerl.policies.files import read_policy
from spacerl.policies.loading import load_policy
from spacerl.runs.config import EnvSettings, MainSettings
from spacerl.runs.fields import names_of
from spacerl.runs.folder import RunFolder, read_arrays
from spacerl.runs.records import read_run
from spacerl.training import sweep as sweeping
from spacerl.training import train as training
from spacerl.types import ActionSpace, EnvSpec, InputError, RunStopped

SMALL = {"algorithm": "pcpo", "batch_size": 100, "hidden": (4,), "checkpoint_every": 2, "keep_checkpoints": 2}
QUIET = {"progress": False, "log": ()}
MEASURED = ("seconds_collect", "seconds_update")


class Outcome(NamedTuple):
    """What one kind of attack tried, and what went wrong, one line each."""

    name: str
    tried: int
    failures: list[str]
    note: str = ""


# Kills at every file operation ----------------------------------------------------------------------------------------

WATCHED = ("open", "os.rename", "os.remove", "os.mkdir", "os.truncate")
_watcher: Callable[[], None] | None = None
_hooked = False


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watcher is None or event not in WATCHED:
        return
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
        return
    _watcher()


@contextlib.contextmanager
def copied_before_every_operation(folder: Path, copies: Path) -> Iterator[list[Path]]:
    """A folder as it was on disk before every operation that changes a file: what a kill there would leave."""
    global _watcher, _hooked
    made: list[Path] = []
    busy = False

    def copy() -> None:
        nonlocal busy
        if busy or not (folder / "config.json").exists():
            return
        busy = True
        try:
            made.append(Path(shutil.copytree(folder, copies / str(len(made)), ignore=shutil.ignore_patterns(".lock"))))
        finally:
            busy = False

    if not _hooked:
        sys.addaudithook(_audit)  # for ever, so once
        _hooked = True
    _watcher = copy
    try:
        yield made
    finally:
        _watcher = None


def outcome_of(folder: Path) -> dict[str, Any]:
    """Everything a run leaves that is no measurement of time, bit for bit."""
    with open(folder / "metrics.csv", newline="") as file:
        rows = [{key: text for key, text in row.items() if key not in MEASURED} for row in csv.DictReader(file)]
    newest = RunFolder(folder).newest_update()
    arrays, *_ = RunFolder(folder).checkpoint(newest)
    policy, _ = read_arrays(folder / "policy.safetensors", "spacerl-policy-1", "policy file")
    return {
        "metrics": rows,
        "newest": newest,
        "checkpoint": {name: array.tobytes() for name, array in arrays.items()},
        "policy": {name: array.tobytes() for name, array in policy.items()},
        "files": sorted(path.name for path in folder.iterdir() if path.suffix == ".json"),
    }


def kills(count: int, work: Path) -> Outcome:
    """Copies of a run before its file operations, each resumed: all must end as the run that was never stopped."""
    whole = work / "whole"
    with copied_before_every_operation(whole, work / "copies") as copies:
        spacerl.train("point-circle", updates=20, out=whole, **SMALL, **QUIET)
    expected = outcome_of(whole)
    chosen = random.Random(0).sample(copies, min(count, len(copies)))
    failures = []
    for copy in chosen:
        try:
            spacerl.resume(copy, **QUIET)
            differing = [part for part, value in outcome_of(copy).items() if value != expected[part]]
            if differing or list(copy.rglob("*.tmp")):
                failures.append(f"killed at operation {copy.name}: {', '.join(differing) or 'leftovers'} differ")
        except Exception as error:
            failures.append(f"killed at operation {copy.name}: {type(error).__name__}: {error}")
        shutil.rmtree(copy)
    return Outcome("kills at file operations", len(chosen), failures, f"of {len(copies)} operations of a run")


def real_kills(count: int, work: Path) -> Outcome:
    """A process killed by SIGKILL at random moments, and resumed each time."""
    chance, failures, killed = random.Random(1), [], 0
    out, updates = work / "killed", 40 * count
    command = [
        "train",
        "point-circle",
        "--algorithm",
        "pcpo",
        "--batch-size",
        "100",
        "--hidden",
        "4",
        "--out",
        str(out),
    ]
    command += ["--updates", str(updates), "--checkpoint-every", "3", "--quiet"]
    for i in range(count):
        process = started(command)
        while process.poll() is None and rows_in(out) < (i + 1) * 25:
            time.sleep(0.002)
        time.sleep(chance.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
        if (out / "config.json").exists():
            command = ["resume", str(out), "--quiet"]
    process = started(["resume", str(out), "--quiet"])
    if process.communicate()[1].count("Traceback") or process.returncode:
        failures.append(f"the last resume ended with code {process.returncode}")
    whole = spacerl.train(
        "point-circle", updates=updates, out=work / "never", **SMALL | {"checkpoint_every": 3}, **QUIET
    )
    if outcome_of(out)["metrics"] != outcome_of(whole.folder)["metrics"]:
        failures.append("rows of metrics differ from those of a run that was never killed")
    return Outcome("real SIGKILLs", killed, failures)


def started(command: list[str], **options: Any) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "spacerl", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def rows_in(folder: Path) -> int:
    path = folder / "metrics.csv"
    return max(0, path.read_bytes().count(b"\n") - 1) if path.exists() else 0


# Damaged files --------------------------------------------------------------------------------------------------------


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Bits flipped, a part lost, repeated or replaced by noise, numbers made huge, words by those of a stranger."""
    kind, data = chance.randrange(8), bytearray(content)
    place = chance.randrange(len(data) + 1)
    if kind == 0:
        for _ in range(chance.randrange(1, 9)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif kind == 1:
        del data[place:]
    elif kind == 2:
        del data[place : place + chance.randrange(1, 200)]
    elif kind == 3:
        data[place:place] = data[place // 2 : place // 2 + 100]
    elif kind == 4:
        data[place : place + 40] = chance.randbytes(40)
    elif kind == 5:
        words = [b"1e999", b"-1", b"nan", b"null", b"[]", b'"\\ud800"', b"9" * 400, b"9" * 5000, b"{", b"true", b"\0"]
        data[place : place + chance.randrange(20)] = chance.choice(words)
    elif kind == 6:
        data = bytearray(content.replace(b"point-circle", chance.choice(HOSTILE)))
    else:
        data = bytearray(chance.randbytes(chance.randrange(2000)))
    return bytes(data)


HOSTILE = [b"env:subprocess:Popen", b"env:theirs.py:make", b"env:os:system", b"env:theirs:make", b"own:thing", b"../x"]
THEIRS = "from pathlib import Path\nPath('code-was-run').touch()\ndef make(**given):\n    raise SystemExit\n"
SPEC = EnvSpec("point-circle", (9,), ActionSpace("box", 2, (-1.0, -1.0), (1.0, 1.0)), 50)


def readers(folder: Path, name: str) -> list[Callable[[], Any]]:
    """Whoever reads a file of a run folder."""
    run = RunFolder(folder)
    if name.startswith("checkpoint"):
        return [lambda: run.checkpoint(run.newest_update())]
    if name.endswith(".onnx"):
        return [lambda: load_policy(str(folder / name), "point-circle", SPEC)]
    if name.endswith("policy.safetensors"):
        return [lambda: read_policy(folder / name, name)]
    asking = lambda: spacerl.evaluate(folder, episodes=1) if not_ours(run) else None  # noqa: E731
    return [lambda: read_run(folder), run.config, run.history, run.environment, run.evaluations, run.origin, asking]


def not_ours(run: RunFolder) -> bool:
    return run.config().task != "point-circle"


def files(count: int, work: Path) -> Outcome:
    """Every file of a run folder, and an ONNX file, damaged: refused in one sentence or read, and no code is run."""
    chance, failures = random.Random(2), []
    folder = work / "damaged"
    settings = {"baseline": "near", "evaluate_every": 2, "evaluation_episodes": 2, **SMALL, **QUIET}
    spacerl.train("point-circle", updates=4, out=folder, **settings | {"algorithm": "space"})
    (folder / "theirs.py").write_text(THEIRS)
    with contextlib.suppress(InputError):  # the extra onnx
        spacerl.export(folder, folder / "policy.onnx")
    newest = f"checkpoints/update-{RunFolder(folder).newest_update():06d}.safetensors"
    names = sorted(path.name for path in folder.iterdir() if path.suffix in (".json", ".csv", ".onnx"))
    names += [newest, "policy.safetensors"]
    originals = {name: (folder / name).read_bytes() for name in names}
    with contextlib.chdir(folder):
        for i in range(count):
            name = names[i % len(names)]
            (folder / name).write_bytes(mutated(originals[name], chance))
            for use in readers(folder, name):
                try:
                    use()
                except (InputError, RunStopped) as told:
                    if "\n" in str(told):
                        failures.append(f"{name}, mutation {i}: more than one sentence: {str(told)[:80]!r}")
                except BaseException as error:
                    failures.append(f"{name}, mutation {i}: {type(error).__name__}: {str(error)[:80]}")
            (folder / name).write_bytes(originals[name])
        if (folder / "code-was-run").exists():
            failures.append("code of the folder was run")
    return Outcome("damaged files", count, failures, f"{len(names)} kinds")


# Command lines --------------------------------------------------------------------------------------------------------

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
VALUES += ["\\", "é", "1.5", "true", "auto", "9" * 500, "--", "../..", "a b", "0.01", "1e6"]


class Enough(Exception):
    """A command came as far as its first program."""


def commands(count: int, work: Path) -> Outcome:
    """Command lines with options at their ends: each ends with a sentence and a code, or comes as far as its first
    program. Nothing is computed: what a number does to a run is another matter."""
    from spacerl.cli.main import main

    chance, failures, codes = random.Random(3), [], {}
    options = [f"--{name.replace('_', '-')}" for group in settings_groups() for name in names_of(group)]
    kept = training.begin
    assert sweeping.begin is kept

    def enough(*given: Any, **named: Any) -> Any:
        raise Enough

    training.begin = sweeping.begin = enough
    try:
        for i in range(count):
            line = one_line(chance, options, work)
            code: Any = "began"
            said = io.StringIO()
            try:
                with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
                    main(line)
            except Enough:
                pass
            except SystemExit as stop:
                code = stop.code
            except BaseException as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                failures.append(f"{' '.join(line)[:150]}: {type(error).__name__} in {place.name}: {str(error)[:80]}")
                code = "traceback"
            if code == 2 and said.getvalue().count("\n") != 1:
                failures.append(f"line {i}, {' '.join(line)[:150]}: more than one sentence")
            codes[code] = codes.get(code, 0) + 1
    finally:
        training.begin = sweeping.begin = kept
    return Outcome("command lines", count, failures, f"ended as {codes}")


def settings_groups() -> list[type]:
    from spacerl.runs.config import GROUPS

    assert MainSettings in GROUPS
    assert EnvSettings in GROUPS
    return list(GROUPS)


def one_line(chance: random.Random, options: list[str], work: Path) -> list[str]:
    command = chance.choice(["train", "train", "train", "sweep", "iterate", "resume", "evaluate", "export", "report"])
    if command in ("train", "sweep", "iterate"):
        task = ["--env", "Pendulum-v1", "--cost", "none"] if chance.random() < 0.3 else ["point-circle"]
        rule = chance.choice(["pcpo", "trpo", "cpo", "trpo-pid"])
        line = [
            command,
            *task,
            "--algorithm",
            rule,
            "--workers",
            "0",
            "--out",
            str(work / f"new-{chance.randrange(10**9)}"),
        ]
        line += ["--quiet", "--cost-limit", "1"]
        for option in chance.sample(options, chance.randrange(1, 3)):
            if option not in ("--task", "--workers"):
                line += [option, chance.choice(VALUES)]
        return line
    place = chance.choice([*VALUES, str(work), str(work / "whole")])
    return [command, place, chance.choice(["--seed", "--x", "--out"]), chance.choice(VALUES)]


# Two writers, a full disk, orphans ------------------------------------------------------------------------------------


def two_writers(count: int, work: Path) -> Outcome:
    """Two processes resume one run at once: one is refused, and no row is lost or doubled."""
    failures = []
    for i in range(count):
        out = work / f"two-{i}"
        spacerl.train("point-circle", updates=2, out=out, **SMALL, **QUIET)
        both = [started(["resume", str(out), "--updates", "300", "--quiet"]) for _ in range(2)]
        told = [process.communicate()[1] for process in both]
        codes = sorted(process.returncode for process in both)
        if codes != [0, 2] or not any("is being written by process" in text for text in told):
            failures.append(f"codes {codes}: {' / '.join(text.strip()[:100] for text in told)}")
        if rows_in(out) != 300:
            failures.append(f"{rows_in(out)} rows of 300 updates")
    return Outcome("two writers", count, failures)


def full_disk(work: Path) -> Outcome:
    """A disk that fills up while a run writes: one sentence, the newest whole checkpoint, and the run goes on later."""
    disk = work / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        return Outcome("full disk", 0, [], "not tried: no file system may be mounted here")
    try:
        failures = []
        command = ["train", "point-circle", "--algorithm", "pcpo", "--batch-size", "100", "--hidden", "4", "--quiet"]
        command += ["--updates", "2000", "--checkpoint-every", "5", "--out", str(disk / "run")]
        process = started(command)
        told = process.communicate()[1]
        if process.returncode != 3 or told.count("\n") != 1 or "No space left on device" not in told:
            failures.append(f"code {process.returncode}: {told.strip()[-200:]}")
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        done = rows_in(disk / "run")
        process = started(["resume", str(disk / "run"), "--updates", str(done + 5), "--quiet"])
        told = process.communicate()[1]
        if process.returncode or rows_in(disk / "run") != done + 5:
            failures.append(f"resumed with code {process.returncode}: {told.strip()[-200:]}")
        return Outcome("full disk", 1, failures, f"after {done} updates")
    finally:
        subprocess.run(["umount", str(disk)], check=False)


def orphans(work: Path) -> Outcome:
    """A run with workers that is killed leaves none of them behind."""
    failures = []
    for number in (signal.SIGKILL, signal.SIGTERM):
        command = ["train", "--env", "Pendulum-v1", "--cost", "none", "--workers", "2", "--batch-size", "400"]
        command += ["--algorithm", "trpo", "--updates", "1000", "--quiet", "--out", str(work / f"orphans-{number}")]
        process = started(command)
        while process.poll() is None and len(children(process.pid)) < 2:
            time.sleep(0.01)
        workers = children(process.pid)
        time.sleep(1.0)
        process.send_signal(number)
        process.communicate()
        patience = time.monotonic() + 1.0
        while any(map(alive, workers)) and time.monotonic() < patience:
            time.sleep(0.01)
        left = [worker for worker in workers if alive(worker)]
        if left or not workers:
            failures.append(f"{signal.Signals(number).name}: {len(left)} of {len(workers)} workers left after a second")
    return Outcome("orphans", 2, failures)


def killed_workers(minutes: float, work: Path, every: float = 10.0) -> Outcome:
    """A worker killed every ten seconds: batches are whole, and every row is that of a run whose workers lived."""
    settings = {"env": "Pendulum-v1", "cost": "none", "algorithm": "trpo", "batch_size": 2000, "hidden": (16,)}
    settings |= {"workers": 2, "environments": 4, "rollout_length": 200, **QUIET}
    stop, ended, killed = time.monotonic() + 60.0 * minutes, threading.Event(), []

    def kill() -> None:
        while not ended.wait(every):
            workers = [child for child in children(os.getpid()) if is_worker(child)]
            if workers:
                os.kill(random.choice(workers), signal.SIGKILL)
                killed.append(workers)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            run = spacerl.train(
                updates=10**6, out=work / "hurt", on_update=lambda row: time.monotonic() > stop, **settings
            )
    finally:
        ended.set()
        thread.join()
    whole = spacerl.train(updates=len(run.metrics), out=work / "well", **settings)
    counted = ("worker_restarts", "lost_episodes", *MEASURED)
    differing = [
        f"update {i}: {name} is {row[name]} and {other[name]}"
        for i, (row, other) in enumerate(zip(run.metrics, whole.metrics, strict=True))
        for name in row
        if name not in counted and not (row[name] == other[name] or np.isnan(row[name]))
    ]
    restarts, lost = (int(sum(row[name] for row in run.metrics)) for name in counted[:2])
    note = f"{len(run.metrics)} updates in {minutes:g} minutes, {restarts} restarts counted, {lost} episodes lost"
    return Outcome("killed workers", len(killed), differing, note)


def is_worker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"spacerl.envs.host.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


@contextlib.contextmanager
def programs_kept(folder: Path) -> Iterator[None]:
    """Compiled programs in a folder, while there is one: an attack runs the same few again and again."""
    wanted = {"jax_compilation_cache_dir": str(folder), "jax_persistent_cache_min_compile_time_secs": 0.0}
    before = {name: getattr(jax.config, name) for name in wanted}
    for name, value in wanted.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        reset_cache()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    for name, usual in (("kills", 40), ("real-kills", 5), ("files", 3000), ("commands", 300), ("writers", 2)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="of a run whose workers are killed every ten seconds"
    )
    parser.add_argument("--no-processes", action="store_true", help="leave out what starts processes")
    asked = parser.parse_args(arguments)
    failed, report = 0, []
    with tempfile.TemporaryDirectory(prefix="spacerl-attack-") as scratch, programs_kept(Path(scratch) / "programs"):
        work = Path(scratch)
        attacks: list[Callable[[], Outcome]] = []
        for count, attack in ((asked.kills, kills), (asked.files, files), (asked.commands, commands)):
            if count:
                attacks.append(functools.partial(attack, count, work))
        if not asked.no_processes:
            attacks += [
                lambda: real_kills(asked.real_kills, work),
                lambda: two_writers(asked.writers, work),
                lambda: full_disk(work),
                lambda: orphans(work),
            ]
        if asked.minutes:
            attacks = [*attacks, lambda: killed_workers(asked.minutes, work)]
        for attack in attacks:
            began = time.monotonic()
            done = attack()
            seconds = time.monotonic() - began
            note = f" ({done.note})" if done.note else ""
            print(f"{done.name}: {done.tried} tried{note}, {len(done.failures)} failed, {seconds:.0f} s", flush=True)
            for line in done.failures[:20]:
                print(f"    {line}", flush=True)
            failed += len(done.failures)
            report.append({**done._asdict(), "seconds": round(seconds, 1)})
    print(json.dumps({"numpy": np.__version__, "attacks": report}) if os.environ.get("ATTACK_JSON") else "", end="")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
