"""Liveness: which tensors of a traced train step are alive at the same time.

The step is traced once with a batch of `PRIME` examples, and the bytes are lines in the batch size.
Nothing is executed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kbatch.runtime.tensorflow_private import function_graph
from kbatch.tracing.buffer import NOT_BORN, Buffer, filled_lists, new_buffer, shared_buffer
from kbatch.tracing.op_types import ASSIGNMENTS, BRANCHES, CALLS, LOOPS, SHAPES
from kbatch.tracing.size import Moment, Size
from kbatch.tracing.tensor_size import PRIME, size_of, size_of_shape

# Batch sizes at which `moments` looks for the peak. Chosen by hand: steps of 3.5 % up to a million.
_BATCH_SIZES = np.unique(np.geomspace(1, 2**20, 400).round())


def moments(graph: Any) -> list[Moment]:
    """The moments of a traced step that are its peak at some batch size.

    Args:
        graph: `FuncGraph` of a train step traced with a batch of `PRIME`.
    """
    buffers, inner = buffers_of(graph)
    count = len(graph.get_operations()) + 2
    held = {name: np.zeros((count, 2)) for name in ("gradients", "activations", "workspace")}
    for buffer in buffers:
        line = np.array([buffer.size.fixed, buffer.size.per_example])
        held[_part(buffer)][buffer.birth] += line
        held[_part(buffer)][buffer.death + 1] -= line
    for part in held:
        held[part] = np.cumsum(held[part], axis=0)
    for index, size in inner.items():
        held["workspace"][index] += (size.fixed, size.per_example)
    total: np.ndarray = np.sum(list(held.values()), axis=0)
    return [
        Moment(**{part: Size(*map(float, lines[index])) for part, lines in held.items()})
        for index in _peaks(total)
    ]


def most_elements(graph: Any) -> float:
    """The elements of a traced step's largest tensor for each example of the batch.

    Tensors inside of calls and loops count. A shape that a weight has too does not: 61 may divide a
    vocabulary.

    Args:
        graph: `FuncGraph` of a train step traced with a batch of `PRIME`.
    """
    weights = {shape for kind, shape in _shapes(graph) if kind == "ReadVariableOp"}
    shapes = {shape for _, shape in _shapes(graph)} - weights
    return max((size_of_shape(shape, 1).per_example for shape in shapes), default=0.0)


def _shapes(graph: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The type of each operation with the known shapes of its results, inner graphs included."""
    for operation in graph.get_operations():
        for output in operation.outputs:
            if output.shape.is_fully_defined():
                yield operation.type, tuple(output.shape.as_list())
        for inner in _inner_graphs(operation):
            yield from _shapes(inner)


def _inner_graphs(operation: Any) -> list[Any]:
    """The graphs of a call, of the branches of a condition, or of one turn of a loop."""
    if operation.type in CALLS:
        return [function_graph(operation, "f")]
    if operation.type in BRANCHES:
        return [function_graph(operation, name) for name in ("then_branch", "else_branch")]
    return [body_of(operation)] if operation.type in LOOPS else []


def _part(buffer: Buffer) -> str:
    """The part of the step's memory that a buffer belongs to: a field of `Moment`."""
    if buffer.size.per_example:
        return "activations"
    return "gradients" if buffer.backward else "workspace"


def _peaks(lines: np.ndarray) -> list[int]:
    """Indices of the lines that are the highest at some batch size."""
    return sorted({int(np.argmax(lines[:, 0] + lines[:, 1] * size)) for size in _BATCH_SIZES})


def buffers_of(graph: Any) -> tuple[list[Buffer], dict[int, Size]]:
    """The buffers of a graph, and the peak bytes inside its calls and loops, by operation index."""
    buffers, inner, _ = _allocated(graph)
    return buffers, inner


def lists_of(graph: Any) -> dict[int, Buffer]:
    """The buffers behind the graph's TensorLists, by the `id` of the variant tensor.

    Lists that loops fill are among them.
    """
    _, _, holder = _allocated(graph)
    lists = {}
    for operation in graph.get_operations():
        for output in operation.outputs:
            if output.dtype == tf.variant and id(output) in holder:
                lists[id(output)] = holder[id(output)]
    return lists


def body_of(loop: Any) -> Any:
    """The graph of one turn of a loop."""
    return function_graph(loop, "body")


