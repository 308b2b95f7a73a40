"""Baselines from demonstrations: what is learned, from whose datasets, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import spacerl
from chromium import chromium
from spacerl.cli import main
from spacerl.policies.files import read_policy
from spacerl.rollout.demos.dataset import Demonstrations
from spacerl.rollout.demos.episode import Episode
from spacerl.training.imitation.cloning import clone
from spacerl.training.imitation.data import Steps
from spacerl.training.imitation.ddpg import ddpg
from support.recording import ENVIRONMENT, SPACERL, fails, make_recorder


def recorded(folder: Path, task: str = "point-circle", episodes: int = 3, steps: int = 20) -> Path:
    """Somebody who turns left at every other step."""
    recorder = make_recorder(folder, task, seed=0)
    for _ in range(episodes):
        for step in range(steps):
            recorder.press(["ArrowUp", "ArrowLeft"] if step % 2 else ["ArrowUp"])
            recorder.step()
            if recorder.ended:
                break
        recorder.keep()
    recorder.close()
    return folder


def without(folder: Path, name: str) -> None:
    with h5py.File(folder / "data" / "main_data.hdf5", "r+") as file:
        del file[f"episode_1/{name}"]


h5py = pytest.importorskip("h5py")
minari = pytest.importorskip("minari")
QUICK = ("--updates", "40", "--batch", "32", "--episodes", "4", "--quiet")


def test_three_commands_from_a_lap_in_chromium_to_a_run_of_space(tmp_path, record):
    """What docs/demonstrations.md promises, shortened."""
    laps, baseline, run = tmp_path / "laps", tmp_path / "mine.safetensors", tmp_path / "run"
    recording = record("point-circle", "--out", str(laps), "--fps", "50", "--episodes", "1")
    with chromium(tmp_path / "browser") as tab:
        tab.open(recording.address)
        tab.wait_for_phase("ready")
        tab.key("ArrowUp", True)
        for _ in range(8):
            tab.tap("ArrowLeft")
        tab.wait_for_phase("finished")
        code, said = recording.end()
    assert code == 0, said
    commands = (
        ["baseline", "from-demos", str(laps), "--task", "point-circle", "--out", str(baseline), *QUICK],
        ["train", "point-circle", "--baseline", str(baseline), "--updates", "2", "--batch-size", "2000", "--out"],
    )
    for command in commands:
        end = [str(run), "--quiet"] if command[-1] == "--out" else []
        done = subprocess.run([*SPACERL, *command, *end], capture_output=True, text=True, env=ENVIRONMENT, timeout=300)
        assert done.returncode == 0, done.stderr
    assert len((run / "metrics.csv").read_text().splitlines()) == 3


@pytest.mark.slow
def test_three_commands_from_a_lap_of_car_racing_in_chromium_to_a_run_of_space(tmp_path, quick_environment, record):
    """The same from pixels: a second of a lap, seen and driven in the browser."""
    pytest.importorskip("Box2D")
    laps, baseline, run = tmp_path / "laps", tmp_path / "mine.safetensors", tmp_path / "run"
    recording = record("car-racing", "--out", str(laps), "--episodes", "1", "--seed", "2")
    with chromium(tmp_path / "browser") as tab:
        tab.open(recording.address)
        tab.wait_for_phase("ready")
        assert "brake" in tab.text("keys")
        tab.key("ArrowUp", True)
        tab.wait("parseFloat(document.getElementById('seconds').textContent) > 1.5")
        tab.tap("ArrowLeft")
        tab.wait("parseFloat(document.getElementById('lap').textContent) > 0")
        tab.tap("Enter")
        tab.wait_for_phase("finished")
        code, said = recording.end()
    assert code == 0, said
    (lap,) = Demonstrations(laps)
    assert lap.observations.shape == (lap.steps + 1, 96, 96, 3)
    assert (lap.driver, lap.seed) == ("person", 2)
    np.testing.assert_allclose(lap.actions.max(axis=0)[1:], [1.0, -1.0])
    quick = ("--updates", "3", "--batch", "8", "--episodes", "1", "--quiet")
    size = ("--updates", "1", "--batch-size", "12", "--rollout-length", "6", "--environments", "2", "--quiet")
    for command in (
        ["baseline", "from-demos", str(laps), "--task", "car-racing", "--out", str(baseline), *quick],
        ["train", "car-racing", "--baseline", str(baseline), "--out", str(run), *size],
    ):
        done = subprocess.run([*SPACERL, *command], capture_output=True, text=True, env=quick_environment, timeout=600)
        assert done.returncode == 0, done.stderr
    assert len((run / "metrics.csv").read_text().splitlines()) == 2


def test_a_script_at_the_keys_of_car_racing_is_recorded_as_one(tmp_path):
    """The driver itself, frame by frame: it answers late, keeps to the road, and is named in every episode."""
    pytest.importorskip("Box2D")
    from spacerl.rollout.demos.driver import NAME, ScriptedDriver

    recorder, driver = make_recorder(tmp_path / "laps", "car-racing", seed=101, driver=NAME), ScriptedDriver(0)
    pressed, on_road = [], []
    for _ in range(150):
        held = driver.held(recorder.picture())
        pressed.append(bool(held))
        recorder.press(held or ["ArrowNone"])
        recorder.step()
        on_road.append(any(wheel.tiles for wheel in recorder.env.unwrapped.car.wheels))
    assert not any(pressed[:57])  # the view comes closer for a second, and nobody is quicker than 140 ms
    assert any(pressed[57:])
    assert np.mean(on_road) > 0.95
    assert 0.02 < recorder.status()["lap"] < 0.5
    recorder.keep()
    recorder.close()
    (episode,) = Demonstrations(tmp_path / "laps")
    assert episode.driver == "scripted keyboard driver (not a person)"
    assert episode.rewards.sum() > 20
    assert set(np.unique(episode.actions[:, 0])) <= {-1.0, 0.0, 1.0}
    assert not (tmp_path / "laps" / "unfinished-episode").exists()


@pytest.mark.parametrize("method", ["bc", "ddpg"])
def test_a_baseline_from_demonstrations_is_stochastic_and_says_where_it_is_from(method, tmp_path, capsys):
    out = tmp_path / "baseline.safetensors"
    laps = recorded(tmp_path / "laps")
    main(["baseline", "from-demos", str(laps), "--out", str(out), "--method", method, *QUICK])
    policy = read_policy(out, "demos")
    assert policy.info["demonstrated_by"] == "person"
    assert policy.info["demonstrated_steps"] == 60
    assert policy.info["episodes"] == 4
    assert np.isfinite([policy.info["J_R"], policy.info["J_C"]]).all()
    std = np.exp(policy(np.zeros((1, 9), np.float32)).log_std)
    assert (std >= 0.0999).all()
    assert "J_R" in capsys.readouterr().out
    assert "exists" in fails(capsys, "baseline", "from-demos", laps, "--out", out)


def test_cloning_learns_what_was_demonstrated():
    """Actions that are a function of the observation are found again, and the spread is that of the demonstrator."""
    family = _family()
    random = np.random.default_rng(0)
    obs = random.normal(size=(3001, 3)).astype(np.float32)
    action = np.stack([np.sin(obs[:-1, 0]), 0.5 * obs[:-1, 1]], -1) + 0.2 * random.normal(size=(3000, 2))
    steps = _steps(obs, action.astype(np.float32), np.zeros(3000, np.float32))
    theta, figures = _cloned(family, steps)
    dist = family.apply(theta, obs[:-1])
    assert np.abs(dist.mode() - action).mean() < 0.22
    np.testing.assert_allclose(np.exp(dist.log_std[0]), 0.2, rtol=0.25)
    assert abs(figures["log_likelihood"] - figures["log_likelihood_held_out"]) < 0.3


def test_ddpg_prefers_the_rewarded_action():
    """One step long episodes whose reward is largest at action 0.5, below and above the logged mean."""
    family = _family()
    random = np.random.default_rng(0)
    obs = random.normal(size=(4001, 3)).astype(np.float32)
    action = random.uniform(-1, 1, size=(4000, 2)).astype(np.float32)
    reward = (-((action - 0.5) ** 2).sum(-1)).astype(np.float32)
    steps = _steps(obs, action, reward)._replace(terminated=np.ones(4000, np.float32))
    import jax

    theta, _ = ddpg(
        family,
        family.init(jax.random.key(0)),
        lambda obs: obs,
        steps,
        discount=0.99,
        updates=6000,
        batch=128,
        seed=0,
        told=lambda done: None,
    )
    assert np.abs(np.asarray(family.apply(theta, obs).mode()) - 0.5).mean() < 0.2


def _family():
    from spacerl.policies.family import PolicyFamily
    from spacerl.types import ActionSpace

    return PolicyFamily((3,), ActionSpace("box", 2, (-1.0, -1.0), (1.0, 1.0), scaled=True), (32, 16))


def _steps(obs: np.ndarray, action: np.ndarray, reward: np.ndarray) -> Steps:
    count = len(reward)
    held_out = np.arange(count) >= 0.9 * count
    return Steps(obs, np.arange(count), action, reward, np.zeros(count, np.float32), held_out, ("test",))


def _cloned(family, steps):
    import jax

    start = family.init(jax.random.key(0))
    how = {"updates": 800, "batch": 128, "rate": 3e-3, "least_std": 0.05, "seed": 0}
    return clone(family, start, lambda obs: obs, steps, told=lambda done: None, **how)


def test_discrete_actions_of_anybodys_dataset_are_cloned(tmp_path, monkeypatch):
    """A dataset that Minari itself wrote, of an environment with discrete actions."""
    from minari.data_collector import EpisodeBuffer

    from spacerl.training.imitation.data import steps_of
    from spacerl.types import ActionSpace, EnvSpec

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    env, buffers = gymnasium.make("CartPole-v1"), []
    for seed in range(2):
        buffer = EpisodeBuffer(seed=seed, observations=[env.reset(seed=seed)[0]], actions=[])
        done = False
        while not done:
            action = env.action_space.sample()
            obs, reward, terminated, truncated, _ = env.step(action)
            buffer.observations.append(obs)
            for column, value in (("actions", action), ("rewards", reward), ("terminations", terminated)):
                getattr(buffer, column).append(value)
            buffer.truncations.append(truncated)
            done = terminated or truncated
        buffers.append(buffer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what Minari would like to know for its catalogue
        minari.create_dataset_from_buffers("cart/pole-v0", buffers, env=env)
    env.close()
    demos = Demonstrations("cart/pole-v0")
    spec = EnvSpec("cart", (4,), ActionSpace("discrete", 2), 500)
    steps = steps_of(demos, spec, "cart")
    assert steps.action.dtype == np.int32
    assert set(steps.action) <= {0, 1}
    from spacerl.policies.family import PolicyFamily

    family = PolicyFamily((4,), spec.action, (8,))
    _, figures = _cloned(family, steps)
    assert figures["log_likelihood"] > np.log(0.45)


# Bad input ------------------------------------------------------------------------------------------------------------


def test_a_dataset_of_another_task_is_refused(tmp_path, capsys):
    laps = recorded(tmp_path / "laps", episodes=1)
    said = fails(capsys, "baseline", "from-demos", laps, "--task", "point-gather", "--out", tmp_path / "b.safetensors")
    assert "observations of kind Box(9,)" in said
    assert "Box(29,)" in said
    assert not (tmp_path / "b.safetensors").exists()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: without(folder, "rewards"), "has no rewards"),
        (lambda folder: without(folder, "actions"), "has no actions"),
        (lambda folder: with_nan(folder, "observations"), "observations that are not finite"),
        (lambda folder: with_nan(folder, "rewards"), "rewards that are not finite"),
        (lambda folder: with_nan(folder, "infos/cost"), "costs that are not finite"),
        (lambda folder: cut(folder / "data" / "main_data.hdf5"), "corrupt or cut short"),
        (lambda folder: cut(folder / "data" / "metadata.json"), "is not JSON"),
        (lambda folder: (folder / "data" / "main_data.hdf5").unlink(), "main_data|No data"),
        (lambda folder: forget(folder, "observation_space"), "does not say what its observations"),
        (lambda folder: counted(folder, 9), "although metadata.json counts it"),
        (lambda folder: counted(folder, 0), "has no episode"),
    ],
)
def test_a_spoilt_dataset_is_refused_in_one_sentence(spoil, said, tmp_path, capsys):
    laps = recorded(tmp_path / "laps", episodes=2, steps=5)
    spoil(laps)
    assert re.search(said, fails(capsys, "baseline", "from-demos", laps, "--out", tmp_path / "b.safetensors"))
    assert not (tmp_path / "b.safetensors").exists()


def with_nan(folder: Path, name: str) -> None:
    with h5py.File(folder / "data" / "main_data.hdf5", "r+") as file:
        values = file[f"episode_1/{name}"]
        values[2] = np.nan


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _change(folder: Path, change) -> None:
    path = folder / "data" / "metadata.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def forget(folder: Path, name: str) -> None:
    _change(folder, lambda content: content.pop(name))


def counted(folder: Path, count: int) -> None:
    _change(folder, lambda content: content.update(total_episodes=count))


def test_reading_a_dataset_never_builds_its_environment(tmp_path):
    laps = recorded(tmp_path / "laps", episodes=1, steps=5)
    trap = tmp_path / "trap.txt"
    spec = {"id": "Trap-v0", "entry_point": "pathlib:Path", "kwargs": {"path": str(trap)}}
    _change(laps, lambda content: content.update(env_spec=json.dumps(spec)))
    (episode,) = Demonstrations(laps)
    assert isinstance(episode, Episode)
    assert not trap.exists()


def test_dictionaries_of_observations_are_refused(tmp_path):
    laps = recorded(tmp_path / "laps", episodes=1, steps=5)
    from minari.serialization import serialize_space

    several = serialize_space(spaces.Dict({"a": spaces.Box(-1, 1, (9,))}))
    _change(laps, lambda content: content.update(observation_space=several))
    with pytest.raises(spacerl.InputError):
        list(Demonstrations(laps))


def in_file(change):
    def spoil(folder: Path) -> None:
        with h5py.File(folder / "data" / "main_data.hdf5", "r+") as file:
            change(file, file["episode_1"])

    return spoil


def endless(file, episode) -> None:
    del episode["observations"]
    episode.create_dataset("observations", shape=(10**9, 9), dtype="f4", chunks=(1000, 9))


def heap_without_end(folder: Path) -> None:
    """HDF5's library steps over free space by its length, for ever where that is zero."""
    path = folder / "data" / "main_data.hdf5"
    data = bytearray(path.read_bytes())
    first = data.index(b"GCOL\x01") + 16
    length = int.from_bytes(data[first + 8 : first + 16], "little")
    free = first + 16 + -(-length // 8) * 8
    assert data[free : free + 2] == b"\0\0"
    data[free + 8 : free + 16] = bytes(8)
    path.write_bytes(data)


def heaps_within_heaps(folder: Path) -> None:
    path = folder / "data" / "main_data.hdf5"
    free_space = b"\0" * 8 + (32).to_bytes(8, "little")  # over the head of the next heap
    heap = b"GCOL\x01\0\0\0" + (10**6).to_bytes(8, "little") + free_space
    path.write_bytes(path.read_bytes() + 3000 * heap)


def short_lengths(folder: Path) -> None:
    plist = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    plist.set_sizes(8, 4)
    path = str(folder / "data" / "main_data.hdf5").encode()
    h5py.h5f.create(path, h5py.h5f.ACC_TRUNC, fcpl=plist).close()


def told(**values):
    return lambda folder: _change(folder, lambda content: content.update(values))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (in_file(endless), "unpacks to 36.0 GB: it is not read"),
        (
            in_file(lambda file, ep: ep.move("rewards", "r") or ep.__setitem__("rewards", h5py.SoftLink("r"))),
            "elsewhere",
        ),
        (
            in_file(lambda file, ep: ep.__setitem__("x", h5py.ExternalLink("/etc/passwd", "/"))),
            "leads elsewhere at 'x'",
        ),
        (in_file(lambda file, ep: ep["infos"].__setitem__("again", ep)), "leads elsewhere at"),
        (heap_without_end, "a heap of texts that does not end: the file is damaged"),
        (heaps_within_heaps, "heaps within heaps: the file is damaged"),
        (short_lengths, "lengths of 4 bytes: allowed are 8"),
        (told(observation_space="[]"), "does not say what its observations"),
        (told(observation_space='{"type": "Box", "shape": [1e99], "dtype": "O", "low": 0, "high": 1}'), "does not say"),
        (told(total_episodes=1e999), "does not say what|is not JSON"),
        (told(data_format="subprocess"), "does not say what"),
    ],
)
def test_a_dataset_made_to_do_harm_is_refused_in_one_sentence(spoil, said, tmp_path, capsys):
    laps = recorded(tmp_path / "laps", episodes=2, steps=5)
    spoil(laps)
    complaint = fails(capsys, "baseline", "from-demos", laps, "--task", "point-circle", "--out", tmp_path / "b")
    assert re.search(said, complaint)
    assert "\n" not in complaint.strip()


