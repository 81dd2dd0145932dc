"""Losses: smoothed labels, mixed labels, and the values that a mean is taken over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from kbatch.data.augmentation import partner, per_example
from kbatch.errors import ModelError, SearchError
from kbatch.runtime import keras_private
from kbatch.runtime.keras_private import replaced_method

SOFT = (
    keras.losses.BinaryCrossentropy,
    keras.losses.BinaryFocalCrossentropy,
    keras.losses.CategoricalCrossentropy,
    keras.losses.CategoricalFocalCrossentropy,
)
SPARSE = keras.losses.SparseCategoricalCrossentropy
BY_NAME: dict[str, type[keras.losses.Loss]] = {
    "binary_crossentropy": keras.losses.BinaryCrossentropy,
    "binary_focal_crossentropy": keras.losses.BinaryFocalCrossentropy,
    "categorical_crossentropy": keras.losses.CategoricalCrossentropy,
    "categorical_focal_crossentropy": keras.losses.CategoricalFocalCrossentropy,
    "sparse_categorical_crossentropy": SPARSE,
}


def smoothed(loss: Any, amount: float) -> Any:
    """Return the loss argument of `compile` with softened labels (Szegedy et al. 2016).

    The label of one among `K` classes becomes `1 - amount + amount / K` for that class and
    `amount / K` for the others. A model saved with such a loss loads without softening.
    """
    if not amount:
        return loss
    return keras.tree.map_structure(lambda part: softened(part, amount), loss)


def softened(part: Any, amount: float) -> Any:
    """Return one loss with softened labels; integer labels are softened inside the loss."""
    loss = loss_of(part)
    if not isinstance(loss, SPARSE):
        return type(loss).from_config({**loss.get_config(), "label_smoothing": amount})
    made = SPARSE.from_config(loss.get_config())  # of Keras' own class: it is saved as such
    plain = made.fn

    def soft(
        y_true: Any,
        y_pred: Any,
        from_logits: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
    ) -> Any:
        right = plain(y_true, y_pred, from_logits=from_logits, ignore_class=ignore_class, axis=axis)
        evenly = keras.ops.ones_like(y_pred) / keras.ops.cast(
            keras.ops.shape(y_pred)[axis], y_pred.dtype
        )
        spread = keras.ops.categorical_crossentropy(
            evenly, y_pred, from_logits=from_logits, axis=axis
        )
        return (1 - amount) * right + amount * spread

    made.fn = soft
    return made


def check_smoothing(loss: Any, amount: float) -> None:
    """Refuse a loss that is not over classes, or softens its labels already."""
    for part in keras.tree.flatten(loss) if amount else ():
        found = loss_of(part)
        if isinstance(found, SPARSE) and found.ignore_class is None:
            continue
        if type(found) not in SOFT:
            raise ModelError(
                "`label_smoothing` needs a loss over classes "
                f"({', '.join(BY_NAME)}; without ignore_class)",
                loss_name_of(part),
                "Leave label_smoothing out, or compile the model with one of these",
            )
        own = found.get_config()["label_smoothing"]
        if own:
            raise ModelError(
                "Labels must be softened once",
                f"{found.name} with label_smoothing={own}, "
                f"and label_smoothing={amount} of the recipe",
                "Leave it out of the loss: it is an axis of the search",
            )


def check_smoothed_metric(metric: str, amounts: Iterable[float]) -> None:
    """Refuse to score trials by a loss that label smoothing changes from trial to trial."""
    if metric in ("loss", "val_loss") and any(amounts):
        raise SearchError(
            "A loss must mean the same in every trial to be scored",
            f"metric={metric!r} and label_smoothing={tuple(amounts)}, which changes it",
            'Score a metric such as "val_accuracy", or leave label_smoothing out',
        )


def loss_name_of(part: Any) -> str:
    """Return a loss in words: its name, or that of its class."""
    if isinstance(part, str):
        return part
    return str(getattr(part, "name", None) or getattr(part, "__name__", type(part).__name__))


def loss_of(part: Any) -> Any:
    """Return the loss object for a name or a loss function of Keras; other values as they are."""
    name = part if isinstance(part, str) else getattr(part, "__name__", "")
    if isinstance(part, str) or part is getattr(keras.losses, name, None):
        kind = BY_NAME.get(name)
        return part if kind is None else kind()
    return part


def loss_counts(model: keras.Model, loss: Any) -> bool:
    """Tell whether the loss is divided by a count that may differ from pass to pass."""
    outputs = getattr(model, "outputs", None) or []
    masked = any(keras_private.mask_of(output) is not None for output in outputs)
    parts = keras.tree.flatten(loss)
    return masked or any(
        getattr(part, "ignore_class", None) is not None or _by_weights(part) for part in parts
    )


def _by_weights(loss: Any) -> bool:
    return getattr(loss, "reduction", None) == "mean_with_sample_weight"


def loss_count(loss: Any, y: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
    """Return the number by which Keras divides the loss of these examples."""
    y, y_pred = (keras.tree.flatten(part)[0] for part in (y, y_pred))
    parts = []
    mask = keras_private.mask_of(y_pred)
    if mask is not None:
        parts.append(tf.cast(mask, "float32"))
    if getattr(loss, "ignore_class", None) is not None:
        parts.append(
            tf.cast(
                tf.reshape(
                    tf.not_equal(tf.cast(y, "float32"), float(loss.ignore_class)),
                    tf.shape(y_pred)[:-1],
                ),
                "float32",
            )
        )
    if _by_weights(loss) and sample_weight is not None:
        parts.append(tf.cast(keras.tree.flatten(sample_weight)[0], "float32"))
    if not parts:
        return tf.cast(tf.shape(y_pred)[0], "float32")  # the same in every pass
    product = parts[0]
    for part in parts[1:]:
        product = product * part
    return tf.reduce_sum(product)


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
    """The labels of mixed examples; every part has the batch as its first dimension."""

    own: Any  # labels with a share of at least one half, on which metrics are computed
    other: Any  # the other labels
    # weights of the loss at `own`: the share, times the weight of the example that the label comes
    # from
    own_weight: Any
    other_weight: Any  # weights of the loss at `other`


def mixed_labels(y: Any, sample_weight: Any, share: tf.Tensor) -> tuple[MixedLabels, Any]:
    """Return the labels of mixed examples, and the weights of the examples of the own labels."""
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


def mixing_step(
    own_step: Callable[[Any], Any], mix: Callable[[Any], tuple[Any, Any]]
) -> Callable[[Any], Any]:
    """Return a train step that mixes examples before another step, which gets `MixedLabels`."""

    def train_step(data: Any) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        x, share = mix(x)
        y, sample_weight = mixed_labels(y, sample_weight, share)
        return own_step(keras.utils.pack_x_y_sample_weight(x, y, sample_weight))

    return train_step


def mixed_loss(own_loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return the `compute_loss` of a model that takes mixed labels too."""

    def compute_loss(
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        if not isinstance(y, MixedLabels):
            return own_loss(x, y, y_pred, sample_weight, training)
        # Doubled and halved, since Keras logs the mean of both calls for each of several outputs.
        own = own_loss(x, y.own, y_pred, _times(y.own_weight, 2.0), training)
        other = own_loss(x, y.other, y_pred, _times(y.other_weight, 2.0), training)
        return (own + other) / 2

    return compute_loss


def mixed_metrics(own_metrics: Callable[..., Any]) -> Callable[..., Any]:
    """Return the `compute_metrics` of a model that takes mixed labels too: it measures at `own`."""

    def compute_metrics(x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        labels = y.own if isinstance(y, MixedLabels) else y
        return own_metrics(x, labels, y_pred, sample_weight)

    return compute_metrics


@contextmanager
def mixed(model: keras.Model) -> Iterator[None]:
    """Let loss and metrics of a model take mixed labels inside the `with` block.

    Labels of another kind, those of the validation, are taken as ever.
    """
    both = mixed_loss(model.compute_loss)

    def compute_loss(
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        if isinstance(y, MixedLabels):
            _check_outputs(keras.tree.flatten(y_pred))
        return both(x, y, y_pred, sample_weight, training)

    with (
        replaced_method(model, "compute_loss", compute_loss),
        replaced_method(model, "compute_metrics", mixed_metrics(model.compute_metrics)),
    ):
        yield


def check_mixed_labels(model: keras.Model, loss: Any) -> None:
    """Refuse a model whose loss at mixed labels is not the mixture of its losses."""
    parts = [part for part in keras.tree.flatten(loss) if part is not None]
    others = [loss_name_of(part) for part in parts if type(loss_of(part)) not in LINEAR]
    if others:
        raise ModelError(
            f"MixUp and CutMix need a loss over classes that is linear in the label ({NAMES})",
            ", ".join(others),
            "Leave mixup and cutmix out of `augmentation`, or compile the model with one of these",
        )
    if loss_counts(model, loss):
        raise ModelError(
            "With MixUp or CutMix a loss must not divide by a count of its own "
            "(a mask, ignore_class, mean_with_sample_weight)",
            ", ".join(map(loss_name_of, parts)),
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
