"""Batches: arrays or a dataset of single examples, as one endless stream for training and fixed batches for validation."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from kbatch.errors import DataError

VALIDATION_BATCH_SIZE = 32  # Keras' own default, so that `model.evaluate(x, y)` gives the same number
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


@dataclass(frozen=True)
class Data:
    """What a trial trains and is measured on.

    Attributes:
        training: The training examples.
        validation: Batches of `(x, y)` or `(x, y, sample_weight)`, always in the same order.
        labels: Function that gives all validation labels as one array; called only where chance is inferred.
        fingerprint: Facts that tell these data from others, in JSON's own types.
    """

    training: Source
    validation: tf.data.Dataset
    labels: Callable[[], np.ndarray]
    fingerprint: dict[str, Any]


class ArraySource:
    """Examples held in memory, gathered a whole batch at a time.

    Args:
        arrays: Nested structure of arrays that share their first dimension.
    """

    def __init__(self, arrays: Any) -> None:
        with tf.device("CPU:0"):
            self.arrays = keras.tree.map_structure(tf.convert_to_tensor, arrays)
        self.examples = _common_length(self.arrays)
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
        flat = keras.tree.flatten(self.arrays)
        return {
            "examples": self.examples,
            "shapes": [[*map(int, array.shape[1:]), array.dtype.name] for array in flat],
            "checksum": zlib.crc32(b"".join(_bytes(tf.gather(array, rows)) for array in flat)),
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
        """Number, shapes, types and a checksum of the first examples; see `Source.fingerprint`."""
        flat = [tf.nest.flatten(example) for example in self._first]
        return {
            "examples": self.examples,
            "shapes": [[*part.shape.as_list(), part.dtype.name] for part in tf.nest.flatten(self.element_spec)],
            "checksum": zlib.crc32(b"".join(_bytes(part) for example in flat for part in example)),
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
        _check_pairs(x)
        return DatasetSource(_take_apart(x) if batched else x)
    _check_arrays(x)
    if y is None:
        raise DataError("Labels must come with arrays", "y=None", "Pass `y`, or a dataset of (x, y)")
    _check_arrays(y)
    parts = (x, y) if sample_weight is None else (x, y, sample_weight)
    return ArraySource(keras.tree.map_structure(np.asarray, parts))


def validation_batches(data: Any, batch_size: int = VALIDATION_BATCH_SIZE, *, element_spec: Any = None) -> tf.data.Dataset:
    """Validation data as batches that always come in the same order.

    Args:
        data: `(x, y)` or `(x, y, sample_weight)` of arrays, or a `tf.data.Dataset` of single examples or of batches.
        batch_size: Integer, examples per batch. Defaults to `32`.
        element_spec: Spec of a single training example, which tells a dataset of batches from one of examples.

    Raises:
        DataError: If it is none of these.
    """
    if isinstance(data, tf.data.Dataset):
        _check_pairs(data)
        spec = tf.nest.flatten(data.element_spec)[0]
        is_batched = element_spec is not None and spec.shape.rank == tf.nest.flatten(element_spec)[0].shape.rank + 1
        return (data if is_batched else data.batch(batch_size)).cache().prefetch(tf.data.AUTOTUNE)
    if not isinstance(data, (tuple, list)) or len(data) not in (2, 3):
        raise DataError("`validation_data` must be (x, y), (x, y, sample_weight) or a dataset", type(data).__name__, "Pass one of these")
    for part in data[:2]:
        _check_arrays(part)
    arrays = keras.tree.map_structure(np.asarray, tuple(part for part in data if part is not None))
    _common_length(arrays)
    with tf.device("CPU:0"):
        return tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size).cache().prefetch(tf.data.AUTOTUNE)


def prepare(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    validation_data: Any = None,
    validation_split: float = 0.0,
    validation_batch_size: int | None = None,
    batched: bool = False,
) -> Data:
    """Training and validation data of a trial, from what the user gives to `fit`.

    Args:
        x: See `training_source`.
        y: See `training_source`.
        sample_weight: See `training_source`.
        validation_data: See `validation_batches`.
        validation_split: Float, the share of the arrays' last examples to validate on. Defaults to `0`.
        validation_batch_size: Integer, examples per validation batch. Defaults to `32`.
        batched: Boolean, whether a training dataset's elements are batches. Defaults to `False`.

    Raises:
        DataError: If there is nothing to validate on, or something cannot be used.
    """
    if validation_data is None and validation_split:
        if isinstance(x, tf.data.Dataset):
            raise DataError("`validation_split` must come with arrays", "a dataset", "Pass `validation_data`, for example with `take` and `skip`")
        if not 0 < validation_split < 1:
            raise DataError("`validation_split` must be between 0 and 1", validation_split, "Pass the share to validate on, such as 0.2")
        x, y, sample_weight, validation_data = _split(x, y, sample_weight, validation_split)
    if validation_data is None:
        raise DataError("A trial must have something to validate on", "neither validation_data nor validation_split", "Pass one of them")
    source = training_source(x, y, sample_weight, batched=batched)
    validation = validation_batches(validation_data, validation_batch_size or VALIDATION_BATCH_SIZE, element_spec=source.element_spec)

    def labels() -> np.ndarray:
        return np.concatenate([np.asarray(keras.tree.flatten(batch[1])[0]) for batch in validation])

    facts = {"training": source.fingerprint(), "validation": _validation_fingerprint(validation)}
    return Data(source, validation, labels, facts)


def _split(x: Any, y: Any, sample_weight: Any, share: float) -> tuple[Any, Any, Any, Any]:
    """The last `share` of the arrays to validate on, as Keras' `validation_split` does."""
    _check_arrays(x)
    cut = int(_common_length(keras.tree.map_structure(np.asarray, x)) * (1 - share))
    first = [None if part is None else keras.tree.map_structure(lambda a: np.asarray(a)[:cut], part) for part in (x, y, sample_weight)]
    last = [keras.tree.map_structure(lambda a: np.asarray(a)[cut:], part) for part in (x, y, sample_weight) if part is not None]
    return first[0], first[1], first[2], tuple(last)


def _check_pairs(dataset: tf.data.Dataset) -> None:
    spec = dataset.element_spec
    if not isinstance(spec, tuple) or len(spec) not in (2, 3):
        raise DataError("A dataset's elements must be (x, y) or (x, y, sample_weight)", spec, "Map it to such pairs")


def _check_arrays(arrays: Any) -> None:
    for part in keras.tree.flatten(arrays):
        if not hasattr(part, "shape") or not hasattr(part, "__array__") or len(part.shape) == 0:
            raise DataError(
                "Data must be arrays, or a tf.data.Dataset of single examples",
                f"{type(part).__name__}",
                "Convert with numpy.asarray; for a generator, use tf.data.Dataset.from_generator",
            )


def _common_length(arrays: Any) -> int:
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


def _validation_fingerprint(batches: tf.data.Dataset) -> dict[str, Any]:
    checksum = examples = 0
    for batch in batches:
        flat = tf.nest.flatten(batch)
        examples += int(flat[0].shape[0])
        checksum = zlib.crc32(b"".join(_bytes(part[:4]) for part in flat), checksum)
    return {"examples": examples, "checksum": checksum}


def _bytes(tensor: Any) -> bytes:
    return bytes(np.ascontiguousarray(np.asarray(tensor)).tobytes())


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 << 30
