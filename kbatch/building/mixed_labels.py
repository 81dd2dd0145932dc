"""Mixed labels: two labels and their weights for each example, and the loss over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from kbatch.building.label_smoothing import loss_of, name_of
from kbatch.building.loss_counts import counts
from kbatch.data.augmentation import partner, per_example
from kbatch.errors import ModelError
from kbatch.runtime import keras_private
from kbatch.runtime.keras_private import replaced_method

# Keras' losses that are linear in the label: mixing losses is mixing labels.
LINEAR = (
    keras.losses.BinaryCrossentropy,
    keras.losses.CategoricalCrossentropy,
    keras.losses.CategoricalFocalCrossentropy,
    keras.losses.SparseCategoricalCrossentropy,
)
NAMES = (
    "binary_crossentropy, categorical_crossentropy, categorical_focal_crossentropy, "
    "sparse_categorical_crossentropy"
)


class MixedLabels(NamedTuple):
    """The labels of mixed examples; every part has the batch as its first dimension.

    Attributes:
        own: Labels with a share of at least one half, on which metrics are computed.
        other: The other labels.
        own_weight: Weights of the loss at `own`: the share, times the weight of the example that
            the label comes from.
        other_weight: Weights of the loss at `other`.
    """

    own: Any
    other: Any
    own_weight: Any
    other_weight: Any


def mixed(y: Any, sample_weight: Any, share: tf.Tensor) -> tuple[MixedLabels, Any]:
    """Return the labels of mixed examples, and the weights of the examples of the own labels.

    Args:
        y: Labels of the batch before it was mixed.
        sample_weight: Weights of the examples, which class weights are among; or `None`.
        share: Tensor, one number per example: the share of its own label that it keeps.
    """
    first = share >= 0.5

    def exchanged(values: Any) -> tuple[Any, Any]:
        """Values by which label has the larger share: of the own, of the other."""
        others = partner(values)
        return _chosen(first, values, others), _chosen(first, others, values)

    larger = tf.maximum(share, 1 - share)
    if sample_weight is None:
        weights = larger, 1 - larger
        return MixedLabels(*exchanged(y), *weights), None
    own, other = exchanged(sample_weight)
    return MixedLabels(*exchanged(y), _times(own, larger), _times(other, 1 - larger)), own


@contextmanager
def understood(model: keras.Model) -> Iterator[None]:
    """Let loss and metrics of a model understand mixed labels inside the `with` block.

    Labels of another kind, those of the validation, are taken as ever.

    Args:
        model: Compiled `keras.Model`.
    """
    compiled_loss, compute_metrics = keras_private.compile_loss(model), model.compute_metrics
    plain = compiled_loss.call

    def call(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if not isinstance(y_true, MixedLabels):
            return plain(y_true, y_pred, sample_weight)
        _check_outputs(keras.tree.flatten(y_pred))
        # Doubled and halved, since Keras logs the mean of both calls for each of several outputs.
        own = plain(y_true.own, y_pred, _times(y_true.own_weight, 2.0))
        other = plain(y_true.other, y_pred, _times(y_true.other_weight, 2.0))
        return (own + other) / 2

    def metrics(x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        labels = y.own if isinstance(y, MixedLabels) else y
        return compute_metrics(x, labels, y_pred, sample_weight)

    with (
        replaced_method(compiled_loss, "call", call),
        replaced_method(model, "compute_metrics", metrics),
    ):
        yield


def check(model: keras.Model, loss: Any) -> None:
    """Refuse a model whose loss at mixed labels is not the mixture of its losses.

    Args:
        model: `keras.Model`, as `build` returned it.
        loss: The loss argument of `compile`.

    Raises:
        ModelError: If it has another loss than a cross-entropy, a loss that divides by a count of
            its own, its own train step or loss computation, or more than one label per example.
    """
    parts = [part for part in keras.tree.flatten(loss) if part is not None]
    others = [name_of(part) for part in parts if type(loss_of(part)) not in LINEAR]
    if others:
        raise ModelError(
            f"MixUp and CutMix need a loss over classes that is linear in the label ({NAMES})",
            ", ".join(others),
            "Leave mixup and cutmix out of `augmentation`, or compile the model with one of these",
        )
    if counts(model, loss):
        raise ModelError(
            "With MixUp or CutMix a loss must not divide by a count of its own "
            "(a mask, ignore_class, mean_with_sample_weight)",
            ", ".join(map(name_of, parts)),
            "Leave mixup and cutmix out of `augmentation`",
        )
    for method in ("train_step", "compute_loss"):
        if getattr(type(model), method) is not getattr(keras.Model, method):
            raise ModelError(
                f"With MixUp or CutMix a model must have Keras' own {method}, "
                "which takes both labels of an example",
                f"{type(model).__name__}.{method}",
                f"Leave mixup and cutmix out of `augmentation`, or do not override {method}()",
            )
    _check_outputs(getattr(model, "outputs", None) or [])


def _check_outputs(outputs: list[Any]) -> None:
    for output in outputs:
        if len(output.shape) > 2:
            raise ModelError(
                "With MixUp or CutMix a model must have one label per example",
                f"an output of shape {tuple(output.shape)}",
                "Leave mixup and cutmix out of `augmentation`",
            )


def _chosen(first: tf.Tensor, values: Any, others: Any) -> Any:
    """The values of the examples where `first` is true, the others elsewhere."""

    def chosen(value: Any, other: Any) -> Any:
        return None if value is None else tf.where(per_example(first, value), value, other)

    return keras.tree.map_structure(chosen, values, others)


def _times(weights: Any, factor: Any) -> Any:
    """Weights times one number, or one number per example; a weight that is absent counts as 1."""

    def times(weight: Any) -> Any:
        weight = tf.ones_like(factor) if weight is None else tf.cast(weight, "float32")
        return weight * (factor if isinstance(factor, float) else per_example(factor, weight))

    return keras.tree.map_structure(times, weights)
