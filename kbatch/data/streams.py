"""Streams: training examples, held as arrays or as a dataset, as full batches without end."""

from __future__ import annotations

import os
import zlib
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from kbatch.errors import DataError

FINGERPRINT_EXAMPLES = 1000
CACHE_SHARE_OF_MEMORY = 0.25


class Source(Protocol):
    """Training examples that can be streamed without end."""

    examples: int
    element_spec: Any

    def stream(self, batch_size: int, seed: int) -> tf.data.Dataset:
        """Full batches without end, in another order each pass; a batch may reach over the end of a pass."""

    def fingerprint(self) -> dict[str, Any]:
        """Number, shapes, types and a checksum of the examples, in JSON's own types."""


class ArraySource:
    """Examples held in memory, gathered a whole batch at a time.

    Args:
        arrays: Nested structure of arrays that share their first dimension.
    """

    def __init__(self, arrays: Any) -> None:
        with tf.device("CPU:0"):
            self.arrays = keras.tree.map_structure(tf.convert_to_tensor, arrays)
        self.examples = common_length(self.arrays)
        self.element_spec = keras.tree.map_structure(lambda array: tf.TensorSpec(array.shape[1:], array.dtype), self.arrays)

    def stream(self, batch_size: int, seed: int) -> tf.data.Dataset:
        """Full batches without end; see `Source.stream`."""

        def gather(indices: tf.Tensor) -> Any:
            return keras.tree.map_structure(lambda array: tf.gather(array, indices), self.arrays)

        indices = tf.data.Dataset.range(self.examples).shuffle(self.examples, seed=seed, reshuffle_each_iteration=True)
        return indices.repeat().batch(batch_size, drop_remainder=True).map(gather, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    def fingerprint(self) -> dict[str, Any]:
        """Number, shapes, types and a checksum; see `Source.fingerprint`."""
        rows = np.unique(np.linspace(0, self.examples - 1, FINGERPRINT_EXAMPLES).astype(int))
        flat, inputs = keras.tree.flatten(self.arrays), keras.tree.flatten(self.arrays[0])
        labels = flat[len(inputs) :]  # labels and weights are read whole, of the inputs some rows
        return {
            "examples": self.examples,
            "shapes": [[*map(int, array.shape[1:]), array.dtype.name] for array in flat],
            "checksum": zlib.crc32(b"".join([*(bytes_of(tf.gather(array, rows)) for array in inputs), *map(bytes_of, labels)])),
        }


class DatasetSource:
    """Single examples of a `tf.data.Dataset`, cached where they fit into a quarter of the machine's memory.

    Args:
        dataset: Dataset whose elements are `(x, y)` or `(x, y, sample_weight)` of one example, of known cardinality.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self.examples = _cardinality(dataset)
        self.element_spec = dataset.element_spec
        self._first = dataset.take(4)
        self.dataset = dataset.cache() if self._bytes_of_all(dataset.element_spec) < CACHE_SHARE_OF_MEMORY * _machine_bytes() else dataset

    def _bytes_of_all(self, spec: Any) -> float:
        flat = tf.nest.flatten(spec)
        known = all(part.shape.is_fully_defined() for part in flat)
        return self.examples * sum(part.shape.num_elements() * part.dtype.size for part in flat) if known else float("inf")

    def stream(self, batch_size: int, seed: int) -> tf.data.Dataset:
        """Full batches without end; see `Source.stream`."""
        shuffled = self.dataset.shuffle(min(self.examples, 10_000), seed=seed, reshuffle_each_iteration=True)
        return shuffled.repeat().batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    def fingerprint(self) -> dict[str, Any]:
        """Number, shapes, types and, if it always begins the same, a checksum of the first examples.

        A dataset that shuffles or draws anew in each pass has no checksum; see `Source.fingerprint`.
        """
        first, again = (zlib.crc32(b"".join(bytes_of(part) for example in self._first for part in tf.nest.flatten(example))) for _ in range(2))
        return {
            "examples": self.examples,
            "shapes": [[*part.shape.as_list(), part.dtype.name] for part in tf.nest.flatten(self.element_spec)],
            "checksum": first if first == again else None,
        }


def training_source(x: Any, y: Any = None, sample_weight: Any = None, *, batched: bool = False) -> Source:
    """The training examples in whatever form the user holds them.

    Args:
        x: NumPy array, tensor or nested structure of them, with the examples along the first dimension; or a
            `tf.data.Dataset` of single `(x, y)` or `(x, y, sample_weight)`.
        y: Labels, for arrays.
        sample_weight: Weights of the examples, for arrays. Optional.
        batched: Boolean, whether a dataset's elements are batches; they are taken apart. Defaults to `False`.

    Raises:
        DataError: If kbatch cannot make an endless stream of it.
    """
    if isinstance(x, tf.data.Dataset):
        if y is not None or sample_weight is not None:
            raise DataError(
                "A dataset must hold its labels and weights itself", "a dataset as `x`, and `y` or `sample_weight`", "Zip them into the dataset"
            )
        check_pairs(x)
        leading = [part.shape[0] if part.shape.rank else -1 for part in tf.nest.flatten(x.element_spec)]
        if not batched and all(size is None for size in leading):
            raise DataError("A training dataset must hold single examples", "what looks like batches", "Pass batched=True, or leave out `batch()`")
        return DatasetSource(_take_apart(x) if batched else x)
    check_arrays(x)
    if y is None:
        raise DataError("Labels must come with arrays", "y=None", "Pass `y`, or a dataset of (x, y)")
    check_arrays(y)
    parts = (x, y) if sample_weight is None else (x, y, sample_weight)
    return ArraySource(keras.tree.map_structure(np.asarray, parts))


def check_pairs(dataset: tf.data.Dataset) -> None:
    """Refuse a dataset whose elements are not pairs of inputs and labels."""
    spec = dataset.element_spec
    if not isinstance(spec, tuple) or len(spec) not in (2, 3):
        raise DataError("A dataset's elements must be (x, y) or (x, y, sample_weight)", spec, "Map it to such pairs")


def check_arrays(arrays: Any) -> None:
    """Refuse what is no array, or a nested structure that holds something else."""
    for part in keras.tree.flatten(arrays):
        if not hasattr(part, "shape") or not hasattr(part, "__array__") or len(part.shape) == 0:
            raise DataError(
                "Data must be arrays, or a tf.data.Dataset of single examples",
                f"{type(part).__name__}",
                "Convert with numpy.asarray; for a generator, use tf.data.Dataset.from_generator",
            )


def common_length(arrays: Any) -> int:
    """The number of examples that all arrays share."""
    lengths = {int(array.shape[0]) for array in keras.tree.flatten(arrays)}
    if len(lengths) != 1 or lengths == {0}:
        raise DataError("All arrays must hold the same number of examples, at least 1", sorted(lengths), "Cut them to the same length")
    return lengths.pop()


def _cardinality(dataset: tf.data.Dataset) -> int:
    count = int(dataset.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        raise DataError("A training dataset must end after one pass", "one that repeats for ever", "Leave out `repeat()`: kbatch repeats it")
    if count == tf.data.UNKNOWN_CARDINALITY:
        raise DataError(
            "A training dataset must know its number of examples",
            "unknown cardinality",
            "Add `.apply(tf.data.experimental.assert_cardinality(n))`",
        )
    if count == 0:
        raise DataError("A training dataset must hold examples", "0 examples", "Pass one that is not empty")
    return count


def _take_apart(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Single examples of a dataset of batches; one pass counts them, since batches may differ in size."""
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        _cardinality(dataset)
    sizes = dataset.map(lambda *parts: tf.shape(tf.nest.flatten(parts)[0], out_type=tf.int64)[0])
    count = int(sizes.reduce(np.int64(0), lambda total, size: total + size))
    return dataset.unbatch().apply(tf.data.experimental.assert_cardinality(count))


def bytes_of(tensor: Any) -> bytes:
    """The contents of a tensor, for a checksum."""
    return bytes(np.ascontiguousarray(np.asarray(tensor)).tobytes())


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 << 30
