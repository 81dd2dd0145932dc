"""Label smoothing: losses over classes with softened labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from kbatch.errors import ModelError, SearchError

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
    """Return the loss with softened labels (Szegedy et al. 2016).

    The label of one among `K` classes becomes `1 - amount + amount / K` for that class and
    `amount / K` for the others. Integer labels are softened inside the loss. A model saved with
    such a loss loads without kbatch, and then trains on without softening.

    Args:
        loss: Loss argument of `compile`: a name, a loss, a loss function of Keras, or a structure
            of these.
        amount: Float from 0 to below 1, share of each label to spread; 0 returns the loss as it is.

    Raises:
        ModelError: If a loss is not over classes, or softens its labels already.
    """
    if not amount:
        return loss
    return keras.tree.map_structure(lambda part: _smoothed(part, amount), loss)


def check_metric(metric: str, amounts: Iterable[float]) -> None:
    """Refuse to score trials by a loss that label smoothing changes from trial to trial.

    Args:
        metric: String, name of the scored metric.
        amounts: Iterable of floats, the amounts of label smoothing in the search.

    Raises:
        SearchError: If the metric is the loss and an amount is above 0.
    """
    if metric in ("loss", "val_loss") and any(amounts):
        raise SearchError(
            "A loss must mean the same in every trial to be scored",
            f"metric={metric!r} and label_smoothing={tuple(amounts)}, which changes it",
            'Score a metric such as "val_accuracy", or leave label_smoothing out',
        )


def _smoothed(part: Any, amount: float) -> Any:
    loss = loss_of(part)
    if isinstance(loss, SPARSE) and loss.ignore_class is None:
        return _sparse(loss, amount)
    if type(loss) not in SOFT:
        raise ModelError(
            "`label_smoothing` needs a loss over classes "
            f"({', '.join(BY_NAME)}; without ignore_class)",
            name_of(part),
            "Leave label_smoothing out, or compile the model with one of these",
        )
    config = loss.get_config()
    if config["label_smoothing"]:
        raise ModelError(
            "Labels must be softened once",
            f"{loss.name} with label_smoothing={config['label_smoothing']}, "
            f"and label_smoothing={amount} of the recipe",
            "Leave it out of the loss: it is an axis of the search",
        )
    return type(loss).from_config({**config, "label_smoothing": amount})


def name_of(part: Any) -> str:
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


def _sparse(loss: Any, amount: float) -> Any:
    """Return a loss of Keras' own class whose function softens; it is saved as the plain loss."""
    made = SPARSE.from_config(loss.get_config())
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
