"""Batches: what a trial trains on and is measured on, from whatever the user gives to `fit`."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.data import VALIDATION_BATCH_SIZE
from kbatch.data.streams import Source, bytes_of, check_arrays, check_pairs, common_length, training_source
from kbatch.errors import DataError


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
        parts = [[np.asarray(part) for part in keras.tree.flatten(batch[1])] for batch in validation]
        if len(parts[0]) != 1:
            raise DataError("Chance can be inferred for a model with one output", f"{len(parts[0])} outputs", "Pass chance=")
        return np.concatenate([batch[0] for batch in parts])

    facts = {"training": source.fingerprint(), "validation": _validation_fingerprint(validation)}
    return Data(source, validation, labels, facts)


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
        check_pairs(data)
        if int(data.cardinality()) == tf.data.INFINITE_CARDINALITY:
            raise DataError("Validation data must end after one pass", "a dataset that repeats for ever", "Leave out `repeat()`")
        spec = tf.nest.flatten(data.element_spec)[0]
        is_batched = element_spec is not None and spec.shape.rank == tf.nest.flatten(element_spec)[0].shape.rank + 1
        return (data if is_batched else data.batch(batch_size)).cache().prefetch(tf.data.AUTOTUNE)
    if not isinstance(data, (tuple, list)) or len(data) not in (2, 3):
        raise DataError("`validation_data` must be (x, y), (x, y, sample_weight) or a dataset", type(data).__name__, "Pass one of these")
    for part in data[:2]:
        check_arrays(part)
    arrays = keras.tree.map_structure(np.asarray, tuple(part for part in data if part is not None))
    common_length(arrays)
    with tf.device("CPU:0"):
        return tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size).cache().prefetch(tf.data.AUTOTUNE)


def _split(x: Any, y: Any, sample_weight: Any, share: float) -> tuple[Any, Any, Any, Any]:
    """The last `share` of the arrays to validate on, as Keras' `validation_split` does."""
    check_arrays(x)
    cut = int(common_length(keras.tree.map_structure(np.asarray, x)) * (1 - share))
    first = [None if part is None else keras.tree.map_structure(lambda a: np.asarray(a)[:cut], part) for part in (x, y, sample_weight)]
    last = [keras.tree.map_structure(lambda a: np.asarray(a)[cut:], part) for part in (x, y, sample_weight) if part is not None]
    return first[0], first[1], first[2], tuple(last)


def _validation_fingerprint(batches: tf.data.Dataset) -> dict[str, Any]:
    """Number of examples and a checksum of all labels that does not depend on their order."""
    checksum = examples = 0
    for batch in batches:
        labels = [np.asarray(part) for part in keras.tree.flatten(batch[1])]
        examples += len(labels[0])
        checksum += sum(zlib.crc32(b"".join(bytes_of(part[row]) for part in labels)) for row in range(len(labels[0])))
    return {"examples": examples, "checksum": checksum % 2**32}
