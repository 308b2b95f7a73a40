"""What a run would stumble over in somebody's environment, said before a run does: `spacerl check-env`.

Gymnasium's own checker is called first. Then episodes are played with random actions, through the same translation that
training uses, but without stopping at the first thing that is wrong.
"""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from spacerl.config import OWN_ENVIRONMENT, InputError
from spacerl.hosted.costs import AUTOMATIC, MissingCost, named_sources
from spacerl.hosted.environment import USUAL_HORIZON
from spacerl.hosted.single import Recipe, Single, construct, parse_arguments
from spacerl.hosted.spaces import Leaf, Observations, actions_of, at
from spacerl.types import ActionSpace

OK, NOTE, PROBLEM = "ok", "note", "problem"
SECONDS_OF_PLAY = 60.0  # stepping longer than this would try the user's patience
STEPS_TO_REPEAT = 20
SLOW = 200.0  # steps a second; a batch of the usual size then takes most of a minute
HUGE = 100.0  # an observation of this size saturates tanh layers


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was looked at: what is so, and how to mend it where it should be otherwise."""

    level: str  # ok: nothing to do; note: a run works, but look at it; problem: a run cannot work, or learns nonsense
    kind: str
    text: str
    mend: str = ""


@dataclasses.dataclass(frozen=True)
class Findings:
    """The outcome of a check."""

    env: str
    understood: tuple[tuple[str, str], ...]
    found: tuple[Finding, ...]
    command: str = ""

    @property
    def broken(self) -> bool:
        """Whether something must be mended before training."""
        return any(finding.level == PROBLEM for finding in self.found)

    def of_level(self, level: str) -> list[Finding]:
        return [finding for finding in self.found if finding.level == level]

    def text(self) -> str:
        """The report, the worst first."""
        problems, notes = (len(self.of_level(level)) for level in (PROBLEM, NOTE))
        lines = [f"environment '{self.env}': {_count(problems, 'problem')}, {_count(notes, 'note')}", ""]
        lines += [f"  {name:<13}{value}" for name, value in self.understood] + [""]
        for finding in (each for level in (PROBLEM, NOTE, OK) for each in self.of_level(level)):
            lines.append(f"  {finding.level:<9}{finding.text}")
            lines += [f"  {'':<9}to mend it: {finding.mend}"] if finding.mend else []
        ending = f"train with: {self.command}" if self.command else ""
        ending = "mend the problems before training" if self.broken else ending
        return "\n".join([*lines, *(["", ending] if ending else [])])


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


class Notebook:
    """Findings as they come up. Of each kind the first is kept: one wrong line in a step is wrong in all of them."""

    def __init__(self) -> None:
        self.kinds: dict[str, Finding] = {}

    def add(self, level: str, kind: str, text: str, mend: str = "") -> None:
        self.kinds.setdefault(kind, Finding(level, kind, text, mend))

    @property
    def broken(self) -> bool:
        return any(finding.level == PROBLEM for finding in self.kinds.values())


def check_environment(
    env: str, cost: tuple[str, ...], env_args: tuple[str, ...], episodes: int, max_steps: int, seed: int
) -> Findings:
    """Build an environment as training does, step it, and say what was found. One that cannot be built is bad input."""
    for name, value in (("episodes", episodes), ("max-steps", max_steps)):
        if value < 1:
            raise InputError(f"{name} is {value}: allowed is a whole number of at least 1")
    if not 0 <= seed < 2**31:
        raise InputError(f"seed is {seed}: allowed is a whole number from 0 to 2147483647")
    recipe = Recipe(env, named_sources(cost), parse_arguments(env_args))
    raw, notes = construct(recipe), Notebook()
    try:
        fine = _check_spaces(raw, notes)
        six = fine and _check_form(raw, actions_of(raw.action_space), seed, notes)
        if six is not None:
            _ask_gymnasium(raw, bool(six), notes)
        if not fine or six is None:
            return Findings(env, (), tuple(notes.kinds.values()))
    finally:
        raw.close()
    return _checked_by_playing(recipe, episodes, max_steps, seed, notes, (cost, env_args))


def _checked_by_playing(
    recipe: Recipe, episodes: int, max_steps: int, seed: int, notes: Notebook, options: tuple[Any, Any]
) -> Findings:
    single = Single(recipe)
    try:
        played = _play(single, episodes, max_steps, seed, notes)
        _judge(single, played, max_steps, notes)
        if not notes.broken:
            _check_repetition(single, recipe, seed, notes)
        understood = tuple(_understood(single, played))
        command = _command(single, played, notes, *options)
    finally:
        single.close()
    if not notes.kinds:
        notes.add(OK, "fine", f"{_count(sum(played.lengths), 'step')} with random actions showed nothing wrong")
    return Findings(recipe.name, understood, tuple(notes.kinds.values()), command)


# Before the first episode --------------------------------------------------------------------------------------------


def _check_spaces(env: Any, notes: Notebook) -> bool:
    fine = True
    for translate, space in ((Observations, env.observation_space), (actions_of, env.action_space)):
        try:
            translate(space)
        except InputError as error:
            text, _, mend = _split(str(error))
            notes.add(PROBLEM, "space", text, mend)
            fine = False
    return fine


def _split(sentence: str) -> tuple[str, str, str]:
    """A message of ours as what is so and what to do."""
    first = min((sentence.find(mark) for mark in (": ", "; ") if mark in sentence), default=len(sentence))
    return sentence[:first], sentence[first : first + 2], sentence[first + 2 :]


def _check_form(env: Any, actions: Any, seed: int, notes: Notebook) -> bool | None:
    """Whether a step has Safety-Gymnasium's six values; None where reset or step cannot be used at all."""
    start = _asked(notes, "reset", lambda: env.reset(seed=seed))
    if start is None or not _is_reset(start[0], notes):
        return None
    row = _random_row(actions.space, np.random.default_rng(seed))
    answer = _asked(notes, "the first step", lambda: env.step(actions.decode(row)))
    return None if answer is None or not _is_step(answer[0], notes) else len(answer[0]) == 6


