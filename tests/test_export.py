"""Exported policies against the original, in the environment's units, by whoever can read the format."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
import json
import math
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spacerl.policies.export import exporting, numpy_policy, onnx
from spacerl.policies.export.exporting import Forms, export_policy
from spacerl.policies.export.original import ObservationPart
from spacerl.policies.family import PolicyFamily
from spacerl.types import ActionSpace, ImageSpec, InputError
from support.learners import quick_jit

INFO = {"task": "own:task", "algorithm": "space", "update": 7}
IMAGE, ENTRIES = (9, 8, 2), 2 + 144 + 1
MIXED = {"images": (ImageSpec(2, IMAGE, 1 / 255),), "filters": (3, 2)}
SCALED = ActionSpace("box", 2, (-2.0, 0.0), (2.0, 10.0), scaled=True)
POLICIES = {
    "physical": ((4,), ActionSpace("box", 2), {}),
    "bounded": ((4,), ActionSpace("box", 2, (-0.1, -math.inf), (0.1, math.inf)), {}),
    "scaled": ((4,), SCALED, {}),
    "discrete": ((2, 2), ActionSpace("discrete", 3), {}),
    "multidiscrete": ((4,), ActionSpace("multidiscrete", 5, nvec=(2, 3)), {}),
    "image": (IMAGE, SCALED, {"images": (ImageSpec(0, IMAGE, 1 / 255),), "filters": (3, 2)}),
    "mixed": ((ENTRIES,), ActionSpace("multidiscrete", 5, nvec=(2, 3)), MIXED),
}


@functools.cache
def policy(name: str, hidden=(6, 5)):
    shape, action, images = POLICIES[name]
    family = PolicyFamily(shape, action, hidden, **images)
    theta = quick_jit(family.init)(jax.random.PRNGKey(1))
    return family, theta + jnp.asarray(0.2 * np.random.default_rng(2).normal(size=theta.shape), jnp.float32), action


def observations(family: PolicyFamily, *lead: int) -> np.ndarray:
    obs = np.random.default_rng(5).normal(size=(*lead, math.prod(family.obs_shape))) * 3.0
    for offset, shape, _ in family.images:
        pixels = slice(offset, offset + math.prod(shape))
        obs[..., pixels] = np.rint(100.0 + 30.0 * obs[..., pixels])
    return obs.astype(np.float32).reshape(*lead, *family.obs_shape)


def expected(family: PolicyFamily, theta, obs: np.ndarray, action: ActionSpace):
    """Mean and deviation in the environment's units, or probabilities of all lists side by side."""
    dist = quick_jit(family.apply)(theta, jnp.asarray(obs))
    if action.kind == "box":
        mean, std = np.asarray(dist.mean), np.exp(np.asarray(dist.log_std))
        if not action.scaled:
            return mean, std
        low, high = np.array(action.low), np.array(action.high)
        return low + (mean + 1.0) / 2.0 * (high - low), std * (high - low) / 2.0
    powers = np.exp(np.asarray(dist.logits, np.float64))
    lists = np.split(powers, np.cumsum(action.nvec)[:-1], axis=-1) if action.nvec else [powers]
    return np.concatenate([one / one.sum(-1, keepdims=True) for one in lists], axis=-1)


