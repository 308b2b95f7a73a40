"""Which command is asked for, and how it ends: exit code 0 done, 2 bad input, 3 stopped, 130 interrupted.

Of other signals than Ctrl-C it is 128 and their number: 143 for SIGTERM, 129 for SIGHUP.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

import tyro

import spacerl
from spacerl.cli import demonstrations, looking, training
from spacerl.cli.options import (
    HELP_ALL,
    documented,
    likely_words,
    owners_of,
    require_consent_to_config,
    split_config,
    words_of,
)
from spacerl.runs.elsewhere import known_elsewhere
from spacerl.runs.names import nearest, printable
from spacerl.training.signals import number_of, stoppable
from spacerl.types import InputError, RunInterrupted, RunStopped, unknown_name

BAD_INPUT, STOPPED, KILLED = 2, 3, 128  # the last: and the number of the signal

COMMANDS: dict[str, Any] = {
    "train": training.Train,
    "sweep": training.Sweep,
    "iterate": training.Iterate,
    "resume": training.Resume,
    "evaluate": looking.Evaluate,
    "export": looking.Export,
    "report": looking.Report,
    "check-env": looking.CheckEnv,
    "reproduce": training.Reproduce,
    "tasks": looking.Tasks,
    "algorithms": looking.Algorithms,
    "record": demonstrations.Record,
    "demos show": demonstrations.DemosShow,
    "baseline from-demos": demonstrations.BaselineFromDemos,
    "baseline make": training.BaselineMake,
    "baseline show": looking.BaselineShow,
}


def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not where a program of the user's reads what is printed
            stream.reconfigure(errors="backslashreplace")  # names of files may hold bytes that are no text
    try:
        command = parse(arguments)
        _compile_once()
        with stoppable():
            command()
    except InputError as error:
        fail(str(error), BAD_INPUT)
    except KeyboardInterrupt as interrupt:
        fail(str(interrupt) if isinstance(interrupt, RunInterrupted) else "interrupted", KILLED + number_of(interrupt))
    except RunStopped as stopped:
        fail(str(stopped), STOPPED)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        fail(f"{error.filename or 'a file'}: {error.strerror or error}", BAD_INPUT)


def parse(arguments: list[str]) -> Any:
    """The command asked for. What cannot be parsed is said in one sentence, like any other bad input."""
    name, rest = named(arguments)
    kind = COMMANDS[name]
    if not issubclass(kind, training.Train | training.BaselineMake):
        return parse_as(documented(kind, {}), name, kind, rest)
    # The options and their defaults depend on the task and the algorithm, which are among the words to be parsed.
    filed: dict[str, Any] = {}
    if issubclass(kind, training.Train):
        rest, filed = split_config(rest)
    usual = filed.get("algorithm", kind.usual_algorithm(rest))
    likely = likely_words(rest, usual, filed)
    command = parse_as(kind.options_for(likely, rest, filed), name, kind, rest)
    words = words_of(command, usual)
    if words != likely:
        command = parse_as(kind.options_for(words, rest, filed), name, kind, rest)
    if filed:
        require_consent_to_config(arguments, filed, command.trust)
    return command


def parse_as(target: Any, name: str, kind: Any, arguments: list[str]) -> Any:
    arguments = ["--help" if word == HELP_ALL else word for word in arguments]
    markers = (tyro.conf.OmitArgPrefixes, tyro.conf.PositionalMetavarFromFieldName)
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            return tyro.cli(target, prog=f"spacerl {name}", description=kind.__doc__, args=arguments, config=markers)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise InputError(explained(message.getvalue(), name)) from None


def named(arguments: list[str]) -> tuple[str, list[str]]:
    """The command's name, which may have two words, and what follows it."""
    if not arguments:
        names = ", ".join(COMMANDS)
        raise InputError(f"no command was given: allowed are {names}; `spacerl --help` says what each does")
    if arguments[0] in ("-h", "--help", "help", HELP_ALL):
        show_commands()
    if arguments[0] in ("--version", "-V"):
        show_version()
    for words in (2, 1):
        name = " ".join(arguments[:words])
        if name in COMMANDS:
            return name, arguments[words:]
    if any(name.startswith(f"{arguments[0]} ") for name in COMMANDS):
        if arguments[1:2] in (["-h"], ["--help"]):
            show_commands(arguments[0])
        raise unknown_name("command", " ".join(arguments[:2]), COMMANDS)
    raise unknown_name("command", arguments[0], COMMANDS)


