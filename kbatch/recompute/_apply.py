"""Apply: give a model a plan, and take it back."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from kbatch.errors import RecomputeError, in_one_frame
from kbatch.recompute._exactness import CutPoints, check_repeatable
from kbatch.recompute._op_graph import Node, OpGraph, SignatureCache, class_names, stem
from kbatch.recompute._order import SegmentOrder, barrier_here
from kbatch.recompute._plan import Plan, Span, spans_of
from kbatch.recompute._segment import (
    Context,
    Scope,
    Segment,
    Step,
    copy_weights,
    read,
    run_kept,
    run_recomputed,
)
from kbatch.runtime import tensorflow_private
from kbatch.runtime.keras_private import (
    create_global_seed_generator,
    input_structure,
    output_structure,
    set_mask,
    standardized_inputs,
)

_traced: SignatureCache[bool] = SignatureCache()


def check_step(graph: OpGraph, call: SegmentedCall, spans: Sequence[Span]) -> None:
    """Trace a step forward and backward in the segments of a plan, without running it.

    Every weight that a gradient reaches in the plain model must be reached in the segments too. A
    model that is built like one that has passed with the same segments is not traced again.
    """
    _traced.get(graph, lambda: _checked(graph, call), tuple(spans))


def _checked(graph: OpGraph, call: SegmentedCall) -> bool:
    weights = _weights(graph, call.model)
    create_global_seed_generator()
    missed = _unreached(graph, call, call, weights)
    if missed:  # else nothing can be lost, and the plain model need not be traced
        missed -= _unreached(graph, call, call.plain, weights)
    if missed:
        lost = [weights[position].path for position in sorted(missed)]
        raise RecomputeError(
            "Every weight must get the gradient that it gets without a plan",
            f"none for {', '.join(lost)} in the segments of the plan",
            "Train without recompute, and report this model: it is a fault of kbatch",
        )
    return True


def _weights(graph: OpGraph, model: keras.Model) -> list[Any]:
    """The weights that train, by the operations and by the model, in the operations' order."""
    held = [weight for node in graph.nodes for weight in node.weights]
    return list({id(weight): weight for weight in [*held, *model.trainable_variables]}.values())


def _unreached(
    graph: OpGraph, call: SegmentedCall, run: Callable[..., Any], weights: Sequence[Any]
) -> set[int]:
    """Trace a step, and return the positions of the weights that no gradient reaches."""
    unreached: set[int] = set()

    def step(*tensors: tf.Tensor) -> list[Any]:
        values = [read(variable, None) for variable in weights]
        with tf.GradientTape() as tape, Scope({}) as scope:
            tape.watch(values)
            scope.give(zip(weights, values, strict=True))
            inputs = keras.tree.pack_sequence_as(input_structure(graph.functional), list(tensors))
            outputs = call.context(lambda: run(inputs, training=True), training=True)
            ends = [*keras.tree.flatten(outputs), *scope.losses]
            targets = [tensor for tensor in ends if tensor.dtype.is_floating]
        gradients = tape.gradient(targets, values)
        unreached.update(each for each, known in enumerate(gradients) if known is None)
        return [gradient for gradient in gradients if gradient is not None]

    inputs = graph.functional.inputs
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
    try:
        tf.function(step, autograph=False).get_concrete_function(*specs)
    except RecomputeError:
        raise
    except Exception as error:
        # TensorFlow puts the user's code before the reason, line by line.
        reason = str(error).strip().rpartition("\n")[2].strip()
        raise RecomputeError(
            "A step must be traced forward and backward in the segments of its plan",
            f"{type(error).__name__}: {reason}, in the segment {call.context.segment}",
            "Let no recomputed segment hold these layers, with cuts before and after them, or "
            "train without recompute",
        ) from error
    return unreached


_MAKE_A_PLAN = "Make one of this model: recompute.plan(model, batch_size=16)"


# How to run a segment: from its position to before another, by a function.
Way: TypeAlias = tuple[int, int, Callable[[Segment, dict[int, Any], Step], None]]


def _ways(graph: OpGraph, span: Span, recomputes: bool) -> Iterator[Way]:
    """The segments of a span. Kept convolutions end before earlier segments are recomputed.

    Operations that make outputs run as they are: Keras' losses look for a softmax behind them.
    """
    start, stop, recompute = span
    if recompute or not recomputes or not _convolves(graph.nodes[start:stop]):
        yield start, stop, run_recomputed if recompute else Segment.run
        return
    for position in range(start, stop):
        if not set(graph.outputs).isdisjoint(graph.nodes[position].writes):
            if start < position:
                yield start, position, run_kept
            yield position, position + 1, Segment.run
            start = position + 1
    if start < stop:
        yield start, stop, run_kept


