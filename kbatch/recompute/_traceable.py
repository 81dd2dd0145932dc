"""Traceability: refuses plans whose train step TensorFlow cannot trace."""

from __future__ import annotations

from collections.abc import Sequence
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
    """A function that stands for a model's `call`."""

    context: Context

    def __call__(self, inputs: Any, training: bool | None = None) -> Any:
        """Run the model."""


def check_step(graph: OpGraph, call: Call, spans: Sequence[Span]) -> None:
    """Trace a step forward and backward in the segments of a plan, without running it.

    A model that is built like one that has passed with the same segments is not traced again.

    Args:
        graph: The model's operations.
        call: Function that stands for the model's `call`. Its `context` knows the segment that was
            begun last.
        spans: The segments.

    Raises:
        RecomputeError: If the step cannot be traced, with the segment.
    """
    _traced.get(graph, lambda: _trace(graph, call), tuple(spans))


def _trace(graph: OpGraph, call: Call) -> bool:
    weights = [variable for variable, _ in graph.users().values()]

    def step(*tensors: tf.Tensor) -> list[Any]:
        values = [read(variable, None) for variable in weights]
        with tf.GradientTape() as tape, Scope({}) as scope:
            tape.watch(values)
            scope.give(zip(weights, values, strict=True))
            inputs = keras.tree.pack_sequence_as(input_structure(graph.functional), list(tensors))
            outputs = call.context(lambda: call(inputs, training=True), training=True)
            ends = [*keras.tree.flatten(outputs), *scope.losses]
            targets = [tensor for tensor in ends if tensor.dtype.is_floating]
        gradients = tape.gradient(targets, values)
        return [gradient for gradient in gradients if gradient is not None]

    create_global_seed_generator()
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
    return True
