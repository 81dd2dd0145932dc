"""Train step: sharpness-aware and proximal training, and the gradient of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from kbatch.errors import ModelError
from kbatch.models.accumulation import (
    dense,
    make_variables,
    put_back_state,
    split,
    state_of_layers,
    state_of_metrics,
    state_values,
    sum_type,
)
from kbatch.models.losses import loss_count, loss_counts
from kbatch.recipe import Recipe
from kbatch.recipe_words import PLAIN, PROXIMAL, SAM
from kbatch.runtime import keras_private
from kbatch.runtime.keras_private import compiled_by_user, replaced_method, stepping

Gradients = list[Any]
Gradient = Callable[[Any], tuple[Gradients, Any]]


def batch_gradient(model: Any) -> Gradient:
    """Return a function of the dense gradients of a batch, and its metrics by name.

    A batch goes through the train step that the model has, whose call of the optimizer is caught.
    So metrics, moving statistics and the scaling of the loss are as in Keras. A gradient is `None`
    where the loss does not depend on the variable.
    """
    own_step = model.train_step

    def gradient(batch: Any) -> tuple[Gradients, Any]:
        caught: list[tuple[Any, Any]] = []
        with replaced_method(model.optimizer, "apply_gradients", caught.extend):
            metrics = own_step(batch)
        found = {id(variable): slope for slope, variable in caught}
        return [dense(found.get(id(each))) for each in model.trainable_variables], metrics

    return gradient


class BatchGradient:
    """The gradient of a model's loss over a batch, taken in several passes.

    The passes are one loop, so memory is that of one pass.
    """

    def __init__(self, model: keras.Model, passes: int) -> None:
        self._model, self._passes, self._of_pass = model, passes, batch_gradient(model)
        loss = compiled_by_user(model).get("loss")
        differ = passes > 1 and loss_counts(model, loss)
        self._counted_loss = keras.tree.flatten(loss)[0] if differ else None

    def __call__(self, batch: Any) -> tuple[Gradients, Any]:
        """Return what the function of `batch_gradient` returns, of the mean over the passes."""
        if self._passes == 1:
            return self._of_pass(batch)
        parts = _mapped(lambda tensor: split(tensor, self._passes), batch)
        return self._mean(parts), self._model.get_metrics_result()

    def _mean(self, parts: Any) -> Gradients:
        """Return the mean over the passes, each weighted by what its loss is divided by."""
        variables = self._model.trainable_variables
        reached = [False] * len(variables)  # by the loss: known once a pass is traced

        def add(turn: Any, counted: Any, sums: list[Any]) -> tuple[Any, Any, list[Any]]:
            part = _mapped(lambda tensor: tf.gather(tensor, turn), parts)
            gradients, weight = self._weighted(part)
            added = []
            for index, (total, gradient) in enumerate(zip(sums, gradients, strict=True)):
                if gradient is not None:
                    reached[index] = True
                    total = total + tf.cast(gradient, total.dtype) * tf.cast(weight, total.dtype)
                added.append(total)
            return turn + 1, counted + weight, added

        zeros = [tf.zeros(variable.shape, sum_type(variable)) for variable in variables]
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

    def _weighted(self, part: Any) -> tuple[Gradients, tf.Tensor]:
        """Return the gradients of a pass, and the number that its loss is divided by, else 1."""
        weights: list[tf.Tensor] = []
        with self._counted(weights):
            gradients, _ = self._of_pass(part)
        return gradients, weights[-1] if weights else tf.constant(1.0)

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
            weights.append(loss_count(self._counted_loss, y, y_pred, sample_weight))
            return own(x, y, y_pred, sample_weight, training)

        with replaced_method(self._model, "compute_loss", compute_loss):
            yield


def _mapped(function: Any, batch: Any) -> Any:
    """Return a batch with a function applied to each tensor; `None` stands for a missing part."""
    return keras.tree.map_structure(lambda part: None if part is None else function(part), batch)


def sam_step(model: Any, gradient: Gradient, radius: float) -> Callable[[Any], Any]:
    """Return a train step of sharpness-aware minimisation (Foret et al. 2021).

    With the gradient `g` of the batch at the weights `w`, the optimizer applies the gradient at
    `w + radius * g / |g|` to `w`. The norm is that of the whole gradient, over all weights and the
    whole batch. Metrics are those at `w`. As in the authors' code, both gradients are of one
    function: dropout drops the same units in both. Moving statistics are those of the pass at `w`.
    """

    def train_step(batch: Any) -> Any:
        make_variables(model, batch)
        variables = model.trainable_variables
        entered = state_of_layers(model)
        ascent, metrics = gradient(batch)
        if not variables:
            return metrics
        left = state_of_layers(model) + state_of_metrics(model)
        weights = state_values(variables)
        put_back_state(entered)
        for (variable, value), offset in zip(weights, offsets(ascent, radius), strict=True):
            if offset is not None:
                variable.assign(value + tf.cast(offset, value.dtype))
        gradients, _ = gradient(batch)
        put_back_state(weights + left)
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return metrics

    return train_step


def offsets(gradients: Gradients, radius: float) -> Gradients:
    """Return the gradients scaled to a norm; zeros if that norm is zero or not finite."""
    known = [gradient for gradient in gradients if gradient is not None]
    if not known:
        return gradients
    # one type for all, which can hold their squares
    wide = tf.float64 if any(each.dtype == tf.float64 for each in known) else tf.float32
    norm = tf.linalg.global_norm([tf.cast(gradient, wide) for gradient in known])
    factor = tf.math.divide_no_nan(tf.constant(radius, wide), norm)
    finite = tf.math.is_finite(norm)

    def offset(gradient: Any) -> Any:
        scaled = tf.cast(gradient, wide) * factor
        return tf.where(finite, scaled, tf.zeros_like(scaled))

    return [None if gradient is None else offset(gradient) for gradient in gradients]


def proximal_step(
    model: Any, gradient: Gradient, penalty: float, steps: int
) -> Callable[[Any], Any]:
    """Return a train step of the proximal mini-batch method (Li et al., KDD 2014).

    With the weights `s` at which a batch begins, the optimizer takes several steps on that batch
    down `loss(w) + penalty / 2 * |w - s|^2`. Metrics and moving statistics are those of the first
    pass, at `s`, and dropout drops the same units in all steps.
    """

    def train_step(batch: Any) -> Any:
        make_variables(model, batch)
        variables = model.trainable_variables
        entered = state_of_layers(model)
        start = state_values(variables)
        gradients, metrics = gradient(batch)
        if not variables:
            return metrics
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        left = state_of_layers(model) + state_of_metrics(model)

        def step(taken: Any) -> tuple[Any]:
            put_back_state(entered)
            gradients, _ = gradient(batch)
            pull = model.optimizer.scale_loss(tf.constant(penalty))
            pulled = [
                None if slope is None else slope + _scaled(variable - value, pull)
                for slope, (variable, value) in zip(gradients, start, strict=True)
            ]
            model.optimizer.apply_gradients(zip(pulled, variables, strict=True))
            return (taken + 1,)

        tf.while_loop(lambda taken: taken < steps, step, (tf.constant(1),), parallel_iterations=1)
        put_back_state(left)
        return metrics

    return train_step


def _scaled(tensor: Any, factor: Any) -> Any:
    tensor = tf.convert_to_tensor(tensor)
    return tf.cast(factor, tensor.dtype) * tensor


def check_method(model: keras.Model, recipe: Recipe, optimizer: Any) -> None:
    """Refuse a model that a recipe's training method cannot train."""
    if recipe.method.name == PLAIN:
        return
    method = f"training={recipe.training!r}"
    _check_model(model, method)
    _check_optimizer(getattr(optimizer, "inner_optimizer", optimizer), recipe, method)