def _asked(notes: Notebook, when: str, ask: Callable[[], Any]) -> tuple[Any] | None:
    """The environment's answer in a tuple, or None where it raised."""
    try:
        return (ask(),)
    except Exception as error:
        mend = "mend the environment there"
        if isinstance(error, TypeError) and "seed" in str(error):
            mend = "let reset take `seed=None, options=None`, pass it on with super().reset(seed=seed)"
        notes.add(PROBLEM, "exception", f"{when} raised {_last_line(error)}", mend)
        return None


def _last_line(error: Exception) -> str:
    said = traceback.format_exception_only(type(error), error)[-1].strip()
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{said} ({frame.filename}, line {frame.lineno}, in {frame.name})"


def _is_reset(answer: Any, notes: Notebook) -> bool:
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict):
        return True
    notes.add(
        PROBLEM,
        "reset",
        f"reset returns {_form(answer)} and not the pair (observation, info), as environments of the old Gym do",
        "return observation, {} from reset",
    )
    return False


def _is_step(answer: Any, notes: Notebook) -> bool:
    if isinstance(answer, tuple) and len(answer) == 4:
        text = "step returns four values, as environments of the old Gym do"
    elif not (isinstance(answer, tuple) and len(answer) in (5, 6)):
        text = f"step returns {_form(answer)}"
    elif not isinstance(answer[-1], dict):
        text = f"the last value of a step is {type(answer[-1]).__name__} and not the dictionary info"
    else:
        return True
    mend = (
        "return (observation, reward, terminated, truncated, info), terminated where the task itself has ended and "
        "truncated where time is up; Safety-Gymnasium's six values have the cost after the reward"
    )
    notes.add(PROBLEM, "step", text, mend)
    return False


def _form(answer: Any) -> str:
    return f"a tuple of {len(answer)}" if isinstance(answer, tuple) else type(answer).__name__


# Warnings of Gymnasium's checker that do not concern a run here, by a part of them.
_OF_NO_CONCERN = {
    r"space (minimum|maximum) value is -?infinity": "actions without bounds are a problem already",
    r"symmetric and normalized space": "actions are scaled to their bounds",
    r"different from the unwrapped version": "what is trained on is the environment as it is built",
    r"obs returned by .* (not within the observation space|expecting numpy array dtype)": "looked at on every step",
    r"Official support for the `seed` function": "nobody calls it",
}