def imported(path: Path):
    spec = importlib.util.spec_from_file_location("exported_for_test", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def most_likely(probabilities: np.ndarray, action: ActionSpace) -> np.ndarray:
    if action.kind == "discrete":
        return probabilities.argmax(-1)
    return np.stack([p.argmax(-1) for p in np.split(probabilities, np.cumsum(action.nvec)[:-1], axis=-1)], axis=-1)


# ---------------------------------------------------------------- NumPy


@pytest.mark.parametrize("name", POLICIES)
def test_the_numpy_file_is_the_policy(name, tmp_path):
    family, theta, action = policy(name)
    difference = export_policy(family, theta, tmp_path / "new" / "policy.py", INFO, action)
    assert 0.0 <= difference < 1e-4
    module = imported(tmp_path / "new" / "policy.py")
    obs = observations(family, 6)
    wanted = expected(family, theta, obs, action)
    np.testing.assert_allclose(module.distribution(obs), wanted, rtol=1e-4, atol=1e-4)
    assert module.distribution(obs)[0].dtype == np.float32
    folded = module.distribution(obs.reshape(2, 3, *family.obs_shape))
    np.testing.assert_allclose(np.reshape(folded, np.shape(wanted)), wanted, rtol=1e-4, atol=1e-4)
    assert np.shape(folded)[-3:] == (2, 3, action.size)
    np.testing.assert_allclose(module.distribution(obs[5]), np.asarray(wanted)[..., 5, :], rtol=1e-4, atol=1e-4)
    if action.kind == "box":
        low, high = (end or math.inf * sign * np.ones(2) for end, sign in ((action.low, -1.0), (action.high, 1.0)))
        np.testing.assert_allclose(module.act(obs), np.clip(wanted[0], low, high), rtol=1e-4, atol=1e-4)
    else:
        np.testing.assert_array_equal(module.act(obs), most_likely(wanted, action))


@pytest.mark.parametrize("name", ["scaled", "discrete", "multidiscrete"])
def test_the_numpy_file_draws_from_the_policy(name, tmp_path):
    family, theta, action = policy(name)
    export_policy(family, theta, tmp_path / "policy.py", INFO, action)
    module, obs = imported(tmp_path / "policy.py"), observations(family)
    many = np.broadcast_to(obs, (40_000, *obs.shape))
    drawn = module.act(many, np.random.default_rng(3))
    np.testing.assert_array_equal(drawn[:9], module.act(many, np.random.default_rng(3))[:9])
    wanted = expected(family, theta, obs, action)
    if action.kind == "box":
        raw = wanted[0] + wanted[1] * np.random.default_rng(4).normal(size=(40_000, 2))
        clipped = np.clip(raw, action.low, action.high)
        assert np.all(drawn >= action.low)
        assert np.all(drawn <= action.high)
        # Both means have standard errors of the deviation over 200.
        assert np.all(np.abs(drawn.mean(0) - clipped.mean(0)) < 7.0 * clipped.std(0) / 200.0 + 1e-6)
    else:
        columns = drawn.reshape(40_000, -1).T
        counts = action.nvec or (action.size,)
        found = np.concatenate([np.bincount(c, minlength=n) / 40_000 for c, n in zip(columns, counts, strict=True)])
        assert np.all(np.abs(found - wanted) < 5.0 * np.sqrt(wanted / 40_000) + 1e-4)


def test_the_numpy_file_needs_numpy_only_and_says_what_it_is(tmp_path):
    family, theta, action = policy("image")
    path = tmp_path / "policy.py"
    export_policy(family, theta, path, INFO, action)
    program = (
        "import sys, runpy, numpy\nbefore = set(sys.modules)\nmade = runpy.run_path(sys.argv[1])\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)\n"
        "assert not new - {'numpy'}, new\nprint(made['__doc__'])"
    )
    said = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True).stdout
    for part in (
        "own:task",
        "learned by space",
        "spacerl 0.",
        "9 x 8 x 2 numbers, as the environment",
        "-2, 0 to 2, 10",
    ):
        assert part in said
    assert max(map(len, path.read_text().splitlines())) <= 120


