"""The training and validation data of a search, from the arguments of `fit`."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.data import VALIDATION_BATCH_SIZE, pipeline
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
from kbatch.data.streams import Source, check_dataset, check_weights, training_source
from kbatch.errors import DataError

SUMS = 2**32  # that many checksums there are
VALIDATION_CACHE_BYTES = 1 << 30  # kept in host memory at most; chosen by hand, not tuned


@dataclass(frozen=True)
class Data:
    """Training and validation data.

    Attributes:
        training: `Source` of the training examples.
        validation: `tf.data.Dataset` of batches of `(x, y)` or `(x, y, sample_weight)`.
        labels: Function that returns all validation labels as one array.
        fingerprint: Dict, facts that tell these data from others, as JSON can hold them.
        pairs: Integer, a checksum of the validation examples with their labels, in any order;
            `None` for a dataset that shuffles, or draws anew in each pass.
        remarks: Tuple of strings, sentences for the user about the data.
        arrays: Structure of the validation arrays; `None` for a dataset.
        first_pass: Array of the checksums of the validation examples when they were first read;
            `None` for arrays, which are the same in each pass.
        kept: Boolean, whether the validation examples are kept in memory once they are read.
    """

    training: Source
    validation: tf.data.Dataset
    labels: Callable[[], np.ndarray]
    fingerprint: dict[str, Any]
    pairs: int | None = None
    remarks: tuple[str, ...] = ()
    arrays: Any = None
    first_pass: np.ndarray | None = None
    kept: bool = True


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
    """Prepare training and validation data from the arguments of `fit`.

    Args:
        x: See `training_source`.
        y: See `training_source`.
        sample_weight: See `training_source`.
        validation_data: See `held_out_batches`.
        validation_split: Float, share of the examples at the end of the arrays to validate on.
            Defaults to `0`.
        validation_batch_size: Integer, examples per validation batch. Defaults to `32`.
        batched: Boolean, whether the elements of a training dataset are batches. `None` (the
            default) finds out.
        inputs: See `training_source`.

    Raises:
        DataError: If there are no validation data, or some data cannot be used.
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
        source,
        measured.batches,
        measured.labels,
        facts,
        measured.pairs,
        (*source.remarks, *measured.remarks),
        measured.arrays,
        measured.first_pass,
        measured.kept,
    )


def held_out_batches(
    data: Any, batch_size: int = VALIDATION_BATCH_SIZE, *, element_spec: Any = None
) -> tuple[tf.data.Dataset, dict[str, Any]]:
    """Return validation or test data as a dataset of batches, and facts to tell them from others.

    Args:
        data: Tuple `(x, y)` or `(x, y, sample_weight)` of arrays, a `tf.data.Dataset` of single
            examples or batches, or a `keras.utils.PyDataset`.
        batch_size: Integer, examples per batch. Defaults to `32`.
        element_spec: `tf.TensorSpec` structure of a single training example, to judge whether the
            elements of a dataset are batches. Optional.

    Raises:
        DataError: If the data are of another kind, or empty.
    """
    read = _Validation(data, batch_size, element_spec)
    return read.batches, {"examples": read.fingerprint["examples"], "checksum": read.pairs}


def _remarks(inputs: Any) -> tuple[str, ...]:
    """What to say of validation inputs that are NaN or infinite: most models answer at random."""
    numbers = [part for part in keras.tree.flatten(inputs) if part.dtype.kind == "f"]
    if all(math.isfinite(np.sum(part, dtype="float64")) for part in numbers):
        return ()
    rows = [~np.isfinite(part).reshape(len(part), -1).all(axis=1) for part in numbers]
    wrong = np.flatnonzero(np.any(rows, axis=0))
    if not len(wrong):
        return ()
    return (
        f"{len(wrong)} of {len(rows[0])} validation examples hold values that are NaN or infinite, "
        f"the first at position {wrong[0]}: they count as the model happens to answer",
    )


class _Validation:
    """Validation data, read once: batches, kept in memory if they fit, and their fingerprint."""

    def __init__(self, data: Any, batch_size: int, element_spec: Any) -> None:
        self.remarks: tuple[str, ...] = ()
        self.arrays: Any = None
        self.first_pass: np.ndarray | None = None
        self.kept = True
        if isinstance(data, (tf.data.Dataset, keras.utils.PyDataset)):
            self._of_dataset(data, batch_size, element_spec)
        else:
            self._of_arrays(data, batch_size)

    def labels(self) -> np.ndarray:
        """Return all labels as one array, for models with one output."""
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
        check_weights(arrays[2:])
        self.remarks = _remarks(arrays[0])
        examples, tensors = common_length(arrays), as_tensors(arrays)
        self.arrays = arrays

        def cut(start: tf.Tensor) -> Any:
            return keras.tree.map_structure(
                lambda array: array[start : start + batch_size], tensors
            )

        self.batches = tf.data.Dataset.range(0, examples, batch_size).map(cut).prefetch(1)
        self.fingerprint = {
            "examples": examples,
            "checksum": sum(_sums_of_rows(keras.tree.flatten(arrays[1]))) % SUMS,
        }
        self.pairs: int | None = sum(_sums_of_rows(keras.tree.flatten(arrays))) % SUMS

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
        labels, pairs, total_bytes = 0, [], 0
        try:
            for batch in batches.as_numpy_iterator():
                parts = keras.tree.flatten(batch)
                labels += sum(_sums_of_rows(keras.tree.flatten(batch[1])))
                pairs += _sums_of_rows(parts)
                total_bytes += sum(part.nbytes for part in parts)
        except tf.errors.InvalidArgumentError as error:
            raise DataError(
                "Validation examples must go into batches",
                str(error).splitlines()[0],
                "Batch them yourself, with padded_batch(…)",
            ) from error
        if not pairs:
            raise DataError(
                "Validation data must hold examples",
                "0 examples",
                "Pass a dataset that is not empty",
            )
        self.fingerprint = {"examples": len(pairs), "checksum": labels % SUMS}
        self.first_pass = np.unique(pairs)
        self.pairs = sum(pairs) % SUMS if _comes_again(batches, pairs) else None
        if total_bytes <= VALIDATION_CACHE_BYTES:
            self.batches = batches.cache().prefetch(1)
        else:
            self.batches, self.kept = batches.prefetch(1), False
            self.remarks = (
                "the validation data are read anew at each mark: "
                f"they take {total_bytes / 2**30:.1f} GB, more than the "
                f"{VALIDATION_CACHE_BYTES / 2**30:.1f} GB that kbatch keeps in memory",
            )


def _holds_batches(spec: Any, element_spec: Any) -> bool:
    return are_batches(spec) if element_spec is None else agree_on_batches(spec, element_spec)


def _comes_again(batches: tf.data.Dataset, sums: list[int]) -> bool:
    """Whether a second pass begins with the same examples: nothing shuffles or draws at random."""
    if not pipeline.has_fixed_order(batches):
        return False
    first = _sums_of_rows(keras.tree.flatten(next(iter(batches.as_numpy_iterator()))))
    return first == sums[: len(first)]


def _sums_of_rows(parts: list[np.ndarray]) -> list[int]:
    """Return the checksum of each example; their sum does not depend on the order."""
    return [checksum(part[row] for part in parts) for row in range(len(parts[0]))]


def _share(validation_split: Any) -> float:
    try:
        # by its digits, since 0.2 as a float32 is a little more than 0.2 and would cut off one more
        # example
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
    """Split off the last `share` of the arrays to validate on, as Keras' `validation_split`."""
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
