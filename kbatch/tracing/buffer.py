"""Buffers: allocations of a traced graph, those of TensorFlow's lists of tensors included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from kbatch.tracing.op_types import ALIASES, GIVEN, IN_PLACE, LISTS
from kbatch.tracing.size import Size
from kbatch.tracing.tensor_size import PRIME, size_of, size_of_shape

NOT_BORN = -1  # birth of a list that a loop fills, until the loop itself is reached


@dataclass(eq=False)
class Buffer:
    """One allocation.

    Attributes:
        size: `Size` of the buffer; of a list, the bytes of all its elements.
        birth: Integer, index of the operation that allocates it.
        death: Integer, index of the last operation that needs it.
        backward: Boolean, whether the backward pass allocates it.
        length: Integer, number of tensors in it if it is a list, else `0`.
    """

    size: Size
    birth: int
    death: int
    backward: bool
    length: int = 0


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
    """The input's buffer that an output uses again; `None` if the output needs a new one.

    Args:
        operation: The operation.
        output: One of its outputs.
        holder: Buffers by the `id` of their tensors.
        last_read: Index of the last operation that reads a tensor, by the tensor's `id`.
        index: Integer, index of the operation.
    """
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


def filled_lists(loop: Any, body: Any, holder: dict[int, Buffer]) -> dict[int, Buffer]:
    """The lists that a loop fills or hands on, by the position of the loop's output.

    A list that the loop fills holds one tensor for each turn.

    Args:
        loop: The loop's operation.
        body: The graph of one turn.
        holder: Buffers by the `id` of their tensors, for the loop's inputs.
    """
    turns = loop_turns(loop, holder)
    lists = {}
    for position, (entry, output) in enumerate(zip(loop.inputs, body.outputs, strict=False)):
        if entry.dtype != tf.variant:
            continue
        writer = _writer(output)
        entering = holder.get(id(entry))
        is_empty = entering is None or not entering.size.at(PRIME)
        if writer.type in ("TensorListPushBack", "TensorListSetItem") and is_empty:
            size = _element_size(writer).times(turns)
            lists[position] = Buffer(size, NOT_BORN, NOT_BORN, False, turns)
        elif entering is not None:
            lists[position] = entering
    return lists


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


def _element_size(writer: Any) -> Size:
    """Bytes that one turn adds to a list; `0` for a weight or a tensor from outside of the loop."""
    element = writer.inputs[-1]
    while element.op.type in ALIASES:
        element = element.op.inputs[0]
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
