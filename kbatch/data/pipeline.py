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
FILTERS = {"_FilterDataset"}
CUTS = {"_ShardDataset", "_SkipDataset", "_TakeDataset"}
KEEP_ELEMENTS = (
    CACHES
    | SHUFFLES
    | CUTS
    | {
        "_AssertCardinalityDataset",
        "_OptionsDataset",
        "_PrefetchDataset",
    }
)


def is_cached(dataset: tf.data.Dataset) -> bool:
    """Tell whether a step of the dataset caches its elements."""
    return any(type(step).__name__ in CACHES for step in _steps(dataset))


def is_shuffled(dataset: tf.data.Dataset) -> bool:
    """Tell whether a step of the dataset shuffles its elements."""
    return any(type(step).__name__ in SHUFFLES for step in _steps(dataset))


def are_drawn_anew(training: tf.data.Dataset, validation: tf.data.Dataset) -> bool:
    """Tell whether two datasets are cut, by place, from one that is shuffled anew in each pass.

    Examples then change from one to the other, whatever is done to them after the cut. Where each
    part has a cache, or a filter of its own, that need not be so.

    Args:
        training: `tf.data.Dataset`.
        validation: `tf.data.Dataset`.
    """
    own, others = list(_cut_shuffles(training)), list(_cut_shuffles(validation))
    return any(
        one[0] is other[0]
        and not (_of(CACHES, one) and _of(CACHES, other))
        and _of(FILTERS, one) == _of(FILTERS, other)
        for one in own
        for other in others
    )


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


def _cut_shuffles(dataset: Any, after: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The steps that shuffle anew in each pass before a cut by place, with the steps after each."""
    path = (dataset, *after)
    is_cut = any(type(step).__name__ in CUTS for step in after)
    if type(dataset).__name__ in SHUFFLES and is_cut and tensorflow_private.reshuffles(dataset):
        yield path
    for source in tensorflow_private.dataset_inputs(dataset):
        yield from _cut_shuffles(source, path)


def _of(kind: set[str], steps: tuple[Any, ...]) -> set[int]:
    """The steps of a kind; each dataset is known as itself."""
    return {id(step) for step in steps if type(step).__name__ in kind}
