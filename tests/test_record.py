"""Recording in a real browser: what is driven is kept, and nobody else gets in."""

from __future__ import annotations

import json
import signal
import socket
import time

import numpy as np
import pytest

from chromium import chromium

pytest.importorskip("minari")
pytest.importorskip("h5py")
pytest.importorskip("websockets")

from spacerl.cli import main
from spacerl.rollout.demos.dataset import Demonstrations
from spacerl.rollout.demos.keys import keys_of
from spacerl.rollout.demos.recorder import task_env
from support.recording import drive, fails, make_recorder

# In the browser -------------------------------------------------------------------------------------------------------


def test_driving_in_chromium_makes_a_minari_dataset(tmp_path, record):
    import minari

    recording = record("point-circle", "--out", str(tmp_path / "laps"), "--fps", "12", "--seed", "3")
    with chromium(tmp_path / "browser") as tab:
        tab.open(recording.address)
        tab.wait_for_phase("ready")
        assert "token" not in tab.evaluate("location.href")
        assert "forwards" in tab.text("keys")
        tab.key("ArrowUp", True)
        tab.wait_for_phase("driving")
        tab.key("ArrowLeft", True)
        tab.wait("+document.getElementById('saved').textContent === 1")  # 50 steps are a whole episode
        tab.key("ArrowLeft", False)
        tab.key("ArrowUp", False)
        tab.wait_for_phase("ready")
        tab.tap("ArrowUp")
        tab.wait("parseFloat(document.getElementById('seconds').textContent) > 0.1")
        tab.tap("Space")
        tab.wait_for_phase("paused")
        tab.tap("Delete")  # once is a slip
        tab.tap("Space")
        tab.wait_for_phase("driving")
        tab.tap("Enter")
        tab.wait("+document.getElementById('saved').textContent === 2")
        tab.evaluate("document.querySelector('button[data-do=finish]').click()")
        code, said = recording.end()
    assert code == 0, said
    whole, cut = Demonstrations(tmp_path / "laps")
    assert whole.steps == 50
    assert whole.seed == 3
    assert whole.driver == "person"
    assert 1 < cut.steps < 50
    assert whole.actions[:, 0].max() == 1.0
    assert whole.actions[:, 1].max() == 0.25
    dataset = minari.MinariDataset(tmp_path / "laps" / "data")
    episode = dataset[0]
    np.testing.assert_array_equal(episode.observations, whole.observations)
    np.testing.assert_array_equal(episode.infos["cost"][1:], whole.costs)
    assert episode.truncations[-1]
    env = task_env("point-circle")  # the same keys from the same seed give the same episode
    env.reset(seed=whole.seed)
    again = [env.step(action)[1] for action in whole.actions]
    np.testing.assert_allclose(again, whole.rewards)


def test_a_browser_that_goes_in_the_middle_of_an_episode_loses_nothing(tmp_path, record):
    recording = record("point-circle", "--out", str(tmp_path / "laps"), "--fps", "10")
    with chromium(tmp_path / "browser") as tab:
        tab.open(recording.address)
        tab.wait_for_phase("ready")
        tab.key("ArrowUp", True)
        tab.wait("parseFloat(document.getElementById('seconds').textContent) > 0.7")
    another = recording._line(r"(http://127\.0\.0\.1:\d+/\?token=\S+)")
    assert another != recording.address
    assert recording.get(recording.address[-60:].partition("/")[2]).status == 403  # spent
    with chromium(tmp_path / "another") as tab:
        tab.open(another)
        tab.wait_for_phase("paused")
        assert float(tab.text("seconds").split()[0]) > 0.6
    code, said = recording.end(signal.SIGINT)
    assert code == 0, said
    (kept,) = Demonstrations(tmp_path / "laps")
    assert 6 < kept.steps < 50


# Who gets in ----------------------------------------------------------------------------------------------------------