def _ask_gymnasium(env: Any, six: bool, notes: Notebook) -> None:
    """Gymnasium's checker on the environment below the wrappers that `gymnasium.make` itself adds."""
    if six:
        notes.add(OK, "gymnasium", "Gymnasium's checker is left out: it does not know steps with six values")
        return
    while isinstance(env, gymnasium.wrappers.TimeLimit | gymnasium.wrappers.OrderEnforcing):
        env = env.env
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            check_env(env, skip_render_check=True)
        except Exception as error:
            notes.add(NOTE, "gymnasium", f"Gymnasium's checker stopped: {_plain(error)}", "do as it says")
    for text in dict.fromkeys(_plain(warning.message) for warning in heard):
        if not any(re.search(pattern, text) for pattern in _OF_NO_CONCERN):
            notes.add(NOTE, f"gymnasium: {text}", f"Gymnasium's checker says: {text}")


def _plain(message: Any) -> str:
    """One line without colours."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(message))
    return " ".join(text.replace("WARN: ", "").split()) or type(message).__name__


# Playing -------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Played:
    """What the episodes gave. Numbers that were none are NaN."""

    names: tuple[str, ...]
    lengths: list[int] = dataclasses.field(default_factory=list)
    rewards: list[list[float]] = dataclasses.field(default_factory=list)
    costs: list[list[list[float]]] = dataclasses.field(default_factory=list)
    endless: int = 0
    seconds: float = 0.0
    largest: dict[str, float] = dataclasses.field(default_factory=dict)  # entry of the observation -> size
    sixth: bool = False

    def begin(self) -> None:
        self.lengths.append(0)
        self.rewards.append([])
        self.costs.append([])

    @property
    def speed(self) -> float:
        return sum(self.lengths) / max(self.seconds, 1e-9)

    def all_rewards(self) -> np.ndarray:
        return np.array([reward for episode in self.rewards for reward in episode])

    def all_costs(self) -> np.ndarray:
        flat = [row for episode in self.costs for row in episode]
        return np.array(flat, float).reshape(len(flat), len(self.names))

    def mean_costs(self) -> np.ndarray:
        sums = [np.sum(np.array(episode).reshape(-1, len(self.names)), axis=0) for episode in self.costs]
        return np.mean(sums, axis=0) if sums else np.full(len(self.names), math.nan)


def _random_row(space: ActionSpace, draw: np.random.Generator) -> np.ndarray:
    """An action as a policy gives it."""
    if space.kind == "box":
        return draw.uniform(-1.0, 1.0, space.size).astype(np.float32)
    return np.asarray(draw.integers(0, space.choices or space.size), np.int32)


def _play(single: Single, episodes: int, max_steps: int, seed: int, notes: Notebook) -> Played:
    played, draw = Played(single.cost_names), np.random.default_rng(seed)
    for index in range(episodes):
        if not _episode(single, played, index, max_steps, seed + index, draw, notes):
            break
    return played


def _episode(
    single: Single, played: Played, index: int, max_steps: int, seed: int, draw: np.random.Generator, notes: Notebook
) -> bool:
    """One episode; False where no further one can be played."""
    env, where = single.env, f"of episode {index + 1}"
    start = _asked(notes, f"reset {where}", lambda: env.reset(seed=seed))
    if start is None or not _is_reset(start[0], notes):
        return False
    raw = start[0][0]
    _look_at(single, raw, f"reset {where}", played, notes)
    played.begin()
    for step in range(1, max_steps + 1):
        when = f"step {step} {where}"
        if played.seconds > SECONDS_OF_PLAY:
            notes.add(NOTE, "patience", f"the check ended with {when}: {SECONDS_OF_PLAY:g} seconds had passed")
            return False
        action = single.actions.decode(_random_row(single.actions.space, draw))
        began = time.perf_counter()
        answer = _asked(notes, when, lambda action=action: env.step(action))
        played.seconds += time.perf_counter() - began
        if answer is None or not _is_step(answer[0], notes):
            return False
        following, reward, *middle, terminated, truncated, info = answer[0]
        played.sixth = bool(middle)
        played.lengths[-1] += 1
        played.rewards[-1].append(_number(reward, "reward", when, notes))
        played.costs[-1].append(_costs(single, raw, action, following, info, middle, when, notes))
        if _same_memory(raw, following):
            mend = "return a copy: a cost function of (obs, action, next_obs, info) would see the next one twice"
            level = PROBLEM if _reads_observations(single) else NOTE
            notes.add(level, "reuse", f"{when} gave the very array it gave before, with new numbers in it", mend)
        raw = following
        _look_at(single, raw, when, played, notes)
        ended = _asked(notes, f"whether {when} ended the episode", lambda t=terminated, u=truncated: bool(t) or bool(u))
        if ended is None or ended[0]:
            return ended is not None
    played.endless += 1
    return True


def _costs(
    single: Single, raw: Any, action: Any, following: Any, info: Any, middle: list[Any], when: str, notes: Notebook
) -> list[float]:
    values = []
    for name, read in zip(single.cost_names, single.costs, strict=True):
        try:
            value = read(raw, action, following, info, middle[0] if middle else None)
        except MissingCost as error:
            text, _, mend = str(error).partition("; ")
            notes.add(PROBLEM, f"missing {name}", text, mend or "name another source with --cost, or --cost none")
            value = None
        except Exception as error:
            mend = "mend the function there; it takes (obs, action, next_obs, info) and returns a number"
            notes.add(PROBLEM, f"cost {name}", f"the cost '{name}' raised {_last_line(error)} on {when}", mend)
            value = None
        values.append(math.nan if value is None else _number(value, f"cost '{name}'", when, notes))
    return values


def _number(value: Any, what: str, when: str, notes: Notebook) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        notes.add(PROBLEM, what, f"{when} gave the {what} {value!r}, which is not a number", "return a float")
        return math.nan
    if not math.isfinite(number):
        mend = "look for a division by zero or a simulation that diverged, and end the episode there"
        notes.add(PROBLEM, what, f"{when} gave the {what} {number}, which is not finite", mend)
    return number


def _reads_observations(single: Single) -> bool:
    """Whether a cost is a function, which is given the observation before and after a step."""
    texts = ("none", "info", "step", AUTOMATIC)
    return any(source not in texts and not str(source).startswith("info:") for _, source in single.recipe.costs)


def _same_memory(one: Any, other: Any) -> bool:
    arrays = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
    return arrays and one.size > 0 and np.shares_memory(one, other)


# Observations --------------------------------------------------------------------------------------------------------


def _look_at(single: Single, raw: Any, when: str, played: Played, notes: Notebook) -> None:
    """One observation, leaf by leaf, against what its space says."""
    for leaf in single.observations.leaves:
        name = "observation" + "".join(f"[{key!r}]" for key in leaf.path)
        try:
            value = np.asarray(at(raw, leaf.path))
        except (KeyError, IndexError, TypeError):
            mend = "give every part that the space names, on every step"
            notes.add(PROBLEM, f"part {name}", f"{when} gave no {name}, which its space promises", mend)
            continue
        if value.shape != leaf.space.shape:
            text = f"{when} gave an {name} of shape {value.shape}, its space says {leaf.space.shape}"
            notes.add(PROBLEM, f"shape {name}", text, "make observation_space say what reset and step give")
            continue
        if value.dtype.kind not in "biuf":
            text = f"{when} gave an {name} of {value.dtype}, which are not numbers"
            notes.add(PROBLEM, f"dtype {name}", text, "return a NumPy array of numbers")
            continue
        _look_at_numbers(leaf, name, value, when, played, notes)


def _look_at_numbers(leaf: Leaf, name: str, value: np.ndarray, when: str, played: Played, notes: Notebook) -> None:
    if not np.isfinite(value).all():
        mend = "look for a division by zero or a simulation that diverged, and end the episode there"
        notes.add(PROBLEM, f"finite {name}", f"{when} gave an {name} with a number that is not finite", mend)
        return
    space = leaf.space
    if isinstance(space, spaces.Box):
        _look_at_dtype(space, name, value, when, notes)
        outside = np.maximum(space.low - value, value - space.high).max() if value.size else 0.0
        if outside > 1e-6 * (1.0 + np.abs(value).max(initial=0.0)):
            text = f"{when} gave an {name} outside of its bounds, by {outside:.3g}"
            notes.add(NOTE, f"bounds {name}", text, "widen the bounds of observation_space, or clip the observation")
        if leaf.picture is None:
            played.largest[name] = max(played.largest.get(name, 0.0), float(np.abs(value).max(initial=0.0)))
    elif not space.contains(value if value.shape else value.item()) and not _inside(space, value):
        text = f"{when} gave the {name} {value.tolist()}, which is not in {space}"
        notes.add(PROBLEM, f"bounds {name}", text, "make observation_space as large as what reset and step give")


def _inside(space: Any, value: np.ndarray) -> bool:
    """Choices of another dtype than the space's are as good."""
    return bool(np.all(value == value.astype(np.int64))) and space.contains(value.astype(space.dtype))


