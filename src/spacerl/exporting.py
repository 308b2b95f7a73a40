"""A finished policy as a file that others can run without spacerl: ONNX, one NumPy-only Python file, or plain arrays.

Exports speak the environment's units, take raw observations, and are written only after they gave the same numbers as
the original on random observations.
"""

from __future__ import annotations

import base64
import importlib
import importlib.util
import io
import json
import math
import tempfile
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import spacerl
from spacerl.config import InputError
from spacerl.policies import MIN_STD, PolicyFamily, convolutions
from spacerl.runs import write_atomically
from spacerl.types import ActionSpace, Array

TOLERANCE = 1e-4  # of the largest number compared, or of 1: float32 summed in another order
OBSERVATION_NOTE = "as the environment gives them"
Outputs = dict[str, np.ndarray]


def export_policy(
    family: PolicyFamily,
    theta: Array,
    path: str | Path,
    info: dict[str, Any],
    action: ActionSpace,
    observation_note: str = OBSERVATION_NOTE,
) -> float:
    """Write the policy theta (of raw observations: folded) to `path`, in the format its suffix names.

    `action` is the task's action space, which has the bounds; `observation_note` says what observations are. Returns
    the largest difference between the outputs of the export and of the original; too large a one raises RuntimeError
    and writes nothing.
    """
    path = Path(path)
    if path.suffix not in EXPORTS:
        given = f"'{path.suffix}'" if path.suffix else "no suffix"
        raise InputError(f"cannot export to '{path}': it has {given}, allowed are {', '.join(EXPORTS)}")
    make, run = EXPORTS[path.suffix]
    described = _description(family, info, action, observation_note)
    content = make(family, theta, described, info, action)
    obs = _random_observations(family)
    expected, difference = _original(family, theta, obs, action), 0.0
    for rows in (1, len(obs)):  # batches of different sizes
        wanted = {name: array[:rows] for name, array in expected.items()}
        difference = max(difference, _compared(run(content, family, obs[:rows]), wanted, path))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return difference


def _description(family: PolicyFamily, info: dict[str, Any], action: ActionSpace, observation_note: str) -> str:
    """What a reader of the file must know, in lines of at most 100 characters."""
    task = f" for the task {info['task']}" if info.get("task") else ""
    by = f", learned by {info['algorithm']}" if info.get("algorithm") else ""
    shape = " x ".join(map(str, family.obs_shape))
    actions = {
        "box": f"{action.size} real numbers in the environment's units, normally distributed before they are clipped",
        "discrete": f"one of {action.size} choices, counted from 0",
        "multidiscrete": f"one choice of each of {len(action.choices)} lists of {_listed(action.choices)}, from 0",
    }
    lines = [
        f"A policy{task}{by}. Made by spacerl {spacerl.__version__}.",
        "",
        f"Observations: {shape} numbers, {observation_note}.",
        f"Actions: {actions[action.kind]}.",
    ]
    if action.kind == "box" and action.low:
        lines += [f"Bounds: {_listed(action.low)} to {_listed(action.high)}."]
    return "\n".join(part for line in map(_harmless, lines) for part in textwrap.wrap(line, 100) or [""])


def _listed(values: Any) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _harmless(text: str) -> str:
    """One line that cannot end a docstring: what files say about themselves is not to be run."""
    return "".join(c if c.isprintable() else " " for c in text).replace("\\", "/").replace('"', "'")


# Checking -------------------------------------------------------------------------------------------------------------


def _random_observations(family: PolicyFamily, rows: int = 16) -> np.ndarray:
    """Numbers of about one and of about ten; pixels over all of their range."""
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(rows, math.prod(family.obs_shape))) * np.where(np.arange(rows) % 2, 10.0, 1.0)[:, None]
    for offset, shape, scale in family.images:
        pixels = rng.uniform(0.0, 1.0 / scale, size=(rows, math.prod(shape)))
        flat[:, offset : offset + math.prod(shape)] = np.rint(pixels) if scale < 0.5 else pixels
    return flat.astype(np.float32).reshape(rows, *family.obs_shape)


def _original(family: PolicyFamily, theta: Array, obs: np.ndarray, action: ActionSpace) -> Outputs:
    with jax.default_matmul_precision("highest"):
        dist: Any = jax.device_get(jax.jit(family.apply)(theta, jnp.asarray(obs)))
    if action.kind == "box":
        centre, half = _units(action)
        mean = centre + half * dist.mean
        return {"mean": mean, "std": half * np.exp(dist.log_std), "action": np.clip(mean, *_bounds(action))}
    lists = dist.lists() if action.kind == "multidiscrete" else [dist]
    return {"probabilities": np.concatenate([jax.nn.softmax(one.logits) for one in lists], axis=-1)}


