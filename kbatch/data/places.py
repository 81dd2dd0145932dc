"""Places: where each pixel of an augmented picture comes from, and the labels that move with it."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

# A layer may compute in half precision, which has whole numbers up to 256 only.
DIGITS = 128


def has_places(label: Any, picture: Any) -> bool:
    """Tell whether a batch of labels has the height and the width of the pictures."""
    if label is None or len(label.shape) < 3 or len(picture.shape) != 4:
        return False
    return tuple(label.shape[1:3]) == tuple(picture.shape[1:3])


def placed(pictures: Any) -> tf.Tensor:
    """Return planes of which each pixel holds its own place, to be moved with the pictures."""
    count, height, width = tf.unstack(tf.shape(pictures)[:3])
    rows = tf.repeat(tf.range(height)[:, None], width, axis=1)
    columns = tf.repeat(tf.range(width)[None, :], height, axis=0)
    one = tf.ones_like(rows)
    # The last two differ by one, but not where a layer fills both with one value.
    digits = (rows // DIGITS, rows % DIGITS, columns // DIGITS, columns % DIGITS, one, 2 * one)
    planes = tf.cast(tf.stack(digits, axis=-1), "float32")
    return tf.repeat(planes[None], count, axis=0)


def inside(planes: Any) -> tf.Tensor:
    """Return which pixels come from the picture; others were filled from outside."""
    return tf.cast(planes[..., 5], "float32") - tf.cast(planes[..., 4], "float32") > 0.5


def moved(labels: Any, pictures: Any, planes: Any) -> Any:
    """Return labels of which those with places are moved; they are 0 where nothing is known.

    Args:
        labels: Structure of labels and weights of a batch.
        pictures: The pictures, before or after.
        planes: What `placed` returned, after it was moved with the pictures.
    """
    digits = tf.cast(tf.round(tf.cast(planes[..., :4], "float32")), "int32")
    rows, columns = (digits[..., at] * DIGITS + digits[..., at + 1] for at in (0, 2))
    known = inside(planes)
    source = tf.where(known[..., None], tf.stack([rows, columns], axis=-1), 0)

    def one(label: Any) -> Any:
        if not has_places(label, pictures):
            return label
        label = tf.convert_to_tensor(label)
        found = tf.gather_nd(label, source, batch_dims=1)
        shape = tf.concat([tf.shape(known), tf.ones([len(label.shape) - 3], "int32")], axis=0)
        return tf.where(tf.reshape(known, shape), found, tf.zeros_like(found))

    return keras.tree.map_structure(one, labels)