def _convolves(nodes: Sequence[Node]) -> bool:
    """Whether there are layers that convolve, and none that loops, which would keep more."""
    names = {name for node in nodes for name in class_names(node.operation)}
    return "RNN" not in names and any("Conv" in name for name in names)


class SegmentedCall:
    """Stands for a model's `call`: in training it runs the model in the segments of a plan."""

    def __init__(self, model: keras.Model, graph: OpGraph, plan: Plan) -> None:
        self.model, self.graph, self.plan = model, graph, plan
        self.context = Context(model.dtype_policy)
        self._segments = [
            (Segment(graph, start, stop), run)
            for span in spans_of(plan)
            for start, stop, run in _ways(graph, span, plan.recomputes)
        ]

    def __call__(
        self, inputs: Any, training: bool | None = None, mask: Any = None, **context: Any
    ) -> Any:
        """Return what the model's own `call` returns."""
        if training is not True or context:
            return self.plain(inputs, training=training, mask=mask, **context)
        functional = self.graph.functional
        tensors = standardized_inputs(functional, inputs)
        if mask is not None:
            for tensor, own in zip(tensors, keras.tree.flatten(mask), strict=True):
                if own is not None:
                    set_mask(tensor, own)
        values = dict(zip(self.graph.inputs, tensors, strict=True))
        self._run(values)
        outputs = keras.tree.pack_sequence_as(
            output_structure(functional), [values[number] for number in self.graph.outputs]
        )
        if isinstance(outputs, (list, tuple)) and len(outputs) == 1:
            return outputs[0]
        return outputs

    def plain(
        self, inputs: Any, training: bool | None = None, mask: Any = None, **context: Any
    ) -> Any:
        """Return the same without segments."""
        return type(self.model).call(self.model, inputs, training=training, mask=mask, **context)

    def _run(self, values: dict[int, Any]) -> None:
        """Run all segments, and add the tensors that they make to `values`."""
        turns, differentiable = SegmentOrder(barrier_here()), self.graph.differentiable()
        step = Step(self.context, turns, differentiable, copy_weights(self.graph))
        for segment, run in self._segments:
            way = run if segment.is_differentiable else Segment.run
            way(segment, values, step)


@in_one_frame
def apply(model: keras.Model, plan: Plan) -> None:
    """Let a model train in the segments of a plan.

    Use it on any built Functional or Sequential model, before or after `compile`. The object, its
    names, summary and weights stay as they are, and so do saving, loading, `evaluate` and
    `predict`. The loss, the gradients and the state that training leaves are the same too. Only
    memory and time change.

    A step is traced forward and backward once, without being run, with the plan and without it:
    the same weights must get a gradient. For a model that is built alike, under the same plan, it
    is not traced again.

    Args:
        model: `keras.Model`, built.
        plan: `Plan` of this model, or of one with the same operations. It replaces any earlier
            plan.

    Raises:
        RecomputeError: If the model cannot be cut, does something that cannot be repeated, or is
            being fitted. Also if the plan is for another model, if a cut of it would change the
            order in which a gradient is summed and the plan does not say so, if its segments
            cannot be traced, or if a weight would lose its gradient.

    Example:
    >>> import numpy as np
    >>> from kbatch import recompute
    >>> model = keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(8) for _ in range(9))])
    >>> recompute.apply(model, recompute.plan(model, batch_size=16))
    >>> model.compile(loss="mse")
    >>> history = model.fit(np.ones((32, 8)), np.ones((32, 8)), batch_size=16, verbose=0)
    """
    if not isinstance(plan, Plan):
        raise RecomputeError(
            "`plan` must be a recompute.Plan",
            repr(plan),
            "Make one: recompute.plan(model, batch_size=16)",
        )
    graph = OpGraph(model)
    _check_not_in_fit(model)
    check_plan(graph, plan, model.name)
    cut_points = CutPoints(graph, *(check_repeatable(graph) if plan.recomputes else ()))
    uncut = cut_points.of_values if plan.reordered else cut_points.uncut
    cut_points.check([span.start for span in spans_of(plan)][1:], uncut)
    call = SegmentedCall(model, graph, plan)
    if plan.recomputes:
        check_step(graph, call, spans_of(plan))
    remove(model)
    if plan.recomputes:
        # Written past `setattr`, so that neither Keras nor TensorFlow tracks it and nothing of it
        # is saved.
        vars(model)["call"] = call
        model.train_function = None


