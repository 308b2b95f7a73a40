"""Films: every frame says what happened, files appear whole or not at all, and what cannot be filmed says why."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image, ImageSequence

import spacerl
from spacerl.api import evaluate, film
from spacerl.cli import main
from spacerl.envs.tasks import TASKS
from spacerl.rollout import film as filming
from spacerl.rollout import video
from spacerl.rollout.video import RED, Caption, annotated
from spacerl.runs.folder import RunFolder
from spacerl.training.origin import sign
from spacerl.types import InputError
from support.runs import made

pytestmark = pytest.mark.usefixtures("quick_compilation")

LENGTH = 6
FRAMES: list[int] = []


class Lamp(gymnasium.Env):
    """Its image is as bright as the step is late, so that a film shows which steps are in it."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012
    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self, render_mode: str | None = None, kind: str = "image", fault: bool = False):
        self.render_mode, self.kind, self.fault = render_mode, kind, fault

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.action = float(action[0])
        reward = float("nan") if self.fault else 1.0
        return np.zeros(2, np.float32), reward, False, False, {"cost": 0.5, "second": abs(self.action)}

    def render(self) -> Any:
        if self.render_mode != "rgb_array":
            return None
        FRAMES.append(self.t)
        image = np.full((33, 41, 3), 30 * self.t, np.uint8)
        if self.kind == "growing":
            image = np.full((33 + 40 * self.t, 41 + 40 * self.t, 3), 30 * self.t, np.uint8)
        kinds = {"text": "a lamp", "grey": image[..., 0], "list": [image], "odd": image[..., :2]}
        if self.kind == "raises":
            raise RuntimeError("no light")
        return kinds.get(self.kind, image)


def blind(kind: str = "") -> Lamp:
    """A factory that does not know about images."""
    return Lamp()


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    FRAMES.clear()


@pytest.fixture(scope="module")
def lamp_run(tmp_path_factory):
    settings = {"cost": ("info", "info:second"), "cost_limit": (1.0, 100.0), "rollout_length": LENGTH}
    return made(tmp_path_factory.mktemp("runs") / "lamp", task="env:test_filming:Lamp", **settings)


@pytest.fixture
def lamp(lamp_run, workplace):
    """Of a copy: tests may change its config."""
    return shutil.copytree(lamp_run, Path("lamp"))


def changed(run: Path, **settings: Any) -> Path:
    config = dataclasses.replace(RunFolder(run).config(), **settings)
    (run / "config.json").write_text(config.to_json())
    sign(RunFolder(run), config)
    return run


def images(path: Path) -> list[np.ndarray]:
    with Image.open(path) as image:
        return [np.array(frame.convert("RGB")) for frame in ImageSequence.Iterator(image)]


def reddish(image: np.ndarray) -> bool:
    """Whether a text in red is in it."""
    return bool(np.any(np.abs(image.astype(int) - RED).max(-1) < 40))


# ---------------------------------------------------------------- what a film shows


def test_a_film_holds_every_step_of_every_episode(lamp):
    assert film(lamp, "lamp.gif", episodes=2) == Path("lamp.gif")
    assert FRAMES == 2 * list(range(LENGTH + 1))
    shown = images(Path("lamp.gif"))
    brightness = [int(image[:100, 100:200].mean()) for image in shown]
    expected = 2 * [30 * t for t in range(LENGTH + 1)]
    assert len(shown) == len(expected)  # the last image stays for longer, which costs a GIF no frame
    np.testing.assert_allclose(brightness, expected, atol=12)  # a palette of few colours
    with Image.open("lamp.gif") as image:
        assert image.info["duration"] == 50  # milliseconds: 20 frames a second
        assert image.info["loop"] == 0
        image.seek(LENGTH)
        assert image.info["duration"] >= 700


def test_a_cost_turns_red_where_it_is_above_its_limit(lamp):
    film(lamp, "lamp.gif")
    red = [reddish(image) for image in images(Path("lamp.gif"))]
    assert red == [0.5 * t > 1.0 for t in range(LENGTH + 1)]


def test_films_repeat_for_a_seed_and_differ_between_seeds(lamp, monkeypatch):
    actions: list[float] = []
    monkeypatch.setattr(Lamp, "step", recording(Lamp.step, actions))
    runs = []
    for number, seed in enumerate((1, 1, 2)):
        film(lamp, f"lamp-{number}.gif", seed=seed)
        runs.append(actions[:])
        actions.clear()
    assert runs[0] == runs[1] != runs[2]
    assert len(set(runs[0])) > 2  # the stochastic policy
    assert max(map(abs, runs[0])) <= 2.0  # in the environment's units


def recording(step: Any, actions: list[float]) -> Any:
    def wrapper(self: Any, action: Any) -> Any:
        actions.append(float(action[0]))
        return step(self, action)

    return wrapper


