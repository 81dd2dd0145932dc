"""Barriers: control dependencies that keep TensorFlow from recomputing a segment before its turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

Barrier = Callable[[Sequence[tf.Tensor], Sequence[tf.Tensor]], list[tf.Tensor]]


class Turns:
    """Lets the segments of one step be made again one after the other, in the order in which the tape asks for them.

    Those of parallel branches would else be made at the same time.

    Args:
        barrier: Function that returns tensors equal to its first ones, but only once its second
            ones are known.
    """

    def __init__(self, barrier: Barrier) -> None:
        self._barrier = barrier
        self._last: list[tf.Tensor] = []
        self._awaited: list[tf.Tensor] = []
        self._graph: Any = None

    def begin(self, tensors: Sequence[tf.Tensor], upstream: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The tensors that a segment is made from again, once its upstream gradients and the segment before it are done."""
        # a tensor of a loop's inside is unknown outside of it
        before = self._last if self._graph is _graph() else []
        self._awaited = [*upstream, *before]
        return self.hold(tensors)

    def hold(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The tensors, once the segment that began last may be made again."""
        return self._barrier(tensors, self._awaited) if tensors else []

    def end(self, gradients: Sequence[Any]) -> list[Any]:
        """The gradients of a segment, none of which is handed on before all are known."""
        done = together(gradients)
        self._last, self._graph = (
            [
                tensor
                for gradient in done
                for tensor in _tensors(gradient)
                if tensor.dtype.is_floating
            ][:1],
            _graph(),
        )
        return done


def barrier_here() -> Barrier:
    """The barrier for the function that is being traced, by Keras or in a loop of the user's own."""
    return (
        select_barrier
        if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
        else slice_barrier
    )


def slice_barrier(tensors: Sequence[tf.Tensor], awaited: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The tensors from an element on that is computed and always their first: the kernel hands the buffer on, uncopied.

    TensorFlow's graph optimizer takes an IdentityN apart, merges what only control dependencies
    keep asunder, and leaves out a reshape that its shapes show to be none.
    """
    first = tf.cast(_never(awaited), tf.int32)
    return [_from(tensor, first) if tensor.shape.rank else tensor for tensor in tensors]


def _from(tensor: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
    rank = tensor.shape.rank
    sliced = tf.slice(tensor, [first] + [0] * (rank - 1), [-1] * rank)
    sliced.set_shape(tensor.shape)
    return sliced


def select_barrier(tensors: Sequence[tf.Tensor], awaited: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The tensors, chosen by a condition on those awaited that is never true; XLA, whose shapes must be constant, copies them."""
    never = _never(awaited)
    return [tf.where(never, tf.zeros_like(tensor), tensor) for tensor in tensors]


def _never(awaited: Sequence[tf.Tensor]) -> tf.Tensor:
    """False, but only known once one element of each tensor is."""
    some = [tf.reshape(tensor, [-1])[:1] for tensor in awaited]
    return tf.reduce_any(
        [tf.reduce_any(tf.math.is_nan(one) & tf.math.is_finite(one)) for one in some]
    )


def together(gradients: Sequence[Any]) -> list[Any]:
    """The gradients, none of which is handed on before all are known.

    Else TensorFlow goes on to the next segment and makes that again while this one's tensors still
    wait for the gradients of its weights: the peak is that of several segments.
    """
    known = [gradient for gradient in gradients if gradient is not None]
    tied = iter(tf.tuple(known) if known else [])
    return [None if gradient is None else next(tied) for gradient in gradients]


def wait(
    upstream: Sequence[tf.Tensor], gradients: Sequence[Any], known: Collection[int] = ()
) -> None:
    """Let the backward pass of a segment begin only once all it needs was made again.

    Else TensorFlow begins on one thread while another still makes tensors that only the forward
    pass needs.

    Args:
        upstream: What the backward pass begins with, made for it alone by one operation each,
            before anything was made again.
        gradients: What it ends with; `None` where there is no gradient.
        known: The `id` of operations that hand on what was known before. Optional.
    """
    if tf.executing_eagerly() or not upstream:
        return  # one operation runs after the other
    operations = upstream[0].graph.get_operations()
    begin = {id(tensor.op) for tensor in upstream}
    first = next(index for index, operation in enumerate(operations) if id(operation) in begin)
    later = operations[first:]
    backward: set[int] = set()
    for operation in later:
        if id(operation) in begin or any(id(before) in backward for before in _before(operation)):
            backward.add(id(operation))
    again = {id(operation) for operation in later} - backward - set(known)
    needed: dict[int, Any] = {}
    stack, seen = [tensor.op for gradient in gradients for tensor in _tensors(gradient)], set()
    while stack:
        operation = stack.pop()
        if id(operation) in seen or id(operation) not in backward:
            continue
        seen.add(id(operation))
        for tensor in operation.inputs:
            stack.append(tensor.op)
            if id(tensor.op) in again:
                needed[id(tensor.op)] = tensor.op
    with tf.control_dependencies(list(needed.values())):
        made = tf.no_op()
    for tensor in upstream:
        tensor.op._add_control_input(made)


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _before(operation: Any) -> Iterator[Any]:
    yield from (tensor.op for tensor in operation.inputs)
    yield from operation.control_inputs


def _tensors(gradient: Any) -> list[tf.Tensor]:
    if gradient is None:
        return []
    return (
        [gradient.values, gradient.indices]
        if isinstance(gradient, tf.IndexedSlices)
        else [gradient]
    )
