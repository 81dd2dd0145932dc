"""Evaluation: what `model.evaluate` measures, many batches in one call of a compiled loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from kbatch.runtime import keras_private

# The attribute of Keras' compiled test step that holds the loop over it, and ends with it.
LOOP = "kbatch_loop"
# What a class may override, and then measures in a way of its own.
OWN = (
    *("evaluate", "test_step", "make_test_function"),
    *("compute_metrics", "get_metrics_result", "reset_metrics"),
)
CALL_SECONDS = 0.1  # that a call of the loop aims at: Python hears of Ctrl-C between calls


class Passes:
    """Passes over batches by one iterator, for a model that is measured again and again.

    Making an iterator takes longer than a small network's work. A pass reads nothing before it is
    asked for, and one that was broken off is not gone on with. All passes must be alike: what a
    dataset draws, a new iterator draws again, and this one goes on drawing.
    """

    def __init__(self, batches: tf.data.Dataset) -> None:
        self.batches = batches
        self._iterator: Any = None

    @contextmanager
    def one(self) -> Iterator[Any]:
        """Return an iterator for a pass, of which each batch is to be taken."""
        iterator, self._iterator = self._iterator, None
        if iterator is None:
            options = tf.data.Options()
            options.experimental_optimization.inject_prefetch = False  # it reads the next pass
            iterator = iter(self.batches.repeat().with_options(options))
        yield iterator
        self._iterator = iterator


def evaluated(model: keras.Model, batches: tf.data.Dataset | Passes) -> dict[str, Any]:
    """Return what `model.evaluate` measures, also on several devices that share a batch unequally.

    Keras calls its compiled step once for each batch, which takes longer than a small network's
    work. The same step is called in a loop inside of TensorFlow where Keras' own methods measure.

    Args:
        model: Compiled `keras.Model` that has been trained.
        batches: `tf.data.Dataset` of batches, or `Passes` over one.
    """
    passes = batches if isinstance(batches, Passes) else Passes(batches)
    count = int(passes.batches.cardinality())
    loop = _loop_of(model) if count > 0 and not _most_steps() else None
    if loop is None:
        with keras_private.without_symbolic_build(model):
            return dict(model.evaluate(passes.batches, verbose=0, return_dict=True))
    model.reset_metrics()
    with passes.one() as iterator:
        _run(loop, iterator, count)
    return keras_private.python_logs(model.get_metrics_result())


def _most_steps() -> int | None:
    """The steps after which Keras ends an evaluation; Keras 3.8 knows no such limit."""
    limit = getattr(keras.config, "max_steps_per_epoch", None)
    return None if limit is None else limit()


def _run(loop: Callable[[Any, tf.Tensor], None], batches: Any, count: int) -> None:
    """Call a loop until it went over so many batches, each time over twice as many at most."""
    size = 1
    while count:
        size, began = min(size, count), time.perf_counter()
        loop(batches, tf.constant(size))
        count -= size
        fitting = int(size * CALL_SECONDS / (time.perf_counter() - began))
        size = max(1, min(2 * size, fitting))


def _loop_of(model: keras.Model) -> Callable[[Any, tf.Tensor], None] | None:
    """The compiled loop over a model's test step; `None` if the model measures in its own way."""
    if model.run_eagerly or model.steps_per_execution != 1:
        return None
    if model.distribute_strategy.num_replicas_in_sync > 1:
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
