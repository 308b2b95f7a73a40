"""Files made to do harm: they are refused in a sentence before they take memory or time, and what they are called hurts
nobody. What a user made is not overwritten."""

from __future__ import annotations

import base64
import json
import os
import resource
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import spacerl
from spacerl.cli import main
from spacerl.policies.files import read_policy
from spacerl.policies.loading import Loading, load_policy
from spacerl.runs.arrays import read_arrays
from spacerl.runs.folder import POLICY_FORMAT, write_arrays
from spacerl.types import ActionSpace, EnvSpec, InputError
from support.runs import made

pytestmark = pytest.mark.usefixtures("quick_compilation")

SPEC = EnvSpec("one", (4,), ActionSpace("box", 2, (-1.0, -1.0), (1.0, 1.0)), 50)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    settings = {"algorithm": "pcpo", "batch_size": 100, "hidden": (4,), "log": (), "progress": False}
    return spacerl.train("point-circle", updates=2, out=tmp_path_factory.mktemp("runs") / "run", **settings).folder


def fails(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(map(str, arguments)))
    said = capsys.readouterr().err
    assert stop.value.code == 2, said
    assert said.count("\n") == 1, said
    return said


# ---------------------------------------------------------------- small files that ask for much


@pytest.mark.parametrize("sizes", [(30_000, 30_000), (2**31 - 1,), (2**40,), tuple([1] * 300)])
def test_a_policy_that_describes_more_than_it_holds_takes_no_memory(sizes, tmp_path):
    spec = {"kind": "gaussian", "obs_shape": [9], "action_size": 2, "hidden": list(sizes)}
    arrays = {f"layers.{i}.weight": np.zeros((2, 2), np.float32) for i in range(len(sizes) + 1)}
    arrays |= {f"layers.{i}.bias": np.zeros(2, np.float32) for i in range(len(sizes) + 1)}
    path = tmp_path / "policy.safetensors"
    save_file(
        {**arrays, "log_std": np.zeros(2, np.float32)},
        path,
        {"format": "spacerl-policy-1", "spec": json.dumps(spec)},
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"policy file '.*' is incomplete"):
        read_policy(path, "policy")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB


def policy_with_a_hole(path, numbers=2**40):
    """A hundred bytes on the disk that it came from."""
    spec = json.dumps({"kind": "gaussian", "obs_shape": [9], "action_size": 2, "hidden": [numbers]})
    array = {"dtype": "F32", "shape": [numbers], "data_offsets": [0, 4 * numbers]}
    header = json.dumps({"__metadata__": {"format": "spacerl-policy-1", "spec": spec}, "layers.0.weight": array})
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    os.truncate(path, 8 + len(header) + 4 * numbers)
    return path


@pytest.mark.parametrize("command", ["baseline show {}", "evaluate {}", "export {} policy.npz"])
def test_a_policy_that_is_a_hole_is_not_read(command, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(run, tmp_path / "run")
    path = policy_with_a_hole(folder / "policy.safetensors")
    said = fails(capsys, *command.format(path if command.startswith("baseline") else folder).split())
    assert "policy.safetensors' is too large: it holds 4,398.0 GB and there are" in said


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize(
    "command",
    ["baseline show {}", "evaluate {}", "export {} policy.npz", "train point-circle --baseline {} --updates 1"],
)
def test_a_policy_with_numbers_that_are_not_finite_is_refused(command, number, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = shutil.copytree(run, tmp_path / "run") / "policy.safetensors"
    arrays, info = read_arrays(path, POLICY_FORMAT, "policy file")
    name = sorted(arrays)[0]
    arrays[name] = arrays[name].copy()
    arrays[name].flat[0] = number
    write_arrays(path, arrays, info)
    said = fails(capsys, *command.format(path if command.startswith("baseline") else path.parent).split())
    assert f"has a number in '{name}' that is not finite: no policy acts on it" in said


def test_a_checkpoint_that_is_a_hole_is_not_read(run, tmp_path, capsys):
    folder = shutil.copytree(run, tmp_path / "run")
    for path in (folder / "checkpoints").iterdir():
        os.truncate(path, 2**42)
    assert "is too large: it holds 4,398.0 GB and there are" in fails(capsys, "resume", folder, "--updates", "3")


def test_a_zip_bomb_is_not_unpacked(tmp_path):
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("policy.pth", "x")
        archive.writestr("data", b"0" * 300_000_000)
    assert path.stat().st_size < 1_000_000
    with pytest.raises(InputError, match=r"unpacks to 0.3 GB: it is not read"):
        load_policy(str(path), "one", SPEC, Loading(trust=True))


def model_of(nodes, functions=()):
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    values = [helper.make_tensor_value_info(name, kinds.FLOAT, ["n", 4]) for name in ("obs", "action")]
    graph = helper.make_graph(nodes, "policy", values[:1], values[1:])
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, functions=list(functions), opset_imports=opset, ir_version=9).SerializeToString()


def endless_loop() -> bytes:
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    of = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["still"]), helper.make_node("Identity", ["x"], ["y"])],
        "body",
        [of("i", kinds.INT64, []), of("go", kinds.BOOL, []), of("x", kinds.FLOAT, None)],
        [of("still", kinds.BOOL, []), of("y", kinds.FLOAT, None)],
    )
    true = helper.make_node("Constant", [], ["go_on"], value=helper.make_tensor("t", kinds.BOOL, [], [True]))
    return model_of([true, helper.make_node("Loop", ["", "go_on", "obs"], ["action"], body=body)])


