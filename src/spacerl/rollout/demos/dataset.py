"""Minari datasets of demonstrations: written episode by episode, read without running anybody's code.

A dataset is a folder with `data/main_data.hdf5` and `data/metadata.json`. Images are kept as they are, compressed
without loss (Minari's own writer would make JPEGs of them). The environment that a dataset names is never built.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from spacerl.rollout.demos.episode import Episode, read_journal
from spacerl.rollout.demos.plain import require_heaps_that_end, require_plain
from spacerl.runs.folder import read_json, replacing, write_json
from spacerl.runs.versions import versions
from spacerl.types import InputError

DATA, METADATA, JOURNAL = "main_data.hdf5", "metadata.json", "unfinished-episode"
FRAMES_PER_CHUNK = 16
NEEDED = ("observations", "actions", "rewards", "terminations", "truncations")


def require_minari() -> None:
    try:
        import h5py  # noqa: F401
        import minari  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"demonstrations need {error.name}, which is not installed: pip install 'spacerl[record]'"
        ) from error


# Writing --------------------------------------------------------------------------------------------------------------


class Recording:
    """A dataset that grows by whole episodes. It is on disk as it was, or with the new episode, never between."""

    def __init__(self, folder: Path, observation: spaces.Space, action: spaces.Space, facts: dict[str, Any]):
        require_minari()
        from minari.serialization import serialize_space

        self.folder, self.data = folder, folder / "data"
        self._spaces = {
            "observation_space": str(serialize_space(observation)),
            "action_space": str(serialize_space(action)),
        }
        self._facts = facts
        if (self.data / METADATA).exists():
            self._require_same(read_json(self.data / METADATA))
            require_heaps_that_end(self.data / DATA, f"dataset '{folder}'")

    @property
    def journal(self) -> Path:
        return self.folder / JOURNAL

    @property
    def episodes(self) -> int:
        return int(self.metadata()["total_episodes"])

    def metadata(self) -> dict[str, Any]:
        path = self.data / METADATA
        if not path.exists():
            return self._fresh()
        content = read_json(path)
        for count in ("total_episodes", "total_steps"):
            if not isinstance(content.get(count), int) or content[count] < 0:
                raise InputError(f"'{path}' does not say how many there are as '{count}': nothing can be added")
        return content

    def _fresh(self) -> dict[str, Any]:
        import minari

        name = re.sub(r"[^-\w]+", "-", self.folder.absolute().name) or "recording"
        return {
            "total_episodes": 0,
            "total_steps": 0,
            "data_format": "hdf5",
            "jpeg_encoding": False,
            "dataset_id": name if re.search(r"-v\d+$", name) else f"{name}-v0",
            "minari_version": minari.__version__,
            **self._spaces,
            **self._facts,
        }

    def _require_same(self, there: dict[str, Any]) -> None:
        for what in ("observation_space", "action_space"):
            if _space_in(there, what) != json.loads(self._spaces[what]):
                raise InputError(
                    f"'{self.folder}' is a recording with another {what.replace('_', ' ')}: give a new --out"
                )
        task = task_in(there)
        if task != task_in(self._facts):
            raise InputError(f"'{self.folder}' is a recording of '{task}': give a new --out")

    def add(self, episode: Episode) -> None:
        """Append an episode: a copy grows and takes the place of the file, then the metadata counts it."""
        import h5py

        self.data.mkdir(parents=True, exist_ok=True)
        path, metadata = self.data / DATA, self.metadata()
        number = metadata["total_episodes"]
        with replacing(path) as (handle, copy):
            os.close(handle)
            if path.exists():
                shutil.copyfile(path, copy)
            with h5py.File(copy, "r+" if path.exists() else "w", track_order=True) as file:
                file.pop(f"episode_{number}", None)  # written, and not counted before the process was killed
                _write_episode(file.create_group(f"episode_{number}"), number, episode)
            _to_disk(copy)
        size = round(path.stat().st_size / 1e6, 1)
        counts = {"total_episodes": number + 1, "total_steps": metadata["total_steps"] + episode.steps}
        write_json(self.data / METADATA, {**metadata, **counts, "dataset_size": size})

    def recover(self) -> Episode | None:
        """Keep what an earlier process left of an episode that it could not finish; None where it left nothing."""
        if not self.journal.exists():
            return None
        episode = read_journal(self.journal)
        if episode is not None:
            self.add(episode)
        self.journal.unlink()
        return episode


def _space_in(metadata: dict[str, Any], what: str) -> Any:
    try:
        return json.loads(metadata[what])
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def task_in(metadata: dict[str, Any]) -> str | None:
    """The task of ours that was recorded; None of somebody else's dataset."""
    made = metadata.get("spacerl")
    task = made.get("task") if isinstance(made, dict) else None
    return task if isinstance(task, str) else None


def _to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _write_episode(group: Any, number: int, episode: Episode) -> None:
    steps = episode.steps
    group.attrs["id"], group.attrs["total_steps"], group.attrs["driver"] = number, steps, episode.driver
    if episode.seed is not None:
        group.attrs["seed"] = episode.seed
    last = np.zeros(steps, bool)
    last[-1] = True
    columns = {
        "observations": episode.observations,
        "actions": episode.actions,
        "rewards": episode.rewards,
        "terminations": last & episode.terminated,
        "truncations": last & (not episode.terminated),
        "infos/cost": np.concatenate([[0.0], episode.costs]),  # Minari's infos begin with that of the reset
    }
    for name, column in columns.items():
        chunks = (min(len(column), FRAMES_PER_CHUNK), *column.shape[1:]) if column.ndim > 2 else True
        group.create_dataset(name, data=column, chunks=chunks, compression="gzip", compression_opts=1, shuffle=True)


