"""A policy as one Python file that needs NumPy alone: the text of `numpy_policy` with its constants filled in."""

from __future__ import annotations

import base64
import importlib.util
import inspect
import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spacerl.policies.export import numpy_policy
from spacerl.policies.export.original import Original, Outputs, arrays, spans_of_numbers
from spacerl.policies.family import PolicyFamily, convolutions


def make(original: Original) -> bytes:
    _, _, below_first_sentence = inspect.getsource(numpy_policy).partition("\n\n")
    source = f'"""{original.description}\n\n{below_first_sentence}'
    for name, value in _constants(original).items():
        source = _filled(source, name, value)
    return source.encode()


def _constants(original: Original) -> dict[str, str]:
    """Constants of `numpy_policy` as Python text."""
    family, action = original.family, original.action
    weights = "".join(_embedded(name, array) for name, array in arrays(original).items())
    return {
        "KIND": f'"{action.kind}"',
        "COUNTS": str({"box": (), "discrete": (action.size,), "multidiscrete": action.nvec}[action.kind]),
        "OBS_SHAPE": str(tuple(family.obs_shape)),
        "IMAGES": _images(family),
        "NUMBERS": _numbers(family),
        "LAYERS": str(len(family.hidden) + 1),
        "PARTS": _rows(original.observation_parts),
        "ACTION_PARTS": _rows(original.action_parts),
        "ARRAYS": f"{{\n{weights}}}",
    }


def _rows(parts: Sequence[tuple[Any, ...]]) -> str:
    """Plain tuples, a line each."""
    return "[\n" + "".join(f"    {_text(tuple(part))},\n" for part in parts) + "]" if parts else "[]"


def _text(value: Any) -> str:
    """A tuple of texts, numbers and tuples as Python code, with double quotes; keys of a Dict are texts or numbers."""
    if isinstance(value, tuple):
        inner = ", ".join(map(_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return json.dumps(value) if isinstance(value, str) else repr(int(value))


def _filled(source: str, name: str, value: str) -> str:
    """The source with another value of a module-level constant, which stands on one line."""
    filled, times = re.subn(rf"^({name}(?:: .+)? = ).*$", lambda line: line[1] + value, source, flags=re.MULTILINE)
    assert times == 1, f"numpy_policy has {times} lines that set {name}"
    return filled


def _images(family: PolicyFamily) -> str:
    rows = []
    for offset, shape, scale in family.images:
        strides = tuple(layer.stride for layer in convolutions(shape, family.filters)[0])
        rows.append(f"    ({offset}, {shape}, {scale!r}, {strides}),\n")
    return f"[\n{''.join(rows)}]" if rows else "[]"


def _numbers(family: PolicyFamily) -> str:
    slices = [f"{start}:{end}" for start, end in spans_of_numbers(family)]
    return f"np.r_[{', '.join(slices)}]" if slices else "np.zeros(0, int)"


def _embedded(name: str, array: np.ndarray) -> str:
    """One entry of ARRAYS: the shape, and the bytes of little-endian float32 as text."""
    text = base64.b64encode(np.ascontiguousarray(array, "<f4").tobytes()).decode()
    lines = "\n".join(f'        "{text[i : i + 100]}"' for i in range(0, max(len(text), 1), 100))
    return f'    "{name}": _array(\n        {array.shape},\n{lines},\n    ),\n'


def run(content: bytes, family: PolicyFamily, obs: np.ndarray) -> Outputs:
    module = _imported(content)
    if family.action.kind != "box":
        return {"probabilities": module.distribution(obs)}
    mean, std = module.distribution(obs)
    return {"mean": mean, "std": std, "action": module.act(obs)}


def _imported(content: bytes) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.py"
        path.write_bytes(content)
        spec = importlib.util.spec_from_file_location("exported_policy", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module
