"""Signature of a model: the kinds, settings and wiring of its operations, without their names.

Models with equal signatures cost the same and are cut the same, so what one trace told is kept for
all of them.
"""

from __future__ import annotations

import json
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import keras

from kbatch.recompute._op_graph import OpGraph
from kbatch.recompute._op_node import Node
from kbatch.runtime.keras_private import is_optional_input

# Results that one cache keeps. A search meets a new kind of model with each combination of its
# hyperparameters of architecture. Chosen by hand.
LIMIT = 64

T = TypeVar("T")


class SignatureCache(Generic[T]):
    """Results of traces, for the kinds of model that were asked for last.

    It holds neither models nor their classes: a signature refers to classes weakly.

    Args:
        limit: Integer, number of results to keep. Defaults to `64`.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._results: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, graph: OpGraph, make: Callable[[], T], also: Hashable = None) -> T:
        """The result for a model; `make` is called if no model of its kind is known.

        Nothing is kept for a model without a signature, nor if `make` raises.

        Args:
            graph: The model's operations.
            make: Function that returns the result.
            also: What the result depends on besides the model. Optional.
        """
        kind = signature(graph)
        if kind is None:
            return make()
        key = (kind, also)
        with self._lock:
            if key in self._results:
                self._results.move_to_end(key)
                return self._results[key]
        result = make()
        with self._lock:
            self._results[key] = result
            self._results.move_to_end(key)
            while len(self._results) > self._limit:
                self._results.popitem(last=False)
        return result

    def __len__(self) -> int:
        return len(self._results)


def signature(graph: OpGraph) -> Hashable | None:
    """A key of the model's kind; `None` if an operation cannot tell its settings."""
    inputs = tuple(
        (str(tensor.shape), str(tensor.dtype), is_optional_input(tensor))
        for tensor in graph.functional.inputs
    )
    policy = graph.functional.dtype_policy.name
    try:
        return inputs, policy, keras.config.floatx(), tuple(map(_of_node, graph.nodes))
    except (NotImplementedError, TypeError, ValueError):
        return None


def stem(name: str) -> str:
    """A name without the numbers that Keras adds to tell layers apart: `conv2d` of `conv2d_3`."""
    return "/".join(re.sub(r"_\d+$", "", part) for part in name.split("/"))


def _of_node(node: Node) -> Hashable:
    operation = node.operation
    settings: Any = None
    if isinstance(operation, keras.Operation):
        config = {**operation.get_config(), "name": ""}
        settings = json.dumps(config, sort_keys=True, default=_config)
    arguments = (node.arguments.args, node.arguments.kwargs)
    called = keras.tree.map_structure(lambda part: node.symbols.get(id(part), part), arguments)
    # Each weight can be frozen by itself, and layers add some after they are made, as LoRA does.
    weights = tuple(
        (tuple(weight.shape), weight.trainable) for weight in getattr(operation, "variables", ())
    )
    return (
        weakref.ref(type(operation)),  # the class itself: a notebook may define it again
        getattr(operation, "__qualname__", ""),
        settings,
        weights,
        repr(called),
        node.reads,
        node.writes,
    )


def _config(part: Any) -> Any:
    """A part of a config that JSON does not know, as its own config or its text."""
    return part.get_config() if hasattr(part, "get_config") else repr(part)