def _compared(found: Outputs, expected: Outputs, path: Path) -> float:
    """Largest difference of what both have; an action that was chosen need not be compared: rounding breaks ties."""
    worst = 0.0
    for name, wanted in expected.items():
        if found[name].shape != wanted.shape:
            raise RuntimeError(f"export to '{path}' has {name} of shape {found[name].shape}, not {wanted.shape}")
        difference = float(np.max(np.abs(found[name] - wanted)))
        if not difference <= TOLERANCE * max(1.0, float(np.max(np.abs(wanted)))):
            raise RuntimeError(f"export to '{path}' differs from the original: {name} by {difference:.3g}")
        worst = max(worst, difference)
    return worst


def _units(action: ActionSpace) -> tuple[np.ndarray, np.ndarray]:
    """Centre and half width of the range that [-1, 1] stands for, (A,); 0 and 1 for policies in physical units."""
    if not action.scaled:
        return np.zeros(action.size, np.float32), np.ones(action.size, np.float32)
    low, high = np.array(action.low), np.array(action.high)
    return (0.5 * (high + low)).astype(np.float32), (0.5 * (high - low)).astype(np.float32)


def _bounds(action: ActionSpace) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the actions (A,), the largest numbers where none are known."""
    limit = float(np.finfo(np.float32).max)
    ends = (action.low or (-limit,) * action.size, action.high or (limit,) * action.size)
    low, high = (np.clip(np.array(end, np.float64), -limit, limit).astype(np.float32) for end in ends)
    return low, high


def _arrays(family: PolicyFamily, theta: Array, action: ActionSpace) -> dict[str, np.ndarray]:
    """Parameters by name; instead of log_std what turns the network's outputs into the environment's units."""
    named = {name: np.asarray(leaf, np.float32) for name, leaf in family.named(theta).items()}
    if action.kind == "box":
        centre, half = _units(action)
        named["action.std"] = half * np.maximum(np.exp(named.pop("log_std")), MIN_STD)
        low, high = _bounds(action)
        named |= {"action.centre": centre, "action.half_width": half, "action.low": low, "action.high": high}
    return named


# Plain arrays ---------------------------------------------------------------------------------------------------------


def _npz(family: PolicyFamily, theta: Array, described: str, info: dict[str, Any], action: ActionSpace) -> bytes:
    """Arrays by the names of policy files, the description of the network as text, and the action's units."""
    texts = {"description": described, "spec": json.dumps(family.spec()), "info": json.dumps(info)}
    named: dict[str, Any] = {name: np.asarray(leaf) for name, leaf in family.named(theta).items()}
    named |= _arrays(family, theta, action) | {name: np.array(text) for name, text in texts.items()}
    buffer = io.BytesIO()
    np.savez(buffer, **named)
    return buffer.getvalue()


def _run_npz(content: bytes, family: PolicyFamily, obs: np.ndarray) -> Outputs:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        named = {
            name.removesuffix(".npy"): np.lib.format.read_array(io.BytesIO(archive.read(name)))
            for name in archive.namelist()
        }
    space = family.action._replace(low=(), high=(), scaled=False)
    outputs = _original(family, family.from_named(named), obs, space)
    if space.kind == "box":
        mean = named["action.centre"] + named["action.half_width"] * outputs["mean"]
        clipped = np.clip(mean, named["action.low"], named["action.high"])
        outputs = {"mean": mean, "std": np.broadcast_to(named["action.std"], mean.shape), "action": clipped}
    return outputs


# NumPy ----------------------------------------------------------------------------------------------------------------

_HEAD = '''\
"""{described}

distribution(obs)  {returns}
act(obs)           the most likely action
act(obs, rng)      a random one, with rng = numpy.random.default_rng(seed)

obs has the shape {shape}; for a batch of observations (..., {inner}).

Needs NumPy and nothing else. The weights are at the end of the file.
"""

import base64

import numpy as np

OBS_SHAPE = {shape}
'''

