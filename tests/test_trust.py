"""A run folder from a stranger runs no code unless the user agrees, and one's own folders go on without being asked."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import spacerl
from spacerl.cli.main import main
from spacerl.envs.host.costs import named_sources
from spacerl.envs.host.single import Recipe, construct
from spacerl.training.origin import code_named_by
from spacerl.training.settings import resolve
from spacerl.types import InputError
from support.runs import made

pytestmark = pytest.mark.usefixtures("quick_compilation")

HOME = Path(__file__).parent
TINY = {"hidden": (4,), "batch_size": 20, "rollout_length": 10, "workers": 0, "environments": 1, "updates": 1}
ENVIRONMENT = f"env:{HOME / 'support' / 'environments.py'}:line"
COMMANDS = {
    "resume": ["resume", "run", "--quiet", "--updates", "2"],
    "evaluate": ["evaluate", "run", "--episodes", "2"],
    "video": ["evaluate", "run", "--episodes", "2", "--video", "film.gif"],
    "export": ["export", "run", "policy.npz"],
}


@pytest.fixture(scope="module")
def own_run(tmp_path_factory):
    """A run of one's own environment, made by name, with a checkpoint and a policy."""
    folder = tmp_path_factory.mktemp("own") / "run"
    return made(folder, task=ENVIRONMENT, cost=("none",), **TINY)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def changed(own_run, workplace):
    """The folder as a stranger could send it: some settings changed, files of theirs inside."""

    def change(**settings) -> Path:
        folder = shutil.copytree(own_run, workplace / "run")
        config = json.loads((folder / "config.json").read_text()) | settings
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "theirs.py").write_text(
            "from pathlib import Path\nPath('code-was-run').touch()\n"
            "def make(**given):\n    import support.environments\n    return support.environments.line()\n"
            "def cost(*given):\n    return 0.0\n"
            "def policy(obs):\n    return obs[:, :1]\n"
        )
        return folder

    return change


HOSTILE = {
    "any callable": {"task": "env:subprocess:Popen", "env_args": ['args=["touch","code-was-run"]']},
    "a file in the folder": {"task": "env:run/theirs.py:make"},
    "a file that registers ids": {"task": "env:run/theirs.py:Room-v0"},
    "a module that registers ids": {"task": "env:run.theirs:Room-v0"},
    "a cost": {"cost": ["price=run/theirs.py:cost"]},
    "a text for an installed environment": {"task": "env:Pendulum-v1", "env_args": ["g=run/theirs.py"]},
}


@pytest.mark.parametrize("attack", HOSTILE)
@pytest.mark.parametrize("command", COMMANDS)
def test_code_named_by_a_strangers_folder_is_not_run(attack, command, changed, capsys):
    folder = changed(**HOSTILE[attack])
    if command == "export":  # the folder's own description is enough
        main(COMMANDS[command])
        assert Path("policy.npz").is_file()
    else:
        with pytest.raises(SystemExit) as stop:
            main(COMMANDS[command])
        told = capsys.readouterr().err
        assert stop.value.code == 2
        assert told.count("\n") == 1
        assert "--trust" in told
        named = HOSTILE[attack].get("cost", [HOSTILE[attack].get("task", "")])[0]
        assert named.removeprefix("env:").removeprefix("price=") in told
    assert not Path("code-was-run").exists()
    assert not (folder / "code-was-run").exists()


def test_a_strangers_baseline_is_not_run_either(changed):
    changed(task="env:Pendulum-v1", cost=["none"], baseline=["run/theirs.py:policy"])
    with pytest.raises(InputError, match=r"baseline 'run/theirs.py:policy'.*--trust"):
        spacerl.resume("run", updates=2, progress=False)
    assert not Path("code-was-run").exists()


def test_a_folder_of_an_earlier_version_asks_before_it_exports(changed):
    folder = changed(task="env:run/theirs.py:make")
    (folder / "environment.json").unlink()
    with pytest.raises(InputError, match=r"names code that would be run: environment 'run/theirs.py:make'"):
        spacerl.export("run", "policy.npz")
    assert spacerl.export("run", "policy.npz", trust=True) < 1e-4
    assert Path("code-was-run").exists()


def test_ones_own_folder_needs_no_trust_and_a_copied_signature_allows_nothing_else(own_run, changed):
    changed()
    assert spacerl.evaluate("run", episodes=2)["episodes"] == 2
    config = json.loads(Path("run/config.json").read_text())
    for theirs in ({"env_args": ["edge=2"]}, {"task": "env:run/theirs.py:make"}):
        Path("run/config.json").write_text(json.dumps(config | theirs))
        with pytest.raises(InputError, match="--trust"):
            spacerl.evaluate("run", episodes=2)


def test_the_same_name_at_another_place_is_other_code(workplace, monkeypatch):
    """`room.py:make` was asked for here; in another folder it is somebody else's file."""
    for name in ("mine", "theirs"):
        Path(name).mkdir()
        Path(name, "room.py").write_text("from support.environments import line as make\n")
    monkeypatch.chdir("mine")
    made(workplace / "run", task="env:room.py:make", cost=("none",), **TINY)
    spacerl.evaluate(workplace / "run", episodes=2)
    monkeypatch.chdir("../theirs")
    with pytest.raises(InputError, match=r"environment 'room.py:make'.*--trust"):
        spacerl.evaluate(workplace / "run", episodes=2)


