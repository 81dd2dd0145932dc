"""The signature of a model with its loss and metrics, equal for equal models."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from types import CodeType
from typing import Any

import keras

from kbatch.building.compiled import CompileArguments, compiled_by_user

NUMBER = re.compile(r"_\d+(?=\b)")  # Keras numbers the layers of a process in their names
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def signature(model: keras.Model, arguments: CompileArguments) -> dict[str, Any]:
    """Return a dict that JSON can hold, equal for two models that are built in the same way.

    Args:
        model: `keras.Model` that the user's `build` returned, compiled or not.
        arguments: `CompileArguments` for a model that is not compiled.
    """
    own = compiled_by_user(model) or {"loss": arguments.loss, "metrics": arguments.metrics}
    said = {
        name: described(own[name])
        for name in ("optimizer", "loss", "loss_weights", "metrics", "weighted_metrics")
        if own.get(name) is not None
    }
    return {
        "parameters": int(sum(variable.shape.num_elements() for variable in _tensors(model))),
        "architecture": _architecture(model),
        **said,
    }


def described(part: Any) -> Any:
    """Describe losses, metrics, optimizers or structures of them; equal ones in equal words."""
    if isinstance(part, Mapping):
        return {str(name): described(value) for name, value in part.items()}
    if isinstance(part, (list, tuple)):
        return [described(value) for value in part]
    if part is None or isinstance(part, (str, int, float, bool)):
        return part
    if hasattr(part, "get_config"):
        return f"{type(part).__name__} {_digest(_config(part))}"
    code = getattr(part, "__code__", None)
    name = getattr(part, "__qualname__", type(part).__name__)
    if code is None:
        return name
    closed = _closed_over(part)
    return f"{name} {_digest(_text(code) + (str(closed) if closed else ''))}"


def _text(code: CodeType) -> str:
    """The code of a function, and of those inside it, without the places where they are."""
    inner = [_text(each) for each in code.co_consts if isinstance(each, CodeType)]
    plain = tuple(each for each in code.co_consts if not isinstance(each, CodeType))
    return "".join([str((code.co_code.hex(), plain)), *inner])


def _closed_over(function: Any) -> list[Any]:
    """The plain values that a function closes over, such as the `gamma` of a loss."""
    cells = getattr(function, "__closure__", None) or ()
    names = function.__code__.co_freevars
    values = [(name, _content(cell)) for name, cell in zip(names, cells, strict=True)]
    return [each for each in values if isinstance(each[1], (str, int, float, bool))]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is still empty
        return None


def _tensors(model: keras.Model) -> list[Any]:
    return [variable.value for variable in model.weights]


def _architecture(model: keras.Model) -> str:
    shapes = json.dumps([list(map(int, tensor.shape)) for tensor in _tensors(model)])
    return _digest(f"{type(model).__name__} {shapes} {_config(model)}")


def _config(part: Any) -> str:
    """Return the configuration as text; empty without one, as for subclassed models."""
    try:
        text = json.dumps(part.get_config(), sort_keys=True, default=str)
    except Exception:
        return ""
    return NUMBER.sub("", ADDRESS.sub("", text))


def _digest(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"