def _look_at_dtype(space: spaces.Box, name: str, value: np.ndarray, when: str, notes: Notebook) -> None:
    if value.dtype == space.dtype:
        return
    text = f"{when} gave an {name} of {value.dtype}, its space says {space.dtype}"
    if np.issubdtype(space.dtype, np.integer) and not np.array_equal(value, np.round(value)):
        mend = f"return {space.dtype}, or give the space the dtype {value.dtype}: what is after the point gets lost"
        notes.add(PROBLEM, f"dtype {name}", text, mend)
    else:
        notes.add(NOTE, f"dtype {name}", f"{text}; it is converted", f"return {space.dtype}")


# What the numbers say ------------------------------------------------------------------------------------------------


def _judge(single: Single, played: Played, max_steps: int, notes: Notebook) -> None:
    _judge_costs(single, played, notes)
    _judge_rewards(played, notes)
    _judge_lengths(single, played, max_steps, notes)
    for name, size in played.largest.items():
        if size > HUGE:
            text = f"the {name} holds numbers as large as {size:.3g}"
            notes.add(NOTE, "scale", text, "pass --normalise-observations to train")
            break
    steps = sum(played.lengths)
    if steps and played.speed < SLOW:
        batch = OWN_ENVIRONMENT.batch_size
        text = f"it makes {played.speed:.3g} steps a second, so a batch of {batch:,} takes {batch / played.speed:.0f} s"
        notes.add(NOTE, "slow", text, "raise --workers and --environments where there are cores, or lower --batch-size")


