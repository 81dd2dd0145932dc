"""Liveness: which tensors of a traced graph are in memory when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from kbatch.runtime.scratch import convolution_bytes
from kbatch.runtime.tensorflow_private import function_graph
from kbatch.runtime.trace import (
    ALIASES,
    ASSIGNMENTS,
    BRANCHES,
    CALLS,
    GIVEN,
    IN_PLACE,
    LISTS,
    LOOPS,
    PRIME,
    SHAPES,
    Moment,
    Size,
    size_of,
    size_of_shape,
)

NOT_BORN = -1  # birth of a list that a loop fills, until the loop itself is reached


@dataclass(eq=False)
class Buffer:
    """One allocation."""

    size: Size  # of the buffer; of a list, the bytes of all its elements
    birth: int  # index of the operation that allocates it
    death: int  # index of the last operation that needs it
    backward: bool  # whether the backward pass allocates it
    length: int = 0  # number of tensors in it if it is a list, else `0`


def new_buffer(operation: Any, output: Any, index: int, backward: bool) -> Buffer:
    """The buffer that an operation allocates for an output."""
    if operation.type in ("TensorListFromTensor", "TensorListReserve"):
        size = _list_size(operation)
    else:
        size = size_of(output)
    return Buffer(size, index, index, backward, _list_length(operation))


def shared_buffer(
    operation: Any, output: Any, holder: dict[int, Buffer], last_read: dict[int, int], index: int
) -> Buffer | None:
    """The input's buffer that an output uses again; `None` if the output needs a new one."""
    if operation.type in GIVEN:
        return Buffer(Size(), index, index, False)
    if operation.type in ALIASES or operation.type in LISTS or _sums_nothing(operation, output):
        return holder.get(id(operation.inputs[0]))
    if operation.type in IN_PLACE:
        for tensor in operation.inputs:
            buffer = holder.get(id(tensor))
            if buffer is None or buffer.size != size_of(output):
                continue
            if max(buffer.death, last_read.get(id(tensor), 0)) <= index:
                return buffer
    return None


def _sums_nothing(operation: Any, output: Any) -> bool:
    """Whether a sum is over dimensions of length 1, as gradients of broadcasts often are."""
    return operation.type == "Sum" and size_of(output) == size_of(operation.inputs[0])


# Operations of a loop's body: one keeps a tensor for the backward pass, one sets a turn's result.
KEEPING, SETTING = "TensorListPushBack", "TensorListSetItem"


def filled_lists(loop: Any, body: Any, holder: dict[int, Buffer]) -> dict[int, Buffer]:
    """The lists that a loop fills or hands on, by the position of the loop's output.

    A list that the loop fills holds one tensor for each turn. Of lists that hold the same tensors,
    one that is kept for the backward pass counts them.
    """
    turns = loop_turns(loop, holder)
    lists, handed_on = {}, _handed_on(body)
    filled: dict[int, Any] = {}
    for position, (entry, output) in enumerate(zip(loop.inputs, body.outputs, strict=False)):
        if entry.dtype != tf.variant:
            continue
        writer = _writer(output)
        entering = holder.get(id(entry))
        is_empty = entering is None or not entering.size.at(PRIME)
        if writer.type in (KEEPING, SETTING) and is_empty:
            filled[position] = writer
        elif entering is not None:
            lists[position] = entering
    counted: set[str] = set()
    for position in sorted(filled, key=lambda each: filled[each].type != KEEPING):
        element = _root(filled[position].inputs[-1])
        element = handed_on.get(element.name, element)
        size = Size() if element.name in counted else _element_size(element).times(turns)
        counted.add(element.name)
        lists[position] = Buffer(size, NOT_BORN, NOT_BORN, False, turns)
    return lists


def _handed_on(body: Any) -> dict[str, Any]:
    """What a turn hands on to the next, by the name of the placeholder that this reads it from."""
    pairs = zip(body.inputs, body.outputs, strict=False)
    return {entry.name: _root(output) for entry, output in pairs}


def loop_turns(loop: Any, holder: dict[int, Buffer]) -> int:
    """How often a loop runs: the length of the longest list that it reads, `0` if it reads none."""
    return max(
        (holder[id(tensor)].length for tensor in loop.inputs if id(tensor) in holder),
        default=0,
    )


def _writer(output: Any) -> Any:
    """The operation that wrote the list which a turn of a loop hands on."""
    writer = output.op
    while writer.type in ("Identity", "TensorListPopBack") and len(writer.inputs):
        writer = writer.inputs[0].op
    return writer


def _root(tensor: Any) -> Any:
    """The tensor whose buffer a tensor shares."""
    while tensor.op.type in ALIASES:
        tensor = tensor.op.inputs[0]
    return tensor


def _element_size(element: Any) -> Size:
    """Bytes that one turn adds to a list; `0` for a weight or a tensor from outside of the loop."""
    return Size() if element.op.type in GIVEN else size_of(element)


def _list_size(operation: Any) -> Size:
    """Bytes of all elements of a new list, if they are known."""
    if operation.type == "TensorListFromTensor":
        return size_of(operation.inputs[0])
    shape = tf.get_static_value(operation.inputs[0])
    length = tf.get_static_value(operation.inputs[1])
    if shape is None or length is None or np.any(np.asarray(shape) < 0):
        return Size()
    dimensions = [int(length), *map(int, np.atleast_1d(shape))]
    return size_of_shape(dimensions, operation.get_attr("element_dtype").size)


