"""What would stop or mislead a run in somebody's environment, found before the run: `spacerl check-env`.

Gymnasium's own checker is called first. Then episodes are played with random actions, through the same translation that
training uses, but without stopping at the first thing that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from spacerl.envs.host.check.findings import NOTE, OK, PROBLEM, CannotContinue, Finding, Findings, Recorder, count
from spacerl.envs.host.check.form import check_first_step, check_spaces, run_gymnasium_checker
from spacerl.envs.host.check.judge import check_repetition, judge_episodes
from spacerl.envs.host.check.play import LEAST_STEPS, play_episodes
from spacerl.envs.host.check.summary import lines_of_summary, training_command
from spacerl.envs.host.costs import named_sources
from spacerl.envs.host.single import Recipe, SingleEnv, construct, parse_arguments
from spacerl.types import InputError

__all__ = ["NOTE", "OK", "PROBLEM", "Finding", "Findings", "check_environment"]


def check_environment(
    env: str,
    cost: Sequence[str],
    env_args: Sequence[str],
    episodes: int,
    max_steps: int,
    seed: int,
    least_steps: int = LEAST_STEPS,
    watch: Callable[[str], None] | None = None,
) -> Findings:
    """Build an environment as training does, step it, and say what was found. One that cannot be built is bad input.

    `watch` is told what is about to be done.
    """
    recipe = Recipe(env, named_sources(tuple(cost)), parse_arguments(tuple(env_args)))
    return check_recipe(recipe, tuple(cost), tuple(env_args), Looking(episodes, max_steps, seed, least_steps), watch)


class Looking(NamedTuple):
    """How long an environment is looked at."""

    episodes: int = 5  # at least
    max_steps: int = 5000  # after which an episode counts as one that never ends
    seed: int = 0
    least_steps: int = LEAST_STEPS


def check_recipe(
    recipe: Recipe,
    cost: tuple[str, ...],
    env_args: tuple[str, ...],
    looking: Looking,
    watch: Callable[[str], None] | None = None,
) -> Findings:
    """The same for an environment that was given as an object; `cost` and `env_args` are for the command alone."""
    episodes, max_steps, seed, least_steps = looking
    _check_numbers(episodes, max_steps, seed)
    recorder = Recorder(watch)
    recorder.at("building the environment")
    if not _has_playable_form(recipe, seed, recorder):
        return Findings(recipe.name, (), recorder.found())
    recorder.at("building the environment again")
    single = SingleEnv(recipe)
    try:
        played = play_episodes(single, episodes, max_steps, seed, recorder, least_steps)
        judge_episodes(single, played, max_steps, recorder)
        if not recorder.broken:
            recorder.at("playing an episode again")
            check_repetition(single, recipe, seed, recorder)
        lines, command = lines_of_summary(single, played), training_command(single, played, recorder, cost, env_args)
    finally:
        single.close()
    if not recorder.kinds:
        recorder.ok("fine", f"{count(sum(played.lengths), 'step')} with random actions showed nothing wrong")
    return Findings(recipe.name, lines, recorder.found(), command)


def _check_numbers(episodes: int, max_steps: int, seed: int) -> None:
    for name, value in (("episodes", episodes), ("max-steps", max_steps)):
        if value < 1:
            raise InputError(f"{name} is {value}: allowed is a whole number of at least 1")
    if not 0 <= seed < 2**31:
        raise InputError(f"seed is {seed}: allowed is a whole number from 0 to 2147483647")


def _has_playable_form(recipe: Recipe, seed: int, recorder: Recorder) -> bool:
    """Whether episodes can be played at all."""
    env = construct(recipe)
    try:
        translatable = check_spaces(env, recorder)
        values = check_first_step(env, seed, recorder) if translatable else 5
        run_gymnasium_checker(env, values, recorder)
        return translatable
    except CannotContinue:
        return False
    finally:
        env.close()
