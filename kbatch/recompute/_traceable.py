"""Traceability: refuses plans whose step cannot be traced, or loses the gradient of a weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf

from kbatch.errors import RecomputeError
from kbatch.recompute._op_graph import OpGraph
from kbatch.recompute._plan import Span
from kbatch.recompute._scope import Context, Scope, read
from kbatch.recompute._signature import SignatureCache
from kbatch.runtime.keras_private import create_global_seed_generator, input_structure

_traced: SignatureCache[bool] = SignatureCache()


class Call(Protocol):
    """A function that stands for a model's `call`.

    Attributes:
        model: The model.
        context: Layer that knows the segment that was begun last.
    """

    model: keras.Model
    context: Context

    def __call__(self, inputs: Any, training: bool | None = None) -> Any:
        """Run the model."""

    def plain(self, inputs: Any, training: bool | None = None) -> Any:
        """Run the model without segments."""


def check_step(graph: OpGraph, call: Call, spans: Sequence[Span]) -> None:
    """Trace a step forward and backward in the segments of a plan, without running it.

    Every weight that a gradient reaches in the plain model must be reached in the segments too. A
    model that is built like one that has passed with the same segments is not traced again.

    Args:
        graph: The model's operations.
        call: Function that stands for the model's `call`.
        spans: The segments.

    Raises:
        RecomputeError: If the step cannot be traced, with the segment, or if weights lose their
            gradients, with the weights.
    """
    _traced.get(graph, lambda: _checked(graph, call), tuple(spans))


def _checked(graph: OpGraph, call: Call) -> bool:
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
    graph: OpGraph, call: Call, run: Callable[..., Any], weights: Sequence[Any]
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
