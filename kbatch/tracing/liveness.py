"""Liveness: which tensors of one traced train step are alive at the same time, as bytes that depend on the batch.

The step is traced once with a prime batch size: a dimension that the prime divides counts examples,
any other does not. Nothing is executed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from kbatch.tracing.size import Moment, Size

PRIME = 61
# Their output is their input's buffer.
ALIASES = frozenset(
    (
        "Identity",
        "IdentityN",
        "Reshape",
        "Squeeze",
        "ExpandDims",
        "StopGradient",
        "PreventGradient",
        "CheckNumerics",
        "EnsureShape",
        "Snapshot",
        "Bitcast",
    )
)
# TensorFlow's kernels write into their input if nobody else needs it any more.
IN_PLACE = frozenset(
    (
        "Add",
        "AddN",
        "AddV2",
        "BiasAdd",
        "Cast",
        "ClipByValue",
        "Elu",
        "EluGrad",
        "Exp",
        "Maximum",
        "Minimum",
        "Mul",
        "Neg",
        "RealDiv",
        "Relu",
        "Relu6",
        "Relu6Grad",
        "ReluGrad",
        "Rsqrt",
        "RsqrtGrad",
        "SelectV2",
        "Selu",
        "Sigmoid",
        "SigmoidGrad",
        "Softmax",
        "Sqrt",
        "Square",
        "Sub",
        "Tanh",
        "TanhGrad",
    )
)
# They ask for a tensor's shape alone, as soon as it is there, wherever they stand in the graph.
SHAPES = frozenset(["Shape", "ShapeN", "Size", "Rank"])
LISTS = frozenset(["TensorListSetItem", "TensorListPushBack", "TensorListPopBack"])
CALLS = frozenset(["PartitionedCall", "StatefulPartitionedCall"])
LOOPS = frozenset(["While", "StatelessWhile"])
BRANCHES = frozenset(["If", "StatelessIf"])


class Buffer:
    """One allocation: who made it, from when to when it lives, and how many tensors of what size a list of it holds."""

    def __init__(self, size: Size, birth: int, backward: bool, length: int = 0) -> None:
        self.size, self.birth, self.death, self.backward, self.length = (
            size,
            birth,
            birth,
            backward,
            length,
        )


def moments(graph: Any) -> list[Moment]:
    """The moments of a traced step of which one or another has the most bytes, depending on the batch size.

    Args:
        graph: `FuncGraph` of a train step traced with a batch of `PRIME`.
    """
    buffers, inner = buffers_of(graph)
    count = len(graph.get_operations()) + 2
    sums = {name: np.zeros((count, 2)) for name in ("gradients", "activations", "workspace")}
    for buffer in buffers:
        line = np.array([buffer.size.fixed, buffer.size.per_example])
        part = (
            "activations"
            if buffer.size.per_example
            else "gradients"
            if buffer.backward
            else "workspace"
        )
        sums[part][buffer.birth] += line
        sums[part][buffer.death + 1] -= line
    for part in sums:
        sums[part] = np.cumsum(sums[part], axis=0)
    for index, size in inner.items():
        sums["workspace"][index] += (size.fixed, size.per_example)
    total: np.ndarray = np.sum(list(sums.values()), axis=0)
    return [
        Moment(**{part: Size(*map(float, lines[index])) for part, lines in sums.items()})
        for index in _upper(total)
    ]


def _upper(lines: np.ndarray) -> list[int]:
    """Indices of the lines that are highest at some batch size."""
    batch_sizes = np.unique(np.geomspace(1, 2**20, 400).round())
    return sorted({int(np.argmax(lines[:, 0] + lines[:, 1] * size)) for size in batch_sizes})


def buffers_of(graph: Any) -> tuple[list[Buffer], dict[int, Size]]:
    """The allocations of a graph, and the extra bytes inside its calls and loops, by the index of the operation."""
    buffers, inner, _ = _allocated(graph)
    return buffers, inner


def lists_of(graph: Any) -> dict[int, Buffer]:
    """What the lists of tensors in a graph hold, those that its loops fill among them, by the `id` of the tensor that stands for one."""
    _, _, holder = _allocated(graph)
    lists = [
        output
        for operation in graph.get_operations()
        for output in operation.outputs
        if output.dtype == tf.variant
    ]
    return {id(tensor): holder[id(tensor)] for tensor in lists if id(tensor) in holder}


def body_of(loop: Any) -> Any:
    """The graph of one turn of a loop."""
    return _function(loop, "body")


def _allocated(graph: Any) -> tuple[list[Buffer], dict[int, Size], dict[int, Buffer]]:
    operations = needed(graph)
    backward = _backward(operations)
    last = {
        id(tensor): index
        for index, operation in enumerate(operations)
        if operation.type not in SHAPES
        for tensor in operation.inputs
    }
    holder: dict[int, Buffer] = {}
    buffers: list[Buffer] = []
    inner: dict[int, Size] = {}
    for index, operation in enumerate(operations):
        inside = _inside(operation, holder)
        if inside is not None:
            inner[index] = inside[0]
        for position, output in enumerate(operation.outputs):
            buffer = inside[1].get(position) if inside else None
            if buffer is None:
                buffer = _same_buffer(operation, output, holder, last, index)
            if buffer is None:
                buffer = Buffer(
                    size_of(output), index, operation.name in backward, _length(operation)
                )
                if operation.type in ("TensorListFromTensor", "TensorListReserve"):
                    buffer.size = _list_size(operation)
                buffers.append(buffer)
            elif buffer.birth == -1:
                buffer.birth = index
                buffer.backward = operation.name in backward
                buffers.append(buffer)
            holder[id(output)] = buffer
            buffer.death = max(buffer.death, last.get(id(output), index))
    for output in graph.outputs:
        if id(output) in holder:
            holder[id(output)].death = len(operations)
    return buffers, inner, holder


def needed(graph: Any) -> list[Any]:
    """The operations that run, in the order in which they were made: those that an output or an effect depends on."""
    operations = graph.get_operations()
    stack = [tensor.op for tensor in graph.outputs]
    stack += [
        operation
        for operation in operations
        if operation.type.startswith("Assign") or operation.type in CALLS | LOOPS | BRANCHES
    ]
    found: set[int] = set()
    while stack:
        operation = stack.pop()
        if id(operation) not in found:
            found.add(id(operation))
            stack += [tensor.op for tensor in operation.inputs]
            stack += operation.control_inputs
    return [operation for operation in operations if id(operation) in found]


def _backward(operations: Iterable[Any]) -> set[str]:
    """Names of the operations of the backward pass, which TensorFlow names so."""
    return {
        operation.name
        for operation in operations
        if "gradient_tape" in operation.name or "gradients/" in operation.name
    }


def _same_buffer(
    operation: Any, output: Any, holder: dict[int, Buffer], last: dict[int, int], index: int
) -> Buffer | None:
    """The input's buffer that an output uses again, if it does."""
    if operation.type in ("Placeholder", "ReadVariableOp"):
        return Buffer(Size(), index, False)  # held by the caller or the variable, and counted there
    if operation.type in ALIASES | LISTS or (
        operation.type == "Sum" and size_of(output) == size_of(operation.inputs[0])
    ):
        return holder.get(id(operation.inputs[0]))
    if operation.type in IN_PLACE:
        for tensor in operation.inputs:
            buffer = holder.get(id(tensor))
            if (
                buffer is not None
                and buffer.size == size_of(output)
                and max(buffer.death, last.get(id(tensor), 0)) <= index
            ):
                return buffer
    return None