def _list_length(operation: Any) -> int:
    """Number of tensors in a new list; `0` for any other operation."""
    if operation.type == "TensorListFromTensor":
        return int(operation.inputs[0].shape[0] or 0)
    if operation.type == "TensorListReserve":
        length = tf.get_static_value(operation.inputs[1])
        return 0 if length is None else int(length)
    return 0


# Batch sizes at which `moments` looks for the peak. Chosen by hand: steps of 3.5 % up to a million.
_BATCH_SIZES = np.unique(np.geomspace(1, 2**20, 400).round())


def moments(graph: Any) -> list[Moment]:
    """The moments of a traced step that are its peak at some batch size."""
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
    """
    weights = {shape for kind, shape in _shapes(graph) if kind == "ReadVariableOp"}
    shapes = {shape for _, shape in _shapes(graph)} - weights
    return max((size_of_shape(shape, 1).per_example for shape in shapes), default=0.0)


def misses_some(graph: Any) -> bool:
    """Whether a traced step may need what its moments do not count.

    The scratch of convolutions depends on the kernels of a device, and how often a loop turns may
    not be known.
    """
    return any(each.type in LOOPS or "Conv" in each.type for each in _operations(graph))


def _operations(graph: Any) -> Iterator[Any]:
    """The operations of a graph, inner graphs included."""
    for operation in graph.get_operations():
        yield operation
        for inner in _inner_graphs(operation):
            yield from _operations(inner)


def _shapes(graph: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The type of each operation with the known shapes of its results, inner graphs included."""
    for operation in _operations(graph):
        for output in operation.outputs:
            if output.shape.is_fully_defined():
                yield operation.type, tuple(output.shape.as_list())


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
    """The operations that run: those that an output or a side effect depends on.

    They are in graph order, but for those that wait for a later one.
    """
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
    return _in_turn([operation for operation in operations if id(operation) in reached])


def _in_turn(operations: Sequence[Any]) -> list[Any]:
    """Operations in their order, but for those that wait for a later one whose inputs are known."""
    ordered: dict[int, Any] = {}
    known = {id(operation) for operation in operations}
    for operation in operations:
        for before in operation.control_inputs:
            if id(before) in known and all(id(each.op) in ordered for each in before.inputs):
                ordered.setdefault(id(before), before)
        ordered.setdefault(id(operation), operation)
    return list(ordered.values())


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
        works_in = convolution_bytes(operation)
        if works_in:
            inner[index] = Size(works_in)
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


def forward_peak(graph: Any, end: int) -> Size:
    """Peak bytes that the operations before `end` allocate; the graph's inputs are not counted."""
    return _peak(graph, 0, _needed_index(graph, needed(graph), end), [])


def backward_peak(graph: Any, begin: int, upstream: Sequence[Any]) -> Size:
    """Peak bytes that the operations from `begin` on allocate, less the upstream tensors released.

    Args:
        graph: `FuncGraph` traced with a batch of `PRIME`.
        begin: Integer, index among the graph's operations of the half's first.
        upstream: Tensors that the half is given. Each is released after its last read.
    """
    operations = needed(graph)
    first = _needed_index(graph, operations, begin)
    released = [
        (max(first, _last_read(tensor, operations)) + 1, size_of(tensor)) for tensor in upstream
    ]
    return _peak(graph, first, len(operations), released)


def _needed_index(graph: Any, operations: Sequence[Any], position: int) -> int:
    """Index of the first needed operation that is at `position` in the graph or later."""
    later = {id(operation) for operation in graph.get_operations()[position:]}
    for index, operation in enumerate(operations):
        if id(operation) in later:
            return index
    return len(operations)


def _peak(graph: Any, first: int, stop: int, released: Sequence[tuple[int, Size]]) -> Size:
    """Peak bytes of the buffers allocated from `first` on, at an operation before `stop`.

    Each size in `released` is taken off from its index on.
    """
    buffers, inner = buffers_of(graph)
    lines = np.zeros((len(needed(graph)) + 2, 2))
    for buffer in buffers:
        if buffer.birth >= first:
            lines[buffer.birth] += _line(buffer.size)
            lines[buffer.death + 1] -= _line(buffer.size)
    for index, size in released:
        lines[index] -= _line(size)
    held = np.cumsum(lines, axis=0)
    for index, size in inner.items():
        held[index] += _line(size)
    sizes = [Size(*map(float, line)) for line in held[first:stop]]
    peak = max(sizes, key=lambda size: size.at(PRIME), default=Size())
    return peak if peak.at(PRIME) > 0 else Size()


def _last_read(tensor: Any, operations: Sequence[Any]) -> int:
    """Last index at which a tensor's buffer is read; the index before if that read is in place."""
    shared, last = {id(tensor)}, -1
    for index, operation in enumerate(operations):
        if operation.type in SHAPES or not any(id(each) in shared for each in operation.inputs):
            continue
        if operation.type in ALIASES:
            shared.update(
                id(output)
                for each, output in zip(operation.inputs, operation.outputs, strict=False)
                if id(each) in shared
            )
        last = index - 1 if operation.type in IN_PLACE else index
    return last


def _line(size: Size) -> np.ndarray:
    return np.array([size.fixed, size.per_example])