@pytest.mark.parametrize("name", POLICIES)
def test_the_numpy_file_reads_well(name, tmp_path):
    ruff = pytest.importorskip("ruff.__main__", reason="ruff is not installed").find_ruff_bin()
    family, theta, action = policy(name)
    export_policy(family, theta, tmp_path / "policy.py", INFO, action)
    settings = Path(__file__).parent.parent / "pyproject.toml"
    for command in (("check",), ("format", "--check")):
        process = subprocess.run(
            [ruff, *command, "--no-cache", "--config", settings, tmp_path], capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stdout


def test_the_numpy_file_is_the_text_of_a_module_of_ours(tmp_path):
    """What linters and type checkers see here is what is exported: only constants and the first sentence differ."""
    family, theta, action = policy("physical")
    export_policy(family, theta, tmp_path / "policy.py", INFO, action)
    ours, written = inspect.getsource(numpy_policy), (tmp_path / "policy.py").read_text()
    assert ours[ours.index("def distribution") : ours.index("ARRAYS:")] in written


def test_what_a_policy_says_of_itself_is_not_run(tmp_path):
    family, theta, action = policy("physical")
    info = {"task": '"""\nraise SystemExit("run")\n"""', "algorithm": "\\"}
    parts = (ObservationPart(('from """ here \\',), "numbers", (4,)),)
    export_policy(family, theta, tmp_path / "policy.py", info, action, Forms(parts))
    assert imported(tmp_path / "policy.py").PARTS == [(('from """ here \\',), "numbers", (4,), (), ())]
    assert "raise SystemExit" in imported(tmp_path / "policy.py").__doc__


# ---------------------------------------------------------------- plain arrays


def test_plain_arrays(tmp_path):
    family, theta, action = policy("scaled")
    assert export_policy(family, theta, tmp_path / "policy.npz", INFO, action) < 1e-5
    with np.load(tmp_path / "policy.npz") as found:
        for name, leaf in family.named(theta).items():
            np.testing.assert_array_equal(found[name], leaf)
        assert json.loads(str(found["spec"])) == family.spec()
        assert json.loads(str(found["info"])) == INFO
        assert "own:task" in str(found["description"])
        np.testing.assert_allclose(found["action.centre"], [0.0, 5.0])
        np.testing.assert_allclose(found["action.std"], np.exp(found["log_std"]) * [2.0, 5.0], rtol=1e-6)


@pytest.mark.parametrize("name", ["discrete", "mixed"])
def test_plain_arrays_of_every_kind(name, tmp_path):
    family, theta, action = policy(name)
    assert export_policy(family, theta, tmp_path / "policy.npz", INFO, action) < 1e-5


# ---------------------------------------------------------------- ONNX


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("runtime", ["onnxruntime", "reference"])
def test_the_onnx_graph_is_the_policy(name, runtime, tmp_path, monkeypatch):
    library = pytest.importorskip("onnx")
    if runtime == "reference":
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
    else:
        pytest.importorskip("onnxruntime")
    family, theta, action = policy(name)
    path = tmp_path / "policy.onnx"
    assert export_policy(family, theta, path, INFO, action) < 1e-4
    model = library.load(path)
    assert json.loads({entry.key: entry.value for entry in model.metadata_props}["info"]) == INFO
    assert "own:task" in model.doc_string
    obs = observations(family, 5)
    found = onnx.run(path.read_bytes(), family, obs)
    wanted = expected(family, theta, obs, action)
    if action.kind == "box":
        np.testing.assert_allclose((found["mean"], found["std"]), wanted, rtol=1e-4, atol=1e-4)
        low, high = (end or math.inf * sign * np.ones(2) for end, sign in ((action.low, -1.0), (action.high, 1.0)))
        np.testing.assert_allclose(found["action"], np.clip(wanted[0], low, high), rtol=1e-4, atol=1e-4)
    else:
        np.testing.assert_allclose(found["probabilities"], wanted, atol=1e-4)
        assert found["action"].dtype == np.int64
        np.testing.assert_array_equal(found["action"], most_likely(wanted, action))


def test_without_onnx_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setitem(sys.modules, "onnx.checker", None)
    family, theta, action = policy("physical")
    with pytest.raises(InputError, match=r"pip install 'spacerl\[onnx\]'"):
        export_policy(family, theta, tmp_path / "policy.onnx", INFO, action)
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- what must not be written


@pytest.mark.parametrize("name", ["policy.pkl", "policy"])
def test_an_unknown_suffix_is_refused(name, tmp_path):
    family, theta, action = policy("physical")
    with pytest.raises(InputError, match=r"allowed are \.onnx, \.py, \.npz"):
        export_policy(family, theta, tmp_path / name, INFO, action)


@pytest.mark.parametrize("suffix", [".py", ".npz"])
def test_an_export_that_differs_is_not_written(suffix, tmp_path, monkeypatch):
    family, theta, action = policy("physical")
    make, run = exporting.FORMATS[suffix]
    wrong = theta.at[0].add(0.01)
    other = exporting.Format(lambda original: make(dataclasses.replace(original, theta=wrong)), run)
    monkeypatch.setitem(exporting.FORMATS, suffix, other)
    with pytest.raises(RuntimeError, match="differs from the original: mean by"):
        export_policy(family, theta, tmp_path / f"policy{suffix}", INFO, action)
    assert not list(tmp_path.iterdir())


def test_a_linear_policy_and_a_tiny_deviation(tmp_path):
    family, theta, action = policy("physical", hidden=())
    theta = theta.at[-2:].set(-50.0)  # the network holds deviations above a smallest one, and so must exports
    for suffix in (".py", ".npz"):
        export_policy(family, theta, tmp_path / f"policy{suffix}", {}, action)
    std = imported(tmp_path / "policy.py").distribution(np.zeros(4))[1]
    np.testing.assert_allclose(std, 1e-6, rtol=1e-5)
