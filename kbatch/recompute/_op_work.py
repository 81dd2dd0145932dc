"""Work of TensorFlow operations: how long they take, in proportion to one another.

A unit of work is one byte read or written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kbatch.runtime.liveness import Buffer, body_of, needed
from kbatch.runtime.trace import ALIASES, LOOPS, PRIME, size_of

# Units of work of one floating point operation. Fitted by hand to nine measured plans of ResNet50,
# MobileNetV2 and EfficientNetB0 on a CPU: with about this number predicted and measured seconds
# were most nearly proportional. Plans only use ratios of work.
BYTES_PER_FLOP = 0.05

# Operations that move no bytes.
FREE = frozenset(
    {"Const", "NoOp", "Placeholder", "Rank", "ReadVariableOp", "Shape", "ShapeN", "Size"} | ALIASES
)

_PRODUCTS = frozenset({"BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "MatMul"})


def work_of(operation: Any, lists: Mapping[int, Buffer]) -> float:
    """Work of one operation for one example; of a loop, the work of all its turns.

    Args:
        operation: Operation of a graph traced with a batch of `PRIME`.
        lists: Buffers of TensorLists by the `id` of their tensors.
    """
    if operation.type in FREE:
        return 0.0
    if operation.type in LOOPS:
        lengths = [lists[id(tensor)].length for tensor in operation.inputs if id(tensor) in lists]
        turns = max(lengths, default=0)
        return max(turns, 1) * sum(work_of(inner, {}) for inner in needed(body_of(operation)))
    moved = sum(size_of(tensor).at(PRIME) for tensor in (*operation.inputs, *operation.outputs))
    return (moved + BYTES_PER_FLOP * _flops(operation)) / PRIME


def _flops(operation: Any) -> float:
    """Floating point operations of a matrix product or a convolution; `0` for all others."""
    shapes = [
        tensor.shape.as_list() if tensor.shape.is_fully_defined() else []
        for tensor in (*operation.inputs, *operation.outputs)
    ]
    if operation.type in _PRODUCTS:
        one, two, out = (float(np.prod(shape)) for shape in (shapes[0], shapes[1], shapes[-1]))
        # (m, k) times (k, n) takes m k n multiplications, the root of (m k) (k n) (m n).
        return 2 * float(np.sqrt(one * two * out))
    if "Conv" not in operation.type:
        return 0.0
    if operation.type.endswith("BackpropInput"):
        return _convolution_flops(shapes[1], shapes[2])
    if operation.type.endswith("BackpropFilter"):
        return _convolution_flops(shapes[-1], shapes[2])
    return _convolution_flops(shapes[1], shapes[-1])


def _convolution_flops(kernel: Sequence[int], outputs: Sequence[int]) -> float:
    """Floating point operations of a convolution, from the shapes of kernel and forward output."""
    if not len(kernel) or not len(outputs):
        return 0.0
    return 2.0 * float(np.prod(kernel[:-1])) * float(np.prod(outputs))
