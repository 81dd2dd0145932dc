"""Reuse: small results of a segment's forward pass, such as a batch's mean, serve its backward pass too.

They are made from whole activations, which a mean reads once and a variance twice, and cost next to
nothing to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from kbatch.tracing.liveness import PRIME

SMALL = 64  # so many times smaller than what it is made from
# attributes that say nothing of what an operation returns
_ASIDE = frozenset(("_class", "_output_shapes", "_gradient_op_type"))


def reuse(
    again: Sequence[tf.Tensor],
    forward: Sequence[tf.Tensor],
    entering: Mapping[int, tf.Tensor],
    given: Iterable[int],
    sent: Sequence[tf.Tensor],
    hold: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]],
) -> set[int]:
    """Let the operations that make a segment again, and its gradients, read the small results of its forward pass.

    A gradient that is taken of them later still flows through what they stand for.

    Args:
        again: Tensors that the segment ends with when it is made again.
        forward: The same of its forward pass, in the same order.
        entering: The tensors of the forward pass by the `id` of those that take their place when it
            is made again.
        given: The `id` of those that depend on no example: the weights.
        sent: Tensors made by the operations right before those that make the segment again.
        hold: Function that returns tensors once the segment may be made again. Without it
            TensorFlow would see that some large tensor, such as a scale for each element of each
            example, is made of small ones as it was in the forward pass, and keep it.

    Returns:
        The `id` of the operations that hand the small results on.
    """
    if not again or tf.executing_eagerly():
        return set()
    graph = again[0].graph
    if any(not tf.is_symbolic_tensor(tensor) or tensor.graph is not graph for tensor in forward):
        # a loop's inside and its gradient's are two graphs; a jacobian's rows are traced where the
        # forward pass ran eagerly
        return set()
    operations = graph.get_operations()
    operations = operations[operations.index(sent[-1].op) + 1 :]
    equal = _equal(again, forward, entering)
    remade = [
        operation
        for operation in operations
        if any(id(output) in equal for output in operation.outputs)
    ]
    small = [tensor for tensor in small_results(remade, set(given)) if id(tensor) in equal]
    held = hold([equal[id(tensor)] for tensor in small])
    instead = {id(tensor): _kept(known, tensor) for tensor, known in zip(small, held, strict=True)}
    for operation in operations:
        for index, tensor in enumerate(operation.inputs):
            if id(tensor) in instead:
                operation._update_input(index, instead[id(tensor)])
    return {id(tensor.op) for tensor in instead.values()}


def small_results(operations: Sequence[Any], given: set[int]) -> list[tf.Tensor]:
    """Those tensors that are much smaller than what they are made from, and what is made from nothing but them.

    Args:
        operations: In the order in which they were made.
        given: The `id` of tensors that depend on no example.
    """
    made_from: dict[int, float] = {}  # elements of the tensors that a small one was reduced from
    inside = {id(output) for operation in operations for output in operation.outputs}
    still = set(given)  # as small as they may be, they come from no activation
    found = []
    for operation in operations:
        if operation.type == "Placeholder":
            continue
        moving = [
            tensor
            for tensor in operation.inputs
            if id(tensor) not in still and (id(tensor) in inside or not _is_fixed(tensor))
        ]
        if not moving:
            still.update(id(output) for output in operation.outputs)
            continue
        most = max(made_from.get(id(tensor), _elements(tensor)) for tensor in moving)
        for output in operation.outputs:
            if output.dtype.is_floating and _elements(output) * SMALL <= most:
                made_from[id(output)] = most
                found.append(output)
    return found


def _equal(
    again: Sequence[tf.Tensor], forward: Sequence[tf.Tensor], entering: Mapping[int, tf.Tensor]
) -> dict[int, tf.Tensor]:
    """Tensors of the forward pass by the `id` of those that are made again by the same operations from the same tensors."""
    found: dict[int, tf.Tensor | None] = dict(entering)
    stack = list(zip(again, forward, strict=True))
    while stack:
        one, other = stack[-1]
        if id(one) in found:
            stack.pop()
        elif one is other:
            found[id(one)] = other
        elif not _alike(one, other):
            found[id(one)] = None
        else:
            inputs = list(zip(one.op.inputs, other.op.inputs, strict=True))
            unknown = [pair for pair in inputs if id(pair[0]) not in found]
            stack += unknown
            if not unknown:
                same = all(found[id(before)] is after for before, after in inputs)
                found.update(
                    (id(mine), its if same else None)
                    for mine, its in zip(one.op.outputs, other.op.outputs, strict=True)
                )
    return {
        key: tensor for key, tensor in found.items() if tensor is not None and key not in entering
    }


def _alike(one: tf.Tensor, other: tf.Tensor) -> bool:
    """Whether two tensors come from operations that do the same to their inputs."""
    mine, its = one.op, other.op
    if (
        mine.type != its.type
        or len(mine.inputs) != len(its.inputs)
        or one.value_index != other.value_index
        or mine.op_def.is_stateful
    ):
        return False
    first, second = (
        {key: value for key, value in operation.node_def.attr.items() if key not in _ASIDE}
        for operation in (mine, its)
    )
    return first == second


@tf.custom_gradient
def _kept(forward: tf.Tensor, again: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """The first; the second is not computed, since TensorFlow takes apart what hands both on, but gradients flow to it."""
    return tf.identity(forward), lambda upstream: (None, upstream)


def _is_fixed(tensor: tf.Tensor) -> bool:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor.op.type in ("Const", "ReadVariableOp")


def _elements(tensor: tf.Tensor) -> float:
    """How many numbers it has; a dimension that is not known counts as one of the examples."""
    if tensor.shape.rank is None:
        return 0.0
    count = 1.0
    for length in tensor.shape:
        count *= PRIME if length is None else length
    return count