@pytest.mark.parametrize("task", sorted(name for name, task in TASKS.items() if task.available))
def test_tasks_are_filmed_through_their_gymnasium_ids(task):
    assert TASKS[task].gymnasium_id in gymnasium.registry
    if task.startswith("ant"):
        pytest.importorskip("mujoco")
    if TASKS[task].hosted:
        pytest.importorskip("Box2D" if task == "car-racing" else "libsumo")
    run = made(Path("run"), task=task, rollout_length=4, **({"environments": 1} if TASKS[task].hosted else {}))
    film(run, "film.gif")
    shown = images(Path("film.gif"))
    assert len(shown) == (
        3 if task.startswith(("ant", "car")) else 5
    )  # of 50 frames a second a GIF shows every other one
    assert max(shown[0].shape[:2]) >= 400
    assert all(side % 2 == 0 for side in shown[0].shape[:2])


def test_the_baseline_plays_the_same_episode_beside_the_policy(monkeypatch):
    said: list[Caption] = []
    original = filming.annotated
    monkeypatch.setattr(
        filming, "annotated", lambda p, told, size=None: (said.append(told), original(p, told, size))[1]
    )
    settings = {"algorithm": "space", "baseline": "reward", "rollout_length": 6}
    run = made(Path("run"), task="point-circle", **settings)
    film(run, "alone.gif")
    film(run, "both.gif", beside_baseline=True)
    alone, both = images(Path("alone.gif")), images(Path("both.gif"))
    width = both[0].shape[1] // 2
    assert len(both) == len(alone)
    assert width == alone[0].shape[1]
    assert np.abs(both[0][:300, :width].astype(int) - both[0][:300, width:]).mean() < 2  # they begin alike
    assert np.abs(both[-1][:300, :width].astype(int) - both[-1][:300, width:]).mean() > 0.1  # and go different ways
    assert {told.title for told in said} == {"", "pi_B (reward)", "learned from it"}


def test_what_cannot_be_filmed_beside_a_policy_is_said(lamp):
    with pytest.raises(InputError, match="has no baseline"):
        film(lamp, "lamp.gif", beside_baseline=True)
    guided = changed(lamp, baseline=("test_filming:blind",))
    with pytest.raises(InputError, match="pass a function that makes it"):
        film(guided, "lamp.gif", beside_baseline=True, env=Lamp())


def test_actions_of_tasks_are_in_physical_units(monkeypatch):
    """Point-gather's policy is not clipped by the box that Gymnasium states."""
    from spacerl.envs.point.gymnasium import JaxGymEnv

    given: list[np.ndarray] = []
    step = JaxGymEnv.step
    monkeypatch.setattr(JaxGymEnv, "step", lambda self, action: (given.append(action), step(self, action))[1])
    run = made(Path("run"), task="point-gather", rollout_length=8, initial_std=50.0)
    film(run, "film.gif")
    assert max(float(np.abs(action).max()) for action in given) > 10


def test_a_film_costs_what_an_evaluation_says(lamp, monkeypatch):
    """The same environment and policy: the reward below the last image is that of an episode."""
    said: list[Caption] = []
    original = filming.annotated
    monkeypatch.setattr(
        filming, "annotated", lambda p, told, size=None: (said.append(told), original(p, told, size))[1]
    )
    film(lamp, "lamp.gif")
    report = evaluate(lamp, episodes=2)
    last = said[-1]
    assert last.step == LENGTH
    assert last.reward == LENGTH
    assert last.costs[0] == report["stochastic"]["J_C"]["cost"]["mean"] == 0.5 * LENGTH
    assert last.limits == (1.0, 100.0)
    assert last.cost_names == ("cost", "second")


def test_what_is_written_below_an_image():
    told = Caption(2, 3, 7, 1.25, np.array([6.0, 1.0]), ("outside_walls", "cost"), (5.0, 2.0))
    texts, colours = zip(*told.lines(), strict=True)
    assert texts == ("episode 2 of 3, step 7", "reward 1.25", "cost outside walls 6, limit 5", "cost 1, limit 2")
    assert [colour == RED for colour in colours] == [False, False, True, False]
    sheet = annotated(np.zeros((64, 63, 3), np.uint8), told)
    assert sheet.width >= video.LEAST_WIDTH
    assert sheet.width % 2 == sheet.height % 2 == 0
    text = np.array(sheet)[-80:]
    assert (text != video.PAPER).any()


@pytest.mark.parametrize("kind", ["grey", "list", "growing"])
def test_images_of_other_forms_are_taken(lamp, kind):
    film(changed(lamp, env_args=(f"kind={kind}",)), "lamp.gif")
    assert len(images(Path("lamp.gif"))) == LENGTH + 1


# ---------------------------------------------------------------- films for browsers


