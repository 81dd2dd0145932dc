"""Pipeline: what a user's `tf.data.Dataset` is made of. TensorFlow does not tell this publicly, so this module alone looks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

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
    """Whether the user caches some part of it."""
    return any(type(step).__name__ in CACHES for step in _steps(dataset))


def is_shuffled(dataset: tf.data.Dataset) -> bool:
    """Whether the user shuffles some part of it."""
    return any(type(step).__name__ in SHUFFLES for step in _steps(dataset))


def has_fixed_order(dataset: tf.data.Dataset) -> bool:
    """Whether nothing in it is known to change the order from pass to pass; examples may still differ."""
    sloppy = any(getattr(step, "_deterministic", None) == "false" for step in _steps(dataset))
    return dataset.options().deterministic is not False and not sloppy and not is_shuffled(dataset)


def padding_values(dataset: tf.data.Dataset) -> Any | None:
    """What the user's `padded_batch` fills its batches with, in the structure of an element.

    `None` if there is no such step, or if a later one may have changed what is in the batches.
    """
    for step in _steps(dataset):
        if type(step).__name__ in PADS:
            return getattr(step, "_padding_values", None)
        if type(step).__name__ not in KEEP_ELEMENTS:
            return None
    return None


def _steps(dataset: Any) -> Iterator[Any]:
    """The dataset and all that it reads from, the last step first."""
    yield dataset
    for source in getattr(dataset, "_inputs", list)():
        yield from _steps(source)
