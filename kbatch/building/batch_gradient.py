"""The batch gradient: the gradient of a whole batch, by Keras' own train step, but not applied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from kbatch.building.compiled import compiled_by_user
from kbatch.building.loss_counts import count, counts
from kbatch.runtime.keras_private import replaced_method

Gradients = list[tf.Tensor | None]


class BatchGradient:
    """The gradient of a model's loss over a batch, taken in several passes.

    Each pass is Keras' own train step on a part of the batch, whose call of the optimizer is caught
    instead. So metrics, moving statistics and the scaling of the loss are as in Keras. The passes
    are one loop, so memory is that of one pass.

    Args:
        model: Compiled `keras.Model` that `kbatch.building.accumulation.check` has passed.
        passes: Integer, equal parts to take a batch in.
    """

    def __init__(self, model: keras.Model, passes: int) -> None:
        self._model, self._passes, self._train_step = model, passes, model.train_step
        loss = compiled_by_user(model).get("loss")
        differ = passes > 1 and counts(model, loss)
        self._counted_loss = keras.tree.flatten(loss)[0] if differ else None

    def __call__(self, batch: Any) -> tuple[Gradients, Any]:
        """Return a dense gradient for each trainable variable, and the metrics by name.

        A gradient is `None` where the loss does not depend on the variable. Where the optimizer
        scales the loss, the gradients are scaled too.

        Args:
            batch: Batch as Keras' `train_step` takes it.
        """
        if self._passes == 1:
            gradients, _, metrics = self._pass(batch)
            return gradients, metrics
        return self._mean(_mapped(self._split, batch)), self._model.get_metrics_result()

    def _split(self, tensor: Any) -> tf.Tensor:
        tensor = tf.convert_to_tensor(tensor)
        shape = tf.concat([[self._passes, -1], tf.shape(tensor)[1:]], axis=0)
        return tf.reshape(tensor, shape)

    def _mean(self, parts: Any) -> Gradients:
        """Return the mean over the passes, each weighted by what its loss is divided by."""
        variables = self._model.trainable_variables
        reached = [False] * len(variables)  # by the loss: known once a pass is traced

        def add(turn: Any, counted: Any, sums: list[Any]) -> tuple[Any, Any, list[Any]]:
            part = _mapped(lambda tensor: tf.gather(tensor, turn), parts)
            gradients, weight, _ = self._pass(part)
            added = []
            for index, (total, gradient) in enumerate(zip(sums, gradients, strict=True)):
                if gradient is not None:
                    reached[index] = True
                    total = total + tf.cast(gradient, total.dtype) * tf.cast(weight, total.dtype)
                added.append(total)
            return turn + 1, counted + weight, added

        zeros = [tf.zeros(variable.shape, _sum_type(variable)) for variable in variables]
        _, counted, sums = tf.while_loop(
            lambda turn, *_: turn < self._passes,
            add,
            (tf.constant(0), tf.constant(0.0), zeros),
            parallel_iterations=1,  # more would hold the memory of as many passes
        )
        share = tf.math.divide_no_nan(1.0, counted)
        return [
            tf.cast(total * tf.cast(share, total.dtype), variable.dtype) if is_reached else None
            for total, variable, is_reached in zip(sums, variables, reached, strict=True)
        ]

    def _pass(self, part: Any) -> tuple[Gradients, tf.Tensor, Any]:
        """Return gradients, the number that the loss is divided by (else 1), and metrics."""
        caught: list[tuple[Any, Any]] = []
        weights: list[tf.Tensor] = []
        with self._caught(caught), self._counted(weights):
            metrics = self._train_step(part)
        found = {id(variable): gradient for gradient, variable in caught}
        gradients = [found.get(id(variable)) for variable in self._model.trainable_variables]
        dense = [None if each is None else tf.convert_to_tensor(each) for each in gradients]
        return dense, weights[-1] if weights else tf.constant(1.0), metrics

    @contextmanager
    def _caught(self, caught: list[tuple[Any, Any]]) -> Iterator[None]:
        """Catch the gradients that go to the optimizer inside the `with` block."""
        with replaced_method(self._model.optimizer, "apply_gradients", caught.extend):
            yield

    @contextmanager
    def _counted(self, weights: list[tf.Tensor]) -> Iterator[None]:
        """Note what the loss is divided by inside the `with` block, if that differs by pass."""
        if self._counted_loss is None:
            yield
            return
        own = self._model.compute_loss

        def compute_loss(
            x: Any = None,
            y: Any = None,
            y_pred: Any = None,
            sample_weight: Any = None,
            training: bool = True,
        ) -> Any:
            weights.append(count(self._counted_loss, y, y_pred, sample_weight))
            return own(x, y, y_pred, sample_weight, training)

        with replaced_method(self._model, "compute_loss", compute_loss):
            yield


def _mapped(function: Any, batch: Any) -> Any:
    """Return a batch with a function applied to each tensor; `None` stands for a missing part."""
    return keras.tree.map_structure(lambda part: None if part is None else function(part), batch)


def _sum_type(variable: Any) -> str:
    """Return the type to add gradients in: sums of half precision would lose small ones."""
    return "float64" if variable.dtype == "float64" else "float32"
