"""Accumulation: passes weighed to the whole batch; of all outputs at once: `exact_accumulation`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from kbatch.errors import ModelError
from kbatch.models import normalization
from kbatch.models.losses import loss_count, loss_counts
from kbatch.models.optimizers import PerUpdate
from kbatch.recipe import Recipe
from kbatch.runtime import keras_private
from kbatch.runtime.keras_private import (
    compiled_by_user,
    flatten_layers,
    own_trainable_variables,
    replaced_method,
)


def check_accumulation(model: keras.Model, recipe: Recipe, loss: Any) -> None:
    """Refuse a model whose accumulated passes cannot equal the whole batch.

    Keras averages the gradients of the passes, so a loss must be a mean. If the mean is over a
    count that differs between passes, the passes are weighted by it (see
    `kbatch.models.accumulation`).
    """
    if recipe.accumulation_steps == 1 or recipe.is_exact:
        return
    for part in keras.tree.flatten(loss):
        reduction = getattr(part, "reduction", "sum_over_batch_size")
        if reduction in ("sum", "none", None):
            raise ModelError(
                "A loss that accumulates must be a mean over the batch: Keras averages the passes",
                f"{getattr(part, 'name', type(part).__name__)} with reduction={reduction!r}, "
                f"{_passes(recipe)}",
                "Leave out reduction=, and multiply the learning rate by the batch size "
                "if the sum was meant",
            )
    why = _unweighable(model, loss) if loss_counts(model, loss) else ""
    if why:
        raise ModelError(
            "A loss that divides by a count of its own (a mask, ignore_class, "
            "mean_with_sample_weight) must be the model's only loss to accumulate",
            f"{model.name} with {why}, {_passes(recipe)}",
            "Take batch sizes that fit at once (no micro_batch_size, no max_batch)",
        )


def _unweighable(model: keras.Model, loss: Any) -> str:
    """Return why the passes of a model cannot be weighted by their counts; empty if they can."""
    if len(keras.tree.flatten(loss)) != 1 or len(getattr(model, "outputs", None) or [None]) != 1:
        return "several outputs"
    own_step = type(model).train_step is not keras.Model.train_step
    if own_step or type(model).compute_loss is not keras.Model.compute_loss:
        return "a train_step or compute_loss of its own"
    layers = flatten_layers(model)
    if any(getattr(layer, "activity_regularizer", None) is not None for layer in layers):
        return "an activity regularizer"
    return "" if model.built else "an input shape that only the data tell"


def accumulation_remarks(model: keras.Model, recipe: Recipe) -> tuple[str, ...]:
    """Return sentences for the user about the passes of a compiled model."""
    if not model.compiled:
        return ()
    said = list(normalization.remarks(model, recipe))
    if recipe.accumulation_steps == 1:
        return tuple(said)
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    rate = keras_private.learning_rate_setting(optimizer)
    if isinstance(rate, PerUpdate):
        said.append(
            f"the schedule {type(rate.schedule).__name__} counts updates through kbatch: "
            "a saved model loads where kbatch can be imported, or with compile=False"
        )
    return tuple(said)


def _passes(recipe: Recipe) -> str:
    return f"{recipe.accumulation_steps} passes of {recipe.micro_batch_size}"


@contextmanager
def weighed_passes(model: keras.Model, recipe: Recipe) -> Iterator[Callable[[], Any] | None]:
    """Weight the passes of each update inside the `with` block, so that they equal the whole batch.

    A loss with a mask, an ignored class or sample weights is a sum `S` divided by a count `n`.
    Keras averages `S/n` over the passes; the whole batch has the sum of `S` divided by the sum of
    `n`. So the gradient of each pass is multiplied by its `n`, and the last pass of an update
    divides by the sum of all `n`. Methods are wrapped on the instance: the model, its optimizer and
    the saved file stay the same.
    """
    if recipe.steps_per_update == 1 or not loss_counts(model, compiled_by_user(model).get("loss")):
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
            self._count = loss_count(self._loss, y, y_pred, sample_weight)
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


def make_variables(model: Any, batch: Any) -> None:
    """Make the variables that Keras would make in the course of a step: a loop cannot make them."""
    if not model.built:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        model(x, training=False)
    if not model.optimizer.built and model.trainable_variables:
        model.optimizer.build(model.trainable_variables)


def split(tensor: Any, passes: int) -> tf.Tensor:
    """Return a batch as equal parts, along a new first dimension."""
    tensor = tf.convert_to_tensor(tensor)
    parts = tf.reshape(tensor, tf.concat([[passes, -1], tf.shape(tensor)[1:]], axis=0))
    size = tensor.shape[0]
    parts.set_shape([passes, None if size is None else size // passes, *tensor.shape[1:]])
    return parts


def sum_type(weight: Any) -> str:
    """Return the type to add gradients in: sums of half precision would lose small ones."""
    return "float64" if weight.dtype == "float64" else "float32"


def dense(gradient: Any) -> Any:
    """Return a gradient as a tensor: slices of rows cannot be added in a loop."""
    return None if gradient is None else tf.convert_to_tensor(gradient)


Values = list[tuple[Any, tf.Tensor]]


def state_of_layers(model: Any) -> Values:
    """Return each variable that is no weight, with its value; frozen weights count as weights."""
    weights = {
        id(variable)
        for layer in flatten_layers(model)
        for variable in own_trainable_variables(layer)
    }
    return state_values(variable for variable in model.variables if id(variable) not in weights)


def state_but_seeds(model: keras.Model) -> Values:
    """Return each variable of a model with its value, but those of random draws."""
    return state_values(each for each in model.variables if "seed_generator" not in each.path)


def state_of_metrics(model: Any) -> Values:
    """Return each variable of a model's metrics with its value."""
    return state_values(variable for metric in model.metrics for variable in metric.variables)


def state_values(variables: Iterable[Any]) -> Values:
    """Return variables with their values now."""
    return [(variable, tf.convert_to_tensor(variable)) for variable in variables]


def put_back_state(values: Values) -> None:
    """Give variables the values that they had."""
    for variable, value in values:
        variable.assign(value)
