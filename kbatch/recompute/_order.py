"""Order: barriers that keep recomputed operations from running too early."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from kbatch.runtime.tensorflow_private import add_control_input, is_compiled_by_xla, update_input
from kbatch.runtime.trace import ALIASES

Barrier = Callable[[Sequence[tf.Tensor], Sequence[tf.Tensor]], list[tf.Tensor]]


class SegmentOrder:
    """The order in which the segments of one step are recomputed: one after another.

    The order is the one in which the tape asks for them. Without it, segments of parallel branches
    would be recomputed at the same time.
    """

    def __init__(self, barrier: Barrier) -> None:
        self._barrier = barrier
        # Gradients of the segment that ended last: of its inputs, else of its weights.
        self._last: list[tf.Tensor] = []
        self._graph: Any = None  # the graph of these gradients
        self._awaited: list[tf.Tensor] = []  # what the segment waits for that began last

    def begin(self, tensors: Sequence[tf.Tensor], upstream: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The inputs of a segment, held back until its turn."""
        # A tensor from inside of a loop is not known outside of it.
        before = self._last if self._graph is _graph() else []
        self._awaited = [*upstream, *before]
        return self.hold(tensors)

    def hold(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Tensors, held back until the turn of the segment that began last."""
        return self._barrier(tensors, self._awaited) if tensors else []

    def end(self, inputs: Sequence[Any], weights: Sequence[Any]) -> list[Any]:
        """The gradients of a segment's inputs and weights, in this order.

        Those of the inputs are handed on once all are known. Those of the weights are handed on at
        once: an optimizer may use and free them.
        """
        others = [each for gradient in weights for each in _tensors(gradient)]
        done = together(inputs, others)
        held = [each for gradient in done for each in _tensors(gradient)]
        self._last = [each for each in held if each.dtype.is_floating][:1]  # all come at once
        if not self._last:
            self._last = [each for each in others if each.dtype.is_floating]
        self._graph = _graph()
        return [*done, *weights]


def barrier_here() -> Barrier:
    """The barrier for the function that is traced now, by Keras or in a loop of the user's own."""
    return select_barrier if is_compiled_by_xla() else slice_barrier


def slice_barrier(tensors: Sequence[tf.Tensor], awaited: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return `tensor[first:]`, where `first` is always 0 but computed from `awaited`.

    So TensorFlow must wait for those tensors. The slice kernel forwards its input buffer
    (tensorflow/core/kernels/slice_op.cc): nothing is copied. Plainer barriers do not survive
    TensorFlow's graph optimizer: it takes an IdentityN apart, merges operations that only control
    dependencies keep apart, and removes a reshape to the same shape.
    """
    first = tf.cast(_never(awaited), tf.int32)
    return [_from(tensor, first) if tensor.shape.rank else tensor for tensor in tensors]


def _from(tensor: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
    rank = tensor.shape.rank
    sliced = tf.slice(tensor, [first] + [0] * (rank - 1), [-1] * rank)
    sliced.set_shape(tensor.shape)
    return sliced


def select_barrier(tensors: Sequence[tf.Tensor], awaited: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the tensors, selected by a condition on `awaited` that is never true.

    It is for XLA, whose shapes must be constant, and copies each tensor.
    """
    never = _never(awaited)
    return [tf.where(never, tf.zeros_like(tensor), tensor) for tensor in tensors]


def _never(awaited: Sequence[tf.Tensor]) -> tf.Tensor:
    """A boolean tensor that is false, but needs one element of each awaited tensor."""
    elements = [tf.reshape(tensor, [-1])[:1] for tensor in awaited]
    return tf.reduce_any(
        [tf.reduce_any(tf.math.is_nan(each) & tf.math.is_finite(each)) for each in elements]
    )


def together(gradients: Sequence[Any], others: Sequence[tf.Tensor]) -> list[Any]:
    """The gradients, none of which is handed on before all of them and the others are known.

    Without this, TensorFlow recomputes the next segment while tensors of this one still wait for
    the gradients of its weights. The peak is then that of several segments.
    """
    known = [gradient for gradient in gradients if gradient is not None]
    tied = iter(tf.tuple(known, control_inputs=others) if known else [])
    return [None if gradient is None else next(tied) for gradient in gradients]


def wait(
    upstream: Sequence[tf.Tensor], gradients: Sequence[Any], shared: Collection[int] = ()
) -> None:
    """Let a segment's backward pass begin only once everything that it needs is recomputed.

    Without this, TensorFlow begins it on one thread while another still computes tensors that only
    the forward pass needs.
    """
    if tf.executing_eagerly() or not upstream:
        return  # operations run one after another
    operations = upstream[0].graph.get_operations()
    begin = {id(tensor.op) for tensor in upstream}
    first = next(index for index, operation in enumerate(operations) if id(operation) in begin)
    later = operations[first:]
    backward = _fed_by(begin, later)
    recomputed = {id(operation) for operation in later} - backward - set(shared)
    ends = [tensor.op for gradient in gradients for tensor in _tensors(gradient)]
    with tf.control_dependencies(_read_by(ends, backward, recomputed)):
        done = tf.no_op()
    for tensor in upstream:
        add_control_input(tensor.op, done)


def weights_first(gradients: Iterable[Any]) -> bool:
    """Let convolutions take the gradient of their weights before that of their input.

    Both write patches out to work in, and what a convolution read is free after the first. Without
    this, TensorFlow goes on to earlier layers while the weights' gradients, which take longer, lag
    behind.

    Args:
        gradients: The gradients of the weights. Those that nobody asks for are left alone.

    Returns:
        Whether there are such convolutions.
    """
    pairs = []
    for gradient in gradients:
        tensors = [each for each in _tensors(gradient) if tf.is_symbolic_tensor(each)]
        while tensors and tensors[0].op.type in (*ALIASES, "Cast"):
            tensors = list(tensors[0].op.inputs)
        first = tensors[0].op if tensors else None
        if first is not None and first.type in CONVOLUTIONS:
            others = first.inputs[2].consumers()
            pairs += [(first, each) for each in others if each.type == CONVOLUTIONS[first.type]]
    if not pairs:
        return False
    operations = pairs[0][0].graph.get_operations()
    place = {id(operation): position for position, operation in enumerate(operations)}
    found = False
    for first, other in pairs:
        # That of a transposed convolution may be its own forward pass, which comes before.
        if all(
            place.get(id(each.op), math.inf) < place.get(id(other), -1) for each in first.inputs
        ):
            add_control_input(other, first)
            found = True
    return found


# The gradient of a convolution's weights, and of its input.
CONVOLUTIONS = {
    "Conv2DBackpropFilter": "Conv2DBackpropInput",
    "Conv3DBackpropFilterV2": "Conv3DBackpropInputV2",
    "DepthwiseConv2dNativeBackpropFilter": "DepthwiseConv2dNativeBackpropInput",
}


def _fed_by(begin: Collection[int], operations: Iterable[Any]) -> set[int]:
    """The `id` of the operations that depend on some of them, which are given by their `id`."""
    fed: set[int] = set()
    for operation in operations:
        depends = any(id(before) in fed for before in _before(operation))
        if depends or id(operation) in begin:
            fed.add(id(operation))
    return fed


def _read_by(
    ends: Sequence[Any], backward: Collection[int], recomputed: Collection[int]
) -> list[Any]:
    """The recomputed operations whose results the backward pass up to `ends` reads."""
    needed: dict[int, Any] = {}
    stack, seen = list(ends), set()
    while stack:
        operation = stack.pop()
        if id(operation) in seen or id(operation) not in backward:
            continue
        seen.add(id(operation))
        for tensor in operation.inputs:
            stack.append(tensor.op)
            if id(tensor.op) in recomputed:
                needed[id(tensor.op)] = tensor.op
    return list(needed.values())


def _before(operation: Any) -> Iterator[Any]:
    """The operations that must run before an operation."""
    yield from (tensor.op for tensor in operation.inputs)
    yield from operation.control_inputs


def _graph() -> Any:
    """The graph that is being traced; `None` in eager execution."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _tensors(gradient: Any) -> list[tf.Tensor]:
    """The tensors of a gradient: none, one, or two for rows of an embedding."""
    if gradient is None:
        return []
    if isinstance(gradient, tf.IndexedSlices):
        return [gradient.values, gradient.indices]
    return [gradient]


# A result is small if it has this many times fewer elements than what it was reduced from. Chosen
# by hand. With it ResNet50 under `peak:0.45` (scripts/bench_recompute.py) took 1.031 times the
# plain CPU seconds, 1.062 times without any reuse (commit 840fd8b).
SMALL = 64

# Elements that a dimension of unknown length is taken for where it is reduced: it may be short.
# Chosen by hand.
UNKNOWN = 8

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
    reduced_from: dict[int, tf.Tensor] = {}  # what was reduced, by the small tensor's `id`
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
        sources = [reduced_from.get(id(tensor), tensor) for tensor in inputs]
        if operation.type in ALIASES and id(operation.inputs[0]) not in reduced_from:
            continue  # as many elements, whatever the shapes say
        for output in operation.outputs:
            if not output.dtype.is_floating:
                continue
            ratios = [_times_more(source, output) for source in sources]
            if max(ratios) >= SMALL:
                reduced_from[id(output)] = sources[ratios.index(max(ratios))]
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


def _times_more(source: tf.Tensor, result: tf.Tensor) -> float:
    """How many times as many elements the source has; `0` where that is not known.

    Lengths that are not known are taken for the same ones in both. A result with more of them may
    have any size, such as the rows that Dense makes of a batch of unknown size.
    """
    if source.shape.rank is None or result.shape.rank is None:
        return 0.0
    known = [[length for length in each.shape if length is not None] for each in (source, result)]
    gone = (source.shape.rank - len(known[0])) - (result.shape.rank - len(known[1]))
    if gone < 0:
        return 0.0
    return math.prod(known[0]) / max(math.prod(known[1]), 1) * UNKNOWN**gone
