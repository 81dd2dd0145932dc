"""Class weights: the weight of each example by the class of its label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf


def weighed(batches: tf.data.Dataset, class_weight: Mapping[int, float] | None) -> tf.data.Dataset:
    """Return the same batches with a weight for each example.

    Classes that are not named weigh 1, as Keras has it for arrays. Keras itself looks the weights
    of a dataset up in a table, which ends at the highest class that is named.

    Args:
        batches: `tf.data.Dataset` of `(x, y)`, with one tensor of labels.
        class_weight: Mapping from class to weight; `None` leaves the batches as they are.
    """
    if class_weight is None:
        return batches
    keys = tf.constant([int(key) for key in class_weight], tf.int32)
    values = tf.constant([float(each) for each in class_weight.values()], keras.config.floatx())

    def weigh(x: Any, y: Any) -> Any:
        found = tf.equal(classes_of(y)[..., tf.newaxis], keys)
        ones = tf.ones(tf.shape(found)[:-1], values.dtype)
        if not class_weight:
            return x, y, ones
        own = tf.gather(values, tf.argmax(found, axis=-1))
        return x, y, tf.where(tf.reduce_any(found, axis=-1), own, ones)

    return batches.map(weigh).prefetch(2)


def classes_of(labels: Any) -> Any:
    """Return the class of each label: the column of one-hot labels, else the number itself."""
    if labels.shape.rank > 1 and labels.shape[-1] != 1:
        return tf.argmax(labels, axis=-1, output_type=tf.int32)
    if labels.shape.rank > 1:
        labels = tf.squeeze(labels, axis=-1)
    return tf.cast(tf.round(labels), tf.int32)
