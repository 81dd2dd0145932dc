"""Pass weights: what makes the sum of accumulated passes the whole batch's loss, where a loss divides by a count of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from kbatch.building.compiled import compiled_by_user
from kbatch.building.loss_counts import count, counts
from kbatch.recipe import Recipe


@contextmanager
def weighed(model: keras.Model, recipe: Recipe) -> Iterator[None]:
    """Let an update of `fit` inside the `with` be that of the whole batch, though its passes count differently.

    A masked loss, one that ignores a class, and one that divides by the examples' weights are sums
    `S` over a count `n`. Keras averages `S/n` over the passes, where the whole batch has the sum of
    `S` over the sum of `n`. So each pass's gradient is weighed by its `n`, and the last one of an
    update divides by their sum. As with augmentation, methods are wrapped on the instance: the
    model, its optimizer, and what is saved stay the same.

    Args:
        model: Compiled model, which `kbatch.building.accumulation.check` has passed.
        recipe: `Recipe` that it is compiled for.
    """
    if recipe.accumulation_steps == 1 or not counts(model, compiled_by_user(model).get("loss")):
        yield
        return
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if not model.optimizer.built:
        # Keras does so within the first step, which needs the sums of gradients
        model.optimizer.build(model.trainable_variables)
    weigher = _Weigher(model, optimizer)
    model.compute_loss, optimizer.apply = weigher.compute_loss, weigher.apply
    model.train_function = None
    try:
        yield
    finally:
        del model.compute_loss, optimizer.apply
        model.train_function = None


class _Weigher:
    """A model's loss, which notes the count of a pass, and its optimizer, which weighs the gradients by it."""

    def __init__(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        self._optimizer, self._passes = optimizer, optimizer.gradient_accumulation_steps
        self._compute_loss, self._apply = model.compute_loss, optimizer.apply
        self._loss = keras.tree.flatten(compiled_by_user(model)["loss"])[0]
        self._counted = tf.Variable(0.0, trainable=False)  # of the passes since the last update
        self._count: Any = None

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """The model's own loss."""
        if training:
            self._count = count(self._loss, y, y_pred, sample_weight)
        return self._compute_loss(x, y, y_pred, sample_weight, training)

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """The optimizer's own update, or the passes before it, with each gradient weighed."""
        last = tf.equal((tf.convert_to_tensor(self._optimizer._iterations) + 1) % self._passes, 0)
        counted = self._counted + self._count
        share = tf.where(last, tf.math.divide_no_nan(float(self._passes), counted), 1.0)
        for sum_before in self._optimizer._accumulated_gradients:
            if sum_before is not None:
                sum_before.assign(
                    tf.convert_to_tensor(sum_before) * tf.cast(share, sum_before.dtype)
                )
        self._counted.assign(tf.where(last, 0.0, counted))
        weight = self._count * share
        weighed_grads = [
            None if grad is None else tf.convert_to_tensor(grad) * tf.cast(weight, grad.dtype)
            for grad in grads
        ]
        self._apply(weighed_grads, trainable_variables)
