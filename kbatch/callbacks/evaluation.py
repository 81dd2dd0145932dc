"""Evaluation: what `model.evaluate` measures, all batches in one call of a compiled function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kbatch.runtime import device, keras_private

# The attribute of Keras' compiled test step that holds the loop over it, and ends with it.
LOOP = "kbatch_loop"
# What a class may override, and then measures in a way of its own.
OWN = ("evaluate", "test_step", "make_test_function", "get_metrics_result", "reset_metrics")


def evaluated(model: keras.Model, batches: tf.data.Dataset) -> dict[str, Any]:
    """Return what `model.evaluate` measures, also on several devices that share a batch unequally.

    Keras calls its compiled step once for each batch, which takes longer than a small network's
    work. The same step is called in a loop inside of TensorFlow where Keras' own methods measure.

    Args:
        model: Compiled `keras.Model` that has been trained.
        batches: `tf.data.Dataset` of batches.
    """
    count = int(batches.cardinality())
    loop = _loop_of(model) if count > 0 else None
    if loop is None:
        with keras_private.without_symbolic_build(model):
            return dict(model.evaluate(batches, verbose=0, return_dict=True))
    model.reset_metrics()
    loop(iter(batches), tf.constant(count))
    return keras_private.python_logs(model.get_metrics_result())


def _loop_of(model: keras.Model) -> Callable[[Any, tf.Tensor], None] | None:
    """The compiled loop over a model's test step; `None` if the model measures in its own way."""
    if model.run_eagerly or model.steps_per_execution != 1 or device.replicas() > 1:
        return None
    if any(name in vars(model) for name in OWN):
        return None
    if any(getattr(type(model), name) is not getattr(keras.Model, name) for name in OWN):
        return None
    model.make_test_function()
    if not hasattr(model.test_function, LOOP):
        step = keras_private.function_of_step(model.test_function)
        setattr(model.test_function, LOOP, None if step is None else _loop(step))
    return loop_of_step(model.test_function)


def loop_of_step(step: Any) -> Any:
    """The loop over a compiled test step, or `None`."""
    return getattr(step, LOOP, None)


def _loop(step: Callable[[Any], Any]) -> Callable[[Any, tf.Tensor], None]:
    @tf.function(reduce_retracing=True)
    def loop(batches: Any, count: tf.Tensor) -> None:
        for _ in tf.range(count):
            # one batch at a time: several would take their memory at once
            tf.autograph.experimental.set_loop_options(parallel_iterations=1)
            step(batches)

    return loop
