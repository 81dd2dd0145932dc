"""The overlap of training and validation data: how many examples are in both."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.data.arrays import STRINGS, as_arrays, bytes_of

LOOKED_AT = 1000  # validation examples at most; chosen by hand
# Values of each example that are compared first, and examples whose values are read at once;
# chosen by hand.
PROBED, AT_ONCE = 64, 1 << 16
# Where fewer validation examples than this share differ from each other, examples agree by chance.
DIFFERENT = 0.95
Overlap = tuple[int, int]
DATASETS = (tf.data.Dataset, keras.utils.PyDataset)


def overlap(training: Any, validation: Any) -> Overlap | None:
    """Count the validation examples whose inputs are those of a training example too.

    Up to 1,000 validation examples are looked at, evenly spread.

    Args:
        training: Inputs of the training examples: arrays in tuples and dicts.
        validation: Inputs of the validation examples, in the same structure.

    Returns:
        A tuple of the examples that are in both, and of those that were looked at; `None` if the
        inputs are of different shapes, or so alike among themselves that they agree by chance.

    Example:
    >>> x = np.random.default_rng(0).normal(size=(40, 3))
    >>> overlap(x[:30], x[20:]), overlap(x[:30], x[30:])
    ((10, 20), (0, 10))
    """
    learned = keras.tree.flatten(as_arrays(training))
    held_out = keras.tree.flatten(as_arrays(validation))
    if [part.shape[1:] for part in learned] != [part.shape[1:] for part in held_out]:
        return None
    count = len(held_out[0])
    rows = np.unique(np.linspace(0, count - 1, min(count, LOOKED_AT)).astype(int))
    # Copies may be of another float type.
    looked_at = [
        part[rows] if own.dtype.kind in STRINGS else part[rows].astype(own.dtype)
        for part, own in zip(held_out, learned, strict=True)
    ]
    keys = _keys(looked_at)
    if len(np.unique(keys)) < DIFFERENT * len(keys):
        return None
    places = _places(learned, keys)
    found = sum(
        any(_agree(looked_at, position, learned, row) for row in places.get(key, ()))
        for position, key in enumerate(keys.tolist())
    )
    return found, len(rows)


def _places(arrays: list[np.ndarray], keys: np.ndarray) -> dict[int, list[int]]:
    """The rows of arrays that have one of the keys, by their key."""
    places: dict[int, list[int]] = {}
    for start in range(0, len(arrays[0]), AT_ONCE):
        own = _keys([part[start : start + AT_ONCE] for part in arrays])
        for row in np.flatnonzero(np.isin(own, keys)):
            places.setdefault(int(own[row]), []).append(start + int(row))
    return places


def _keys(arrays: list[np.ndarray]) -> np.ndarray:
    """A number for each example that is equal for equal examples, from a few of its values."""
    odd = np.random.default_rng(0)
    total = np.zeros(len(arrays[0]), np.uint64)
    for part in arrays:
        flat = part.reshape(len(part), -1)
        columns = np.unique(np.linspace(0, flat.shape[1] - 1, PROBED).astype(int))
        values = flat[:, columns] if flat.shape[1] else flat
        if part.dtype.kind in STRINGS:
            values = np.vectorize(lambda text: float(hash(text)), otypes=[float])(values)
        bits = values.astype(np.float64).view(np.uint64)
        factors = odd.integers(1, 1 << 63, size=bits.shape[1], dtype=np.uint64)
        # High bits are brought down first: a product carries upwards only.
        total += ((bits ^ (bits >> np.uint64(29))) * factors).sum(axis=1, dtype=np.uint64)
    return total


def _agree(first: list[np.ndarray], row: int, second: list[np.ndarray], other: int) -> bool:
    pairs = zip(first, second, strict=True)
    return all(bytes_of(one[row]) == bytes_of(two[other]) for one, two in pairs)


def of_fit(x: Any, validation_data: Any, examples: int) -> Overlap | None:
    """Return the overlap of the data that `fit` is given; `None` where reading them would be dear.

    Args:
        x: Inputs of the training examples, or a dataset.
        validation_data: `(x, y)`, `(x, y, sample_weight)` or a dataset. A dataset is compared only
            with itself.
        examples: Integer, number of training examples.
    """
    if validation_data is x:
        return examples, examples
    if isinstance(validation_data, (tuple, list)) and not isinstance(x, DATASETS):
        return overlap(x, validation_data[0])
    return None