def show_commands(prefix: str = "") -> NoReturn:
    rows = [(name, summary(kind)) for name, kind in COMMANDS.items() if name.startswith(prefix)]
    print("usage: spacerl COMMAND [OPTIONS], and spacerl COMMAND --help\n")
    print("Reinforcement learning from a policy you already have, under constraints.\n")
    looking.print_table("", ("command", "what it does"), rows)
    raise SystemExit(0)


def show_version() -> NoReturn:
    from spacerl.runs.versions import versions

    known = versions("")
    shown = ", ".join(f"{name} {known[name]}" for name in ("jax", "numpy", "gymnasium", "python"))
    print(f"spacerl {spacerl.__version__} ({known['commit']}; {shown})")
    raise SystemExit(0)


def summary(kind: Any) -> str:
    """The first sentence of a command's description."""
    return " ".join(kind.__doc__.split("\n\n")[0].split())


def explained(text: str, command: str) -> str:
    """What the parser could not read; of an option of another algorithm or library, whose it is."""
    sentence = one_sentence(text)
    if missing := re.match(r"Missing from spacerl [\w -]+: (.*)", sentence):
        parts = [part.strip().partition(" ") for part in missing[1].split("(required)") if part.strip()]
        return f"{command} needs " + " and ".join(f"{name} ({what.rstrip('.')})" for name, _, what in parts)
    unknown = re.match(r"Unrecognized options?: ([^\s,=]+)", sentence)
    if not unknown:
        return value_in_words(sentence)
    given, trains = unknown[1], issubclass(COMMANDS[command], training.Train)
    if not given.startswith("-"):
        return f"'{given}' is one word too many: `spacerl {command} --help` shows what may be given"
    if owners := owners_of(given):
        return f"{given} is not an option of the algorithm: it belongs to {', '.join(owners)} (--algorithm)"
    if trains and given.partition("=")[0] == "--task":
        return f"unknown option --task: the task comes first, as in `spacerl {command} point-circle`"
    if trains and (here := known_elsewhere(given, option=True)):
        return f"unknown option {given}: here it is {here}"
    near = sentence.partition("Perhaps you meant: ")[2].split()
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"unknown option {given}: `spacerl {command} {HELP_ALL if trains else '--help'}` lists all{hint}"


def value_in_words(sentence: str) -> str:
    """Of a value that cannot be read: what was given, and what is allowed."""
    if missing := re.match(r"Missing argument Missing value for argument '([^']+)'", sentence):
        return f"{missing[1]} was given without a value"
    if choice := re.match(r"invalid choice '(.*)' for argument '([^']+)'\. Expected one of \((.*)\)", sentence):
        given, option, allowed = choice.groups()
        names = re.findall(r"'([^']*)'", allowed)
        return f"{option} is '{given}': allowed are {', '.join(names)}{nearest(given, names, cutoff=0.4)}"
    read = re.match(r"Error parsing (--[\w-]+): (.*)", sentence)
    several = read and re.search(r"arguments: \[(.*)\]", read[2])
    single = read and re.search(r"(?:from \[|base 10: |to float: )'(.*?)'", read[2])
    if read and several:  # options of several values take whole numbers, but for those that read their texts themselves
        given = several[1].replace("', '", " ").strip("'")
        return f"{read[1]} is '{given}': allowed are whole numbers with spaces between them, as in {read[1]} 64 64"
    if not (read and single):
        return sentence
    words = re.findall(r"choices \('(\w+)',\)", read[2])
    kind = "a number" if "to float" in read[2] else "a whole number"
    return f"{read[1]} is '{single[1]}': allowed is {' or '.join([kind, *(word for word in words if word != 'None')])}"


def one_sentence(text: str) -> str:
    """The parser's boxed explanation as one line, without its frame, rulers and the help it repeats."""
    explained = re.split(r"Argument helptext|For full helptext", text)[0]
    words = " ".join(re.sub(r"[─│╭╮╰╯]+|-{5,}", " ", explained).split())
    return re.sub(r"^(Value error|Invalid choice|Parsing error|Unrecognized options?|Required options?) ", "", words)


def fail(message: str, code: int) -> NoReturn:
    print(f"spacerl: {printable(message)}", file=sys.stderr)
    raise SystemExit(code)


def _compile_once() -> None:
    """Compiled programs are kept between commands; the variable is the user's to set differently."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "spacerl" / "jax"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "1")