@pytest.mark.parametrize(
    "changes", [{"observation_space": 3}, {"spacerl": []}, {"total_episodes": "many"}, {"total_steps": None}]
)
def test_a_recording_whose_metadata_are_damaged_is_not_added_to(changes, tmp_path):
    laps = recorded(tmp_path / "laps", episodes=1, steps=5)
    _change(laps, lambda content: content.update(changes))
    with pytest.raises(spacerl.InputError):
        recorded(laps, episodes=1, steps=5)


def test_a_recording_with_a_heap_without_end_is_not_added_to(tmp_path):
    laps = recorded(tmp_path / "laps", episodes=1, steps=5)
    heap_without_end(laps)
    with pytest.raises(spacerl.InputError, match="does not end"):
        recorded(laps, episodes=1, steps=5)


def test_what_was_learned_is_kept_where_its_file_cannot_be_written_any_more(tmp_path, capsys, monkeypatch):
    from spacerl.training.imitation import baseline

    laps, out = recorded(tmp_path / "laps", episodes=2, steps=5), tmp_path / "full" / "b.safetensors"
    real = baseline.measured

    def fills(*given):
        out.parent.write_text("a file now")
        return real(*given)

    monkeypatch.setattr(baseline, "measured", fills)
    said = fails(capsys, "baseline", "from-demos", laps, "--out", out, *QUICK)
    kept = Path(said.rpartition("the policy is in '")[2].strip().rstrip("'"))
    assert "cannot be written" in said
    assert read_policy(kept, "kept").info["task"] == "point-circle"