def test_only_the_page_itself_gets_in(tmp_path, record):
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    recording = record("point-circle", "--out", str(tmp_path / "laps"))
    path = recording.address.partition(str(recording.port))[2]
    here = f"127.0.0.1:{recording.port}"
    try:
        for refused in ("/", "/?token=", "/?token=wrong", "/drive", "/page.html", "/../etc/passwd"):
            assert recording.get(refused).status == 403, refused
        assert recording.get(path, Host="example.org").status == 403  # a name that was made to point here
        assert recording.get(path, Host=f"127.0.0.1.example.org:{recording.port}").status == 403
        visit = recording.get(path, Host="localhost:9999")  # the other end of a tunnel
        assert visit.status == 303
        cookie = visit.headers["Set-Cookie"].partition(";")[0]
        assert "HttpOnly" in visit.headers["Set-Cookie"]
        assert recording.get(path).status == 403  # a token is good for one visit
        page = recording.get("/", Cookie=cookie)
        assert page.status == 200
        assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"]
        assert recording.get("/", Cookie=cookie + "x").status == 403

        def refusal(origin: str | None, cookie: str, path: str = "/drive") -> int:
            with pytest.raises(InvalidStatus) as refused:
                connect(f"ws://{here}{path}", origin=origin, additional_headers={"Cookie": cookie}, proxy=None)
            return refused.value.response.status_code

        assert refusal("http://example.org", cookie) == 403
        assert refusal(f"http://127.0.0.1:{recording.port + 1}", cookie) == 403
        assert refusal("null", cookie) == 403
        assert refusal(None, cookie) == 403
        assert refusal(f"http://{here}", "") == 403
        assert refusal(f"http://{here}", cookie, "/other") == 403
        allowed = {"origin": f"http://{here}", "additional_headers": {"Cookie": cookie}, "proxy": None}
        with connect(f"ws://{here}/drive", **allowed) as page:
            assert json.loads(page.recv())["task"] == "point-circle"
            for nonsense in ("{", "[]", '{"held": 3}', '{"held": [3, null]}', '{"do": "explode"}', "[" * 4000):
                page.send(nonsense)
            page.send(b"\xff\x00")
            page.send('{"held": ["ArrowUp"]}')
            page.recv()
        with pytest.raises(OSError):
            socket.create_connection((_address_of_this_machine(), recording.port), timeout=2)
    finally:
        code, said = recording.end(signal.SIGINT)
    assert code == 0, said


def test_a_page_that_cannot_keep_up_is_shown_the_newest_frame_and_not_all_of_them(tmp_path, record):
    from websockets.sync.client import connect

    from spacerl.rollout.demos.server import ON_THE_WAY, read_frame

    recording = record("point-circle", "--out", str(tmp_path / "laps"), "--fps", "10")
    cookie = recording.get(recording.address.partition(str(recording.port))[2]).headers["Set-Cookie"].partition(";")[0]
    here = f"127.0.0.1:{recording.port}"
    allowed = {"origin": f"http://{here}", "additional_headers": {"Cookie": cookie}, "proxy": None}
    try:
        with connect(f"ws://{here}/drive", **allowed) as page:
            page.recv()
            first, _ = read_frame(page.recv())
            assert first["phase"] == "ready"
            page.send('{"shown": 1}')
            page.send('{"held": ["ArrowLeft"]}')
            seconds = [read_frame(page.recv(timeout=10))[0]["seconds"] for _ in range(ON_THE_WAY)]
            with pytest.raises(TimeoutError):
                page.recv(timeout=0.4)
            page.send(json.dumps({"shown": 1 + ON_THE_WAY}))
            following = read_frame(page.recv(timeout=10))[0]
            assert following["seconds"] > seconds[-1] + 0.3
    finally:
        code, said = recording.end(signal.SIGINT)
    assert code == 0, said


