"""Whether reset, step and the spaces have the form that Gymnasium asks for."""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env

from spacerl.envs.host.check.findings import CannotContinue, Recorder
from spacerl.envs.host.spaces import Observations, actions_of
from spacerl.types import ActionSpace, InputError


def check_spaces(env: Any, recorder: Recorder) -> bool:
    """Whether both spaces can be translated."""
    usable = True
    for translate, space in ((Observations, env.observation_space), (actions_of, env.action_space)):
        try:
            translate(space)
        except InputError as error:
            recorder.problem("space", *_text_and_fix(str(error)))
            usable = False
    return usable


def _text_and_fix(sentence: str) -> tuple[str, str]:
    """A message of ours as what is so and what to do."""
    first = min((sentence.find(mark) for mark in (": ", "; ") if mark in sentence), default=len(sentence))
    return sentence[:first], sentence[first + 2 :]


def check_first_step(env: Any, seed: int, recorder: Recorder) -> int:
    """How many values a step has: five, or Safety-Gymnasium's six."""
    actions = actions_of(env.action_space)
    require_reset(called(lambda: env.reset(seed=seed), "reset", recorder), recorder)
    action = actions.decode(random_action(actions.space, np.random.default_rng(seed)))
    answer = called(lambda: env.step(action), "the first step", recorder)
    require_step(answer, recorder)
    return len(answer)


def random_action(space: ActionSpace, rng: np.random.Generator) -> np.ndarray:
    """An action as a policy gives it."""
    if space.kind == "box":
        return rng.uniform(-1.0, 1.0, space.size).astype(np.float32)
    return np.asarray(rng.integers(0, space.nvec or space.size), np.int32)


def called(function: Callable[[], Any], when: str, recorder: Recorder) -> Any:
    """The environment's answer; an exception of its own is recorded and ends the play."""
    recorder.at(when)
    try:
        return function()
    except Exception as error:
        fix = "fix the environment there"
        if isinstance(error, TypeError) and "seed" in str(error):
            fix = "let reset take `seed=None, options=None`, pass it on with super().reset(seed=seed)"
        recorder.problem("exception", f"{when} raised {error_and_place(error)}", fix)
        raise CannotContinue from error


def error_and_place(error: Exception) -> str:
    said = " ".join(" ".join(traceback.format_exception_only(type(error), error)).split())
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{said} ({frame.filename}, line {frame.lineno}, in {frame.name})"


def require_reset(answer: Any, recorder: Recorder) -> None:
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict):
        return
    text = f"reset returns {_form(answer)} and not the pair (observation, info), as environments of the old Gym do"
    recorder.problem("reset", text, "return observation, {} from reset")
    raise CannotContinue


def require_step(answer: Any, recorder: Recorder) -> None:
    if isinstance(answer, tuple) and len(answer) == 4:
        text = "step returns four values, as environments of the old Gym do"
    elif not (isinstance(answer, tuple) and len(answer) in (5, 6)):
        text = f"step returns {_form(answer)}"
    elif not isinstance(answer[-1], dict):
        text = f"the last value of a step is {type(answer[-1]).__name__} and not the dictionary info"
    else:
        return
    fix = (
        "return (observation, reward, terminated, truncated, info), terminated where the task itself has ended and "
        "truncated where time is up; Safety-Gymnasium's six values have the cost after the reward"
    )
    recorder.problem("step", text, fix)
    raise CannotContinue


def _form(answer: Any) -> str:
    return f"a tuple of {len(answer)}" if isinstance(answer, tuple) else type(answer).__name__


# Gymnasium's own checker ---------------------------------------------------------------------------------------------

# Its warnings that do not concern a run here, by a part of them.
_OF_NO_CONCERN = {
    r"space (minimum|maximum) value is -?infinity": "actions without bounds are a problem already",
    r"symmetric and normalized space": "actions are scaled to their bounds",
    r"different from the unwrapped version": "what is trained on is the environment as it is built",
    r"obs returned by .* (not within the observation space|expecting numpy array dtype)": "looked at on every step",
    r"Official support for the `seed` function": "nobody calls it",
}


def run_gymnasium_checker(env: Any, values: int, recorder: Recorder) -> None:
    """Gymnasium's checker on the environment below the wrappers that `gymnasium.make` itself adds."""
    if values == 6:
        recorder.ok("gymnasium", "Gymnasium's checker is left out: it does not know steps with six values")
        return
    while isinstance(env, gymnasium.wrappers.TimeLimit | gymnasium.wrappers.OrderEnforcing):
        env = env.env
    recorder.at("Gymnasium's checker")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            check_env(env, skip_render_check=True)
        except Exception as error:
            recorder.note("gymnasium", f"Gymnasium's checker stopped: {_one_line(error)}", "do as it says")
    for text in dict.fromkeys(_one_line(warning.message) for warning in heard):
        if not any(re.search(pattern, text) for pattern in _OF_NO_CONCERN):
            recorder.note(f"gymnasium: {text}", f"Gymnasium's checker says: {text}")


def _one_line(message: Any) -> str:
    """One line without colours."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(message))
    return " ".join(text.replace("WARN: ", "").split()) or type(message).__name__
