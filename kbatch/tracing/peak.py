"""Peak bytes of the forward half and of the backward half of a traced graph.

What existed before each half began is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kbatch.tracing.liveness import buffers_of, needed
from kbatch.tracing.op_types import ALIASES, IN_PLACE, SHAPES
from kbatch.tracing.size import Size
from kbatch.tracing.tensor_size import PRIME, size_of


def forward_peak(graph: Any, end: int) -> Size:
    """Peak bytes that the operations before `end` allocate; the graph's inputs are not counted.

    Args:
        graph: `FuncGraph` traced with a batch of `PRIME`.
        end: Integer, index among the graph's operations of the first that is not in the half.
    """
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