def needed(graph: Any) -> list[Any]:
    """The operations that run: those that an output or a side effect depends on, in graph order."""
    operations = graph.get_operations()
    stack = [tensor.op for tensor in graph.outputs]
    stack += [operation for operation in operations if _has_effect(operation)]
    reached: set[int] = set()
    while stack:
        operation = stack.pop()
        if id(operation) not in reached:
            reached.add(id(operation))
            stack += [tensor.op for tensor in operation.inputs]
            stack += operation.control_inputs
    return [operation for operation in operations if id(operation) in reached]


def _has_effect(operation: Any) -> bool:
    return operation.type.startswith("Assign") or operation.type in CALLS | LOOPS | BRANCHES


def _allocated(graph: Any) -> tuple[list[Buffer], dict[int, Size], dict[int, Buffer]]:
    """Buffers, peak bytes inside calls and loops, and the buffer of each tensor by its `id`."""
    operations = needed(graph)
    backward = _backward(operations)
    last_read = _last_reads(operations)
    holder: dict[int, Buffer] = {}
    buffers: list[Buffer] = []
    inner: dict[int, Size] = {}
    for index, operation in enumerate(operations):
        peak = _inner_peak(operation)
        if peak is not None:
            inner[index] = peak
        lists = {}
        if operation.type in LOOPS:
            lists = filled_lists(operation, body_of(operation), holder)
        in_backward = operation.name in backward
        for position, output in enumerate(operation.outputs):
            buffer = lists.get(position)
            if buffer is None:
                buffer = shared_buffer(operation, output, holder, last_read, index)
            if buffer is None:
                buffer = new_buffer(operation, output, index, in_backward)
                buffers.append(buffer)
            elif buffer.birth == NOT_BORN:
                buffer.birth = index
                buffer.backward = in_backward
                buffers.append(buffer)
            holder[id(output)] = buffer
            buffer.death = max(buffer.death, last_read.get(id(output), index))
    for output in graph.outputs:
        if id(output) in holder:
            holder[id(output)].death = len(operations)
    return [*buffers, *_outlived(operations, holder)], inner, holder


def _outlived(operations: Sequence[Any], holder: Mapping[int, Buffer]) -> list[Buffer]:
    """The buffers of variables' earlier values that are read after the variable has another one.

    Until then such a value is the variable's own buffer.
    """
    read: dict[int, list[Any]] = {}
    outlived = []
    for index, operation in enumerate(operations):
        handle = id(operation.inputs[0]) if len(operation.inputs) else 0
        if operation.type == "ReadVariableOp":
            read.setdefault(handle, []).append(operation.outputs[0])
        elif operation.type in ASSIGNMENTS:
            later = [value for value in read.pop(handle, []) if holder[id(value)].death > index]
            if later:  # all of them are the same buffer
                death = max(holder[id(value)].death for value in later)
                outlived.append(Buffer(size_of(later[0]), index, death, False))
    return outlived


def _last_reads(operations: Iterable[Any]) -> dict[int, int]:
    """Index of the last operation that reads a tensor's bytes, by the tensor's `id`."""
    last: dict[int, int] = {}
    for index, operation in enumerate(operations):
        if operation.type not in SHAPES:
            for tensor in operation.inputs:
                last[id(tensor)] = index
    return last


def _backward(operations: Iterable[Any]) -> set[str]:
    """Names of the backward pass's operations, which carry a scope of TensorFlow's.

    `tf.GradientTape` puts them under "gradient_tape" (tensorflow/python/eager/backprop.py),
    `tf.gradients` under "gradients" (tensorflow/python/ops/gradients_util.py), in 2.21.0.
    """
    return {
        operation.name
        for operation in operations
        if "gradient_tape" in operation.name or "gradients/" in operation.name
    }


def _inner_peak(operation: Any) -> Size | None:
    """Peak bytes inside a call, a branch or one turn of a loop; `None` for other operations."""
    graphs = _inner_graphs(operation)
    return _largest(graphs) if graphs else None


def _largest(graphs: list[Any]) -> Size:
    """The largest of the graphs' peaks, at a batch of `PRIME`."""
    largest = Size()
    for graph in graphs:
        for moment in moments(graph):
            if moment.total.at(PRIME) > largest.at(PRIME):
                largest = moment.total
    return largest
