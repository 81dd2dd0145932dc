"""Apply: a model made to train in the segments of a plan. It stays the same object; only its training pass changes."""

from __future__ import annotations

import inspect
import types
from typing import Any

import keras
from keras.src.backend import set_keras_mask

from kbatch.errors import RecomputeError
from kbatch.recompute import _repeatable
from kbatch.recompute._barriers import Turns, barrier_here
from kbatch.recompute._cut_points import Ordering
from kbatch.recompute._op_graph import Chain
from kbatch.recompute._plan import Plan
from kbatch.recompute._segment import Context, Segment, copies_of
from kbatch.recompute._signature import stem


class SegmentedCall:
    """Stands for a model's `call`: in training it runs the segments of a plan, otherwise what the model's class does.

    Args:
        model: The model.
        chain: Its chain.
        plan: The plan.
    """

    def __init__(self, model: keras.Model, chain: Chain, plan: Plan) -> None:
        self.model, self.chain, self.plan = model, chain, plan
        self._segments = [
            (Segment(chain, start, stop), recompute) for start, stop, recompute in plan.stretches()
        ]
        self.context = Context(model.dtype_policy)

    def __call__(
        self, inputs: Any, training: bool | None = None, mask: Any = None, **context: Any
    ) -> Any:
        """What the model's own `call` returns."""
        if training is not True or context:
            return type(self.model).call(
                self.model, inputs, training=training, mask=mask, **context
            )
        functional = self.chain.functional
        tensors = functional._standardize_inputs(inputs)
        for tensor, own in zip(
            tensors,
            keras.tree.flatten(mask) if mask is not None else [None] * len(tensors),
            strict=True,
        ):
            if own is not None:
                set_keras_mask(tensor, own)
        turns, flowing = Turns(barrier_here()), self.chain.flowing()
        values = dict(zip(self.chain.inputs, tensors, strict=True))
        copies = copies_of(self.chain)
        for segment, recompute in self._segments:
            if recompute and segment.leads_on:
                segment.run_recomputed(values, self.context, turns, flowing, copies)
            else:
                segment.run(values, self.context, copies)
        outputs = keras.tree.pack_sequence_as(
            functional._outputs_struct, [values[number] for number in self.chain.outputs]
        )
        return outputs[0] if isinstance(outputs, (list, tuple)) and len(outputs) == 1 else outputs


def apply(model: keras.Model, plan: Plan) -> None:
    """Let a model train in the segments of a plan.

    Use it on any built Functional or Sequential model, before or after `compile`. Object, names,
    summary, weights, saving, loading, `evaluate` and `predict` stay as they are; the loss, the
    gradients, and the state that training leaves are the same too. Only memory and time change.

    A step is traced forward and backward once, but not executed; for a model built alike under the
    same plan not again.

    Args:
        model: `keras.Model`, built.
        plan: `Plan` of this model or of one with the same operations. It takes the place of the one
            before.

    Raises:
        RecomputeError: If the model cannot be cut, does something that cannot be done twice, or the
            plan is another model's or has a cut that would change the order in which a gradient is
            summed, no step can be traced in its segments, or the model is being fitted.

    Example:
    ```python
    recompute.apply(model, recompute.plan(model, batch_size=16))
    model.fit(x, y)
    ```
    """
    if not isinstance(plan, Plan):
        raise RecomputeError(
            "`plan` must be a recompute.Plan",
            repr(plan),
            "Make one: recompute.plan(model, batch_size=16)",
        )
    chain = Chain(model)
    _check_not_in_fit(model)
    check_plan(chain, plan, model.name)
    losing = _repeatable.check(chain) if plan.recomputes else frozenset()
    Ordering(chain, losing).check([start for start, _, _ in plan.stretches()][1:])
    call = SegmentedCall(model, chain, plan)
    if plan.recomputes:
        _repeatable.check_step(chain, call, tuple(plan.stretches()))
    remove(model)
    if plan.recomputes:
        # In the instance's own dict: neither Keras nor TensorFlow track it, and nothing of it is
        # saved.
        vars(model)["call"] = call
        model.train_function = None


def remove(model: keras.Model) -> None:
    """Let a model train as it did before `apply`; one without a plan is left alone.

    Args:
        model: `keras.Model`.

    Raises:
        RecomputeError: If it is no model, or is being fitted.
    """
    if applied(model) is not None:
        _check_not_in_fit(model)
        del vars(model)["call"]
        model.train_function = None


def applied(model: keras.Model) -> Plan | None:
    """The plan that a model trains by, or `None`.

    Raises:
        RecomputeError: If it is no model.
    """
    if not isinstance(model, keras.Model):
        raise RecomputeError("A plan is that of a keras.Model", repr(model), "Pass the model")
    call = vars(model).get("call")
    return call.plan if isinstance(call, SegmentedCall) else None


def _check_not_in_fit(model: keras.Model) -> None:
    """Refuse to change a model in the middle of its `fit`, as a callback may try; nothing but the stack tells."""
    frame: types.FrameType | None = inspect.currentframe()
    while frame:
        its_own: Any = frame.f_locals.get("self")
        if frame.f_code.co_name == "fit" and its_own is model:
            raise RecomputeError(
                "A plan must be applied or removed between calls of `fit`",
                f"{model.name!r} in the middle of one",
                "Do it before `fit`, not in a callback",
            )
        frame = frame.f_back


def check_plan(chain: Chain, plan: Plan, name: str) -> None:
    """Refuse a plan of another model.

    Raises:
        RecomputeError: If its segments are not stretches of this chain.
    """
    stretches = list(plan.stretches())
    if stretches and stretches[-1][1] == len(chain.nodes):
        for segment, (start, stop, _) in zip(plan.segments, stretches, strict=True):
            own = (chain.nodes[start].name, chain.nodes[stop - 1].name)
            if tuple(map(stem, own)) != (stem(segment.first), stem(segment.last)):
                raise RecomputeError(
                    f"A plan must be made for the model it is applied to ({name!r})",
                    f"a segment from {segment.first!r} to {segment.last!r} where the model goes from {own[0]!r} to {own[1]!r}",
                    "Make one of this model: recompute.plan(model, batch_size=16)",
                )
        return
    raise RecomputeError(
        f"A plan must be made for the model it is applied to ({name!r})",
        f"one of {stretches[-1][1] if stretches else 0} operations for a model of {len(chain.nodes)}",
        "Make one of this model: recompute.plan(model, batch_size=16)",
    )