def _address_of_this_machine() -> str:
    """One that is not loopback; where there is none, one that nothing answers at."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return probe.getsockname()[0]
        except OSError:
            return "127.0.0.2"


# What is kept ---------------------------------------------------------------------------------------------------------


def test_a_killed_process_leaves_its_episode_for_the_next_one(tmp_path, record):
    recording = record("point-gather", "--out", str(tmp_path / "laps"), "--fps", "100")
    from websockets.sync.client import connect

    visit = recording.get(recording.address.partition(str(recording.port))[2])
    headers = {"Cookie": visit.headers["Set-Cookie"].partition(";")[0]}
    here = f"127.0.0.1:{recording.port}"
    with connect(f"ws://{here}/drive", origin=f"http://{here}", additional_headers=headers, proxy=None) as page:
        page.send('{"held": ["ArrowUp"]}')
        end = time.monotonic() + 30
        journal = tmp_path / "laps" / "unfinished-episode"
        while not (journal.exists() and journal.stat().st_size > 1200) and time.monotonic() < end:
            page.recv(timeout=20)
        page.send('{"do": "pause"}')
        time.sleep(0.2)
        recording.process.kill()
    recording.end()
    recorder_folder = tmp_path / "laps"
    assert (recorder_folder / "unfinished-episode").exists() or (recorder_folder / "data").exists()
    recorder = make_recorder(recorder_folder, "point-gather")
    kept = recorder.recording.recover()
    recorder.close()
    assert kept is not None or recorder.recording.episodes
    assert sum(each.steps for each in Demonstrations(recorder_folder)) > 1


def test_an_episode_cut_in_the_middle_of_a_record_is_read_up_to_there(tmp_path):
    recorder = make_recorder(tmp_path / "laps")
    drive(recorder, 7, "ArrowUp")
    journal = recorder.recording.journal
    content = journal.read_bytes()
    recorder.abandon()
    journal.write_bytes(content[:-5])
    again = make_recorder(tmp_path / "laps")
    kept = again.recording.recover()
    assert kept is not None
    assert kept.steps == 6
    assert not journal.exists()
    again.close()
    (episode,) = Demonstrations(tmp_path / "laps")
    np.testing.assert_array_equal(episode.actions, np.tile([[1.0, 0.0]], (6, 1)).astype(np.float32))


def test_a_write_that_fails_leaves_the_dataset_as_it_was(tmp_path, monkeypatch):
    recorder = make_recorder(tmp_path / "laps")
    drive(recorder, 5, "ArrowUp")
    recorder.keep()
    drive(recorder, 5, "ArrowDown")
    import spacerl.rollout.demos.dataset as module

    monkeypatch.setattr(module, "_to_disk", lambda path: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError):
        recorder.keep()
    monkeypatch.undo()
    assert len(list(Demonstrations(tmp_path / "laps"))) == 1
    assert recorder.recording.journal.exists()  # and what was driven is still there
    recorder.abandon()
    again = make_recorder(tmp_path / "laps")
    assert again.recording.recover() is not None
    again.close()
    assert [each.steps for each in Demonstrations(tmp_path / "laps")] == [5, 5]


def test_keys_add_up_and_opposite_ones_cancel():
    env, keys = task_env("point-circle"), keys_of("point-circle")
    for held, action in (
        ([], (0, 0)),
        (["ArrowUp", "ArrowLeft"], (1, 0.25)),
        (["KeyW", "ArrowUp"], (1, 0)),
        (["ArrowLeft", "ArrowRight"], (0, 0)),
        (["KeyQ"], (0, 0)),
    ):
        np.testing.assert_allclose(keys.action(held, env.action_space), action)


def test_discarded_steps_are_not_kept(tmp_path):
    recorder = make_recorder(tmp_path / "laps")
    drive(recorder, 4, "ArrowUp")
    recorder.do("discard")
    assert recorder.phase == "ready"
    recorder.close()
    assert not (tmp_path / "laps" / "data").exists()


# Bad input ------------------------------------------------------------------------------------------------------------


def test_an_existing_name_is_refused_and_appending_adds(tmp_path, capsys):
    recorder = make_recorder(tmp_path / "laps")
    drive(recorder, 3, "ArrowUp")
    recorder.close()
    assert "--append adds to it" in fails(capsys, "record", "point-circle", "--out", tmp_path / "laps")
    said = fails(capsys, "record", "point-gather", "--append", "--out", tmp_path / "laps")
    assert "observation space" in said
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    assert "is no recording" in fails(capsys, "record", "point-circle", "--append", "--out", tmp_path / "mine")
    again = make_recorder(tmp_path / "laps")
    drive(again, 2, "ArrowUp")
    again.close()
    assert [each.steps for each in Demonstrations(tmp_path / "laps")] == [3, 2]


def test_a_port_in_use_is_said(tmp_path, capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = fails(capsys, "record", "point-circle", "--out", tmp_path / "laps", "--port", port)
    assert f"port {port} is in use" in said
    assert not (tmp_path / "laps").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["ant-circle"], "cannot be driven with keys"),
        (["point-cirle"], "did you mean 'point-circle'"),
        (["point-circle", "--driver", "scripted", "--episodes", "1"], "has no script"),
        (["point-circle", "--port", "70000"], "0 to 65535"),
        (["point-circle", "--fps", "0"], "above 0"),
        (["point-circle", "--episodes", "0"], "from 1"),
    ],
)
def test_what_cannot_be_recorded_is_said_in_one_sentence(options, said, tmp_path, capsys):
    assert said in fails(capsys, "record", *options, "--out", tmp_path / "laps")
    assert not (tmp_path / "laps").exists()


def test_demos_show_tabulates_and_plays_back(tmp_path, capsys):
    tmp_path = tmp_path / "a-name-that-is-longer-than-the-table-is-wide" / "so-that-its-title-could-be-wrapped"
    recorder = make_recorder(tmp_path / "laps")
    drive(recorder, 6, "ArrowUp")
    recorder.close()
    main(["demos", "show", str(tmp_path / "laps"), "--video", str(tmp_path / "lap.gif")])
    said = capsys.readouterr().out
    assert "1 episodes, 6 steps of point-circle" in said
    assert "person" in said
    assert (tmp_path / "lap.gif").stat().st_size > 1000
    assert "no episode 4" in fails(
        capsys, "demos", "show", tmp_path / "laps", "--episode", 4, "--video", tmp_path / "other.gif"
    )
    assert "is not a Minari dataset" in fails(capsys, "demos", "show", tmp_path)
