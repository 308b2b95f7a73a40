"""Damaged files: every file that somebody may be sent, changed at random and read by whoever reads it."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
import pickle
import random
import resource
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import spacerl
from attacks.common import EVALUATED, QUIET, SMALL, Outcome, complaint, outcome_of, so_far
from spacerl.policies.files import read_policy
from spacerl.policies.loading import load_policy
from spacerl.runs.folder import RunFolder
from spacerl.runs.records import read_run
from spacerl.runs.toml import read_toml
from spacerl.training.settings import resolve
from spacerl.types import ActionSpace, EnvSpec, InputError, RunStopped

HOSTILE = [b"env:subprocess:Popen", b"env:theirs.py:make", b"env:os:system", b"env:theirs:make", b"own:thing", b"../x"]
THEIRS = "from pathlib import Path\nPath('code-was-run').touch()\ndef make(*given, **named):\n    raise SystemExit\n"
VALUES: list[Any] = [
    None, True, 0, -1, 1, 2**31, 2**63, 10**30, 10**400, 0.5, 1e300, -1e300, float("inf"), float("nan"), "", "x", "inf",
    "\ud800", "x" * 10_000, "[/b]", "\x1b[2K", "<script>alert(1)</script>", [], [[]], {}, {"x": []}, [0] * 50, ["x"],
    [1e300, float("nan")], "env:theirs.py:make", "theirs.py:make", "env:os:system", "../../../etc/passwd", "/dev/zero",
]  # fmt: skip
WORDS = [
    b"1e999",
    b"-1",
    b"nan",
    b"null",
    b"[]",
    b'"\\ud800"',
    b"9" * 400,
    b"9" * 5000,
    b"{",
    b"true",
    b"\0",
    b"\x1b[2K",
]
BASELINE = {
    "name": "near",
    "J_R": 1.0,
    "J_R_error": 0.1,
    "J_C": 2.0,
    "J_C_error": 0.1,
    "h_C": 5.0,
    "episode_return": 3.0,
}
BASELINE |= {
    "costs": {"outside_walls": {"J_C": 2.0, "J_C_error": 0.1, "h_C": 5.0}},
    "start": {"chosen": "fresh", "why": ""},
}
SPEC = EnvSpec("point-circle", (9,), ActionSpace("box", 2, (-1.0, -1.0), (1.0, 1.0)), 50)


class Kind(NamedTuple):
    """A file that is damaged, how, and who reads it."""

    path: Path
    damage: Callable[[bytes, random.Random], bytes]
    uses: list[tuple[int, Callable[[], Any]]]  # of so many damaged ones the first is given to this reader


# What is done to them ------------------------------------------------------------------------------------------------


def scrambled(content: bytes, chance: random.Random) -> bytes:
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
        data[place : place + chance.randrange(20)] = chance.choice(WORDS)
    elif kind == 6:
        data = bytearray(content.replace(b"point-circle", chance.choice(HOSTILE)))
    else:
        data = bytearray(chance.randbytes(chance.randrange(2000)))
    return bytes(data)


def places_in(content: Any, path: tuple = ()) -> Iterator[tuple]:
    yield path
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in inner:
        yield from places_in(value, (*path, key))


def revalued(content: Any, chance: random.Random) -> Any:
    """A few of its values are something else, or gone."""
    content = json.loads(json.dumps(content))
    for _ in range(chance.randrange(1, 4)):
        paths = [path for path in itertools.islice(places_in(content), 5000) if path]
        if not paths:
            break
        *lead, last = chance.choice(paths)
        holder = content
        for key in lead:
            holder = holder[key]
        if chance.random() < 0.2:
            del holder[last]
        else:
            holder[last] = copy.deepcopy(chance.choice(VALUES))
    return content


def of_json(content: bytes, chance: random.Random) -> bytes:
    """Half of them are still JSON: what is damaged is what it means. Some name code of a stranger."""
    if chance.random() < 0.1:
        return content.replace(b"point-circle", chance.choice(HOSTILE))
    if chance.random() < 0.4:
        return scrambled(content, chance)
    return json.dumps(revalued(json.loads(content), chance)).encode()


def of_table(content: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.5:
        return scrambled(content, chance)
    rows = [line.split(b",") for line in content.split(b"\n")]
    row = chance.choice(rows)
    if chance.random() < 0.3:
        rows.insert(chance.randrange(len(rows)), rows.pop(chance.randrange(len(rows))))
    row[chance.randrange(len(row))] = chance.choice(WORDS)
    return b"\n".join(map(b",".join, rows))


def of_toml(content: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.4:
        return scrambled(content, chance)
    lines = content.split(b"\n")
    place = chance.randrange(1, len(lines) - 1)
    value = chance.choice([*WORDS, b'"x"', b"[1, 2]", b"1979-05-27", b"inf", b'"env:theirs.py:make"', b"{ x = 1 }"])
    lines[place] = lines[place].partition(b"=")[0] + b"= " + value
    return b"\n".join(lines)


def of_safetensors(content: bytes, chance: random.Random) -> bytes:
    """The header, the description in it, or the numbers; half of them are still a file of that kind."""
    if chance.random() < 0.4:
        return scrambled(content, chance)
    (length,) = struct.unpack("<Q", content[:8])
    header, numbers = json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])
    kind = chance.randrange(3)
    described = header["__metadata__"]
    inner = [name for name in ("spec", "info", "spaces", "settings") if described.get(name, "").startswith("{")]
    if kind == 0 and inner:
        name = chance.choice(inner)
        described[name] = json.dumps(revalued(json.loads(described[name]), chance))
    elif kind == 1:
        header = revalued(header, chance)
    elif numbers:
        place = 4 * chance.randrange(len(numbers) // 4)
        numbers[place : place + 4] = struct.pack("<f", chance.choice([np.nan, np.inf, -np.inf, 3e38, 1e-45]))
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(numbers)


# What there is -------------------------------------------------------------------------------------------------------


def not_ours(run: RunFolder) -> bool:
    return run.config().task != "point-circle"


def kinds_of_run(folder: Path) -> list[Kind]:
    run = RunFolder(folder)

    def evaluated() -> None:
        if not_ours(run):
            spacerl.evaluate(folder, episodes=1)

    def played() -> None:
        spacerl.load_policy(folder)(np.zeros((1, 9), np.float32))

    read = [run.config, run.history, run.environment, run.evaluations, run.origin, evaluated, lambda: read_run(folder)]
    whole = [(1, use) for use in read] + [(80, lambda: spacerl.report([folder], folder / "report.html"))]
    whole += [(40, lambda: (folder / "out.py").unlink(missing_ok=True) or spacerl.export(folder, folder / "out.py"))]
    kinds = []
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".csv"):
            kinds.append(Kind(path, of_json if path.suffix == ".json" else of_table, whole))
    newest = folder / f"checkpoints/update-{run.newest_update():06d}.safetensors"
    kinds.append(Kind(newest, of_safetensors, [(1, lambda: run.checkpoint(run.newest_update()))]))
    for name in ("policy.safetensors", "best.safetensors"):
        read_one = [(1, lambda name=name: read_policy(folder / name, name)), (40, played)]
        kinds.append(Kind(folder / name, of_safetensors, read_one))
    kinds.append(Kind(folder / "config.toml", of_toml, [(1, lambda: resolve(read_toml(folder / "config.toml")))]))
    return kinds


def kinds_of_other_libraries(folder: Path) -> list[Kind]:
    """An ONNX graph, an archive of Stable-Baselines3 and one of TorchScript; none of them is trusted."""
    kinds = []
    with contextlib.suppress(InputError):  # the extra onnx
        spacerl.export(folder, folder / "policy.onnx")
        kinds.append(Kind(folder / "policy.onnx", scrambled, []))
    for name, contents in {
        "model.zip": {"data": b'{"clip_range": 1, "n_epochs": 2, "policy_class": {}}', "policy.pth": CANARY},
        "model.pt": {"model/code/x.py": b"", "model/constants.pkl": CANARY, "model/data.pkl": CANARY},
    }.items():
        with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
            for inner, content in contents.items():
                archive.writestr(inner, content)
        kinds.append(Kind(folder / name, scrambled, []))
    return [
        kind._replace(uses=[(1, lambda path=kind.path: load_policy(str(path), "point-circle", SPEC))]) for kind in kinds
    ]


class _Canary:
    def __reduce__(self) -> Any:
        return os.system, ("touch code-was-run",)


CANARY = pickle.dumps(_Canary())


def kinds_of_demonstrations(folder: Path) -> list[Kind]:
    """A dataset, and an episode that was not finished."""
    try:
        from spacerl.rollout.demos.dataset import Demonstrations, require_minari
        from spacerl.rollout.demos.episode import read_journal
        from spacerl.rollout.demos.keys import keys_of
        from spacerl.rollout.demos.recorder import Recorder, open_recording, task_env
        from spacerl.rollout.demos.showing import summary_of
        from spacerl.training.imitation.data import steps_of

        require_minari()
    except (ImportError, InputError):  # the extra record
        return []
    env, keys, laps = task_env("point-circle"), keys_of("point-circle"), folder / "laps"
    recording = open_recording(laps, "point-circle", env, keys, 6.0, append=False)
    recorder = Recorder("point-circle", env, keys, recording, fps=6.0, driver="person", seed=0, episodes=None)
    for keep in (True, True, False):
        for _ in range(6):
            recorder.press(["ArrowUp"])
            recorder.step()
        if keep:
            recorder.keep()
    shutil.copy(laps / "unfinished-episode", folder / "unfinished-episode")
    recorder.close()
    env.close()

    def looked_at() -> None:
        for episode in Demonstrations(laps):
            summary_of(episode)

    uses = [(1, looked_at), (10, lambda: steps_of(Demonstrations(laps), spec_of_task(), "point-circle"))]
    return [
        Kind(laps / "data" / "main_data.hdf5", scrambled, uses),
        Kind(laps / "data" / "metadata.json", of_json, uses),
        Kind(folder / "unfinished-episode", scrambled, [(1, lambda: read_journal(folder / "unfinished-episode"))]),
    ]


def spec_of_task() -> EnvSpec:
    return spacerl.make_env("point-circle").spec


def kinds_of_sweep(folder: Path) -> list[Kind]:
    settings = {**SMALL, **QUIET, "updates": 1, "hidden": (4,)}
    sweep = lambda: spacerl.sweep("point-circle", seeds=[0], out=folder / "sweep", **settings)  # noqa: E731
    sweep()
    return [Kind(folder / "sweep" / "sweep.json", of_json, [(1, sweep)])]


# The attack ----------------------------------------------------------------------------------------------------------


def files(count: int, work: Path) -> Outcome:
    """Every file that somebody may be sent, damaged: refused in one sentence or read, and no code is run."""
    chance, failures, folder = random.Random(2), [], work / "damaged"
    settings = {"evaluate_every": 2, "evaluation_episodes": 2, **SMALL, **QUIET}
    spacerl.train("point-circle", updates=4, out=folder, **settings)
    (folder / "baseline.json").write_text(json.dumps(BASELINE))  # of an algorithm that takes longer to compile
    (folder / "theirs.py").write_text(THEIRS)
    kinds = kinds_of_run(folder) + kinds_of_other_libraries(folder) + kinds_of_sweep(folder)
    kinds += kinds_of_demonstrations(folder)
    originals = [kind.path.read_bytes() for kind in kinds]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.chdir(folder), open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        for i in range(count):
            which, turn = i % len(kinds), i // len(kinds)
            kind = kinds[which]
            damaged = kind.damage(originals[which], chance)
            kind.path.write_bytes(damaged)
            for every, use in kind.uses:
                if turn % every == 0 and (wrong := complaint(use)):
                    failures.append(f"{kind.path.name}, number {i}: {wrong}")
                    keep(kind.path.name, i, damaged)
            kind.path.write_bytes(originals[which])
            so_far("damaged files", i + 1, failures)
        if (folder / "code-was-run").exists():
            failures.append("code of the folder was run")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6
    return Outcome("damaged files", count, failures, f"{len(kinds)} kinds; {grown:.1f} GB more memory than before")


def keep(name: str, number: int, content: bytes) -> None:
    """What did harm is kept where ATTACK_KEEP says."""
    if place := os.environ.get("ATTACK_KEEP"):
        (Path(place) / f"{number}-{name}").write_bytes(content)


def damaged_resumes(count: int, work: Path) -> Outcome:
    """Runs with a damaged file that are resumed: refused, or they end with every bit of the whole run."""
    chance, failures, went_on = random.Random(6), [], 0
    whole, ended = work / "to-resume", work / "resumed"
    spacerl.train("point-circle", updates=6, out=whole, **EVALUATED, **QUIET)
    spacerl.resume(shutil.copytree(whole, ended), updates=8, **QUIET)
    expected = outcome_of(ended)
    names = ["metrics.csv", "evaluations.csv", "metrics.csv", "checkpoints/update-000006.safetensors", "config.json"]
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        for i in range(count):
            folder, name = Path(shutil.copytree(whole, work / f"copy-{i}")), names[i % len(names)]
            damage = of_table if name.endswith(".csv") else of_json if name.endswith(".json") else of_safetensors
            (folder / name).write_bytes(damage((whole / name).read_bytes(), chance))
            try:
                spacerl.resume(folder, updates=8, **QUIET)
                went_on += 1
                mine = outcome_of(folder)
                failures += [f"{name}, number {i}: {part} differs" for part in expected if mine[part] != expected[part]]
            except (InputError, RunStopped):
                pass
            except BaseException as error:
                failures.append(f"{name}, number {i}: {type(error).__name__}: {str(error)[:80]}")
            shutil.rmtree(folder)
    return Outcome("damaged runs that are resumed", count, failures, f"{went_on} went on, the others were refused")