@in_one_frame
def remove(model: keras.Model) -> None:
    """Let a model train as it did before `apply`.

    Use it to go back to the plain model. A model without a plan stays as it is.

    Args:
        model: `keras.Model`.

    Raises:
        RecomputeError: If it is not a model, or is being fitted.

    Example:
    >>> from kbatch import recompute
    >>> model = keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(8) for _ in range(9))])
    >>> recompute.apply(model, recompute.plan(model, batch_size=16))
    >>> recompute.remove(model)
    >>> recompute.applied(model) is None
    True
    """
    if applied(model) is not None:
        _check_not_in_fit(model)
        del vars(model)["call"]
        model.train_function = None


@in_one_frame
def applied(model: keras.Model) -> Plan | None:
    """The plan that a model trains by.

    Use it to see whether, and how, a model was cut by `apply`.

    Args:
        model: `keras.Model`.

    Returns:
        The `Plan`, or `None` if the model has none.

    Raises:
        RecomputeError: If it is not a model.

    Example:
    >>> from kbatch import recompute
    >>> model = keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(8) for _ in range(9))])
    >>> plan = recompute.plan(model, batch_size=16, strategy="sqrt")
    >>> recompute.apply(model, plan)
    >>> recompute.applied(model) == plan
    True
    """
    if not isinstance(model, keras.Model):
        raise RecomputeError("`model` must be a keras.Model", repr(model), "Pass the model")
    call = vars(model).get("call")
    return call.plan if isinstance(call, SegmentedCall) else None


def _check_not_in_fit(model: keras.Model) -> None:
    """Refuse to change a model in the middle of its `fit`, as a callback may try.

    Keras keeps no mark of a running `fit`, so the Python stack is searched for it.
    """
    frame: types.FrameType | None = inspect.currentframe()
    while frame:
        caller: Any = frame.f_locals.get("self")
        if frame.f_code.co_name == "fit" and caller is model:
            raise RecomputeError(
                "A plan must be applied or removed between calls of `fit`",
                f"{model.name!r} in the middle of one",
                "Do it before `fit`, not in a callback",
            )
        frame = frame.f_back


def check_plan(graph: OpGraph, plan: Plan, name: str) -> None:
    """Refuse a plan of another model."""
    must = f"A plan must be made for the model it is applied to ({name!r})"
    spans = spans_of(plan)
    operations = spans[-1].stop if spans else 0
    if operations != len(graph.nodes):
        received = f"one of {operations} operations for a model of {len(graph.nodes)}"
        raise RecomputeError(must, received, _MAKE_A_PLAN)
    for segment, (start, stop, _) in zip(plan.segments, spans, strict=True):
        first, last = graph.nodes[start].name, graph.nodes[stop - 1].name
        if (stem(first), stem(last)) != (stem(segment.first), stem(segment.last)):
            received = (
                f"a segment from {segment.first!r} to {segment.last!r} where the model goes from "
                f"{first!r} to {last!r}"
            )
            raise RecomputeError(must, received, _MAKE_A_PLAN)


@contextmanager
def restored(model: keras.Model) -> Iterator[Callable[[], None]]:
    """Restore a model at the end of a `with` block; inside it has no plan.

    The block gets a function that restores weights and optimizer in between.
    """
    if not model.compiled:
        raise RecomputeError(
            "A model must be compiled to be trained some steps",
            f"{model.name!r}, which is not",
            "Call model.compile first",
        )
    before = applied(model)
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    values = [np.array(variable) for variable in variables]

    def restore() -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    remove(model)
    try:
        with tensorflow_private.expected_retraces():
            yield restore
    finally:
        restore()
        remove(model)
        model.train_function = None
        if before is not None:
            apply(model, before)


def batch_size_of(x: Any) -> int:
    """Number of examples in a batch."""
    shapes = [np.shape(part) for part in keras.tree.flatten(x) if part is not None]
    if not shapes or not all(shape and shape[0] for shape in shapes):
        raise RecomputeError(
            "A batch must have at least one example",
            f"inputs of shape {', '.join(map(str, shapes)) or 'none'}",
            "Pass a batch, such as x[:16]",
        )
    return int(shapes[0][0])
