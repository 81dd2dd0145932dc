"""Reuse of small results of the forward pass, such as a batch's mean, in a recomputed segment.

They are reduced from whole activations, which a mean reads once and a variance twice, and take next
to no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from kbatch.runtime.tensorflow_private import update_input
from kbatch.runtime.trace import PRIME

# A result is small if it has this many times fewer elements than what it was reduced from. Chosen
# by hand. With it ResNet50 under `peak:0.45` (scripts/bench_recompute.py) took 1.031 times the
# plain CPU seconds, 1.062 times without any reuse (commit 840fd8b).
SMALL = 64

# Attributes of an operation that do not decide its result.
_IRRELEVANT = frozenset({"_class", "_gradient_op_type", "_output_shapes"})


def share_small_results(
    recomputed: Sequence[tf.Tensor],
    forward: Sequence[tf.Tensor],
    entering: Mapping[int, tf.Tensor],
    given: Iterable[int],
    sent: Sequence[tf.Tensor],
    hold: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]],
) -> set[int]:
    """Let a recomputed segment and its gradients read the small results of the forward pass.

    A gradient that is taken of them later still flows through the recomputed ones.

    Args:
        recomputed: Tensors that the recomputed segment ends with.
        forward: Tensors that the forward pass ended with, in the same order.
        entering: Tensors that entered the forward pass, by the `id` of those that entered the
            recomputation in their place.
        given: The `id` of the tensors that depend on no example: the weights.
        sent: Tensors of the operations right before those of the recomputation.
        hold: Function that holds tensors back until the segment's turn. Without it TensorFlow
            would keep large tensors that are made of small ones, such as a scale for each element:
            it would notice that the forward pass has computed them already.

    Returns:
        The `id` of the operations that hand the small results on.
    """
    if not recomputed or tf.executing_eagerly():
        return set()
    graph = recomputed[0].graph
    if any(not tf.is_symbolic_tensor(tensor) or tensor.graph is not graph for tensor in forward):
        # The two passes of a loop are two graphs, and the rows of a jacobian are traced where the
        # forward pass ran eagerly.
        return set()
    operations = graph.get_operations()
    operations = operations[operations.index(sent[-1].op) + 1 :]
    twins = _twins(recomputed, forward, entering)
    repeated = [
        operation
        for operation in operations
        if any(id(output) in twins for output in operation.outputs)
    ]
    small = [tensor for tensor in small_results(repeated, set(given)) if id(tensor) in twins]
    held = hold([twins[id(tensor)] for tensor in small])
    instead = {
        id(tensor): _routed(known, tensor) for tensor, known in zip(small, held, strict=True)
    }
    for operation in operations:
        for index, tensor in enumerate(operation.inputs):
            if id(tensor) in instead:
                update_input(operation, index, instead[id(tensor)])
    return {id(tensor.op) for tensor in instead.values()}


def small_results(operations: Sequence[Any], given: set[int]) -> list[tf.Tensor]:
    """The tensors that are much smaller than what they are reduced from, and results of only those.

    Args:
        operations: Operations in the order in which they were traced.
        given: The `id` of the tensors that depend on no example.
    """
    reduced_from: dict[int, float] = {}  # elements before the reduction, by the small tensor's `id`
    computed = {id(output) for operation in operations for output in operation.outputs}
    constant = set(given)  # however small: they come from no activation
    small = []
    for operation in operations:
        if operation.type == "Placeholder":
            continue
        inputs = [
            tensor
            for tensor in operation.inputs
            if id(tensor) not in constant and (id(tensor) in computed or not _is_fixed(tensor))
        ]
        if not inputs:
            constant.update(id(output) for output in operation.outputs)
            continue
        largest = max(reduced_from.get(id(tensor), _elements(tensor)) for tensor in inputs)
        for output in operation.outputs:
            if output.dtype.is_floating and _elements(output) * SMALL <= largest:
                reduced_from[id(output)] = largest
                small.append(output)
    return small


def _twins(
    recomputed: Sequence[tf.Tensor], forward: Sequence[tf.Tensor], entering: Mapping[int, tf.Tensor]
) -> dict[int, tf.Tensor]:
    """Tensors of the forward pass, by the `id` of their recomputed twins.

    Twins come from the same operations on the same tensors. Those that enter are left out.
    """
    twins: dict[int, tf.Tensor | None] = dict(entering)
    stack = list(zip(recomputed, forward, strict=True))
    while stack:
        one, other = stack[-1]
        if id(one) in twins:
            stack.pop()
        elif one is other:
            twins[id(one)] = other
        elif not _do_the_same(one, other):
            twins[id(one)] = None
        else:
            inputs = list(zip(one.op.inputs, other.op.inputs, strict=True))
            unknown = [pair for pair in inputs if id(pair[0]) not in twins]
            stack += unknown
            if not unknown:
                same = all(twins[id(mine)] is its for mine, its in inputs)
                for mine, its in zip(one.op.outputs, other.op.outputs, strict=True):
                    twins[id(mine)] = its if same else None
    return {
        key: tensor for key, tensor in twins.items() if tensor is not None and key not in entering
    }


def _do_the_same(one: tf.Tensor, other: tf.Tensor) -> bool:
    """Whether two tensors come from operations that do the same to their inputs."""
    mine, its = one.op, other.op
    if mine.type != its.type or len(mine.inputs) != len(its.inputs):
        return False
    if one.value_index != other.value_index or mine.op_def.is_stateful:
        return False
    return _attributes(mine) == _attributes(its)


def _attributes(operation: Any) -> dict[str, Any]:
    attributes = operation.node_def.attr.items()
    return {name: value for name, value in attributes if name not in _IRRELEVANT}


@tf.custom_gradient
def _routed(forward: tf.Tensor, recomputed: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """Return `forward`, and route its gradient to `recomputed`, its recomputed twin.

    `recomputed` itself is then never evaluated: TensorFlow takes the IdentityN apart that hands
    both on.
    """
    return tf.identity(forward), lambda upstream: (None, upstream)


def _is_fixed(tensor: tf.Tensor) -> bool:
    """Whether a tensor is a constant or the value of a variable."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor.op.type in ("Const", "ReadVariableOp")


def _elements(tensor: tf.Tensor) -> float:
    """Number of elements; an unknown dimension counts as `PRIME` examples, an unknown rank as 0."""
    if tensor.shape.rank is None:
        return 0.0
    count = 1.0
    for length in tensor.shape:
        count *= PRIME if length is None else length
    return count
