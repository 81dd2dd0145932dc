"""Endless streams of full batches of training examples, from arrays or a dataset."""

from __future__ import annotations

from collections.abc import Iterator
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
from kbatch.data.order import shuffled_batches, shuffled_cuts
from kbatch.data.overlap import cut
from kbatch.data.pydatasets import REMEDY, from_pydataset
from kbatch.errors import DataError

FINGERPRINT_EXAMPLES = 1000  # chosen by hand, not tuned
# Small batches are gathered several at once, up to so many examples and bytes. Chosen by hand, and
# checked with `python scripts/bench_overhead.py --parts pipeline`.
GATHERED_EXAMPLES, GATHERED_BYTES = 1024, 1 << 20
# Large batches are gathered two at once. One by one takes 1.1 times as long as Keras' own adapter
# at 4,096 examples, since threads wait for each other (the same script).
GATHERED_AT_ONCE = 2


class Source(Protocol):
    """Training examples that can be streamed without end.

    Attributes:
        examples: Integer, number of examples.
        element_spec: `tf.TensorSpec` structure of a single example.
        remarks: Tuple of strings, sentences for the user.
        remedy: String, advice for a user whose training waits for the examples.
        padding: Structure of the values that examples of several lengths are padded with; `None`
            for examples of one shape.
    """

    examples: int
    element_spec: Any
    remarks: tuple[str, ...]
    remedy: str
    padding: Any

    def stream(self, batch_size: int, seed: int) -> tf.data.Dataset:
        """Return an endless dataset of full batches, in another order each pass.

        A batch may reach over the end of a pass.

        Args:
            batch_size: Integer, examples per batch.
            seed: Integer, seed of the order.
        """

    def cut(self, cuts: tf.data.Dataset, seed: int) -> tf.data.Dataset:
        """Return a dataset of batches of given sizes, in the same order as `stream`.

        Args:
            cuts: `tf.data.Dataset` of the sizes, as `kbatch.data.cuts` makes it; endless, or of one
                pass.
            seed: Integer, seed of the order.
        """

    def unshuffled(self, batch_size: int) -> tf.data.Dataset:
        """Return batches that take as long as those of `stream`, to time the pipeline by itself."""

    def one_pass(self) -> Iterator[Any]:
        """Iterate over all examples once, in batches of NumPy arrays; anew in each call."""

    def fingerprint(self) -> dict[str, Any]:
        """Return number, shapes, types and a checksum of the examples, as JSON can hold them."""

    def labels(self) -> np.ndarray | None:
        """Return all labels if they are one array in memory, else `None`."""


