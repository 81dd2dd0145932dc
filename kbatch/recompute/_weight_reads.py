"""Weight reads: the tensors that nodes read a weight from, so that gradients are summed in order.

The order is that of a plain tape. Where a segment keeps the order anyway, its nodes read one
tensor. Elsewhere each node reads a copy of its own, and the gradients of the copies are summed in
the order of `OpGraph.summed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from kbatch.recompute._op_graph import OpGraph
from kbatch.recompute._scope import read
from kbatch.runtime.keras_private import current_stateless_scope

# Copies of weights, by the weight's `id` and the position of the node that reads the copy.
Copies = Mapping[tuple[int, int], tf.Tensor]


@dataclass(frozen=True, eq=False)
class WeightRead:
    """A trained weight that nodes of a segment read from one tensor.

    Attributes:
        variable: The weight.
        positions: Tuple of integers, the positions of these nodes.
    """

    variable: Any
    positions: tuple[int, ...]

    def value(self, copies: Copies, outer: keras.StatelessScope | None) -> tf.Tensor:
        """The tensor: a copy if there is one, else the weight as it is now."""
        copy = copies.get((id(self.variable), self.positions[0]))
        return read(self.variable, outer) if copy is None else copy


def copy_weights(graph: OpGraph) -> Copies:
    """Copy the weights whose gradients must be summed in an order that segments do not keep."""
    copies: dict[tuple[int, int], tf.Tensor] = {}
    for key, (variable, positions) in graph.summed().items():
        value = read(variable, current_stateless_scope())
        for position, copy in zip(positions, _copies(value, len(positions)), strict=True):
            copies[key, position] = copy
    return copies


def weight_reads(graph: OpGraph, start: int, stop: int, copies: Copies) -> list[WeightRead]:
    """The trained weights that the nodes from `start` to `stop` read, as layers are frozen now."""
    reads = []
    for key, (variable, positions) in graph.users().items():
        inside = tuple(position for position in positions if start <= position < stop)
        if inside and (key, inside[0]) in copies:
            reads += [WeightRead(variable, (position,)) for position in inside]
        elif inside:
            reads.append(WeightRead(variable, inside))
    return reads


def _copies(value: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Copies of a tensor, whose gradients are summed from the first copy to the last."""

    @tf.custom_gradient
    def fan(one: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., Any]]:
        return [tf.identity(one) for _ in range(count)], lambda *upstream: _sum(upstream)

    return keras.tree.flatten(fan(value))


def _sum(gradients: Sequence[Any]) -> Any:
    """Sum gradients as a tape does: rows of an embedding are listed one after the other."""
    if all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
        values = tf.concat([gradient.values for gradient in gradients], 0)
        indices = tf.concat([gradient.indices for gradient in gradients], 0)
        return tf.IndexedSlices(values, indices, gradients[0].dense_shape)
    return tf.add_n([tf.convert_to_tensor(gradient) for gradient in gradients])