def _judge_costs(single: Single, played: Played, notes: Notebook) -> None:
    values = played.all_costs()
    for k, (name, source) in enumerate(single.recipe.costs):
        column = values[:, k]
        if source == "none" or len(column) < 2 or not np.isfinite(column).all():
            continue
        if np.all(column == column[0]):
            text = f"the cost '{name}' is {column[0]:g} on all {len(column)} steps"
            mend = "see that it is computed from the right values" + (
                "; if random actions are simply too timid to cost anything, it is fine" if column[0] == 0 else ""
            )
            notes.add(NOTE, f"constant {name}", text, mend)
        if np.any(column < 0):
            text = f"the cost '{name}' is negative at times ({column.min():g})"
            mend = "start it at 0: a negative cost pays for a violation elsewhere in the episode"
            notes.add(NOTE, f"negative {name}", text, mend)


def _judge_rewards(played: Played, notes: Notebook) -> None:
    """A constant reward still teaches where episodes differ in length, as in CartPole."""
    rewards = played.all_rewards()
    if len(rewards) < 2 or not np.isfinite(rewards).all() or len(set(played.lengths)) > 1:
        return
    if np.all(rewards == rewards[0]):
        text = f"the reward is {rewards[0]:g} on all {len(rewards)} steps, and all episodes are equally long"
        notes.add(
            NOTE, "constant reward", text, "see that it is computed from the right values: there is nothing to learn"
        )


def _judge_lengths(single: Single, played: Played, max_steps: int, notes: Notebook) -> None:
    if single.horizon is not None or not played.lengths:
        return
    mend = (
        f"pass --rollout-length to train (without it episodes are cut after {USUAL_HORIZON} steps), or set "
        "max_episode_steps where the environment is registered"
    )
    longest = max(played.lengths)
    if played.endless:
        times = f"{played.endless} of {len(played.lengths)} episodes"
        notes.add(NOTE, "endless", f"{times} had not ended after {max_steps} steps, and it states no time limit", mend)
    elif longest > USUAL_HORIZON:
        notes.add(NOTE, "endless", f"an episode lasted {longest} steps, and it states no time limit", mend)


def _check_repetition(used: Single, recipe: Recipe, seed: int, notes: Notebook) -> None:
    """A used environment and a new one must play the same episode from the same seed: resumed runs rely on it."""
    draw = np.random.default_rng(seed + 1)
    rows = [_random_row(used.actions.space, draw) for _ in range(STEPS_TO_REPEAT)]
    fresh = Single(recipe)
    try:
        pairs = zip(_trace(used, seed, rows), _trace(fresh, seed, rows), strict=False)
        step = next((i for i, (one, other) in enumerate(pairs) if not _equal(one, other)), None)
    finally:
        fresh.close()
    mend = (
        "draw every random number from self.np_random, call super().reset(seed=seed) first, and let nothing of an "
        "earlier episode remain; until then runs of one seed differ, and a resumed run is not an uninterrupted one"
    )
    if step == 0:
        notes.add(NOTE, "repeat reset", f"reset(seed={seed}) of two environments gave different observations", mend)
    elif step is not None:
        text = f"the same seed and actions gave something else in a second environment, first on step {step}"
        notes.add(NOTE, "repeat step", text, mend)


