"""Operation costs: bytes that each operation keeps for its gradient, and its work, from one trace of it alone."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.recompute._op_graph import Chain, Node
from kbatch.recompute._reuse import small_results
from kbatch.recompute._segment import Context, Scope, read
from kbatch.tracing.liveness import (
    ALIASES,
    LOOPS,
    PRIME,
    Buffer,
    body_of,
    lists_of,
    needed,
    size_of,
)
from kbatch.tracing.peak import most_before, most_beside
from kbatch.tracing.size import Size

# A unit of work is a byte moved, and a floating point operation counts as so many: with about this
# share the predictions of nine measured plans of
# ResNet50, MobileNetV2 and EfficientNetB0 on a CPU are most nearly proportional to what they took.
# Only shares of the whole are ever used.
BYTES_PER_FLOP = 0.05
FREE = frozenset(
    ("Const", "Placeholder", "NoOp", "ReadVariableOp", "Shape", "ShapeN", "Rank", "Size", *ALIASES)
)


@dataclass(frozen=True)
class Cost:
    """One operation of a chain.

    Attributes:
        inside: `Size` of the tensors made inside that its gradient needs.
        needs: Numbers of the values, read or written, that its gradient needs.
        made: `Size` of the most that its forward pass has made and holds at once, what it writes
            among it.
        transient: `Size` of the most that its backward pass holds, beside what it is given and what
            the forward pass made.
        gradients: Float, bytes of the gradients of its weights.
        forward: Float, work of its forward pass for one example.
        backward: Float, work of its backward pass.
        again: Float, work of making again what it makes, its small results known.
        rereads: Numbers of the values that making it again reads.
    """

    inside: Size
    needs: frozenset[int]
    made: Size
    transient: Size
    gradients: float
    forward: float
    backward: float
    again: float
    rereads: frozenset[int]


@dataclass(frozen=True)
class Costs:
    """Those of all operations of a chain.

    Attributes:
        nodes: Tuple of `Cost`, in the chain's order.
        sizes: `Size` of every value by its number.
        flowing: Numbers of the values that a gradient comes to.
        losing: Positions of the operations that add losses of their own.
    """

    nodes: tuple[Cost, ...]
    sizes: Mapping[int, Size]
    flowing: frozenset[int]
    losing: frozenset[int] = frozenset()

    @property
    def work(self) -> float:
        """Work of a plain step for one example."""
        return sum(cost.forward + cost.backward for cost in self.nodes)


def costs_of(chain: Chain) -> Costs:
    """Trace each operation of a chain forward and backward once; nothing is executed.

    Args:
        chain: The chain of a built model, under the policy it was built with.
    """
    context = Context(chain.functional.dtype_policy)
    specs = {
        number: tf.TensorSpec((tensor.shape[0] or PRIME, *tensor.shape[1:]), tensor.dtype)
        for number, tensor in zip(chain.inputs, chain.functional.inputs, strict=True)
    }
    masked: set[int] = set()
    flowing = chain.flowing()
    sizes = {number: _size(spec) for number, spec in specs.items()}
    found, losing = [], set()
    known: dict[Hashable, tuple[Cost, dict[int, tf.TensorSpec], bool, Node]] = {}
    for position, node in enumerate(chain.nodes):
        key = _alike(node, specs, masked, flowing)
        if key not in known:
            known[key] = (*_trace(node, specs, masked, flowing, context), node)
        cost, written, loses = _renumbered(*known[key], node, masked)
        specs.update(written)
        sizes.update((number, _size(spec)) for number, spec in written.items())
        found.append(cost)
        if loses:
            losing.add(position)
    return Costs(tuple(found), sizes, flowing, frozenset(losing))


def _alike(
    node: Node,
    specs: Mapping[int, tf.TensorSpec],
    masked: Collection[int],
    flowing: Collection[int],
) -> Hashable:
    """What two calls of one operation must share to cost the same."""
    if not isinstance(node.operation, keras.Operation) or not node.turn:
        return id(node)
    reads = tuple((specs[number], number in masked, number in flowing) for number in node.reads)
    order = tuple(node.reads.index(number) for number in node.symbols.values())
    return (
        id(node.operation),
        id(node.arguments),
        reads,
        order,
        tuple(number in flowing for number in node.writes),
    )


def _renumbered(
    cost: Cost,
    written: Mapping[int, tf.TensorSpec],
    loses: bool,
    traced: Node,
    node: Node,
    masked: set[int],
) -> tuple[Cost, dict[int, tf.TensorSpec], bool]:
    """What was found of one call of an operation, for another call that is alike."""
    number = dict(zip((*traced.reads, *traced.writes), (*node.reads, *node.writes), strict=True))
    masked.update(number[each] for each in traced.writes if each in masked)
    needs, rereads = (
        frozenset(number[each] for each in found) for found in (cost.needs, cost.rereads)
    )
    return (
        replace(cost, needs=needs, rereads=rereads),
        {number[each]: spec for each, spec in written.items()},
        loses,
    )


def _trace(
    node: Node,
    specs: Mapping[int, tf.TensorSpec],
    masked: set[int],
    flowing: frozenset[int],
    context: Context,
) -> tuple[Cost, dict[int, tf.TensorSpec], bool]:
    reads = node.reads
    weights = list({id(v): v for v in getattr(node.operation, "trainable_variables", ())}.values())
    border = end = losses = 0
    values: dict[int, Any] = {}
    upstream: list[tf.Tensor] = []
    given: list[tf.Tensor] = []

    def step(*tensors: tf.Tensor) -> list[Any]:
        nonlocal border, end, losses
        values.update(zip(reads, tensors, strict=True))
        for number in masked & set(reads):
            keras.src.backend.set_keras_mask(
                values[number], tf.compat.v1.placeholder(tf.bool, values[number].shape[:2])
            )
        weight_values = [tf.convert_to_tensor(weight._value) for weight in weights]
        given.extend(weight_values)
        sources = [values[number] for number in reads if number in flowing] + [
            each for each in weight_values if each.dtype.is_floating
        ]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            state = {
                id(variable): read(variable, None)
                for variable in getattr(node.operation, "variables", ())
            }
            with Scope(state) as scope:
                scope.give(zip(weights, weight_values, strict=True))
                context(lambda: node.run(values), training=True)
            losses = len(scope.losses)
        outputs = [values[number] for number in node.writes]
        masked.update(
            number
            for number in node.writes
            if keras.src.backend.get_keras_mask(values[number]) is not None
        )
        targets = [output for output in outputs if output.dtype.is_floating] if sources else []
        upstream.extend(tf.compat.v1.placeholder(output.dtype, output.shape) for output in targets)
        operations = tf.compat.v1.get_default_graph().get_operations
        border = len(operations())
        gradients = tape.gradient(targets, sources, output_gradients=upstream) if targets else []
        end = len(operations())  # what comes after only hands on what is returned
        return [*outputs, *(each for each in gradients if each is not None)]

    graph = tf.function(step).get_concrete_function(*(specs[number] for number in reads)).graph
    written = {
        number: tf.TensorSpec(values[number].shape, values[number].dtype) for number in node.writes
    }
    own = {id(_source(values[number])): number for number in (*reads, *node.writes)}
    forward, backward = graph.get_operations()[:border], graph.get_operations()[border:end]
    kept = _needed(forward, backward)
    needs = frozenset(own[key] for key in kept if key in own)
    inside = [
        tensor
        for key, tensor in kept.items()
        if key not in own and tensor.op.type not in ("Placeholder", "ReadVariableOp", "Const")
    ]
    small = {id(tensor) for tensor in small_results(forward, set(map(id, given)))}
    again = _ancestors([*inside, *(values[number] for number in node.writes)], small)
    rereads = frozenset(number for number in reads if id(values[number].op) in again)
    lists = lists_of(graph) if any(operation.type in LOOPS for operation in forward) else {}
    first, second = (
        sum(_work(operation, lists) for operation in part) for part in (forward, backward)
    )
    gradients = sum(
        float(np.prod(weight.shape)) * tf.as_dtype(weight.dtype).size for weight in weights
    )
    remade = sum(_work(operation, lists) for operation in forward if id(operation) in again)
    made, transient = most_before(graph, border), most_beside(graph, border, upstream)
    return (
        Cost(
            _total(inside, lists), needs, made, transient, gradients, first, second, remade, rereads
        ),
        written,
        losses > 0,
    )


def _needed(forward: Sequence[Any], backward: Sequence[Any]) -> dict[int, Any]:
    """The tensors of the forward operations that the backward operations read, by their `id`."""
    before = {id(operation) for operation in forward}
    return {
        id(source): source
        for operation in backward
        if operation.type not in ("Shape", "ShapeN", "ZerosLike", "OnesLike")
        for source in map(_source, operation.inputs)
        if id(source.op) in before
    }


def _ancestors(tensors: Iterable[Any], known: Collection[int]) -> set[int]:
    """The `id` of all operations that it takes to make tensors from those known."""
    stack, found = [tensor for tensor in tensors if id(tensor) not in known], set()
    while stack:
        operation = stack.pop().op
        if id(operation) not in found:
            found.add(id(operation))
            stack += [tensor for tensor in operation.inputs if id(tensor) not in known]
    return found


def _source(tensor: Any) -> Any:
    """The tensor whose buffer a tensor shares."""
    while tensor.op.type in ALIASES and len(tensor.op.inputs):
        tensor = tensor.op.inputs[tensor.value_index if tensor.op.type == "IdentityN" else 0]
    return tensor


def _total(tensors: Iterable[Any], lists: Mapping[int, Buffer]) -> Size:
    """Bytes of tensors, and of lists of tensors, of which several may stand for one."""
    total, filled = Size(), {}
    for tensor in tensors:
        if id(tensor) in lists:
            filled[id(lists[id(tensor)])] = lists[id(tensor)].size
        else:
            total += size_of(tensor)
    for size in filled.values():
        total += size
    return total


def _size(spec: tf.TensorSpec) -> Size:
    """Bytes of a value; one of unknown length counts as it is traced, that is not at all."""
    if not spec.shape.is_fully_defined():
        return Size()
    count = float(np.prod(spec.shape.as_list(), dtype=np.float64)) * spec.dtype.size
    return (
        Size(0.0, count / PRIME)
        if any(length and length % PRIME == 0 for length in spec.shape)
        else Size(count)
    )


def _work(operation: Any, lists: Mapping[int, Buffer]) -> float:
    """Work of one operation for one example; of a loop, that of all its turns."""
    if operation.type in FREE:
        return 0.0
    if operation.type in LOOPS:
        turns = max(
            (lists[id(tensor)].length for tensor in operation.inputs if id(tensor) in lists),
            default=0,
        )
        return max(turns, 1) * sum(_work(inner, {}) for inner in needed(body_of(operation)))
    moved = sum(size_of(tensor).at(PRIME) for tensor in (*operation.inputs, *operation.outputs))
    return (moved + BYTES_PER_FLOP * _flops(operation)) / PRIME


def _flops(operation: Any) -> float:
    shapes = [
        tensor.shape.as_list() if tensor.shape.is_fully_defined() else []
        for tensor in (*operation.inputs, *operation.outputs)
    ]
    if operation.type in ("MatMul", "BatchMatMulV2", "Einsum", "BatchMatMul", "BatchMatMulV3"):
        one, two, out = (float(np.prod(shape)) for shape in (shapes[0], shapes[1], shapes[-1]))
        # a product of (m, k) and (k, n) with m k n multiplications
        return 2 * float(np.sqrt(one * two * out))
    if "Conv" not in operation.type:
        return 0.0
    if operation.type.endswith("BackpropInput"):
        return _convolution(shapes[1], shapes[2])
    if operation.type.endswith("BackpropFilter"):
        return _convolution(shapes[-1], shapes[2])
    return _convolution(shapes[1], shapes[-1])


def _convolution(kernel: Sequence[int], outputs: Sequence[int]) -> float:
    """Floating point operations of a convolution, from the shapes of its kernel and of what the forward pass makes."""
    return (
        2.0 * float(np.prod(kernel[:-1])) * float(np.prod(outputs))
        if len(kernel) and len(outputs)
        else 0.0
    )