_NETWORK = '''

def _outputs(obs):
    """The network: tanh layers, the last one linear."""
    obs = np.asarray(obs, np.float32)
    batch = obs.shape[: obs.ndim - len(OBS_SHAPE)]
    x = obs.reshape(-1, int(np.prod(OBS_SHAPE)))
{features}    for i in range(LAYERS - 1):
        x = np.tanh(x @ ARRAYS[f"layers.{{i}}.weight"] + ARRAYS[f"layers.{{i}}.bias"])
    x = x @ ARRAYS[f"layers.{{LAYERS - 1}}.weight"] + ARRAYS[f"layers.{{LAYERS - 1}}.bias"]
    return x.reshape(*batch, -1)
'''

_EYES = '''

def _features(flat):
    """Pictures through their convolutions, joined by the other numbers of the observation."""
    parts = []
    for e, (offset, shape, scale, strides) in enumerate(IMAGES):
        x = flat[:, offset : offset + int(np.prod(shape))].reshape(-1, *shape) * np.float32(scale)
        for i, stride in enumerate(strides):
            x = _convolve(x, ARRAYS[f"images.{e}.layers.{i}.kernel"], stride)
            x = np.tanh(x + ARRAYS[f"images.{e}.layers.{i}.bias"])
        parts.append(x.reshape(len(flat), -1))
    return np.concatenate([*parts, flat[:, NUMBERS]], axis=-1)


def _convolve(x, kernel, stride):
    """Pictures (batch, height, width, channels) and a kernel (size, size, channels, filters), without padding."""
    size = kernel.shape[0]
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))[:, ::stride, ::stride]
    return np.tensordot(windows, kernel.transpose(2, 0, 1, 3), axes=3)
'''

_BOX = '''

def distribution(obs):
    """Mean and standard deviation of the actions before they are clipped, in the environment's units."""
    mean = ARRAYS["action.centre"] + ARRAYS["action.half_width"] * _outputs(obs)
    return mean, np.broadcast_to(ARRAYS["action.std"], mean.shape)


def act(obs, rng=None):
    """Actions within their bounds: the mean, or with a NumPy generator a random one."""
    mean, std = distribution(obs)
    action = mean if rng is None else mean + std * rng.standard_normal(mean.shape).astype(np.float32)
    return np.clip(action, ARRAYS["action.low"], ARRAYS["action.high"])
'''

_CHOICES = '''

def distribution(obs):
    """Probabilities of all choices{beside}."""
    powers = [np.exp(x - x.max(axis=-1, keepdims=True)) for x in _lists(_outputs(obs))]
    return np.concatenate([x / x.sum(axis=-1, keepdims=True) for x in powers], axis=-1)


def act(obs, rng=None):
    """{choice} as integers: the most likely, or with a NumPy generator a random one."""
    chosen = [_choose(probabilities, rng) for probabilities in _lists(distribution(obs))]
    return {answer}


def _lists(row):
    return np.split(row, np.cumsum(CHOICES)[:-1], axis=-1)


def _choose(probabilities, rng):
    if rng is None:
        return np.argmax(probabilities, axis=-1)
    reached = np.cumsum(probabilities, axis=-1)
    return np.argmax(reached > reached[..., -1:] * rng.random((*reached.shape[:-1], 1)), axis=-1)
'''

_ARRAYS = """

def _array(shape, text):
    return np.frombuffer(base64.b64decode(text), "<f4").reshape(shape)


ARRAYS = {
"""

_RETURNS = {
    "box": "mean and standard deviation of the action",
    "discrete": "the probability of every choice",
    "multidiscrete": "the probability of every choice, the lists side by side",
}


def _python(family: PolicyFamily, theta: Array, described: str, info: dict[str, Any], action: ActionSpace) -> bytes:
    shape, kind = tuple(family.obs_shape), action.kind
    inner = ", ".join(map(str, shape))
    parts = [_HEAD.format(described=described, returns=_RETURNS[kind], shape=shape, inner=inner)]
    parts += [f"LAYERS = {len(family.hidden) + 1}\n"]
    if family.images:
        parts += ["IMAGES = [  # offset, (height, width, channels), scale of the pixels, strides of the convolutions\n"]
        for offset, size, scale in family.images:
            strides = tuple(layer.stride for layer in convolutions(size, family.filters)[0])
            parts += [f"    ({offset}, {size}, {scale!r}, {strides}),\n"]
        parts += ["]\n", f"NUMBERS = {_places(family)}  # all other entries\n"]
    if kind == "box":
        body = _BOX
    else:
        several = kind == "multidiscrete"
        parts += [f"CHOICES = {action.choices if several else (action.size,)}\n"]
        beside, choice = (", the lists side by side", "Choices") if several else ("", "The choice")
        answer = "np.stack(chosen, axis=-1)" if several else "chosen[0]"
        body = _CHOICES.format(beside=beside, choice=choice, answer=answer)
    parts += [body, _NETWORK.format(features="    x = _features(x)\n" if family.images else "")]
    parts += [_EYES] if family.images else []
    parts += [_ARRAYS, *(_embedded(name, array) for name, array in _arrays(family, theta, action).items()), "}\n"]
    return "".join(parts).encode()


