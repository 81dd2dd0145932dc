"""Nested models: the operations of a model and of all models inside it, in call order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

from kbatch.errors import RecomputeError
from kbatch.recompute._op_node import ListArgument, Node
from kbatch.runtime.keras_private import (
    functional_class,
    functional_of_sequential,
    mask_of,
    nodes_by_depth,
    standardized_inputs,
)

TimeStep = tuple[str, int]


def functional_of(model: Any) -> Any:
    """The Functional model behind a Functional or Sequential model.

    Raises:
        RecomputeError: If the model has none, or has a `call` of its own.
    """
    functional = functional_class()
    graph = functional_of_sequential(model) if isinstance(model, keras.Sequential) else model
    is_plain = (
        isinstance(graph, functional)
        and type(graph).call is functional.call
        and type(model).call in (functional.call, keras.Sequential.call)
    )
    if not is_plain:
        raise RecomputeError(
            "A model must be Functional or Sequential, and built, to be cut into segments: other "
            "models hide the order of their layers",
            f"{getattr(model, 'name', model)!r} ({type(model).__name__})",
            "Build it with keras.Model(inputs, outputs), or give a Sequential model a keras.Input",
        )
    return graph


class Unfolded:
    """The operations of a Functional model, those of nested models in the place of their calls.

    Args:
        functional: The Functional model.

    Attributes:
        inputs: Tuple of integers, numbers of the model's inputs.
        nodes: Tuple of `Node` in call order.
        outputs: Tuple of integers, numbers of the model's outputs.
        floats: Set of integers, numbers of the floating values.
    """

    def __init__(self, functional: Any) -> None:
        self.floats: set[int] = set()
        self._count = 0
        self.inputs = tuple(self._number(tensor) for tensor in functional.inputs)
        symbols = _numbered(functional.inputs, self.inputs)
        self.nodes = tuple(self._nodes(functional, symbols, "", None))
        self.outputs = tuple(symbols[id(tensor)] for tensor in functional.outputs)

    def _number(self, tensor: Any) -> int:
        """A new number for a symbolic tensor."""
        if keras.backend.is_float_dtype(tensor.dtype):
            self.floats.add(self._count)
        self._count += 1
        return self._count - 1

    def _nodes(
        self, functional: Any, symbols: dict[int, int], path: str, time_step: TimeStep | None
    ) -> Iterator[Node]:
        """The nodes of one model.

        Args:
            functional: The Functional model.
            symbols: Numbers of the model's inputs, by the `id` of their symbolic tensors. The
                numbers of all other tensors are added.
            path: String before the names of its operations.
            time_step: As in `Node`.
        """
        by_depth = nodes_by_depth(functional)
        for depth in sorted(by_depth, reverse=True):
            for node in by_depth[depth]:
                if node.is_input:
                    continue
                name = f"{path}{node.operation.name}"
                reads = {id(tensor): symbols[id(tensor)] for tensor in node.input_tensors}
                if _is_time_distributed_model(node):
                    yield from self._time_distributed(node, reads, symbols, name)
                elif _is_nested_model(node):
                    yield from self._nested(node, reads, symbols, name, time_step)
                else:
                    writes = tuple(self._number(tensor) for tensor in node.outputs)
                    symbols.update(_numbered(node.outputs, writes))
                    yield Node(node.operation, name, node.arguments, reads, writes, time_step)

    def _nested(
        self,
        node: Any,
        reads: dict[int, int],
        symbols: dict[int, int],
        name: str,
        time_step: TimeStep | None,
    ) -> Iterator[Node]:
        """The nodes of a nested model, after one that prepares its inputs."""
        inner = functional_of(node.operation)

        def enter(inputs: Any, **_: Any) -> Any:
            return standardized_inputs(inner, inputs)

        entry = tuple(self._number(tensor) for tensor in inner.inputs)
        yield Node(enter, f"{name}/input", node.arguments, reads, entry)
        own = _numbered(inner.inputs, entry)
        yield from self._nodes(inner, own, f"{name}/", time_step)
        writes = [own[id(tensor)] for tensor in inner.outputs]
        symbols.update(_numbered(node.outputs, writes))

    def _time_distributed(
        self, node: Any, reads: dict[int, int], symbols: dict[int, int], name: str
    ) -> Iterator[Node]:
        """The nodes of a TimeDistributed model, repeated for each step of time.

        The layer itself does the same in a loop (keras/src/layers/rnn/time_distributed.py,
        Keras 3.15.1).
        """
        layer, inner = node.operation, functional_of(node.operation.layer)

        def enter(inputs: Any, **_: Any) -> Any:
            inputs = _swap_time(
                layer.dtype_policy.convert_input(inputs, layer.autocast, layer.input_dtype)
            )
            return [standardized_inputs(inner, inputs[step])[0] for step in range(inputs.shape[0])]

        def leave(outputs: Any) -> Any:
            return _swap_time(keras.ops.stack(outputs))

        entry = tuple(self._number(inner.inputs[0]) for _ in range(node.input_tensors[0].shape[1]))
        yield Node(enter, f"{name}/input", node.arguments, reads, entry)
        results = []
        for step, number in enumerate(entry):
            own = {id(inner.inputs[0]): number}
            yield from self._nodes(inner, own, f"{name}/{step}/", (name, step))
            results.append(own[id(inner.outputs[0])])
        argument = ListArgument(tuple(object() for _ in results))
        number = self._number(node.outputs[0])
        symbols[id(node.outputs[0])] = number
        yield Node(leave, f"{name}/output", argument, _numbered(argument.keys, results), (number,))


def _numbered(tensors: Any, numbers: Any) -> dict[int, int]:
    """Numbers by the `id` of the tensors that they stand for."""
    return {id(tensor): number for tensor, number in zip(tensors, numbers, strict=True)}


def _is_nested_model(node: Any) -> bool:
    """Whether a node calls a model whose operations can take the place of the call."""
    model = node.operation
    return (
        isinstance(model, (functional_class(), keras.Sequential))
        and _can_be_unfolded(model)
        and _is_called_plainly(node)
        and model.activity_regularizer is None
    )


def _is_time_distributed_model(node: Any) -> bool:
    """Whether a node calls a TimeDistributed model that can be repeated for known steps of time."""
    layer = node.operation
    if type(layer) is not keras.layers.TimeDistributed or not _can_be_unfolded(layer.layer):
        return False
    inner = functional_of(layer.layer)
    ends = (node.input_tensors, node.outputs, inner.inputs, inner.outputs)
    return (
        all(len(tensors) == 1 for tensors in ends)
        and _is_called_plainly(node)
        and node.input_tensors[0].shape[1] is not None
        and layer.activity_regularizer is None
    )


def _can_be_unfolded(model: Any) -> bool:
    """Whether a model has a graph, and no `call` set on the instance, as `apply` does."""
    if "call" in vars(model):
        return False
    try:
        functional_of(model)
    except RecomputeError:
        return False
    return True


def _is_called_plainly(node: Any) -> bool:
    """Whether a node has one argument besides `training`, and no mask."""
    masked = any(mask_of(tensor) is not None for tensor in node.input_tensors)
    passed = {name for name, value in node.arguments.kwargs.items() if value is not None}
    return not masked and len(node.arguments.args) == 1 and passed <= {"training"}


def _swap_time(tensor: Any) -> Any:
    """A tensor with its first two dimensions, examples and steps of time, exchanged."""
    return keras.ops.transpose(tensor, [1, 0, *range(2, len(tensor.shape))])