def facts_of(task: str, env: Any, fps: float, keys: dict[str, Any]) -> dict[str, Any]:
    """What the metadata of a recording says besides Minari's own fields."""
    known = versions("")
    made = {"task": task, "steps_per_second": fps, "keys": keys, "version": known["spacerl"], "commit": known["commit"]}
    spec = {} if env.spec is None else {"env_spec": env.spec.to_json()}
    return {**spec, "description": f"{task}, recorded with spacerl record", "spacerl": made}


# Reading --------------------------------------------------------------------------------------------------------------


class Demonstrations:
    """The episodes of a Minari dataset, one at a time; InputError for what cannot be used."""

    def __init__(self, given: str | Path):
        require_minari()
        from minari.serialization import deserialize_space

        self.name = str(given)
        self.data = _data_folder(given)
        self.metadata = read_json(self.data / METADATA)
        require_heaps_that_end(self.data / DATA, f"dataset '{self.name}'")
        try:
            self.total_episodes = int(self.metadata["total_episodes"])
            self.observation_space: spaces.Space = deserialize_space(self.metadata["observation_space"])
            self.action_space: spaces.Space = deserialize_space(self.metadata["action_space"])
            self._storage = self._open()
        except InputError:
            raise
        except Exception as error:  # whatever a file that was damaged, or made to do harm, leads Minari to
            # Minari would build the environment that the dataset names, to ask it; that can run anybody's code.
            raise InputError(
                f"dataset '{self.name}' does not say what its observations and actions are: {error!r} in {METADATA}"
            ) from error
        if self.total_episodes < 1:
            raise InputError(f"dataset '{self.name}' has no episode: record one first")

    def _open(self) -> Any:
        from minari.dataset._storages import get_minari_storage

        kind = get_minari_storage(self.metadata.get("data_format", "hdf5"))
        lossy = bool(self.metadata.get("jpeg_encoding", True))
        return kind(self.data, self.observation_space, self.action_space, jpeg_encoding=lossy)

    @property
    def task(self) -> str | None:
        """The task of ours that was recorded; None of somebody else's dataset."""
        return task_in(self.metadata)

    def episode(self, number: int) -> Episode:
        if not 0 <= number < self.total_episodes:
            raise InputError(
                f"dataset '{self.name}' has no episode {number}: allowed is 0 to {self.total_episodes - 1}"
            )
        where = f"dataset '{self.name}', episode {number}"
        try:
            require_plain(self.data / DATA, f"episode_{number}", where)
            (content,) = self._storage.get_episodes([number])
            (facts,) = self._storage.get_episode_metadata([number])
        except KeyError as error:
            missing = next((name for name in NEEDED if name in str(error)), None)
            what = f"has no {missing}" if missing else f"is not there, although {METADATA} counts it"
            raise InputError(f"{where} {what}: nothing can be learned from it") from error
        except InputError:
            raise
        except Exception as error:
            told = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"{where} cannot be read (corrupt or cut short): {told}") from error
        try:
            return _checked(content, facts, where)
        except InputError:
            raise
        except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
            raise InputError(f"{where} is no episode: {' '.join(str(error).split())}") from error

    def __iter__(self) -> Iterator[Episode]:
        return (self.episode(number) for number in range(self.total_episodes))


def _checked(content: dict[str, Any], facts: dict[str, Any], where: str) -> Episode:
    rewards = np.asarray(content["rewards"], np.float64)
    steps = len(rewards)
    if not steps:
        raise InputError(f"{where} has no steps: leave it out")
    costs = _costs(content.get("infos"), steps)
    observations, actions = content["observations"], content["actions"]
    if not (isinstance(observations, np.ndarray) and isinstance(actions, np.ndarray)):
        raise InputError(f"{where} observes or acts in several parts: allowed are single arrays of numbers")
    if len(observations) != steps + 1 or len(actions) != steps or rewards.ndim != 1:
        raise InputError(
            f"{where} has {len(observations)} observations, {len(actions)} actions and {steps} rewards: of T steps "
            "there must be T + 1, T and T"
        )
    for what, values in {"observations": observations, "actions": actions, "rewards": rewards, "costs": costs}.items():
        if values.dtype.kind not in "fiub":
            raise InputError(f"{where} has {what} that are no numbers ({values.dtype})")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise InputError(f"{where} has {what} that are not finite (NaN or infinite): nothing can be learned there")
    seed = facts.get("seed")
    return Episode(
        observations=observations,
        actions=actions,
        rewards=rewards,
        costs=costs,
        terminated=bool(np.asarray(content["terminations"])[-1]),
        seed=None if seed is None else int(seed),
        driver=str(facts.get("driver", "unknown")),
    )


def _costs(infos: Any, steps: int) -> np.ndarray:
    """The costs of the steps, where the dataset has them: T of them, or T + 1 where the reset has one as well."""
    given = np.asarray(infos["cost"], np.float64).ravel() if isinstance(infos, dict) and "cost" in infos else None
    if given is None or len(given) not in (steps, steps + 1):
        return np.zeros(steps)
    return given[-steps:]


def _data_folder(given: str | Path) -> Path:
    """The folder of a dataset that was given by its path, or by its name where Minari keeps datasets."""
    root = Path(os.environ.get("MINARI_DATASETS_PATH", Path.home() / ".minari" / "datasets"))
    places = [Path(given) / "data", Path(given), root / given / "data"]
    for place in places:
        if (place / METADATA).is_file():
            return place
    left = f"; '{JOURNAL}' in it is picked up by `spacerl record --append`" if (Path(given) / JOURNAL).exists() else ""
    raise InputError(f"'{given}' is not a Minari dataset: a folder with data/{METADATA} is expected{left}")
