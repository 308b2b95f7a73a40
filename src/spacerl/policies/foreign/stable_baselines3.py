"""Policies of Stable-Baselines3: MODEL.zip, or MODEL.zip+STATISTICS.pkl for one trained under VecNormalize.

An archive is JSON with pickled objects inside, beside weights. What made it is read from the JSON; everything else
unpickles and therefore asks for --trust.
"""

from __future__ import annotations

import json
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from spacerl.policies.foreign.common import (
    Foreign,
    Output,
    Raw,
    existing,
    in_chunks,
    need,
    nvec_of,
    probe,
    require_trust,
    unchanged,
)
from spacerl.runs.names import in_words
from spacerl.types import ActionSpace, InputError

ALGORITHMS = ("PPO", "A2C", "SAC", "TD3", "DDPG", "DQN")
STD_FLOOR = 0.01  # of a squashed Gaussian, in half ranges: where tanh saturates its spread is zero and the KL infinite

LARGE, PACKED = 10**8, 100  # bytes of an archive, and how much larger than itself it may then be
# The last: encrypted, or a way to pack or a version that is unknown here, which is a kind of it.
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)


def load_stable_baselines3(
    given: str, action: ActionSpace, obs_shape: tuple[int, ...], trust: bool, raw: Raw | None
) -> Foreign:
    model_name, _, statistics_name = given.partition(".zip+")
    model_name += ".zip" if statistics_name else ""
    path = existing(model_name)
    data, version = _read_json(path)
    algorithm = _algorithm_of(data, model_name)
    statistics = existing(statistics_name) if statistics_name else None
    require_trust(trust, given, f"(Stable-Baselines3 {algorithm}) holds pickled Python objects")
    sb3 = need("stable_baselines3", given, "a policy of Stable-Baselines3", "sb3")
    torch = need("torch", given, "a policy of Stable-Baselines3", "sb3")
    policy = _load_policy(sb3, algorithm, path)
    prepare = _preparation(sb3, raw, statistics)
    _check_observations(policy.observation_space, prepare, obs_shape, given)
    _check_actions(policy.action_space, action, given)
    answer = _answer_of(algorithm, policy)

    def evaluate(obs: np.ndarray) -> Output:
        try:
            with torch.no_grad():
                tensor, _ = policy.obs_to_tensor(prepare(obs))
                return answer(tensor)
        except Exception as error:
            raise InputError(f"policy file '{given}' fails on observations: {in_words(error)}") from error

    evaluate(probe(obs_shape))
    deterministic = algorithm in ("TD3", "DDPG", "DQN")
    info = {
        "algorithm": algorithm,
        "policy_class": type(policy).__name__,
        "saved_with": version,
        "stable_baselines3": sb3.__version__,
        "observation_space": _in_words(policy.observation_space),
        "action_space": _in_words(policy.action_space),
        "squashed": bool(policy.squash_output),
        "std_floor": STD_FLOOR if policy.squash_output and not deterministic else None,
        "vec_normalize": statistics_name or None,
        "env_steps": data.get("num_timesteps"),
    }
    kind = f"stable-baselines3 {algorithm}"
    return Foreign(given, kind, lambda obs: in_chunks(evaluate, obs), deterministic, info)


# ---------------------------------------------------------------- what made the file


