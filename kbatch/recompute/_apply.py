"""Apply: lets a model train in the segments of a plan.

It stays the same object; only its forward pass in training changes.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

import keras

from kbatch.errors import RecomputeError, in_one_frame
from kbatch.recompute import _repeatable
from kbatch.recompute._barriers import Turns, barrier_here
from kbatch.recompute._cut_points import CutPoints
from kbatch.recompute._op_graph import OpGraph
from kbatch.recompute._plan import Plan, spans_of
from kbatch.recompute._recomputation import run_recomputed
from kbatch.recompute._scope import Context
from kbatch.recompute._segment import Segment, Step
from kbatch.recompute._signature import stem
from kbatch.recompute._traceable import check_step
from kbatch.recompute._weight_reads import copy_weights
from kbatch.runtime.keras_private import output_structure, set_mask, standardized_inputs

_MAKE_A_PLAN = "Make one of this model: recompute.plan(model, batch_size=16)"


class SegmentedCall:
    """Stands for a model's `call`: in training it runs the model in the segments of a plan.

    Args:
        model: The model.
        graph: Its operations.
        plan: The plan.
    """

    def __init__(self, model: keras.Model, graph: OpGraph, plan: Plan) -> None:
        self.model, self.graph, self.plan = model, graph, plan
        self.context = Context(model.dtype_policy)
        self._segments = [
            (Segment(graph, start, stop), recompute) for start, stop, recompute in spans_of(plan)
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
        turns, differentiable = Turns(barrier_here()), self.graph.differentiable()
        step = Step(self.context, turns, differentiable, copy_weights(self.graph))
        for segment, recompute in self._segments:
            if recompute and segment.is_differentiable:
                run_recomputed(segment, values, step)
            else:
                segment.run(values, step)


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
            order in which a gradient is summed, if its segments cannot be traced, or if a weight
            would lose its gradient.

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
    loss_positions = _repeatable.check(graph) if plan.recomputes else frozenset()
    CutPoints(graph, loss_positions).check([span.start for span in spans_of(plan)][1:])
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
    """Refuse a plan of another model.

    Args:
        graph: The model's operations.
        plan: The plan.
        name: The model's name, for the error.

    Raises:
        RecomputeError: If the plan's segments are not made of the model's operations.
    """
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