def thousandfold() -> bytes:
    """Forty functions, each of which calls the next one twice."""
    onnx = pytest.importorskip("onnx")
    helper, opset = onnx.helper, [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("own", 1)]
    functions = []
    for i in range(40):
        after = ("own", f"f{i + 1}") if i < 39 else ("", "Identity")
        nodes = [helper.make_node(after[1], [a], [b], domain=after[0]) for a, b in (("x", "m"), ("m", "y"))]
        functions.append(helper.make_function("own", f"f{i}", ["x"], ["y"], nodes, opset))
    return model_of([helper.make_node("f0", ["obs"], ["action"], domain="own")], functions)


def many_numbers(count: int) -> bytes:
    """A few hundred bytes that make so many numbers of four bytes, and add them up."""
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    size = helper.make_tensor("size", onnx.TensorProto.INT64, [1], [count])
    return model_of(
        [
            helper.make_node("Constant", [], ["size"], value=size),
            helper.make_node("ConstantOfShape", ["size"], ["zeros"]),
            helper.make_node("ReduceSum", ["zeros"], ["sum"], keepdims=0),
            helper.make_node("Add", ["obs", "sum"], ["action"]),
        ]
    )


def test_a_graph_gets_half_of_the_memory(tmp_path):
    """In a process of its own: onnxruntime is limited once, by what was free then."""
    pytest.importorskip("onnxruntime")
    path = tmp_path / "policy.onnx"
    path.write_bytes(many_numbers(100_000_000))
    lines = (
        "import resource, sys",
        "from spacerl.policies.foreign import load_foreign, onnx",
        "from spacerl.types import ActionSpace, InputError",
        "onnx.host_memory = lambda: 600e6",
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss",
        "try:",
        "    load_foreign(sys.argv[1], ActionSpace('box', 4), (4,), trust=False)",
        "except InputError as error:",
        "    assert 'fails on observations' in str(error), error",
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines), path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert int(done.stdout) < 200_000  # kB


@pytest.mark.parametrize(
    ("write", "said"), [(endless_loop, "has a Loop"), (thousandfold, "unfolds to more than 1,000")]
)
def test_a_graph_without_end_is_not_run(write, said, tmp_path):
    path = tmp_path / "policy.onnx"
    path.write_bytes(write())
    with pytest.raises(InputError, match=said):
        load_policy(str(path), "one", SPEC)


# ---------------------------------------------------------------- names

NAMES = ["[/b] [bold]x back\\slash <script>alert(1) é %s{} '\"&", "-two\nlines \x1b[31mred", os.fsdecode(b"bad\xff")]


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_may_be_called_anything(name, run, tmp_path, monkeypatch, capsys):
    """Commands do their work, and none of them is killed by markup after it."""
    monkeypatch.chdir(tmp_path)
    folder = Path.cwd() / name
    main(["train", "point-circle", "--algorithm", "pcpo", "--batch-size", "100", "--hidden", "4", "--updates", "1",
          "--out", str(folder), "--log"])  # fmt: skip
    main(["resume", str(folder), "--updates", "2", "--log"])
    main(["evaluate", str(folder), "--episodes", "2", "--out", f"{folder}/e.json"])
    main(["export", str(folder), f"{folder}/policy.npz"])
    main(["report", str(folder), "--title", f"about {name}"])
    capsys.readouterr()
    main(["baseline", "show", str(folder)])
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    page = (folder / "report.html").read_text()
    assert "<script>alert" not in page
    assert json.loads((folder / "e.json").read_text())["run"] == str(folder)


def test_a_name_that_is_no_text_is_printed_and_not_kept(run, tmp_path, monkeypatch, capsysbinary):
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"bad\xff")
    shutil.copytree(run, name)
    main(["report", name, "--out", os.fsdecode(b"page\xff.html"), "--title", f"about {name}"])
    assert capsysbinary.readouterr().out == b"report: page\\udcff.html\n"
    assert "about bad?" in Path(os.fsdecode(b"page\xff.html")).read_text()
    with pytest.raises(InputError, match=r"baseline is 'bad\\udcff': allowed is a text that UTF-8 can write"):
        spacerl.train("point-circle", baseline=name, updates=1, out=tmp_path / "next")
    assert not (tmp_path / "next").exists()