def _read_json(path: Path) -> tuple[dict[str, Any], str]:
    """The archive's JSON, with everything pickled left alone, and the version that wrote it."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if "data" not in names or "policy.pth" not in names:
                raise InputError(
                    f"policy file '{path}' is a zip archive but not one of Stable-Baselines3: save it with model.save()"
                )
            _require_reasonable(archive, path)
            data = json.loads(archive.read("data"))
            marker = "_stable_baselines3_version"
            version = archive.read(marker).decode().strip() if marker in names else "unknown"
            damaged = archive.testzip()
    except (*_DAMAGE, OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(
            f"policy file '{path}' is damaged, cut short or no zip archive: one saved by Stable-Baselines3 is expected"
        ) from error
    if damaged or not isinstance(data, dict):
        raise InputError(f"policy file '{path}' is damaged: '{damaged or 'data'}' inside of it cannot be read")
    return data, version


def _require_reasonable(archive: zipfile.ZipFile, path: Path) -> None:
    """Nobody packs numbers a hundred times smaller: such an archive is made to fill the memory."""
    unpacked = sum(each.file_size for each in archive.infolist())
    if unpacked > LARGE and unpacked > PACKED * path.stat().st_size:
        raise InputError(f"policy file '{path}' unpacks to {unpacked / 1e9:.1f} GB: it is not read")


def _algorithm_of(data: dict[str, Any], given: str) -> str:
    """Which algorithm saved these settings: each has some that no other has."""
    policy_class = data.get("policy_class")
    origin = str(policy_class.get("__module__", "")) if isinstance(policy_class, dict) else ""
    found = None
    if origin.split(".")[0] not in ("sb3_contrib", "sbx"):  # they share settings with ours, and act otherwise
        if {"clip_range", "n_epochs"} <= data.keys():
            found = "PPO"
        elif {"gae_lambda", "vf_coef"} <= data.keys() and "cg_max_steps" not in data:
            found = "A2C"
        elif "target_entropy" in data:
            found = "SAC"
        elif "policy_delay" in data:
            found = "DDPG" if data.get("target_noise_clip") == 0.0 else "TD3"
        elif "exploration_rate" in data:
            found = "DQN"
    if found is None:
        stated = f" (its policy class is from {origin})" if origin else ""
        raise InputError(
            f"policy file '{given}' was saved by an algorithm that is not supported{stated}: "
            f"allowed are {', '.join(ALGORITHMS)} of Stable-Baselines3"
        )
    return found


# ---------------------------------------------------------------- loading, after trust was given


def _unused() -> dict[str, Any]:
    """Replacements for what acting does not need.

    Schedules and buffers are what fails most often when Python or NumPy differ from those that saved. The seed would
    set the global random state, and a buffer would take memory for a million steps. Made anew: loading changes them.
    """
    schedules: dict[str, Any] = {
        "learning_rate": 0.0,
        "lr_schedule": lambda _: 0.0,
        "exploration_schedule": lambda _: 0.0,
    }
    nothing = ("seed", "clip_range_vf", "action_noise", "replay_buffer_class", "tensorboard_log", "ep_info_buffer")
    nothing += ("ep_success_buffer", "_last_obs", "_last_original_obs", "_last_episode_starts")
    buffers = {"buffer_size": 1, "n_envs": 1, "n_steps": 1, "replay_buffer_kwargs": {}, "optimize_memory_usage": False}
    return schedules | {"clip_range": 0.2} | buffers | dict.fromkeys(nothing)


def _load_policy(sb3: Any, algorithm: str, path: Path) -> Any:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            model = getattr(sb3, algorithm).load(path, device="cpu", custom_objects=_unused())
        except Exception as error:
            why = _reason([str(each.message) for each in said], error)
            raise InputError(f"policy file '{path}' cannot be loaded by Stable-Baselines3: {why}") from error
    model.policy.set_training_mode(False)
    return model.policy


def _reason(said: list[str], error: Exception) -> str:
    """What could not be unpickled is only warned about, and is then the reason for what follows."""
    lost = [text for text in said if "Could not deserialize" in text]
    return f"{lost[0].split('.')[0]}, {lost[0].splitlines()[-1]}" if lost else in_words(error)


def _preparation(sb3: Any, raw: Raw | None, statistics: Path | None) -> Raw:
    """Our observations -> the environment's -> normalised as in training."""
    start: Raw = raw or unchanged
    if statistics is None:
        return start
    try:
        with open(statistics, "rb") as file:
            loaded = sb3.common.save_util.load_from_pkl(file)
    except Exception as error:
        raise InputError(f"statistics file '{statistics}' cannot be unpickled: {in_words(error)}") from error
    if not isinstance(loaded, sb3.common.vec_env.VecNormalize):
        raise InputError(
            f"statistics file '{statistics}' holds {type(loaded).__name__}: what VecNormalize.save() writes is expected"
        )
    return lambda obs: loaded.normalize_obs(start(obs))


# ---------------------------------------------------------------- does it fit the environment


def _check_observations(space: Any, prepare: Raw, obs_shape: tuple[int, ...], given: str) -> None:
    try:
        example = prepare(np.zeros((2, *obs_shape), np.float32))
        fits = _fits(space, example)
    except (AssertionError, ValueError, TypeError, KeyError):  # statistics of other observations
        example, fits = np.zeros((2, *obs_shape)), False
    if not fits:
        raise InputError(
            f"policy file '{given}' takes observations {_in_words(space)}, and this environment has {_shapes(example)}"
        )


def _fits(space: Any, example: Any) -> bool:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        if not isinstance(example, dict) or set(example) != set(space.spaces):
            return False
        return all(_fits(space.spaces[key], example[key]) for key in example)
    if isinstance(example, dict):
        return False
    shape = np.asarray(example).shape[1:]
    # Stable-Baselines3 turns images (height, width, channels) to channels first, before training and when it acts.
    image = len(space.shape) == 3 and space.dtype == np.uint8
    channels_last = (*space.shape[1:], space.shape[0]) if image else None
    return shape in (space.shape, channels_last)


