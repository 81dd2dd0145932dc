"""Signature: what two models must share to cost the same: kinds, settings and wiring of their operations, not names."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from typing import Any

import keras

from kbatch.recompute._op_graph import Chain, Node


def signature(chain: Chain) -> Hashable | None:
    """A key for what is known of a chain; `None` if an operation cannot say what it is made of."""
    inputs = tuple(
        (
            str(each.shape),
            str(each.dtype),
            getattr(each._keras_history.operation, "optional", False),
        )
        for each in chain.functional.inputs
    )
    try:
        return (
            inputs,
            chain.functional.dtype_policy.name,
            keras.config.floatx(),
            tuple(map(_of_node, chain.nodes)),
        )
    except (NotImplementedError, TypeError, ValueError):
        return None


def stem(name: str) -> str:
    """A name without the number that Keras adds when a process makes another of the kind: `conv2d_3` is `conv2d`."""
    return "/".join(re.sub(r"_\d+$", "", part) for part in name.split("/"))


def _of_node(node: Node) -> Hashable:
    operation = node.operation
    settings: Any = None
    if isinstance(operation, keras.Operation):
        settings = json.dumps({**operation.get_config(), "name": ""}, sort_keys=True, default=_said)
    called = repr(
        keras.tree.map_structure(
            lambda part: node.symbols.get(id(part), part),
            (node.arguments.args, node.arguments.kwargs),
        )
    )
    # a part may be frozen on its own
    trainable = tuple(
        tuple(weight.shape) for weight in getattr(operation, "trainable_variables", ())
    )
    # The class itself: one that a notebook defines again is another.
    return (
        type(operation),
        getattr(operation, "__qualname__", ""),
        settings,
        trainable,
        called,
        node.reads,
        node.writes,
    )


def _said(part: Any) -> Any:
    return part.get_config() if hasattr(part, "get_config") else repr(part)