def _check_model(model: keras.Model, method: str) -> None:
    if type(model).train_step is not keras.Model.train_step:
        raise ModelError(
            f"A model must have Keras' own train_step for {method}, which goes through a batch "
            "several times",
            f"{type(model).__name__}.train_step",
            'Override compute_loss instead, or take training="plain"',
        )
    if tf.distribute.has_strategy():
        raise ModelError(
            f"A model must train on one device for {method}",
            type(tf.distribute.get_strategy()).__name__,
            'Take training="plain", or do without the strategy',
        )
    if any(getattr(each, "overwrite_with_gradient", False) for each in model.trainable_variables):
        raise ModelError(
            f"All gradients must be gradients for {method}, which adds them to weights",
            f"{model.name} with scales of float8, whose gradients are their next values",
            'Take another policy, or training="plain"',
        )


def _check_optimizer(optimizer: Any, recipe: Recipe, method: str) -> None:
    if getattr(optimizer, "gradient_accumulation_steps", None):
        raise ModelError(
            f"An optimizer must not accumulate by itself for {method}, which takes whole batches",
            f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps}",
            "Leave it out, and pass micro_batch_size or max_batch",
        )
    if recipe.method.name == PROXIMAL and keras_private.has_schedule(optimizer):
        raise ModelError(
            f"An optimizer must have no schedule for {method}, whose inner steps it would count "
            "as updates",
            type(keras_private.learning_rate_setting(optimizer)).__name__,
            "Compile the model with a constant rate, or name an optimizer in the recipe",
        )


@contextmanager
def trained_by_method(model: keras.Model, recipe: Recipe) -> Iterator[None]:
    """Train a model by the recipe's method inside the `with` block.

    One train step of Keras then takes a whole batch: `recipe.examples_per_step` examples, which it
    goes through in passes of `recipe.examples_per_pass`. Enter it outside of the augmentation
    scope, so that a batch is augmented once and all passes over it see the same examples.
    """
    method = recipe.method
    if method.name == PLAIN:
        yield
        return
    check_method(model, recipe, model.optimizer)
    passes = 1 if recipe.is_exact else recipe.accumulation_steps
    gradient = BatchGradient(model, passes)
    if method.name == SAM:
        train_step = sam_step(model, gradient, method.amount)
    else:
        train_step = proximal_step(model, gradient, method.amount, method.inner_steps)
    with stepping(model, train_step):
        yield
