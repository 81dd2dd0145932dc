"""Label smoothing: a loss over classes with softened labels."""

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
    """What a model is compiled with so that its labels are softened (Szegedy et al. 2016).

    A label of one among `K` classes becomes `1 - amount + amount / K` for that class and
    `amount / K` for the others. Labels that are numbers of classes are softened inside the loss. A
    model that is saved with it loads where kbatch is not installed, and then trains on without
    softening.

    Args:
        loss: What the user compiles with: a name, a loss, a function of Keras', or a structure of
            them.
        amount: Float, at least 0 and below 1; 0 leaves the loss as it is.

    Raises:
        ModelError: If a loss is none over classes, or softens its labels already.
    """
    if not amount:
        return loss
    return keras.tree.map_structure(lambda part: _smoothed(part, amount), loss)


def check_metric(metric: str, amounts: Iterable[float]) -> None:
    """Refuse to judge by a loss that label smoothing changes: the numbers would not be of one kind.

    Args:
        metric: String, what is scored.
        amounts: Amounts of label smoothing that are searched.

    Raises:
        SearchError: If so.
    """
    if metric in ("loss", "val_loss") and any(amounts):
        raise SearchError(
            "A loss must mean the same in every trial to be scored",
            f"metric={metric!r} and label_smoothing={tuple(amounts)}, which changes it",
            'Score a metric such as "val_accuracy", or leave label_smoothing out',
        )


def _smoothed(part: Any, amount: float) -> Any:
    loss = _loss_of(part)
    if isinstance(loss, SPARSE) and loss.ignore_class is None:
        return _sparse(loss, amount)
    if type(loss) not in SOFT:
        raise ModelError(
            f"`label_smoothing` needs a loss over classes ({', '.join(BY_NAME)}; without ignore_class)",
            part
            if isinstance(part, str)
            else getattr(part, "name", None) or getattr(part, "__name__", type(part).__name__),
            "Leave label_smoothing out, or compile the model with one of these",
        )
    config = loss.get_config()
    if config["label_smoothing"]:
        raise ModelError(
            "Labels must be softened once",
            f"{loss.name} with label_smoothing={config['label_smoothing']}, and label_smoothing={amount} of the recipe",
            "Leave it out of the loss: it is an axis of the search",
        )
    return type(loss).from_config({**config, "label_smoothing": amount})


def _loss_of(part: Any) -> Any:
    """A name, or a function of Keras' own, as the loss that it stands for; anything else as it is."""
    name = part if isinstance(part, str) else getattr(part, "__name__", "")
    if isinstance(part, str) or part is getattr(keras.losses, name, None):
        kind = BY_NAME.get(name)
        return part if kind is None else kind()
    return part


def _sparse(loss: Any, amount: float) -> Any:
    """A loss of Keras' own class, whose function softens: saved, it is the plain one."""
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
