"""The steps of a user's `tf.data.Dataset`.

TensorFlow does not tell them publicly. They are known by the names of their classes, read in
tensorflow/python/data/ops/ of TensorFlow 2.21.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from kbatch.runtime import tensorflow_private

CACHES = {"CacheDataset"}
SHUFFLES = {"_ShuffleDataset"}
PADS = {"_PaddedBatchDataset"}
KEEP_ELEMENTS = (
    CACHES
    | SHUFFLES
    | {
        "_AssertCardinalityDataset",
        "_OptionsDataset",
        "_PrefetchDataset",
        "_ShardDataset",
        "_SkipDataset",
        "_TakeDataset",
    }
)


def is_cached(dataset: tf.data.Dataset) -> bool:
    """Tell whether a step of the dataset caches its elements."""
    return any(type(step).__name__ in CACHES for step in _steps(dataset))


def is_shuffled(dataset: tf.data.Dataset) -> bool:
    """Tell whether a step of the dataset shuffles its elements."""
    return any(type(step).__name__ in SHUFFLES for step in _steps(dataset))


def has_fixed_order(dataset: tf.data.Dataset) -> bool:
    """Tell whether no step is known to change the order of elements from pass to pass."""
    sloppy = any(tensorflow_private.is_unordered(step) for step in _steps(dataset))
    return dataset.options().deterministic is not False and not sloppy and not is_shuffled(dataset)


def padding_values(dataset: tf.data.Dataset) -> Any | None:
    """Return the values that the user's `padded_batch` pads with, in the structure of an element.

    `None` if there is no such step, or if a later step may have changed the elements.
    """
    for step in _steps(dataset):
        if type(step).__name__ in PADS:
            return tensorflow_private.padding_values(step)
        if type(step).__name__ not in KEEP_ELEMENTS:
            return None
    return None


def _steps(dataset: Any) -> Iterator[Any]:
    """Iterate over a dataset and all datasets that it reads from, the last step first."""
    yield dataset
    for source in tensorflow_private.dataset_inputs(dataset):
        yield from _steps(source)
