"""ONNX graphs. They hold numbers and a fixed set of operations, no Python, so they load without --trust.

Weights in a file of their own must lie in the folder of the graph; onnxruntime (1.24 and later) and onnx refuse others.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spacerl.policies.foreign.common import (
    CHUNK,
    Foreign,
    Output,
    Raw,
    existing,
    flat_or_raw,
    in_chunks,
    need,
    probe,
    reading_of,
)
from spacerl.runs.memory import gigabytes, host_memory
from spacerl.runs.names import in_words
from spacerl.types import ActionSpace, InputError

_DTYPES = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "uint8": np.uint8,
    "int32": np.int32,
    "int64": np.int64,
}


MOST_NODES = 1_000_000
AS_ASKED = 1  # onnxruntime's name for taking no more memory than was asked for
LARGEST_GRAPH = 2**31  # bytes; protobuf holds no more


class Graph(NamedTuple):
    """A graph and who runs it: input names, shape of the first input (None: any size), and its dtype."""

    inputs: list[str]
    shape: list[int | None]
    dtype: Any
    run: Callable[[np.ndarray], dict[str, np.ndarray]]
    runtime: str


def load_onnx(given: str, action: ActionSpace, obs_shape: tuple[int, ...], trust: bool, raw: Raw | None) -> Foreign:
    path = str(existing(given))
    _require_sound(path, given, trust)
    graph = _with_runtime(path, given) if _installed("onnxruntime") else _with_reference(path, given)
    if len(graph.inputs) != 1:
        raise InputError(
            f"policy file '{given}' has {len(graph.inputs)} inputs ({', '.join(graph.inputs)}): "
            "one input with a batch of observations is expected"
        )

    def fits(shape: tuple[int, ...]) -> bool:
        wanted = graph.shape[1:]
        return len(wanted) == len(shape) and all(w in (None, n) for w, n in zip(wanted, shape, strict=True))

    feed = flat_or_raw(obs_shape, raw, fits)
    if feed is None:
        takes = "(" + ", ".join("any" if size is None else str(size) for size in graph.shape) + ")"
        raise InputError(
            f"policy file '{given}' takes an input of shape {takes}, and a batch of observations of this environment "
            f"has shape (any, {', '.join(map(str, obs_shape))})"
        )
    batch = graph.shape[0]

    def outputs(obs: np.ndarray) -> dict[str, np.ndarray]:
        batch_of = np.asarray(feed(obs)).astype(graph.dtype)
        try:
            return graph.run(batch_of)
        except Exception as error:
            raise InputError(f"policy file '{given}' fails on observations: {in_words(error)}") from error

    tried = probe(obs_shape, batch or 8)
    reading = reading_of(outputs(tried), len(tried), action, given)

    def evaluate(obs: np.ndarray) -> Output:
        rows = len(obs)
        if batch and rows < batch:  # a graph for batches of one size gets its last one filled up
            obs = np.concatenate([obs, np.zeros((batch - rows, *obs.shape[1:]), obs.dtype)])
        output = reading.read(outputs(obs), len(obs))
        return (output[0][:rows], output[1][:rows]) if isinstance(output, tuple) else output[:rows]

    info = {"runtime": graph.runtime, "input": graph.inputs[0], "output": reading.says}
    return Foreign(given, "onnx", lambda obs: in_chunks(evaluate, obs, batch or CHUNK), reading.deterministic, info)


def _require_sound(path: str, given: str, trust: bool) -> None:
    """Numbers that are finite, and nothing that may go on for ever."""
    onnx = need("onnx", given, "an ONNX graph", "onnx")
    numpy_helper = need("onnx.numpy_helper", given, "an ONNX graph", "onnx")
    try:
        size = Path(path).stat().st_size
        if size >= LARGEST_GRAPH:
            raise InputError(f"policy file '{given}' has {gigabytes(size)} GB: an ONNX graph has less than 2")
        model = onnx.load(path)
        graphs = [model.graph, *model.functions]
        for graph in graphs:
            nodes = list(graph.node)
            inner = [attribute for node in nodes for attribute in node.attribute]
            graphs += [each.g for each in inner if each.HasField("g")] + [g for each in inner for g in each.graphs]
            tensors = [each.t for each in inner if each.HasField("t")] + list(getattr(graph, "initializer", ()))
            for tensor in tensors:
                array = np.asarray(numpy_helper.to_array(tensor))
                if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
                    raise InputError(f"policy file '{given}' has a number in '{tensor.name}' that is not finite")
            if not trust and any(node.op_type == "Loop" for node in nodes):
                raise InputError(
                    f"policy file '{given}' has a Loop, which may never end: pass --trust (trust=True) if you trust it"
                )
        _require_reasonable(model, given)
    except InputError:
        raise
    except Exception as error:
        raise _unreadable(given, error) from error


def _require_reasonable(model: Any, given: str) -> None:
    """Functions that call others twice, and those others twice, are a file of a page and a graph without end."""
    functions = {(each.domain, each.name): each for each in model.functions}
    sizes: dict[tuple[str, str], float] = {}

    def size(nodes: Any) -> float:
        inner = [
            g
            for node in nodes
            for each in node.attribute
            for g in [*([each.g] if each.HasField("g") else []), *each.graphs]
        ]
        return sum(map(size_of, nodes)) + sum(size(graph.node) for graph in inner)

    def size_of(node: Any) -> float:
        called = (node.domain, node.op_type)
        if called not in functions:
            return 1
        if called not in sizes:
            sizes[called] = math.inf  # where it calls itself
            sizes[called] = size(functions[called].node)
        return sizes[called]

    if size(model.graph.node) > MOST_NODES:
        raise InputError(f"policy file '{given}' unfolds to more than {MOST_NODES:,} operations: it is not read")


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # sys.modules says None
        return False


def _with_runtime(path: str, given: str) -> Graph:
    ort = need("onnxruntime", given, "an ONNX graph", "onnx")
    options = ort.SessionOptions()
    options.log_severity_level = 4  # errors come back as exceptions
    _limit_memory(ort)
    options.add_session_config_entry("session.use_env_allocators", "1")
    try:  # constants that are made at once, when the graph is read, would be made outside of that limit
        session = ort.InferenceSession(
            path, options, providers=["CPUExecutionProvider"], disabled_optimizers=["ConstantFolding"]
        )
    except Exception as error:
        raise _unreadable(given, error) from error
    inputs, names = session.get_inputs(), [each.name for each in session.get_outputs()]
    shape = [size if isinstance(size, int) and size > 0 else None for size in (inputs[0].shape if inputs else [])]

    def run(obs: np.ndarray) -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(None, {inputs[0].name: obs}), strict=True))

    kind = inputs[0].type.removeprefix("tensor(").removesuffix(")") if inputs else "float"
    return Graph([each.name for each in inputs], shape, _dtype(kind, given), run, f"onnxruntime {ort.__version__}")


@functools.cache
def _limit_memory(ort: Any) -> None:
    """Half of what is free when the first graph is read: one of a page can ask for any number of numbers."""
    there = host_memory()
    limits = {"max_mem": int(there / 2) if math.isfinite(there) else 0}  # 0: none
    info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    with contextlib.suppress(RuntimeError):  # the user's own program has set limits
        ort.create_and_register_allocator(info, ort.OrtArenaCfg(limits | {"arena_extend_strategy": AS_ASKED}))


def _with_reference(path: str, given: str) -> Graph:
    """Slower, and enough for small networks."""
    onnx = need("onnx", given, "an ONNX graph", "onnx")
    reference = need("onnx.reference", given, "an ONNX graph", "onnx")
    try:
        model = onnx.load(path)
        if not model.graph.node:  # an empty file is an empty graph
            raise ValueError("there is nothing in it")
        session = reference.ReferenceEvaluator(model)
    except Exception as error:
        raise _unreadable(given, error) from error
    held = {each.name for each in model.graph.initializer}
    inputs = [each for each in model.graph.input if each.name not in held]
    tensor = inputs[0].type.tensor_type if inputs else None
    shape = [size.dim_value or None for size in tensor.shape.dim] if tensor else []
    kind = onnx.TensorProto.DataType.Name(tensor.elem_type).lower() if tensor else "float"
    names = [each.name for each in model.graph.output]

    def run(obs: np.ndarray) -> dict[str, np.ndarray]:
        return dict(zip(names, map(np.asarray, session.run(None, {inputs[0].name: obs})), strict=True))

    return Graph([each.name for each in inputs], shape, _dtype(kind, given), run, f"onnx {onnx.__version__}")


def _dtype(kind: str, given: str) -> Any:
    if kind not in _DTYPES:
        raise InputError(f"policy file '{given}' takes an input of type {kind}: allowed are {', '.join(_DTYPES)}")
    return _DTYPES[kind]


def _unreadable(given: str, error: Exception) -> InputError:
    return InputError(f"policy file '{given}' is not a readable ONNX graph: {in_words(error)}")
