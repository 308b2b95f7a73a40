"""An attack on runs: killed at every file operation and at any moment, damaged files, generated command lines, two
writers, a full disk, orphans, workers that die. Prints what was tried and what failed; exit code 1 where anything did.

    python benchmarks/attack.py --kills 100 --real-kills 100 --files 10000 --commands 1000 --minutes 10

`make attack` is a smaller one. `--only NAME ...` picks attacks, so that several processes may share the work.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

sys.path.insert(0, str(Path(__file__).parent))

from attacks.commands import commands, traffic
from attacks.common import Outcome
from attacks.files import damaged_resumes, files
from attacks.kills import killed_sweeps, kills, real_kills
from attacks.processes import full_disk, killed_workers, orphans, two_writers

Attack = Callable[[Path], Outcome]
USUAL = {"kills": 40, "real_kills": 5, "sweep_kills": 3, "files": 3000, "resumes": 50, "commands": 300, "traffic": 1000}
USUAL |= {"writers": 2}
IN_THIS_PROCESS = ("kills", "files", "resumes", "commands", "traffic")


@contextlib.contextmanager
def programs_kept(folder: Path) -> Iterator[None]:
    """Compiled programs in a folder, while there is one: an attack runs the same few again and again."""
    wanted = {"jax_compilation_cache_dir": str(folder), "jax_persistent_cache_min_compile_time_secs": 0.0}
    wanted |= {"jax_disable_most_optimizations": True}  # small programs: compiling them takes the time
    before = {name: jax.config.values[name] for name in wanted}
    for name, value in wanted.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        reset_cache()


def attacks_of(asked: argparse.Namespace) -> dict[str, Attack]:
    """Every attack by name, at the size that was asked for."""
    return {
        "kills": lambda work: kills(asked.kills, work),
        "files": lambda work: files(asked.files, work),
        "resumes": lambda work: damaged_resumes(asked.resumes, work),
        "commands": lambda work: commands(asked.commands, work, asked.skip_commands),
        "traffic": lambda work: traffic(asked.traffic, work),
        "real_kills": lambda work: real_kills(asked.real_kills, work),
        "sweep_kills": lambda work: killed_sweeps(asked.sweep_kills, work),
        "writers": lambda work: two_writers(asked.writers, work),
        "disk": full_disk,
        "orphans": orphans,
        "workers": lambda work: killed_workers(asked.minutes, work),
    }


def chosen(asked: argparse.Namespace) -> dict[str, Attack]:
    attacks = attacks_of(asked)
    names = asked.only or (IN_THIS_PROCESS if asked.no_processes else attacks)
    empty = [name for name in USUAL if not getattr(asked, name)] + ([] if asked.minutes else ["workers"])
    return {name: attacks[name] for name in names if name not in empty}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    for name, usual in USUAL.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=usual)
    parser.add_argument("--minutes", type=float, default=0.0, help="of a run whose workers are killed all the time")
    parser.add_argument("--skip-commands", type=int, default=0, help="of the first so many, which ran before")
    parser.add_argument("--no-processes", action="store_true", help="leave out what starts processes")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="kills, files, resumes, commands, traffic, ...")
    asked, failed = parser.parse_args(arguments), 0
    with tempfile.TemporaryDirectory(prefix="spacerl-attack-") as scratch, programs_kept(Path(scratch) / "programs"):
        for name, attack in chosen(asked).items():
            began, work = time.monotonic(), Path(scratch) / name
            work.mkdir()
            done = attack(work)
            note = f" ({done.note})" if done.note else ""
            seconds = time.monotonic() - began
            print(f"{done.name}: {done.tried} tried{note}, {len(done.failures)} failed, {seconds:.0f} s", flush=True)
            for line in done.failures[:40]:
                print(f"    {line}", flush=True)
            failed += len(done.failures)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
