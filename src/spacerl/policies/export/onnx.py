"""A policy as an ONNX graph. onnx is imported where it is used: it is heavy, and an extra."""

from __future__ import annotations

import importlib
import json
import math
from typing import Any

import numpy as np

from spacerl.policies.export.original import Original, Outputs, arrays, spans_of_numbers
from spacerl.policies.family import PolicyFamily, convolutions
from spacerl.types import ActionSpace, InputError

OPSET, IR_VERSION = 17, 8  # the format's version of this set of operators: older runtimes read it too
Heads = list[tuple[str, int, list[int]]]  # name, element type, shape without the batch


def make(original: Original) -> bytes:
    """The graph takes `observation`; it gives mean, std and action, or probabilities and action."""
    onnx, family, action = _import_onnx(), original.family, original.action
    graph, named = Graph(onnx), arrays(original)
    outputs = _network(graph, family, named)
    heads = _gaussian(graph, outputs, named, action.size) if action.kind == "box" else _discrete(graph, outputs, action)
    take = onnx.helper.make_tensor_value_info("observation", onnx.TensorProto.FLOAT, ["batch", *family.obs_shape])
    give = [onnx.helper.make_tensor_value_info(name, kind, ["batch", *size]) for name, kind, size in heads]
    text = original.description
    made = onnx.helper.make_graph(graph.nodes, "policy", [take], give, graph.constants, doc_string=text)
    opset = onnx.helper.make_opsetid("", OPSET)
    model = onnx.helper.make_model(made, opset_imports=[opset], producer_name="spacerl", doc_string=text)
    model.ir_version = IR_VERSION
    onnx.helper.set_model_props(model, {"info": json.dumps(original.info), "spec": json.dumps(family.spec())})
    onnx.checker.check_model(model)
    return model.SerializeToString()


def run(content: bytes, family: PolicyFamily, obs: np.ndarray) -> Outputs:
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


def _import_onnx() -> Any:
    """onnx with the parts used here."""
    try:
        for part in ("checker", "helper", "numpy_helper", "reference"):
            importlib.import_module(f"onnx.{part}")
        return importlib.import_module("onnx")
    except ImportError as error:
        raise InputError("exporting to ONNX needs onnx: install it with pip install 'spacerl[onnx]'") from error


class Graph:
    """Nodes and constants of an ONNX graph as they are added. Values are known by their names."""

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


def _network(graph: Graph, family: PolicyFamily, named: dict[str, np.ndarray]) -> str:
    x = flat = graph.reshape("observation", -1, math.prod(family.obs_shape))
    if family.images:
        parts = [_image_features(graph, flat, k, family, named) for k in range(len(family.images))]
        numbers = [i for start, end in spans_of_numbers(family) for i in range(start, end)]
        parts += [graph.add("Gather", flat, graph.constant(np.array(numbers, np.int64)), axis=1)] if numbers else []
        x = graph.add("Concat", *parts, axis=1)
    for i in range(len(family.hidden) + 1):
        names = [f"layers.{i}.{part}" for part in ("weight", "bias")]
        x = graph.add("Gemm", x, *(graph.constant(named[name], name) for name in names))
        x = graph.add("Tanh", x) if i < len(family.hidden) else x
    return x


def _image_features(graph: Graph, flat: str, k: int, family: PolicyFamily, named: dict[str, np.ndarray]) -> str:
    """One image's features. ONNX puts channels first; ours come last, and so do the features' weights."""
    offset, shape, scale = family.images[k]
    layers, features = convolutions(shape, family.filters)
    x = graph.reshape(graph.columns(flat, offset, offset + math.prod(shape)), -1, *shape)
    x = graph.add("Transpose", graph.add("Mul", x, graph.constant(np.float32(scale))), perm=[0, 3, 1, 2])
    for i, layer in enumerate(layers):
        name = f"images.{k}.layers.{i}"
        kernel = graph.constant(named[f"{name}.kernel"].transpose(3, 2, 0, 1), f"{name}.kernel")
        bias = graph.constant(named[f"{name}.bias"], f"{name}.bias")
        x = graph.add("Tanh", graph.add("Conv", x, kernel, bias, strides=[layer.stride] * 2))
    return graph.reshape(graph.add("Transpose", x, perm=[0, 2, 3, 1]), -1, features)


def _gaussian(graph: Graph, outputs: str, named: dict[str, np.ndarray], size: int) -> Heads:
    constants = {name: graph.constant(array, name) for name, array in named.items() if name.startswith("action.")}
    stretched = graph.add("Mul", outputs, constants["action.half_width"])
    mean = graph.add("Add", stretched, constants["action.centre"], output="mean")
    graph.add("Expand", constants["action.std"], graph.add("Shape", mean), output="std")
    above = graph.add("Max", mean, constants["action.low"])
    graph.add("Min", above, constants["action.high"], output="action")
    return [(name, graph.onnx.TensorProto.FLOAT, [size]) for name in ("mean", "std", "action")]


def _discrete(graph: Graph, outputs: str, action: ActionSpace) -> Heads:
    types = graph.onnx.TensorProto
    if action.kind == "discrete":
        graph.add("Softmax", outputs, output="probabilities", axis=1)
        graph.add("ArgMax", outputs, output="action", axis=1, keepdims=0)
        return [("probabilities", types.FLOAT, [action.size]), ("action", types.INT64, [])]
    ends = np.cumsum(action.nvec)
    parts = [graph.columns(outputs, int(end - n), int(end)) for end, n in zip(ends, action.nvec, strict=True)]
    graph.add("Concat", *(graph.add("Softmax", one, axis=1) for one in parts), output="probabilities", axis=1)
    graph.add("Concat", *(graph.add("ArgMax", one, axis=1, keepdims=1) for one in parts), output="action", axis=1)
    return [("probabilities", types.FLOAT, [action.size]), ("action", types.INT64, [len(parts)])]
