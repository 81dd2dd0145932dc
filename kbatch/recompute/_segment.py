"""Segment: consecutive operations of a model, run as one pure function.

Weights and state enter the function as values; new state and losses leave it as values. Run twice
from the same values, it draws the same dropout masks, and its forward pass alone updates the
statistics of BatchNormalization.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from kbatch.recompute._barriers import Turns
from kbatch.recompute._op_graph import OpGraph
from kbatch.recompute._op_node import Node
from kbatch.recompute._scope import Context, Scope, read
from kbatch.recompute._weight_reads import Copies, WeightRead, weight_reads
from kbatch.runtime.keras_private import (
    current_stateless_scope,
    flatten_layers,
    loss_ids,
    mask_of,
    set_mask,
)


@dataclass(frozen=True)
class Step:
    """What all segments share while one step is traced.

    Attributes:
        context: Layer to run operations under.
        turns: Order in which segments are recomputed.
        differentiable: Numbers of the values whose gradients reach something trainable.
        copies: Copies of weights that nodes read.
    """

    context: Context
    turns: Turns
    differentiable: Collection[int]
    copies: Copies


@dataclass
class RunResult:
    """The tensors that one run of a segment leaves.

    Attributes:
        outputs: Floating tensors that later segments read, in the order of `Segment.outputs`.
        losses: Losses that layers added.
        owners: The layer that added each loss.
        others: Other tensors that later segments read, such as tokens, by their numbers.
        masks: Keras' mask of each tensor that later segments read, by its number.
        updates: Variables that layers assigned, with their new values.
    """

    outputs: list[tf.Tensor]
    losses: list[tf.Tensor]
    owners: list[Any] = field(default_factory=list)
    others: dict[int, tf.Tensor] = field(default_factory=dict)
    masks: dict[int, tf.Tensor] = field(default_factory=dict)
    updates: list[tuple[Any, tf.Tensor]] = field(default_factory=list)

    @property
    def ends(self) -> list[tf.Tensor]:
        """The tensors that gradients come back to: outputs and losses."""
        return [*self.outputs, *self.losses]


class Segment:
    """The operations between two cuts of a model.

    Args:
        graph: The model's operations.
        start: Integer, position of the first.
        stop: Integer, position after the last.

    Attributes:
        inputs: Numbers of the values that the segment reads from before.
        outputs: Numbers of the values that later operations read. Values that are read here and
            later go through the segment, so that their gradients are summed as a plain tape sums
            them: the sum of later readers first, then this segment's readers one by one.
        layers: The layers among its operations.
        is_differentiable: Boolean, whether a gradient can come back to any output.
        description: String, for error messages.
    """

    def __init__(self, graph: OpGraph, start: int, stop: int) -> None:
        self.nodes: tuple[Node, ...] = graph.nodes[start:stop]
        written = {number for node in self.nodes for number in node.writes}
        read_numbers = [number for node in self.nodes for number in node.reads]
        self.inputs = tuple(
            dict.fromkeys(number for number in read_numbers if number not in written)
        )
        self.outputs = tuple(
            number for number in graph.live(stop) if number in written or number in self.inputs
        )
        operations = [node.operation for node in self.nodes]
        self.layers = list(
            dict.fromkeys(each for each in operations if isinstance(each, keras.layers.Layer))
        )
        self.is_differentiable = any(graph.is_float(number) for number in self.outputs)
        self.description = f"from {self.nodes[0].name!r} to {self.nodes[-1].name!r}"
        self._graph, self._start, self._stop = graph, start, stop

    def run(self, values: dict[int, Any], step: Step) -> None:
        """Run the operations as Keras does, and keep what their gradients need.

        Args:
            values: Tensors by their numbers. Those that the operations make are added.
            step: What the segments of this step share.
        """
        step.context.segment = self.description
        if not any(self._start <= position < self._stop for _, position in step.copies):
            for node in self.nodes:
                node.run(values)
            return
        state = self.state()
        outer = current_stateless_scope()
        weights = {each: each.value(step.copies, outer) for each in self.weights(step.copies)}
        result = step.context(lambda: self.compute(values, weights, Scope(state)), training=True)
        self.publish(values, result, result.ends)

    def state(self) -> dict[int, tf.Tensor]:
        """The values of all variables of the layers now, by their `id`."""
        outer = current_stateless_scope()
        return {
            id(variable): read(variable, outer)
            for layer in self.layers
            for variable in layer.variables
        }

    def weights(self, copies: Copies) -> list[WeightRead]:
        """The trained weights that the operations read, as layers are frozen now."""
        return weight_reads(self._graph, self._start, self._stop, copies)

    def compute(
        self, values: dict[int, Any], weights: Mapping[WeightRead, tf.Tensor], scope: Scope
    ) -> RunResult:
        """Run the operations as a pure function.

        Args:
            values: Tensors by their numbers. Those that the operations make are added.
            weights: The tensors to read weights from.
            scope: Scope that holds the state to begin with.
        """
        with scope:
            for position, node in enumerate(self.nodes, self._start):
                scope.give(
                    (weight.variable, value)
                    for weight, value in weights.items()
                    if position in weight.positions
                )
                node.run(values)
        leaving = {number: values[number] for number in self.outputs}
        others = {
            number: tensor for number, tensor in leaving.items() if not tensor.dtype.is_floating
        }
        return RunResult(
            outputs=[tensor for tensor in leaving.values() if tensor.dtype.is_floating],
            losses=list(scope.losses),
            owners=[self._owner(loss) for loss in scope.losses],
            others=others,
            masks={number: mask_of(tensor) for number, tensor in leaving.items()},
            updates=[
                (variable, tf.stop_gradient(scope.get_current_value(variable)))
                for variable in scope.updated.values()
            ],
        )

    def publish(self, values: dict[int, Any], result: RunResult, ends: Sequence[tf.Tensor]) -> None:
        """Hand the tensors, losses and new state of the forward pass on to the model.

        Args:
            values: Tensors by their numbers. Those of `outputs` are added.
            result: What the forward pass left.
            ends: The outputs and losses, in the order of `result.ends`.
        """
        remaining = iter(ends)
        for number in self.outputs:
            others = result.others
            values[number] = others[number] if number in others else next(remaining)
            if result.masks[number] is not None and mask_of(values[number]) is None:
                set_mask(values[number], result.masks[number])
        for owner, loss in zip(result.owners, remaining, strict=True):
            owner.add_loss(loss)
        for variable, value in result.updates:
            variable.assign(value)

    def _owner(self, loss: tf.Tensor) -> Any:
        """The layer that added a loss."""
        for layer in self.layers:
            for inner in flatten_layers(layer):
                if id(loss) in loss_ids(inner):
                    return inner
        raise KeyError(id(loss))