class ArraySource:
    """Training examples in memory; one call gathers a whole batch, or several small batches.

    Args:
        arrays: Tuple `(x, y)` or `(x, y, sample_weight)` of arrays in tuples and dicts, with the
            same first dimension.

    Attributes:
        arrays: The same arrays.
    """

    padding = None
    remedy = (
        "kbatch gathers the rows of the arrays: "
        "rows of fewer bytes, such as uint8 or smaller pictures, take less"
    )

    def __init__(self, arrays: Any) -> None:
        self.examples = common_length(arrays)
        self.remarks: tuple[str, ...] = ()
        self.arrays = arrays
        self._arrays = as_tensors(arrays)
        self.element_spec = keras.tree.map_structure(
            lambda array: tf.TensorSpec(array.shape[1:], array.dtype), self._arrays
        )

    def stream(self, batch_size: int, seed: int) -> tf.data.Dataset:
        """Return an endless dataset of full batches; see `Source.stream`."""
        together = self._batches_at_once(batch_size)

        def gather_several(indices: tf.Tensor) -> Any:
            return keras.tree.map_structure(
                lambda array: tf.reshape(array, (together, batch_size, *array.shape[1:])),
                self._gather(indices),
            )

        indices = shuffled_batches(self.examples, batch_size * together, seed)
        batches = (
            indices.map(self._gather, num_parallel_calls=GATHERED_AT_ONCE)
            if together == 1
            else indices.map(gather_several).unbatch()
        )
        return batches.with_options(_untuned()).prefetch(2)

    def cut(self, cuts: tf.data.Dataset, seed: int) -> tf.data.Dataset:
        """Return batches of given sizes; see `Source.cut`."""
        batches = shuffled_cuts(self.examples, cuts, seed).map(
            self._gather, num_parallel_calls=GATHERED_AT_ONCE
        )
        return batches.with_options(_untuned()).prefetch(2)

    def _gather(self, indices: tf.Tensor) -> Any:
        return keras.tree.map_structure(lambda array: tf.gather(array, indices), self._arrays)

    def unshuffled(self, batch_size: int) -> tf.data.Dataset:
        """Return the stream itself, fast from its first batch on; see `Source.unshuffled`."""
        return self.stream(batch_size, 0)

    def one_pass(self) -> Iterator[Any]:
        """Iterate over all examples once; see `Source.one_pass`."""
        return cut(self.arrays)

    def _batches_at_once(self, batch_size: int) -> int:
        """Return how many batches one call gathers: for small batches the call itself is slow."""
        total_bytes = sum(array.nbytes for array in keras.tree.flatten(self.arrays))
        bytes_of_example = max(total_bytes // self.examples, 1)
        gathered = min(GATHERED_EXAMPLES, GATHERED_BYTES // bytes_of_example)
        return max(gathered // batch_size, 1)

    def fingerprint(self) -> dict[str, Any]:
        """Return number, shapes, types and a checksum; see `Source.fingerprint`."""
        rows = np.unique(np.linspace(0, self.examples - 1, FINGERPRINT_EXAMPLES).astype(int))
        flat, inputs = keras.tree.flatten(self.arrays), keras.tree.flatten(self.arrays[0])
        labels = flat[len(inputs) :]  # all labels and weights, but only some rows of the inputs
        return {
            "examples": self.examples,
            "shapes": [[*map(int, array.shape[1:]), type_name(array)] for array in flat],
            "checksum": checksum([*(array[rows] for array in inputs), *labels]),
        }

    def labels(self) -> np.ndarray | None:
        """Return the labels; see `Source.labels`."""
        arrays = keras.tree.flatten(self.arrays[1])
        return np.asarray(arrays[0]) if len(arrays) == 1 else None


def _untuned() -> tf.data.Options:
    options = tf.data.Options()
    options.autotune.enabled = False  # there is nothing to tune, and watching takes time
    options.experimental_optimization.apply_default_optimizations = False
    return options


def training_source(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batched: bool | None = None,
    inputs: Inputs = unknown_inputs,
) -> Source:
    """Return the source of the user's training examples.

    Args:
        x: Array, tensor, or list, tuple or dict of these, with the examples along the first
            dimension; a `tf.data.Dataset` of `(x, y)` or `(x, y, sample_weight)`, with single
            examples or batches as elements; or a `keras.utils.PyDataset`.
        y: Labels, if `x` is made of arrays.
        sample_weight: Weights of the examples, if `x` is made of arrays. Optional.
        batched: Boolean, whether the elements of a dataset are batches. `None` (the default) finds
            out.
        inputs: Function that returns the names and shapes of the model's inputs, or `None`; called
            only if the dataset does not show whether its elements are batches.

    Raises:
        DataError: If the data cannot be streamed.
    """
    is_dataset = isinstance(x, (tf.data.Dataset, keras.utils.PyDataset))
    if is_dataset and (y is not None or sample_weight is not None):
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
        found = are_batches(x.element_spec, inputs) if batched is None else bool(batched)
        return DatasetSource(x, batched=found)
    arrays = as_arrays(x)
    if y is None:
        raise DataError(
            "Labels must come with arrays", "y=None", "Pass `y`, or a dataset of (x, y)"
        )
    weights = () if sample_weight is None else (as_arrays(sample_weight),)
    check_weights(weights)
    parts = (arrays, as_arrays(y), *weights)
    check_labels(type_name(array) for array in keras.tree.flatten(parts[1]))
    return ArraySource(parts)


def check_weights(weights: Any) -> None:
    """Refuse weights of examples that are NaN or infinite: so would the loss be."""
    for part in keras.tree.flatten(weights):
        if part.dtype.kind != "f":
            continue
        wrong = np.flatnonzero(~np.isfinite(part))
        if len(wrong):
            raise DataError(
                "The weights of examples must be finite",
                f"{len(wrong)} that are not, the first at position {wrong[0]}",
                "Give what is missing the weight 0",
            )


def check_dataset(dataset: tf.data.Dataset) -> None:
    """Refuse a dataset whose elements are not inputs with numbers as labels."""
    check_pairs(dataset)
    check_labels(part.dtype.name for part in tf.nest.flatten(dataset.element_spec[1]))
