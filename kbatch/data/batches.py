"""Batches: what a trial trains on and is measured on, from whatever the user gives to `fit`."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.data import VALIDATION_BATCH_SIZE
from kbatch.data.arrays import (
    as_arrays,
    as_tensors,
    check_labels,
    checksum,
    common_length,
    type_name,
)
from kbatch.data.elements import Inputs, agree_on_batches, are_batches, unknown_inputs
from kbatch.data.pydatasets import from_pydataset
from kbatch.data.streams import Source, check_dataset, training_source
from kbatch.errors import DataError

VALIDATION_CACHE_BYTES = 1 << 30


@dataclass(frozen=True)
class Data:
    """What a trial trains and is measured on.

    Attributes:
        training: The training examples.
        validation: Batches of `(x, y)` or `(x, y, sample_weight)`.
        labels: Function that gives all validation labels as one array; called only for losses over
            numbers of classes.
        fingerprint: Facts that tell these data from others, in JSON's own types.
        remarks: Tuple of sentences worth knowing about the data.
    """

    training: Source
    validation: tf.data.Dataset
    labels: Callable[[], np.ndarray]
    fingerprint: dict[str, Any]
    remarks: tuple[str, ...] = ()


def prepare(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    validation_data: Any = None,
    validation_split: float = 0.0,
    validation_batch_size: int | None = None,
    batched: bool | None = None,
    inputs: Inputs = unknown_inputs,
) -> Data:
    """Training and validation data of a trial, from what the user gives to `fit`.

    Args:
        x: See `training_source`.
        y: See `training_source`.
        sample_weight: See `training_source`.
        validation_data: See `validation_batches`.
        validation_split: Float, the share of the arrays' last examples to validate on. Defaults to
            `0`.
        validation_batch_size: Integer, examples per validation batch. Defaults to `32`.
        batched: Boolean, whether a training dataset's elements are batches. Defaults to finding
            out.
        inputs: See `training_source`.

    Raises:
        DataError: If there is nothing to validate on, or something cannot be used.
    """
    share = _share(validation_split)
    if validation_data is None and share:
        if isinstance(x, (tf.data.Dataset, keras.utils.PyDataset)):
            raise DataError(
                "`validation_split` must come with arrays",
                "a dataset",
                "Pass `validation_data`, for example with `take` and `skip`",
            )
        x, y, sample_weight, validation_data = _split(x, y, sample_weight, share)
    if validation_data is None:
        raise DataError(
            "A trial must have something to validate on",
            "neither validation_data nor validation_split",
            "Pass one of them",
        )
    source = training_source(x, y, sample_weight, batched=batched, inputs=inputs)
    measured = _Validation(validation_data, _batch_size(validation_batch_size), source.element_spec)
    facts = {"training": source.fingerprint(), "validation": measured.fingerprint}
    return Data(
        source, measured.batches, measured.labels, facts, (*source.remarks, *measured.remarks)
    )


def validation_batches(
    data: Any, batch_size: int = VALIDATION_BATCH_SIZE, *, element_spec: Any = None
) -> tf.data.Dataset:
    """Validation data as batches.

    Args:
        data: `(x, y)` or `(x, y, sample_weight)` of arrays, a `tf.data.Dataset` of single examples
            or of batches, or a
            `keras.utils.PyDataset`.
        batch_size: Integer, examples per batch. Defaults to `32`.
        element_spec: Spec of a single training example, which tells a dataset of batches from one
            of examples.

    Raises:
        DataError: If it is none of these, or holds no examples.
    """
    return _Validation(data, batch_size, element_spec).batches


class _Validation:
    """Validation data, read once: batches that are kept in memory where they fit, and what tells them from others."""

    def __init__(self, data: Any, batch_size: int, element_spec: Any) -> None:
        self.remarks: tuple[str, ...] = ()
        if isinstance(data, (tf.data.Dataset, keras.utils.PyDataset)):
            self._of_dataset(data, batch_size, element_spec)
        else:
            self._of_arrays(data, batch_size)

    def labels(self) -> np.ndarray:
        """All labels as one array, for models with one output."""
        parts = [keras.tree.flatten(batch[1]) for batch in self.batches.as_numpy_iterator()]
        if len(parts[0]) != 1:
            raise DataError(
                "Chance can be inferred for a model with one output",
                f"{len(parts[0])} outputs",
                "Pass chance=",
            )
        return np.concatenate([batch[0] for batch in parts])

    def _of_arrays(self, data: Any, batch_size: int) -> None:
        if not isinstance(data, (tuple, list)) or len(data) not in (2, 3):
            raise DataError(
                "`validation_data` must be (x, y), (x, y, sample_weight) or a dataset",
                type(data).__name__,
                "Pass one of these",
            )
        arrays = tuple(as_arrays(part) for part in data if part is not None)
        if len(arrays) < 2:
            raise DataError(
                "Labels must come with arrays", "no labels in `validation_data`", "Pass (x, y)"
            )
        check_labels(type_name(array) for array in keras.tree.flatten(arrays[1]))
        examples, tensors = common_length(arrays), as_tensors(arrays)

        def cut(start: tf.Tensor) -> Any:
            return keras.tree.map_structure(
                lambda array: array[start : start + batch_size], tensors
            )

        self.batches = tf.data.Dataset.range(0, examples, batch_size).map(cut).prefetch(1)
        self.fingerprint = {
            "examples": examples,
            "checksum": _sum_of_rows([keras.tree.flatten(arrays[1])]),
        }

    def _of_dataset(self, data: Any, batch_size: int, element_spec: Any) -> None:
        given = from_pydataset(data)[0] if isinstance(data, keras.utils.PyDataset) else data
        check_dataset(given)
        if int(given.cardinality()) == tf.data.INFINITE_CARDINALITY:
            raise DataError(
                "Validation data must end after one pass",
                "a dataset that repeats for ever",
                "Leave out `repeat()`",
            )
        is_batched = given is not data or _holds_batches(given.element_spec, element_spec)
        batches = given if is_batched else given.batch(batch_size)
        examples = total_bytes = 0

        def counted() -> Iterable[list[np.ndarray]]:
            nonlocal examples, total_bytes
            for batch in batches.as_numpy_iterator():
                parts, labels = keras.tree.flatten(batch), keras.tree.flatten(batch[1])
                examples, total_bytes = (
                    examples + len(labels[0]),
                    total_bytes + sum(part.nbytes for part in parts),
                )
                yield labels

        try:
            rows = _sum_of_rows(counted())
        except tf.errors.InvalidArgumentError as error:
            raise DataError(
                "Validation examples must go into batches",
                str(error).splitlines()[0],
                "Batch them yourself, with padded_batch(…)",
            ) from error
        if examples == 0:
            raise DataError(
                "Validation data must hold examples",
                "0 examples",
                "Pass a dataset that is not empty",
            )
        self.fingerprint = {"examples": examples, "checksum": rows}
        if total_bytes <= VALIDATION_CACHE_BYTES:
            self.batches = batches.cache().prefetch(1)
        else:
            self.batches = batches.prefetch(1)
            size = f"{total_bytes / 2**30:.1f} GB, more than the {VALIDATION_CACHE_BYTES / 2**30:.1f} GB that kbatch keeps in memory"
            self.remarks = (f"the validation data are read anew at each mark: they take {size}",)


def _holds_batches(spec: Any, element_spec: Any) -> bool:
    return are_batches(spec) if element_spec is None else agree_on_batches(spec, element_spec)


def _sum_of_rows(batches: Iterable[list[np.ndarray]]) -> int:
    """A checksum of labels that does not depend on their order."""
    return (
        sum(
            checksum(part[row] for part in labels)
            for labels in batches
            for row in range(len(labels[0]))
        )
        % 2**32
    )


def _share(validation_split: Any) -> float:
    try:
        # By its digits: 0.2 as a float32 is a little more than 0.2, which would cut off another
        # example.
        share = float(str(np.asarray(validation_split or 0)[()]))
    except (TypeError, ValueError):
        share = math.nan
    if not 0 <= share < 1:
        raise DataError(
            "`validation_split` must be between 0 and 1",
            validation_split,
            "Pass the share to validate on, such as 0.2",
        )
    return share


def _batch_size(validation_batch_size: Any) -> int:
    if validation_batch_size is None:
        return VALIDATION_BATCH_SIZE
    try:
        size = operator.index(validation_batch_size)
    except TypeError:
        size = 0
    if size < 1:
        raise DataError(
            "`validation_batch_size` must be a whole number of at least 1",
            validation_batch_size,
            "Pass 32, say, or leave it out",
        )
    return size


def _split(x: Any, y: Any, sample_weight: Any, share: float) -> tuple[Any, Any, Any, Any]:
    """The last `share` of the arrays to validate on, as Keras' `validation_split` does."""
    arrays = [None if part is None else as_arrays(part) for part in (x, y, sample_weight)]
    cut = int(common_length(arrays[0]) * (1 - share))
    first = [
        None if part is None else keras.tree.map_structure(lambda a: a[:cut], part)
        for part in arrays
    ]
    last = [
        keras.tree.map_structure(lambda a: a[cut:], part) for part in arrays if part is not None
    ]
    return first[0], first[1], first[2], tuple(last)