def _places(family: PolicyFamily) -> str:
    """Slices of the entries outside of pictures, as NumPy writes them."""
    ends = [0, *(offset + math.prod(shape) for offset, shape, _ in sorted(family.images))]
    starts = [*(offset for offset, _, _ in sorted(family.images)), math.prod(family.obs_shape)]
    slices = [f"{end}:{start}" for end, start in zip(ends, starts, strict=True) if start > end]
    return f"np.r_[{', '.join(slices)}]" if slices else "np.zeros(0, int)"


def _embedded(name: str, array: np.ndarray) -> str:
    """One entry of ARRAYS: the shape, and the bytes of little-endian float32 as text."""
    text = base64.b64encode(np.ascontiguousarray(array, "<f4").tobytes()).decode()
    lines = "\n".join(f'        "{text[i : i + 100]}"' for i in range(0, max(len(text), 1), 100))
    return f'    "{name}": _array(\n        {array.shape},\n{lines},\n    ),\n'


def _run_python(content: bytes, family: PolicyFamily, obs: np.ndarray) -> Outputs:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.py"
        path.write_bytes(content)
        spec = importlib.util.spec_from_file_location("exported_policy", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    if family.action.kind != "box":
        return {"probabilities": module.distribution(obs)}
    mean, std = module.distribution(obs)
    return {"mean": mean, "std": std, "action": module.act(obs)}


# ONNX -----------------------------------------------------------------------------------------------------------------


class _Graph:
    """Nodes and constants of an ONNX graph as they are added."""

    def __init__(self, onnx: Any):
        self.onnx, self.nodes, self.constants = onnx, [], []

    def constant(self, array: Any, name: str | None = None) -> str:
        name = name or f"constant_{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def add(self, operation: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        output = output or f"{operation.lower()}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operation, list(inputs), [output], **attributes))
        return output

    def reshape(self, x: str, *shape: int) -> str:
        return self.add("Reshape", x, self.constant(np.array(shape, np.int64)))

    def columns(self, x: str, start: int, end: int) -> str:
        ends = [self.constant(np.array([value], np.int64)) for value in (start, end, 1)]
        return self.add("Slice", x, *ends)


def _onnx(family: PolicyFamily, theta: Array, described: str, info: dict[str, Any], action: ActionSpace) -> bytes:
    onnx = _import_onnx()
    graph, arrays = _Graph(onnx), _arrays(family, theta, action)
    outputs = _onnx_network(graph, family, arrays)
    if action.kind == "box":
        heads = _onnx_gaussian(graph, outputs, arrays, action.size)
    else:
        heads = _onnx_choices(graph, outputs, action)
    take = onnx.helper.make_tensor_value_info("observation", onnx.TensorProto.FLOAT, ["batch", *family.obs_shape])
    give = [onnx.helper.make_tensor_value_info(name, kind, ["batch", *size]) for name, kind, size in heads]
    made = onnx.helper.make_graph(graph.nodes, "policy", [take], give, graph.constants, doc_string=described)
    opset = onnx.helper.make_opsetid("", 17)
    model = onnx.helper.make_model(made, opset_imports=[opset], producer_name="spacerl", doc_string=described)
    model.ir_version = 8  # the one of this opset: older runtimes read it too
    onnx.helper.set_model_props(model, {"info": json.dumps(info), "spec": json.dumps(family.spec())})
    onnx.checker.check_model(model)
    return model.SerializeToString()


def _import_onnx() -> Any:
    """onnx with the parts used here; a heavy import, and an extra."""
    try:
        for part in ("checker", "helper", "numpy_helper", "reference"):
            importlib.import_module(f"onnx.{part}")
        return importlib.import_module("onnx")
    except ImportError as error:
        raise InputError("exporting to ONNX needs onnx: install it with pip install 'spacerl[onnx]'") from error