def _check_actions(space: Any, action: ActionSpace, given: str) -> None:
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        fits = action.kind == "box" and int(np.prod(space.shape)) == action.size
        # Other bounds are other units, as under a wrapper that rescales actions.
        if fits and action.low:
            fits = np.allclose(space.low.ravel(), action.low) and np.allclose(space.high.ravel(), action.high)
    elif isinstance(space, spaces.Discrete):
        fits = action.kind == "discrete" and int(space.n) == action.size
    elif isinstance(space, spaces.MultiDiscrete):
        fits = action.kind == "multidiscrete" and tuple(space.nvec.ravel()) == nvec_of(action)
    else:
        fits = False
    if not fits:
        raise InputError(
            f"policy file '{given}' gives actions {_in_words(space)}, and this environment takes {_wanted(action)}"
        )


def _wanted(action: ActionSpace) -> str:
    if action.kind == "box":
        within = f" from {list(action.low)} to {list(action.high)}" if action.low else ""
        return f"{action.size} real numbers{within}"
    if action.kind == "discrete":
        return f"one of {action.size} actions"
    return f"one action out of each of {list(nvec_of(action))}"


def _in_words(space: Any) -> str:
    return " ".join(str(space).split())[:300]


def _shapes(example: Any) -> str:
    if isinstance(example, dict):
        return "{" + ", ".join(f"{key}: {np.shape(value)[1:]}" for key, value in example.items()) + "}"
    return f"shape {np.shape(example)[1:]}"


# ---------------------------------------------------------------- the policy's distribution


def _answer_of(algorithm: str, policy: Any) -> Callable[[Any], Output]:
    """tensor of observations -> means and standard deviations, probabilities, or actions, as arrays."""
    if algorithm == "DQN":
        return lambda obs: policy._predict(obs, deterministic=True).cpu().numpy().reshape(-1)
    if algorithm in ("TD3", "DDPG"):
        return lambda obs: _unscaled(policy, _flat(policy._predict(obs, deterministic=True)))
    if algorithm == "SAC":
        return lambda obs: _gaussian(policy, _sac_distribution(policy.actor, obs))
    return lambda obs: _actor_critic(policy, obs)


def _actor_critic(policy: Any, obs: Any) -> Output:
    from gymnasium import spaces

    dist = policy.get_distribution(obs)
    if isinstance(policy.action_space, spaces.Box):
        return _gaussian(policy, dist.distribution)
    lists = dist.distribution if isinstance(policy.action_space, spaces.MultiDiscrete) else [dist.distribution]
    return np.concatenate([each.probs.cpu().numpy() for each in lists], axis=-1)


def _sac_distribution(actor: Any, obs: Any) -> Any:
    mean, log_std, more = actor.get_action_dist_params(obs)
    return actor.action_dist.proba_distribution(mean, log_std, **more).distribution


def _gaussian(policy: Any, normal: Any) -> Output:
    """Mean and standard deviation in the environment's units; of tanh(normal) where the policy squashes."""
    mean, std = _flat(normal.mean), _flat(normal.stddev)
    if not policy.squash_output:
        return mean, std
    mean, std = squashed_moments(mean, std)
    half = 0.5 * (policy.action_space.high - policy.action_space.low).reshape(-1)
    return _unscaled(policy, mean), (np.maximum(std, STD_FLOOR) * half).astype(np.float32)


def squashed_moments(mean: np.ndarray, std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of tanh(x), x normal, by the trapezoidal rule over five deviations to either side.

    Right to 1e-3 for deviations up to e^2, the largest of SAC, where Gauss-Hermite with 15 nodes misses by 0.1 and
    the delta method by 6.
    """
    z = np.linspace(-5.0, 5.0, 61)
    weight = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
    values = np.tanh(mean[..., None] + std[..., None] * z)
    first = values @ weight
    return first, np.sqrt(np.square(values - first[..., None]) @ weight)


def _unscaled(policy: Any, action: np.ndarray) -> np.ndarray:
    """From [-1, 1] to the bounds of the policy's action space."""
    shape = policy.action_space.shape
    return policy.unscale_action(action.reshape(-1, *shape)).reshape(len(action), -1).astype(np.float32)


def _flat(tensor: Any) -> np.ndarray:
    array = tensor.cpu().numpy()
    return array.reshape(len(array), -1)