def size_of(tensor: Any) -> Size:
    """Bytes of a tensor of the traced step; those of unknown shape, and of lists and resources, count nothing."""
    if tensor.dtype in (tf.resource, tf.variant, tf.string) or not tensor.shape.is_fully_defined():
        return Size()
    return _size(tensor.shape.as_list(), tensor.dtype.size)


def _size(shape: list[int], item_bytes: int) -> Size:
    count = float(np.prod(shape, dtype=np.float64)) * item_bytes
    return (
        Size(0.0, count / PRIME)
        if any(length and length % PRIME == 0 for length in shape)
        else Size(count)
    )


def _list_size(operation: Any) -> Size:
    if operation.type == "TensorListFromTensor":
        return size_of(operation.inputs[0])
    shape, length = (
        tf.get_static_value(operation.inputs[0]),
        tf.get_static_value(operation.inputs[1]),
    )
    if shape is None or length is None or np.any(np.asarray(shape) < 0):
        return Size()
    return _size(
        [int(length), *map(int, np.atleast_1d(shape))], operation.get_attr("element_dtype").size
    )


def _length(operation: Any) -> int:
    """How many tensors a new list holds."""
    if operation.type == "TensorListFromTensor":
        return int(operation.inputs[0].shape[0] or 0)
    if operation.type == "TensorListReserve":
        length = tf.get_static_value(operation.inputs[1])
        return 0 if length is None else int(length)
    return 0


def _inside(operation: Any, holder: dict[int, Buffer]) -> tuple[Size, dict[int, Buffer]] | None:
    """The most bytes inside a call, a branch or one turn of a loop, and the buffers that a loop's lists grow into."""
    if operation.type in CALLS:
        return _most([_function(operation, "f")]), {}
    if operation.type in BRANCHES:
        return _most([_function(operation, "then_branch"), _function(operation, "else_branch")]), {}
    if operation.type in LOOPS:
        body = body_of(operation)
        return _most([body]), _grown(operation, body, holder)
    return None


def _function(operation: Any, name: str) -> Any:
    graph, wanted = operation.graph, operation.get_attr(name).name
    while graph is not None:
        found = graph._functions.get(wanted)
        if found is not None:
            return found.graph
        graph = getattr(graph, "outer_graph", None)
    raise KeyError(wanted)


def _most(graphs: list[Any]) -> Size:
    most = Size()
    for graph in graphs:
        for moment in moments(graph):
            if moment.total.at(PRIME) > most.at(PRIME):
                most = moment.total
    return most


def _grown(operation: Any, body: Any, holder: dict[int, Buffer]) -> dict[int, Buffer]:
    """The lists that a loop fills, by the position of the output: so many turns, a tensor each."""
    turns = max(
        (holder[id(tensor)].length for tensor in operation.inputs if id(tensor) in holder),
        default=0,
    )
    grown = {}
    for position, (entry, output) in enumerate(zip(operation.inputs, body.outputs, strict=False)):
        if entry.dtype != tf.variant:
            continue
        writer = output.op
        while writer.type in ("Identity", "TensorListPopBack") and len(writer.inputs):
            writer = writer.inputs[0].op
        own = holder.get(id(entry))
        if writer.type in ("TensorListPushBack", "TensorListSetItem") and (
            own is None or not own.size.at(PRIME)
        ):
            item = writer.inputs[-1]
            while item.op.type in ALIASES:
                item = item.op.inputs[0]
            # A weight, or what came from outside of the loop, is the same buffer in every turn.
            shared = item.op.type in ("ReadVariableOp", "Placeholder")
            buffer = Buffer(Size() if shared else size_of(item).times(turns), -1, False, turns)
            grown[position] = buffer
        elif own is not None:
            grown[position] = own
    return grown