def _trace(single: Single, seed: int, rows: list[np.ndarray]) -> Iterator[tuple[Any, ...]]:
    yield (np.array(single.reset(seed)),)
    for row in rows:
        obs, reward, cost, terminated, truncated = single.step(row)
        yield np.array(obs), reward, cost, terminated, truncated
        if terminated or truncated:
            return


def _equal(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


# What was understood -------------------------------------------------------------------------------------------------


def _understood(single: Single, played: Played) -> Iterator[tuple[str, str]]:
    yield "observation", _observation_text(single.observations)
    yield "action", _action_text(single.actions.space)
    for k, (name, source) in enumerate(single.recipe.costs):
        value = played.mean_costs()[k]
        unknown = source == "none" or math.isnan(value)
        mean = "" if unknown else f", {value:.4g} per episode with random actions"
        yield "cost", f"{name}, from {_source_text(source, played.sixth)}{mean}"
    if played.lengths and np.isfinite(played.all_rewards()).all():
        yield "reward", f"{np.mean([sum(each) for each in played.rewards]):.4g} per episode with random actions"
    limit = f"time limit {single.horizon}" if single.horizon else "no time limit stated"
    if played.lengths:
        shortest, longest = min(played.lengths), max(played.lengths)
        spread = f"{shortest} to {longest}" if longest > shortest else f"{longest}"
        yield "episode", f"{spread} steps in {_count(len(played.lengths), 'episode')}; {limit}"
        yield "speed", f"{played.speed:,.0f} steps a second in one process"


def _observation_text(observations: Observations) -> str:
    pictures = [" x ".join(map(str, shape)) for _, shape, _ in observations.images]
    if pictures and observations.dtype == np.uint8:
        return f"a picture of {pictures[0]} (height, width, channels), pixels from 0 to 255"
    size = f"{_count(math.prod(observations.shape), 'number')}"
    parts = f" from {len(observations.leaves)} parts laid one after the other" if len(observations.leaves) > 1 else ""
    return size + parts + (f", of them the picture {' and '.join(pictures)}" if pictures else "")


def _action_text(space: ActionSpace) -> str:
    if space.kind == "discrete":
        return f"one of {space.size} choices"
    if space.kind == "multidiscrete":
        return f"one choice out of each of {len(space.choices)} lists, of lengths {', '.join(map(str, space.choices))}"
    bounds = sorted(set(zip(space.low, space.high, strict=True)))
    stands = f"[{bounds[0][0]:g}, {bounds[0][1]:g}]" if len(bounds) == 1 else "the bounds of each"
    return f"{_count(space.size, 'number')}; the policy's [-1, 1] stands for {stands}"


def _source_text(source: Any, sixth: bool) -> str:
    if source == "none":
        return "nowhere: it is always 0"
    if source == "step" or (source == AUTOMATIC and sixth):
        return "the third of the six values of a step"
    if source in ("info", AUTOMATIC):
        return "info['cost']"
    return f"info['{source[5:]}']" if str(source).startswith("info:") else f"the function {source}"


def _command(single: Single, played: Played, notes: Notebook, cost: tuple[str, ...], env_args: tuple[str, ...]) -> str:
    """A command that works as it is; the limit is only an opening bid, half of what random actions cost."""
    words = ["spacerl", "train", "--env", single.recipe.name]
    words += ["--env-args", *env_args] if env_args else []
    words += ["--cost", *cost] if cost else []
    without = all(source == "none" for _, source in single.recipe.costs)
    words += ["--algorithm", "trpo" if without else "pcpo", "--cost-limit"]
    limits = [f"{max(value, 0.0) / 2:.2g}" for value in np.nan_to_num(played.mean_costs())]
    many = len(limits) > 1
    words += [f"{name}={limit}" if many else limit for name, limit in zip(single.cost_names, limits, strict=True)]
    if "endless" in notes.kinds and single.horizon is None:
        words += ["--rollout-length", str(USUAL_HORIZON)]
    words += ["--normalise-observations"] if "scale" in notes.kinds else []
    return shlex.join(words)
