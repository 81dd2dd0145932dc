"""Pass weights: accumulated passes that add up to the whole batch, though their counts differ.

They are needed where a loss divides by a count of its own: masks, `ignore_class`, sample weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from kbatch.building.compiled import compiled_by_user
from kbatch.building.loss_counts import count, counts
from kbatch.recipe import Recipe
from kbatch.runtime import keras_private
from kbatch.runtime.keras_private import replaced_method


@contextmanager
def weighed(model: keras.Model, recipe: Recipe) -> Iterator[Callable[[], Any] | None]:
    """Weight the passes of each update inside the `with` block, so that they equal the whole batch.

    A loss with a mask, an ignored class or sample weights is a sum `S` divided by a count `n`.
    Keras averages `S/n` over the passes; the whole batch has the sum of `S` divided by the sum of
    `n`. So the gradient of each pass is multiplied by its `n`, and the last pass of an update
    divides by the sum of all `n`. Methods are wrapped on the instance: the model, its optimizer and
    the saved file stay the same.

    Args:
        model: Compiled `keras.Model` that `kbatch.building.accumulation.check` has passed.
        recipe: `Recipe` that the model is compiled for.

    Yields:
        A function that returns the count of the pass that is being traced; `None` where the passes
        need no weights.
    """
    if recipe.steps_per_update == 1 or not counts(model, compiled_by_user(model).get("loss")):
        yield None
        return
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if not model.optimizer.built:
        # Keras builds it in the first step, but the sums of gradients are needed before
        model.optimizer.build(model.trainable_variables)
    weigher = _Weigher(model, optimizer)
    model.train_function = None
    with (
        replaced_method(model, "compute_loss", weigher.compute_loss),
        replaced_method(optimizer, "apply", weigher.apply),
    ):
        try:
            yield weigher.count
        finally:
            model.train_function = None


class _Weigher:
    """The loss of a model, which notes the count of a pass, and the weighting of its gradients."""

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
        """Return the loss of the model, and note the count of the pass."""
        if training:
            self._count = count(self._loss, y, y_pred, sample_weight)
        return self._compute_loss(x, y, y_pred, sample_weight, training)

    def count(self) -> Any:
        """Return the count of the pass whose loss was computed last."""
        return self._count

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Hand the weighted gradients of a pass to the optimizer."""
        passes_before = tf.convert_to_tensor(keras_private.passes(self._optimizer))
        last = tf.equal((passes_before + 1) % self._passes, 0)
        counted = self._counted + self._count
        share = tf.where(last, tf.math.divide_no_nan(float(self._passes), counted), 1.0)
        for sum_before in keras_private.accumulated_gradients(self._optimizer):
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
