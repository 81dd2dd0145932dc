"""Costs: bytes and work of each operation of a model, traced one by one."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.recompute._op_graph import Node, OpGraph
from kbatch.recompute._order import small_results, weights_first
from kbatch.recompute._segment import Context, Scope, forks, read
from kbatch.runtime.keras_private import mask_of, set_mask, tensorflow_variable
from kbatch.runtime.liveness import Buffer, backward_peak, body_of, forward_peak, lists_of, needed
from kbatch.runtime.tensorflow_private import is_stateful
from kbatch.runtime.trace import ALIASES, LOOPS, PRIME, Size, size_of, size_of_shape

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
    """Work of one operation for one example; of a loop, the work of all its turns."""
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


# Gradients read no bytes of the inputs of these operations, only shapes.
_SHAPE_READERS = frozenset({"OnesLike", "Shape", "ShapeN", "ZerosLike"})

# Tensors that are not kept for the backward pass: they belong to the caller, to a variable, or to
# the graph.
_NOT_KEPT = frozenset({"Const", "Placeholder", "ReadVariableOp"})


@dataclass(frozen=True)
class OpCost:
    """Bytes and work of one operation."""

    internal: Size  # of the tensors inside of the operation that its gradient needs
    needs: frozenset[int]  # numbers of the values, read or written, that its gradient needs
    # `Size` of the peak of what its forward pass allocates, its results included.
    forward_peak: Size
    # `Size` of the peak of what its backward pass allocates, not counting what it is given and what
    # the forward pass allocated.
    backward_peak: Size
    plain_backward_peak: Size  # the same where TensorFlow chooses the order of the gradients
    weight_gradients: float  # bytes of the gradients of its weights
    forward_work: float  # work of its forward pass for one example
    backward_work: float  # work of its backward pass for one example
    # Work of recomputing it for one example, when its small results are known.
    recompute_work: float
    recompute_reads: frozenset[int]  # numbers of the values that its recomputation reads


@dataclass(frozen=True)
class TracedOp:
    """What the trace of one call of an operation tells."""

    cost: OpCost
    # Shape and type of each value that it writes, by its number.
    written: Mapping[int, tf.TensorSpec]
    masked: frozenset[int]  # numbers of the values that it writes with a mask
    adds_losses: bool  # whether it adds losses of its own
    # Numbers of the values that it reads and several of its results depend on.
    forks: frozenset[int] = frozenset()

    def renumbered(self, traced: Node, node: Node) -> TracedOp:
        """The same for another call, `node`, which costs the same as the `traced` one."""
        olds, news = (*traced.reads, *traced.writes), (*node.reads, *node.writes)
        number = dict(zip(olds, news, strict=True))

        def moved(numbers: Iterable[int]) -> frozenset[int]:
            return frozenset(number[old] for old in numbers)

        cost = replace(
            self.cost,
            needs=moved(self.cost.needs),
            recompute_reads=moved(self.cost.recompute_reads),
        )
        written = {number[old]: spec for old, spec in self.written.items()}
        return TracedOp(cost, written, moved(self.masked), self.adds_losses, moved(self.forks))


def trace_op(
    node: Node,
    specs: Mapping[int, tf.TensorSpec],
    masked: Collection[int],
    differentiable: Collection[int],
    context: Context,
) -> TracedOp:
    """Trace one call of an operation forward and backward."""
    trace = _OpTrace(node, masked, differentiable, context)
    trace.run([specs[number] for number in node.reads])
    return TracedOp(
        trace.cost(), trace.written(), trace.masked_writes, trace.adds_losses, trace.forks
    )


class _OpTrace:
    """One operation, traced in a graph of its own.

    Attributes:
        masked_writes: Numbers of the values that it writes with a mask.
        adds_losses: Boolean, whether it adds losses of its own.
        forks: Numbers of the values that it reads and several of its results depend on.
    """

    def __init__(
        self,
        node: Node,
        masked: Collection[int],
        differentiable: Collection[int],
        context: Context,
    ) -> None:
        self.masked_writes: frozenset[int] = frozenset()
        self.adds_losses = False
        self.forks: frozenset[int] = frozenset()
        self._node, self._context = node, context
        self._masked, self._differentiable = set(masked), differentiable
        self._weights = node.weights
        self._weight_values: list[tf.Tensor] = []
        self._values: dict[int, Any] = {}  # the tensors of the graph, by the values' numbers
        self._upstream: list[tf.Tensor] = []
        self._gradients: list[tf.Tensor] = []
        self._weight_gradients: list[Any] = []
        self._border = self._end = 0  # positions of the backward pass among the graph's operations

    def run(self, specs: Sequence[tf.TensorSpec]) -> None:
        """Trace the operation with inputs of these shapes and types."""
        self._graph = tf.function(self._step).get_concrete_function(*specs).graph
        operations = self._graph.get_operations()
        self._forward = operations[: self._border]
        # Gradients of frozen weights are traced with some others, but nothing asks for them.
        asked = _ancestors(self._gradients, ())
        self._backward = [
            operation
            for operation in operations[self._border : self._end]
            if id(operation) in asked
        ]
        has_loops = any(operation.type in LOOPS for operation in self._forward)
        self._lists = lists_of(self._graph) if has_loops else {}

    def _step(self, *tensors: tf.Tensor) -> list[Any]:
        """The forward and the backward pass; called by `tf.function`."""
        values, reads = self._values, self._node.reads
        values.update(zip(reads, tensors, strict=True))
        for number in self._masked & set(reads):
            shape = values[number].shape[:2]
            set_mask(values[number], tf.compat.v1.placeholder(tf.bool, shape))
        self._weight_values = [
            tf.convert_to_tensor(tensorflow_variable(weight)) for weight in self._weights
        ]
        sources = [values[number] for number in reads if number in self._differentiable]
        sources += [value for value in self._weight_values if value.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            self._call()
        outputs = [values[number] for number in self._node.writes]
        targets = [output for output in outputs if output.dtype.is_floating] if sources else []
        self._upstream = [
            tf.compat.v1.placeholder(output.dtype, output.shape) for output in targets
        ]
        operations = tf.compat.v1.get_default_graph().get_operations
        self._border = len(operations())
        gradients = []
        if targets:
            gradients = tape.gradient(targets, sources, output_gradients=self._upstream)
        self._end = len(operations())  # later operations only hand on what this function returns
        self._gradients = [gradient for gradient in gradients if gradient is not None]
        inputs = sum(number in self._differentiable for number in reads)
        self._weight_gradients = gradients[inputs:]
        return [*outputs, *self._gradients]

    def _call(self) -> None:
        """Call the operation with its variables as values."""
        variables = getattr(self._node.operation, "variables", ())
        state = {id(variable): read(variable, None) for variable in variables}
        with Scope(state) as scope:
            scope.give(zip(self._weights, self._weight_values, strict=True))
            self._context(lambda: self._node.run(self._values), training=True)
        self.adds_losses = len(scope.losses) > 0
        self.forks = forks(self._node, self._values)
        self.masked_writes = frozenset(
            number for number in self._node.writes if mask_of(self._values[number]) is not None
        )

    def written(self) -> dict[int, tf.TensorSpec]:
        """Shape and type of each value that the operation writes, by its number."""
        tensors = {number: self._values[number] for number in self._node.writes}
        return {number: tf.TensorSpec(each.shape, each.dtype) for number, each in tensors.items()}

    def cost(self) -> OpCost:
        """The costs of the traced operation."""
        reads, writes = self._node.reads, self._node.writes
        own = {id(_source(self._values[number])): number for number in (*reads, *writes)}
        kept = _read_by(self._backward, self._forward)
        shared = _of_shapes(self._forward)
        internal = [
            tensor
            for key, tensor in kept.items()
            if key not in own and tensor.op.type not in _NOT_KEPT and id(tensor.op) not in shared
        ]
        small = small_results(self._forward, set(map(id, self._weight_values)))
        ends = [*internal, *(self._values[number] for number in writes)]
        recomputed = _ancestors(ends, {id(tensor) for tensor in small})
        plain_peak = peak = backward_peak(self._graph, self._border, self._upstream)
        if weights_first(self._weight_gradients):
            peak = backward_peak(self._graph, self._border, self._upstream)
        return OpCost(
            internal=_total(internal, self._lists),
            needs=frozenset(own[key] for key in kept if key in own),
            forward_peak=forward_peak(self._graph, self._border),
            backward_peak=peak,
            plain_backward_peak=plain_peak,
            weight_gradients=sum(
                float(np.prod(weight.shape)) * tf.as_dtype(weight.dtype).size
                for weight in self._weights
            ),
            forward_work=self._work(self._forward),
            backward_work=self._work(self._backward),
            recompute_work=self._work(each for each in self._forward if id(each) in recomputed),
            recompute_reads=frozenset(
                number for number in reads if id(self._values[number].op) in recomputed
            ),
        )

    def _work(self, operations: Iterable[Any]) -> float:
        return sum(work_of(operation, self._lists) for operation in operations)


def _read_by(backward: Sequence[Any], forward: Sequence[Any]) -> dict[int, Any]:
    """The tensors of the forward operations whose bytes the backward operations read, by `id`."""
    before = {id(operation) for operation in forward}
    read_tensors = {}
    for operation in backward:
        if operation.type in _SHAPE_READERS:
            continue
        for tensor in operation.inputs:
            source = _source(tensor)
            if id(source.op) in before:
                read_tensors[id(source)] = source
    return read_tensors


def _of_shapes(operations: Sequence[Any]) -> set[int]:
    """The `id` of the operations whose results depend on constants and shapes alone.

    TensorFlow computes what is equal in several layers once, such as the relative positions of all
    blocks of a DeBERTa.
    """
    known: set[int] = set()
    for operation in operations:
        fixed = operation.type == "Const" or operation.type in _SHAPE_READERS
        inputs = [tensor.op for tensor in operation.inputs]
        derived = len(inputs) > 0 and all(id(source) in known for source in inputs)
        if fixed or (derived and not is_stateful(operation.type)):
            known.add(id(operation))
    return known


def _ancestors(tensors: Iterable[Any], known: Collection[int]) -> set[int]:
    """The `id` of the operations that compute tensors from the known ones."""
    stack = [tensor for tensor in tensors if id(tensor) not in known]
    ancestors: set[int] = set()
    while stack:
        operation = stack.pop().op
        if id(operation) not in ancestors:
            ancestors.add(id(operation))
            stack += [tensor for tensor in operation.inputs if id(tensor) not in known]
    return ancestors


def _source(tensor: Any) -> Any:
    """The first tensor that has the buffer of a tensor."""
    while tensor.op.type in ALIASES and len(tensor.op.inputs):
        tensor = tensor.op.inputs[tensor.value_index if tensor.op.type == "IdentityN" else 0]
    return tensor


def _total(tensors: Iterable[Any], lists: Mapping[int, Buffer]) -> Size:
    """Bytes of tensors and of TensorLists; tensors that stand for one list count it once."""
    total = Size()
    list_sizes = {}
    for tensor in tensors:
        if id(tensor) in lists:
            buffer = lists[id(tensor)]
            list_sizes[id(buffer)] = buffer.size
        else:
            total += size_of(tensor)
    for size in list_sizes.values():
        total += size
    return total


@dataclass(frozen=True)
class ModelCosts:
    """Costs of all operations of a model."""

    nodes: tuple[OpCost, ...]  # in call order
    sizes: Mapping[int, Size]  # of every value by its number
    differentiable: frozenset[int]  # numbers of the values that a gradient comes to
    # Positions of the operations that add losses of their own.
    loss_positions: frozenset[int] = frozenset()
    # Positions of operations, each with the number of a value that several of its results need.
    forks: frozenset[tuple[int, int]] = frozenset()
    # Shapes and types of the model's outputs, at a batch of `PRIME`.
    outputs: tuple[tf.TensorSpec, ...] = ()

    @property
    def work(self) -> float:
        """Work of a step of the plain model for one example."""
        return sum(cost.forward_work + cost.backward_work for cost in self.nodes)


def costs_of(graph: OpGraph) -> ModelCosts:
    """Trace each operation of a model forward and backward once; nothing is executed."""
    context = Context(graph.functional.dtype_policy)
    specs = {
        number: tf.TensorSpec((shape[0] or PRIME, *shape[1:]), tensor.dtype)
        for number, shape, tensor in zip(
            graph.inputs, graph.shapes, graph.functional.inputs, strict=True
        )
    }
    sizes = {number: _size(spec) for number, spec in specs.items()}
    differentiable = graph.differentiable()
    masked: set[int] = set()
    costs: list[OpCost] = []
    loss_positions, forking = set(), set[tuple[int, int]]()
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
        forking |= {(position, number) for number in trace.forks}
    return ModelCosts(
        tuple(costs),
        sizes,
        differentiable,
        frozenset(loss_positions),
        frozenset(forking),
        tuple(specs[number] for number in graph.outputs),
    )


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
