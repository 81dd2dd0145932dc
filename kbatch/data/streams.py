"""Streams: training examples, held as arrays or as a dataset, as full batches without end."""

from __future__ import annotations

from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from kbatch.data.arrays import (
    as_arrays,
    as_tensors,
    check_labels,
    checksum,
    common_length,
    type_name,
)
from kbatch.data.datasets import DatasetSource
from kbatch.data.elements import Inputs, are_batches, check_pairs, unknown_inputs
from kbatch.data.order import shuffled_batches
from kbatch.data.pydatasets import REMEDY, from_pydataset
from kbatch.errors import DataError

FINGERPRINT_EXAMPLES = 1000
# at most so much more than a batch is gathered at once
GATHERED_EXAMPLES, GATHERED_BYTES = 1024, 1 << 20
# large batches; one by one costs 1.1 times Keras' own adapter at 4096 examples: threads wait for
# each other
GATHERED_AT_ONCE = 2


class Source(Protocol):
    """Training examples that can be streamed without end.

    Attributes:
        examples: Integer, how many there are.
        element_spec: Spec of a single one.
        remarks: Tuple of sentences worth knowing.
        remedy: What a user can do if training waits for the examples.
    """

    examples: int
    element_spec: Any
    remarks: tuple[str, ...]
    remedy: str

    def stream(self, batch_size: int, seed: int) -> tf.data.Dataset:
        """Full batches without end, in another order each pass; a batch may reach over the end of a pass."""

    def unshuffled(self, batch_size: int) -> tf.data.Dataset:
        """Batches that cost what those of `stream` cost, from the first on: to time the pipeline alone."""

    def fingerprint(self) -> dict[str, Any]:
        """Number, shapes, types and a checksum of the examples, in JSON's own types."""

    def labels(self) -> np.ndarray | None:
        """All labels, where there is one array of them in memory; else `None`."""


class ArraySource:
    """Examples held in memory, gathered a whole batch at a time, or several of a small one.

    Args:
        arrays: `(x, y)` or `(x, y, sample_weight)` of arrays in tuples and dicts that share their
            first dimension.
    """

    remedy = "kbatch gathers the rows of the arrays: rows of fewer bytes, such as uint8 or smaller pictures, take less"

    def __init__(self, arrays: Any) -> None:
        self.examples = common_length(arrays)
        self.remarks: tuple[str, ...] = ()
        self._given = arrays
        self._arrays = as_tensors(arrays)
        self.element_spec = keras.tree.map_structure(
            lambda array: tf.TensorSpec(array.shape[1:], array.dtype), self._arrays
        )

    def stream(self, batch_size: int, seed: int) -> tf.data.Dataset:
        """Full batches without end; see `Source.stream`."""
        together = self._batches_at_once(batch_size)

        def gather(indices: tf.Tensor) -> Any:
            return keras.tree.map_structure(lambda array: tf.gather(array, indices), self._arrays)

        def gather_several(indices: tf.Tensor) -> Any:
            return keras.tree.map_structure(
                lambda array: tf.reshape(array, (together, batch_size, *array.shape[1:])),
                gather(indices),
            )

        indices = shuffled_batches(self.examples, batch_size * together, seed)
        batches = (
            indices.map(gather, num_parallel_calls=GATHERED_AT_ONCE)
            if together == 1
            else indices.map(gather_several).unbatch()
        )
        options = tf.data.Options()
        options.autotune.enabled = False  # nothing here is left to be tuned, and watching it costs
        options.experimental_optimization.apply_default_optimizations = False
        return batches.with_options(options).prefetch(2)

    def unshuffled(self, batch_size: int) -> tf.data.Dataset:
        """The stream itself, which is as fast from the first batch on; see `Source.unshuffled`."""
        return self.stream(batch_size, 0)

    def _batches_at_once(self, batch_size: int) -> int:
        """How many batches are gathered by one call, whose own cost would be most of that of a small batch."""
        bytes_of_example = (
            sum(array.nbytes for array in keras.tree.flatten(self._given)) // self.examples
        )
        return max(
            min(GATHERED_EXAMPLES, GATHERED_BYTES // max(bytes_of_example, 1)) // batch_size, 1
        )

    def fingerprint(self) -> dict[str, Any]:
        """Number, shapes, types and a checksum; see `Source.fingerprint`."""
        rows = np.unique(np.linspace(0, self.examples - 1, FINGERPRINT_EXAMPLES).astype(int))
        flat, inputs = keras.tree.flatten(self._given), keras.tree.flatten(self._given[0])
        labels = flat[len(inputs) :]  # labels and weights are read whole, of the inputs some rows
        return {
            "examples": self.examples,
            "shapes": [[*map(int, array.shape[1:]), type_name(array)] for array in flat],
            "checksum": checksum([*(array[rows] for array in inputs), *labels]),
        }

    def labels(self) -> np.ndarray | None:
        """The labels themselves; see `Source.labels`."""
        arrays = keras.tree.flatten(self._given[1])
        return np.asarray(arrays[0]) if len(arrays) == 1 else None


def training_source(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batched: bool | None = None,
    inputs: Inputs = unknown_inputs,
) -> Source:
    """The training examples in whatever form the user holds them.

    Args:
        x: Array, tensor, or list, tuple or dict of them, with the examples along the first
            dimension; a
            `tf.data.Dataset` of `(x, y)` or `(x, y, sample_weight)`, of single examples or of
            batches; or a
            `keras.utils.PyDataset`.
        y: Labels, for arrays.
        sample_weight: Weights of the examples, for arrays. Optional.
        batched: Boolean, whether a dataset's elements are batches; they are taken apart. Defaults
            to finding out.
        inputs: Function that gives the names and shapes of the model's inputs, or `None`; called
            only where the dataset does not tell by itself whether it is batched.

    Raises:
        DataError: If kbatch cannot make an endless stream of it.
    """
    if isinstance(x, (tf.data.Dataset, keras.utils.PyDataset)) and (
        y is not None or sample_weight is not None
    ):
        raise DataError(
            "A dataset must hold its labels and weights itself",
            "a dataset as `x`, and `y` or `sample_weight`",
            "Zip them into the dataset",
        )
    if isinstance(x, keras.utils.PyDataset):
        dataset, known = from_pydataset(x)
        check_dataset(dataset)
        return DatasetSource(dataset, batched=True, known=known, remedy=REMEDY)
    if isinstance(x, tf.data.Dataset):
        check_dataset(x)
        return DatasetSource(
            x, batched=are_batches(x.element_spec, inputs) if batched is None else bool(batched)
        )
    arrays = as_arrays(x)
    if y is None:
        raise DataError(
            "Labels must come with arrays", "y=None", "Pass `y`, or a dataset of (x, y)"
        )
    parts = (
        (arrays, as_arrays(y))
        if sample_weight is None
        else (arrays, as_arrays(y), as_arrays(sample_weight))
    )
    check_labels(type_name(array) for array in keras.tree.flatten(parts[1]))
    return ArraySource(parts)


def check_dataset(dataset: tf.data.Dataset) -> None:
    """Refuse a dataset that is not of pairs of inputs and numbers as labels."""
    check_pairs(dataset)
    check_labels(part.dtype.name for part in tf.nest.flatten(dataset.element_spec[1]))
