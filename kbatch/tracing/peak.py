"""Peak bytes of the forward half and of the backward half of a traced graph, not counting what existed before each began."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kbatch.tracing.liveness import ALIASES, IN_PLACE, PRIME, SHAPES, buffers_of, needed, size_of
from kbatch.tracing.size import Size


def most_beside(graph: Any, begin: int, given: Sequence[Any]) -> Size:
    """The most bytes that the operations of a graph from one on hold at once, beside what was made before them and what they are given.

    Args:
        graph: `FuncGraph` traced with a batch of `PRIME`.
        begin: Integer, index of the first of these operations among the graph's.
        given: Tensors that they are given, each of which is given up once it was read for the last
            time.
    """
    operations = needed(graph)
    first = _index(graph, operations, begin)
    return _most(
        graph,
        first,
        len(operations),
        [(max(first, _last_read(tensor, operations)) + 1, size_of(tensor)) for tensor in given],
    )


def most_before(graph: Any, end: int) -> Size:
    """The most bytes that the operations of a graph before one have made and hold at once; what they are given is not among it.

    Args:
        graph: `FuncGraph` traced with a batch of `PRIME`.
        end: Integer, index of the first operation after them among the graph's.
    """
    return _most(graph, 0, _index(graph, needed(graph), end), [])


def _index(graph: Any, operations: Sequence[Any], position: int) -> int:
    """The index of the first of the needed operations that is not before a position among all of the graph's."""
    later = {id(operation) for operation in graph.get_operations()[position:]}
    return next(
        (index for index, operation in enumerate(operations) if id(operation) in later),
        len(operations),
    )


def _most(graph: Any, first: int, stop: int, given_up: Sequence[tuple[int, Size]]) -> Size:
    """The most bytes of what is made from one index on, up to another, less what is given up from an index on."""
    buffers, inner = buffers_of(graph)
    lines = np.zeros((len(needed(graph)) + 2, 2))
    for buffer in buffers:
        if buffer.birth >= first:
            lines[buffer.birth] += _line(buffer.size)
            lines[buffer.death + 1] -= _line(buffer.size)
    for index, size in given_up:
        lines[index] -= _line(size)
    held = np.cumsum(lines, axis=0)
    for index, size in inner.items():
        held[index] += _line(size)
    most = max(
        (Size(*map(float, line)) for line in held[first:stop]),
        key=lambda size: size.at(PRIME),
        default=Size(),
    )
    return most if most.at(PRIME) > 0 else Size()


def _last_read(tensor: Any, operations: Sequence[Any]) -> int:
    """The last index at which a tensor's buffer is read, or the one before if that operation may write into it."""
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