def test_what_a_folder_says_cannot_hide_what_would_be_run(tmp_path, monkeypatch, capsys):
    """The sentence that asks for consent is printed to a terminal: no part of it may move the cursor back."""
    monkeypatch.chdir(tmp_path)
    folder = made(tmp_path / "theirs", task="env:Pendulum-v1", cost=("none",), cost_limit=(1.0,))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"task": "env:evil.py:make\x1b[2K\r\u202e harmless"}))
    said = fails(capsys, "evaluate", folder)
    assert "evil.py:make" in said
    assert all(each.isprintable() for each in said.rstrip("\n"))


# ---------------------------------------------------------------- what lies in a folder beside its files


def test_a_page_holds_films_of_the_folder_and_nothing_that_a_link_leads_to(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    (tmp_path / "secret").write_text("secret of the user's")
    (folder / "film.gif").symlink_to(tmp_path / "secret")
    (folder / "folder.mp4").mkdir()
    os.mkfifo(folder / "pipe.mp4")
    (folder / "own.gif").write_text("GIF89a of the run's")
    page = spacerl.report([folder], tmp_path / "page.html").read_text()
    assert base64.b64encode(b"GIF89a of the run's").decode() in page
    assert base64.b64encode(b"secret of the user's").decode() not in page


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("export run policy.npz", "environment.json"),
        ("report run", "config.json"),
        ("report run", "metrics.csv"),
        ("resume run --updates 3", "metrics.csv"),
        ("resume run --updates 3", "evaluations.csv"),
        ("train --config run/config.toml", "config.toml"),
    ],
)
def test_a_file_without_end_is_not_read_to_its_end(command, name, run, tmp_path, monkeypatch, capsys):
    """Settings, JSON and tables; a sparse file is large here and small where it came from."""
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / name).touch()
    os.truncate(folder / name, 2**40)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert f"run/{name}' is too large: more than " in fails(capsys, *command.split())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_500_000  # kB
    if name == "config.toml":
        (folder / name).unlink()
        (folder / name).symlink_to("/dev/zero")
        assert "is too large" in fails(capsys, *command.split())


# ---------------------------------------------------------------- nothing is overwritten


@pytest.mark.parametrize(
    "command",
    [
        ("export", "{run}", "mine.npz"),
        ("export", "{run}", "mine.py"),
        ("evaluate", "{run}", "--episodes", "2", "--out", "mine.json"),
        ("evaluate", "{run}", "--episodes", "2", "--video", "mine.gif"),
        ("report", "{run}", "--out", "mine.html"),
        ("report", "{run}", "--out", "report.html"),
        ("baseline", "make", "point-circle", "--out", "mine.safetensors"),
    ],
)
def test_a_file_of_the_users_is_not_overwritten(command, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [word.format(run=run) for word in command]
    mine = Path(next(word for word in words if word.startswith(("mine", "report."))))
    mine.write_text("mine")
    assert f"'{mine}' exists" in fails(capsys, *words)
    assert mine.read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["metrics.csv", "config.json", "best.safetensors", "checkpoints/update-000002.safetensors"]
)
def test_a_page_takes_the_place_of_no_file_of_its_run(name, run, tmp_path, capsys):
    folder = shutil.copytree(run, tmp_path / "run")
    if not (folder / name).exists():
        (folder / name).write_bytes((folder / "policy.safetensors").read_bytes())
    before = (folder / name).read_bytes()
    assert f"'{folder / name}' exists" in fails(capsys, "report", folder, "--out", folder / name)
    assert (folder / name).read_bytes() == before


def test_a_page_may_take_the_place_of_an_earlier_one(run, tmp_path):
    for _ in range(2):
        assert spacerl.report([run], out=tmp_path / "page.html").exists()
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / "report.html").write_text("of a version whose pages did not say what wrote them")
    assert "spacerl report" in spacerl.report([folder]).read_text()


def test_a_number_of_thousands_of_digits_in_settings_is_one_sentence(tmp_path, capsys):
    (tmp_path / "x.toml").write_text(f"seed = {'9' * 5000}\n")
    assert "is not TOML" in fails(capsys, "train", "--config", tmp_path / "x.toml")


@pytest.mark.parametrize("name", ["model.pt", "model.zip"])
def test_an_archive_of_an_unknown_version_is_damaged(name, tmp_path):
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr("data", "x")
    content = bytearray((tmp_path / name).read_bytes())
    content[content.index(b"PK\x01\x02") + 6] = 174  # what is needed to unpack it: version 17.4
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match="is damaged"):
        load_policy(str(tmp_path / name), "one", SPEC, Loading(trust=True))