@pytest.mark.skipif(video._ffmpeg() is None, reason="ffmpeg comes with the extra `video`")
def test_an_mp4_is_h264_that_browsers_play(lamp):
    import subprocess

    film(lamp, "new/lamp.mp4")
    data = Path("new/lamp.mp4").read_bytes()
    assert data[4:8] == b"ftyp"
    assert data.index(b"moov") < data.index(b"mdat")  # plays before it is loaded whole
    asked = subprocess.run([str(video._ffmpeg()), "-i", "new/lamp.mp4"], capture_output=True, text=True, check=False)
    assert "h264" in asked.stderr
    assert "yuv420p" in asked.stderr
    assert "20 fps" in asked.stderr
    assert os.listdir("new") == ["lamp.mp4"]


@pytest.mark.skipif(video._ffmpeg() is None, reason="ffmpeg comes with the extra `video`")
def test_what_ffmpeg_complains_about_is_passed_on(lamp, monkeypatch):
    monkeypatch.setattr(video, "_ffmpeg", lambda: shutil.which("false"))
    with pytest.raises(InputError, match="ffmpeg ended with code 1"):
        film(lamp, "lamp.mp4")
    assert not list(Path().glob("*.mp4"))


def test_the_command_films_beside_its_table(lamp, capsys):
    main(["evaluate", "lamp", "--episodes", "2", "--video", "lamp.gif", "--video-episodes", "2"])
    printed = capsys.readouterr().out
    assert "video: lamp.gif" in printed
    assert "J_C second" in printed
    assert FRAMES == 2 * list(range(LENGTH + 1))


# ---------------------------------------------------------------- what cannot be filmed


@pytest.mark.parametrize(
    ("settings", "out", "said"),
    [
        ({}, "lamp.avi", "allowed are .mp4 and .gif"),
        ({}, "lamp", "allowed are .mp4 and .gif"),
        ({"task": "env:test_filming:blind"}, "lamp.gif", "render gave NoneType and not an image"),
        ({"env_args": ("kind=text",)}, "lamp.gif", "render gave str and not an image"),
        ({"env_args": ("kind=odd",)}, "lamp.gif", r"an array of shape \(33, 41, 2\)"),
        ({"env_args": ("kind=raises",)}, "lamp.gif", "render raised RuntimeError: no light"),
        ({"env_args": ("fault=true",)}, "lamp.gif", "the reward nan, which is not finite"),
        ({"task": "own:lamp"}, "lamp.gif", "film it in Python"),
    ],
)
def test_what_cannot_be_filmed_says_so_in_one_sentence_and_leaves_nothing(lamp, settings, out, said):
    changed(lamp, **settings)
    before = sorted(os.listdir())
    with pytest.raises(InputError, match=said) as error:
        film(lamp, out)
    assert "\n" not in str(error.value)
    assert sorted(os.listdir()) == before


def test_a_folder_is_no_film(lamp):
    Path("lamp.gif").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        film(lamp, "lamp.gif")


def test_a_missing_extra_is_named(lamp, monkeypatch):
    monkeypatch.setattr(video, "_ffmpeg", lambda: None)
    with pytest.raises(InputError, match=r"pip install 'spacerl\[video\]'.* a \.gif works without"):
        film(lamp, "lamp.mp4")
    assert FRAMES == []  # said before anything is played


def test_ffmpeg_is_found_beside_python_or_on_the_path(monkeypatch):
    monkeypatch.setattr(video.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(video.shutil, "which", lambda name: f"/bin/{name}")
    assert video._ffmpeg() == "/bin/ffmpeg"


def test_an_object_is_filmed_as_it_is_given(lamp):
    changed(lamp, task="own:Lamp")
    assert film(lamp, "lamp.gif", env=Lamp) == Path("lamp.gif")
    with pytest.raises(InputError, match="PointCircle draws no images"):
        film(lamp, "other.gif", env=spacerl.make_env("point-circle"))


def test_an_older_film_stays_where_the_new_one_fails(lamp):
    Path("lamp.gif").write_text("older")
    with pytest.raises(InputError):
        film(changed(lamp, env_args=("kind=raises",)), "lamp.gif")
    assert Path("lamp.gif").read_text() == "older"


def test_the_machine_needs_no_screen_and_keeps_its_settings(lamp, monkeypatch):
    for name in ("DISPLAY", "SDL_VIDEODRIVER", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    seen = {}
    original = Lamp.render
    monkeypatch.setattr(Lamp, "render", lambda self: (seen.update(os.environ), original(self))[1])
    film(lamp, "lamp.gif")
    assert seen["SDL_VIDEODRIVER"] == "dummy"
    assert seen["MUJOCO_GL"] == "egl"
    assert "SDL_VIDEODRIVER" not in os.environ


@pytest.mark.parametrize(("setting", "value"), [("episodes", 0), ("seed", -1)])
def test_numbers_out_of_range_are_bad_input(lamp, setting, value):
    with pytest.raises(InputError, match=f"{setting} is {value}"):
        film(lamp, "lamp.gif", **{setting: value})
