"""Operation costs: bytes and work of each operation of a model, from a trace of each."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass

import keras
import tensorflow as tf

from kbatch.recompute._op_graph import OpGraph
from kbatch.recompute._op_node import Node
from kbatch.recompute._op_trace import OpCost, TracedOp, trace_op
from kbatch.recompute._scope import Context
from kbatch.runtime.size import Size
from kbatch.runtime.trace import PRIME, size_of_shape


@dataclass(frozen=True)
class ModelCosts:
    """Costs of all operations of a model.

    Attributes:
        nodes: Tuple of `OpCost` in call order.
        sizes: `Size` of every value by its number.
        differentiable: Numbers of the values that a gradient comes to.
        loss_positions: Positions of the operations that add losses of their own.
    """

    nodes: tuple[OpCost, ...]
    sizes: Mapping[int, Size]
    differentiable: frozenset[int]
    loss_positions: frozenset[int] = frozenset()

    @property
    def work(self) -> float:
        """Work of a step of the plain model for one example."""
        return sum(cost.forward_work + cost.backward_work for cost in self.nodes)


def costs_of(graph: OpGraph) -> ModelCosts:
    """Trace each operation of a model forward and backward once; nothing is executed.

    Args:
        graph: Operations of a built model. They are traced under the policy of the model.
    """
    context = Context(graph.functional.dtype_policy)
    specs = {
        number: tf.TensorSpec((tensor.shape[0] or PRIME, *tensor.shape[1:]), tensor.dtype)
        for number, tensor in zip(graph.inputs, graph.functional.inputs, strict=True)
    }
    sizes = {number: _size(spec) for number, spec in specs.items()}
    differentiable = graph.differentiable()
    masked: set[int] = set()
    costs: list[OpCost] = []
    loss_positions = set()
    traces: dict[Hashable, tuple[Node, TracedOp]] = {}
    for position, node in enumerate(graph.nodes):
        kind = _kind(node, specs, masked, differentiable)
        if kind not in traces:
            traces[kind] = node, trace_op(node, specs, masked, differentiable, context)
        first, trace = traces[kind]
        trace = trace.renumbered(first, node)
        specs.update(trace.written)
        sizes.update((number, _size(spec)) for number, spec in trace.written.items())
        masked.update(trace.masked)
        costs.append(trace.cost)
        if trace.adds_losses:
            loss_positions.add(position)
    return ModelCosts(tuple(costs), sizes, differentiable, frozenset(loss_positions))


def _kind(
    node: Node,
    specs: Mapping[int, tf.TensorSpec],
    masked: Collection[int],
    differentiable: Collection[int],
) -> Hashable:
    """A key that two calls share if they cost the same.

    Only steps of time of a TimeDistributed model are compared: they repeat the calls of one layer.
    """
    if not isinstance(node.operation, keras.Operation) or not node.time_step:
        return id(node)
    reads = tuple(
        (specs[number], number in masked, number in differentiable) for number in node.reads
    )
    order = tuple(node.reads.index(number) for number in node.symbols.values())
    writes = tuple(number in differentiable for number in node.writes)
    return id(node.operation), id(node.arguments), reads, order, writes


def _size(spec: tf.TensorSpec) -> Size:
    """Bytes of a value; `0` if a length is unknown even in the trace."""
    if not spec.shape.is_fully_defined():
        return Size()
    return size_of_shape(spec.shape.as_list(), spec.dtype.size)