def _onnx_network(graph: _Graph, family: PolicyFamily, arrays: dict[str, np.ndarray]) -> str:
    x = flat = graph.reshape("observation", -1, math.prod(family.obs_shape))
    if family.images:
        parts = [_onnx_eye(graph, flat, e, family, arrays) for e in range(len(family.images))]
        numbers = np.asarray(family.layout.numbers_of(jnp.arange(math.prod(family.obs_shape))), np.int64)
        parts += [graph.add("Gather", flat, graph.constant(numbers), axis=1)] if len(numbers) else []
        x = graph.add("Concat", *parts, axis=1)
    for i in range(len(family.hidden) + 1):
        weight, bias = (
            graph.constant(arrays[f"layers.{i}.{part}"], f"layers.{i}.{part}") for part in ("weight", "bias")
        )
        x = graph.add("Gemm", x, weight, bias)
        x = graph.add("Tanh", x) if i < len(family.hidden) else x
    return x


def _onnx_eye(graph: _Graph, flat: str, e: int, family: PolicyFamily, arrays: dict[str, np.ndarray]) -> str:
    """One picture's features. ONNX puts channels first; ours come last, and so do the features' weights."""
    offset, shape, scale = family.images[e]
    layers, features = convolutions(shape, family.filters)
    x = graph.reshape(graph.columns(flat, offset, offset + math.prod(shape)), -1, *shape)
    x = graph.add("Transpose", graph.add("Mul", x, graph.constant(np.float32(scale))), perm=[0, 3, 1, 2])
    for i, layer in enumerate(layers):
        name = f"images.{e}.layers.{i}"
        kernel = graph.constant(arrays[f"{name}.kernel"].transpose(3, 2, 0, 1), f"{name}.kernel")
        bias = graph.constant(arrays[f"{name}.bias"], f"{name}.bias")
        x = graph.add("Tanh", graph.add("Conv", x, kernel, bias, strides=[layer.stride] * 2))
    return graph.reshape(graph.add("Transpose", x, perm=[0, 2, 3, 1]), -1, features)


Heads = list[tuple[str, int, list[int]]]  # name, element type, shape without the batch


def _onnx_gaussian(graph: _Graph, outputs: str, arrays: dict[str, np.ndarray], size: int) -> Heads:
    constants = {name: graph.constant(array, name) for name, array in arrays.items() if name.startswith("action.")}
    stretched = graph.add("Mul", outputs, constants["action.half_width"])
    mean = graph.add("Add", stretched, constants["action.centre"], output="mean")
    graph.add("Expand", constants["action.std"], graph.add("Shape", mean), output="std")
    above = graph.add("Max", mean, constants["action.low"])
    graph.add("Min", above, constants["action.high"], output="action")
    return [(name, graph.onnx.TensorProto.FLOAT, [size]) for name in ("mean", "std", "action")]


def _onnx_choices(graph: _Graph, outputs: str, action: ActionSpace) -> Heads:
    types = graph.onnx.TensorProto
    if action.kind == "discrete":
        graph.add("Softmax", outputs, output="probabilities", axis=1)
        graph.add("ArgMax", outputs, output="action", axis=1, keepdims=0)
        return [("probabilities", types.FLOAT, [action.size]), ("action", types.INT64, [])]
    ends = np.cumsum(action.choices)
    lists = [graph.columns(outputs, int(end - n), int(end)) for end, n in zip(ends, action.choices, strict=True)]
    graph.add("Concat", *(graph.add("Softmax", one, axis=1) for one in lists), output="probabilities", axis=1)
    graph.add("Concat", *(graph.add("ArgMax", one, axis=1, keepdims=1) for one in lists), output="action", axis=1)
    return [("probabilities", types.FLOAT, [action.size]), ("action", types.INT64, [len(lists)])]


def _run_onnx(content: bytes, family: PolicyFamily, obs: np.ndarray) -> Outputs:
    """With onnxruntime where it is installed, otherwise with the slower evaluator that comes with onnx."""
    try:
        session: Any = importlib.import_module("onnxruntime").InferenceSession(
            content, providers=["CPUExecutionProvider"]
        )
        names = [output.name for output in session.get_outputs()]
    except ImportError:
        onnx = _import_onnx()
        session = onnx.reference.ReferenceEvaluator(onnx.load_from_string(content))
        names = session.output_names
    return dict(zip(names, session.run(None, {"observation": obs}), strict=True))


Make = Callable[[PolicyFamily, Array, str, dict[str, Any], ActionSpace], bytes]
Run = Callable[[bytes, PolicyFamily, np.ndarray], Outputs]
EXPORTS: dict[str, tuple[Make, Run]] = {
    ".onnx": (_onnx, _run_onnx),
    ".py": (_python, _run_python),
    ".npz": (_npz, _run_npz),
}