def test_another_user_is_asked(own_run, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(InputError, match="--trust"):
        spacerl.evaluate(own_run, episodes=2)
    assert spacerl.evaluate(own_run, episodes=2, trust=True)["episodes"] == 2
    assert os.stat(tmp_path / "spacerl" / "key").st_mode & 0o777 == 0o600


def test_objects_given_again_are_ones_own_words(changed):
    from support.environments import line

    changed(task="env:run/theirs.py:make", cost=["run/theirs.py:cost"])
    spacerl.evaluate("run", episodes=2, env=line, cost="none")
    assert not Path("code-was-run").exists()


def test_numbers_and_switches_of_installed_environments_are_no_code():
    def named(**settings):
        draft = resolve(
            {"task": "env:Pendulum-v1", "cost": ("none",), "cost_limit": 1, "algorithm": "trpo", **settings}
        )
        from spacerl.envs.host.environment import HostedEnv

        env = HostedEnv(Recipe("Pendulum-v1", named_sources("none")))
        return [code.setting for code in code_named_by(draft.config(env.spec))]

    assert named(env_args=("g=9.8",)) == []
    assert named(env_args=("render_mode=human",)) == ["environment"]
    assert named(env_args=('options={"a": 1}',)) == ["environment"]
    assert named(cost=("support.environments:line",)) == ["cost"]


@pytest.mark.parametrize(
    "name", ["subprocess:Popen", "os:system", "os.path:join", "builtins:dict", "functools:partial"]
)
def test_the_standard_library_is_never_called(name):
    with pytest.raises(InputError, match="standard library, which is never called"):
        construct(Recipe(name, named_sources("none")))


def test_the_standard_library_is_not_called_under_other_names_either(workplace):
    Path("mine.py").write_text(
        "import functools, os, subprocess\nrun = subprocess.Popen\nlater = functools.partial(os.mkdir, 'made')\n"
        "class Door:\n    def __init__(self):\n        os.mkdir('made')\n"
    )
    for name in ("run", "later", "os.mkdir"):
        with pytest.raises(InputError, match="standard library, which is never called"):
            construct(Recipe(f"mine.py:{name}", named_sources("none")))
    with pytest.raises(InputError, match="is a class without reset and step"):
        construct(Recipe("mine.py:Door", named_sources("none")))
    assert not Path("made").exists()


def test_a_module_beside_the_users_does_not_replace_one_of_python(workplace):
    Path("colorsys.py").write_text("raise RuntimeError('this is not the standard library')\n")
    Path("room.py").write_text("import colorsys\nfrom support.environments import line\ncolorsys.rgb_to_hls(0, 0, 0)\n")
    assert construct(Recipe("room:line", named_sources("none"))).reset(seed=0)


DAMAGED = {
    "huge": {"obs_shape": [10**9, 10**9]},
    "of another size": {"obs_shape": [77]},
    "negative": {"obs_shape": [-3]},
    "a text": {"action": "box"},
    "bounds": {"action": {"kind": "box", "size": 1, "low": [0.0, 1.0], "high": [], "nvec": [], "scaled": True}},
    "not a number": {"action": {"kind": "box", "size": 1, "low": ["nan"], "high": [1], "nvec": [], "scaled": True}},
    "costs": {"cost_names": []},
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_description_that_no_environment_has_is_refused(damage, changed):
    folder = changed()
    path = folder / "environment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | DAMAGED[damage]))
    with pytest.raises(InputError) as stop:
        spacerl.export("run", "policy.npz")
    assert "\n" not in str(stop.value)
    assert not Path("policy.npz").exists()


# ---------------------------------------------------------------- files of settings


@pytest.mark.parametrize("attack", ["a file in the folder", "a cost", "a text for an installed environment"])
def test_code_named_by_a_file_of_settings_is_not_run(attack, workplace, capsys):
    folder = workplace / "run"
    folder.mkdir()
    (folder / "theirs.py").write_text("from pathlib import Path\nPath('code-was-run').touch()\n")
    settings = {"task": "env:Pendulum-v1", "cost": ["none"], "cost_limit": [1.0], **HOSTILE[attack]}
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    (folder / "config.toml").write_text("\n".join(lines))
    (folder / "config.json").write_text(json.dumps(settings))  # a run folder, and not signed
    with pytest.raises(SystemExit) as stop:
        main(["train", "--config", "run/config.toml", "--algorithm", "pcpo", "--out", "new", "--quiet"])
    told = capsys.readouterr().err
    assert stop.value.code == 2
    assert told.count("\n") == 1
    assert "names code that would be run" in told
    with pytest.raises(InputError, match=r"config 'run/config.toml' names code that would be run"):
        spacerl.train(config="run/config.toml", algorithm="pcpo", out="new", progress=False)
    assert not (workplace / "code-was-run").exists()


def test_code_that_the_command_names_itself_or_that_is_ones_own_needs_no_trust(own_run, workplace):
    given = {"algorithm": "trpo", "cost_limit": 1.0, "progress": False, "log": (), **TINY}
    spacerl.train(config=own_run / "config.toml", out="again", **given)
    shutil.copy(own_run / "config.toml", "mine.toml")
    with pytest.raises(InputError, match="names code"):
        spacerl.train(config="mine.toml", out="asked", **given)
    spacerl.train(config="mine.toml", env=ENVIRONMENT.removeprefix("env:"), out="named", **given)
    spacerl.train(config="mine.toml", trust=True, out="trusted", **given)
    words = ["--env", ENVIRONMENT.removeprefix("env:"), "--updates", "1", "--quiet", "--log"]
    main(["train", "--config", "mine.toml", "--out", "commanded", *words])
