"""Loss counts: the number by which Keras divides the loss of a pass."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from kbatch.runtime import keras_private


def counts(model: keras.Model, loss: Any) -> bool:
    """Tell whether the loss is divided by a count that may differ from pass to pass."""
    outputs = getattr(model, "outputs", None) or []
    masked = any(keras_private.mask_of(output) is not None for output in outputs)
    parts = keras.tree.flatten(loss)
    return masked or any(
        getattr(part, "ignore_class", None) is not None or _by_weights(part) for part in parts
    )


def _by_weights(loss: Any) -> bool:
    return getattr(loss, "reduction", None) == "mean_with_sample_weight"


def count(loss: Any, y: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
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
