"""Datasets: the user's `tf.data.Dataset` or `PyDataset` as a stream of examples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.data.arrays import as_arrays, checksum, type_name
from kbatch.data.pipeline import untuned
from kbatch.errors import DataError
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


SURVEYED_AT_ONCE = 64  # elements read before Ctrl-C is noticed again; chosen by hand, not tuned


@dataclass(frozen=True)
class Survey:
    """Facts of a dataset from one pass over it."""

    examples: int
    total_bytes: int  # bytes of all examples
    uneven: bool  # whether examples differ in shape


def survey(dataset: tf.data.Dataset, *, batched: bool) -> Survey:
    """Read a dataset once, which also fills its caches."""

    def measure(*element: Any) -> tuple[Any, Any, Any]:
        parts = tf.nest.flatten(element)
        shapes = [tf.shape(part, out_type=tf.int64) for part in parts]
        examples = shapes[0][0] if batched else tf.constant(1, tf.int64)
        return (
            examples,
            tf.add_n([_bytes(part) for part in parts]),
            tf.concat([shape[int(batched) :] for shape in shapes], 0),
        )

    examples = total_bytes = 0
    lowest: Any = None
    highest: Any = None
    for counts, sizes, shapes in dataset.map(measure).batch(SURVEYED_AT_ONCE).as_numpy_iterator():
        examples, total_bytes = examples + int(counts.sum()), total_bytes + int(sizes.sum())
        lowest = shapes.min(0) if lowest is None else np.minimum(lowest, shapes.min(0))
        highest = shapes.max(0) if highest is None else np.maximum(highest, shapes.max(0))
    return Survey(examples, total_bytes, not np.array_equal(lowest, highest))


def bytes_of_one(spec: Any) -> int | None:
    """Return the bytes of an element of this spec; `None` if they depend on its contents."""
    parts = tf.nest.flatten(spec)
    if not all(part.shape.is_fully_defined() and part.dtype != tf.string for part in parts):
        return None
    return sum(part.shape.num_elements() * part.dtype.size for part in parts)


def _bytes(part: Any) -> Any:
    if part.dtype == tf.string:
        return tf.reduce_sum(tf.cast(tf.strings.length(part), tf.int64))
    return tf.size(part, out_type=tf.int64) * part.dtype.size


# Limits of the shuffle buffer, chosen by hand, not tuned. They are the same on all machines, so
# that one seed gives one order.
SHUFFLED_EXAMPLES = 10_000
SHUFFLED_BYTES = 512 << 20
# Examples read twice, to see whether the dataset is random in each pass, and examples in a
# checksum. Chosen by hand, not tuned.
COMPARED_EXAMPLES = 32
FINGERPRINT_EXAMPLES = 4
# Examples and bytes of the batches that a pass is read in. Chosen by hand, not tuned.
READ_AT_ONCE, BYTES_AT_ONCE = 256, 8 << 20
SIZES = 2**32  # above every batch size


class DatasetSource:
    """Training examples of a `tf.data.Dataset`, read afresh in each pass.

    kbatch keeps no example, so that a random `map` stays random. The dataset is read once before
    training if it does not tell the number or the shape of its examples, or if it has a cache,
    which no training should have to fill.

    Attributes:
        given: `tf.data.Dataset`, as it was passed.
        one_by_one: `tf.data.Dataset` of single examples.
        padding: Structure of the values that batches are padded with; `None` for one shape.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        *,
        batched: bool = False,
        known: Survey | None = None,
        remedy: str = "",
    ) -> None:
        if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
            raise DataError(
                "A training dataset must end after one pass",
                "a dataset that repeats for ever",
                "Leave out `repeat()`: kbatch repeats it",
            )
        self.given = dataset
        self.one_by_one = dataset.unbatch() if batched else dataset
        self.element_spec = self.one_by_one.element_spec
        known = known or self._survey(batched)
        self.examples = known.examples if known else int(self.one_by_one.cardinality())
        if self.examples == 0:
            raise DataError(
                "A training dataset must hold examples",
                "0 examples",
                "Pass a dataset that is not empty",
            )
        mean_bytes = known.total_bytes // known.examples if known else 0
        bytes_of_example = bytes_of_one(self.element_spec) or mean_bytes
        fitting = SHUFFLED_BYTES // max(bytes_of_example, 1)
        self._at_once = max(min(READ_AT_ONCE, BYTES_AT_ONCE // max(bytes_of_example, 1)), 1)
        self._buffer = max(min(self.examples, SHUFFLED_EXAMPLES, fitting), 1)
        self.padding = _padding(dataset, batched) if known and known.uneven else None
        self.batch_seconds: dict[int, float] | None = None  # a `cache()` makes later passes faster
        self.remarks = tuple(self._remarks(bytes_of_example))
        self.remedy = remedy or _remedy(dataset)

    def with_examples(self, examples: tf.data.Dataset | None) -> DatasetSource:
        """Return the same source with other examples, or with none, so that it can be pickled."""
        other = copy.copy(self)
        other.one_by_one = other.given = examples
        return other

    def _survey(self, batched: bool) -> Survey | None:
        counted = int(self.one_by_one.cardinality()) != tf.data.UNKNOWN_CARDINALITY
        told = counted and bytes_of_one(self.element_spec) is not None
        if told and not is_cached(self.given):
            return None
        return survey(self.given, batched=batched)

    def _remarks(self, bytes_of_example: int) -> Sequence[str]:
        found = []
        if int(self.given.cardinality()) == tf.data.UNKNOWN_CARDINALITY:
            found.append(
                "the dataset did not tell how many examples it holds: "
                f"{self.examples} were counted in one pass before training"
            )
        if self._buffer < self.examples and not is_shuffled(self.given):
            mebibytes = self._buffer * bytes_of_example / 2**20
            found.append(
                f"the shuffle buffer holds {self._buffer} of {self.examples} examples "
                f"({mebibytes:.0f} MB): "
                "shuffle the dataset where its elements are small, such as file names"
            )
        if self.padding is not None:
            found.append(
                "examples differ in length: "
                "each batch is padded to its longest, as padded_batch did"
            )
        return found

    def stream(self, batch_size: int, seed: int) -> tf.data.Dataset:
        """Return an endless dataset of full batches; see `Source.stream`."""
        shuffled = self.one_by_one.shuffle(self._buffer, seed=seed, reshuffle_each_iteration=True)
        return self._batches(shuffled.repeat(), batch_size)

    def cut(self, cuts: tf.data.Dataset, seed: int) -> tf.data.Dataset:
        """Return batches of given sizes; see `Source.cut`."""
        examples = self.one_by_one.shuffle(self._buffer, seed=seed, reshuffle_each_iteration=True)
        if int(cuts.cardinality()) == tf.data.INFINITE_CARDINALITY:
            examples = examples.repeat()

        def marks(number: Any, cut: Any) -> tf.data.Dataset:
            """The number and the size of a batch in one integer, for each of its examples."""
            _, size = cut
            return tf.data.Dataset.from_tensors(number * SIZES + size).repeat(size)

        padding = None if self.padding is None else (tf.constant(0, tf.int64), self.padding)
        marked = tf.data.Dataset.zip((cuts.enumerate().flat_map(marks), examples))
        batches = marked.group_by_window(
            key_func=lambda mark, _: mark,
            reduce_func=lambda mark, window: _batched(window, mark % SIZES, padding),
            window_size_func=lambda mark: mark % SIZES,
        )
        return untuned(batches.map(lambda _, batch: batch).with_options(_fused()).prefetch(1))

    def unshuffled(self, batch_size: int) -> tf.data.Dataset:
        """Return the same batches in the order of the dataset; see `Source.unshuffled`."""
        return self._batches(self.one_by_one.repeat(), batch_size)

    def one_pass(self) -> Iterator[Any]:
        """Iterate over all examples once; see `Source.one_pass`."""
        batches = _batched(self.one_by_one, self._at_once, self.padding)
        return iter(batches.as_numpy_iterator())

    def _batches(self, examples: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
        batches = _batched(examples, batch_size, self.padding)
        return untuned(batches.with_options(_fused()).prefetch(1))

    def labels(self) -> None:
        """Return `None`: a dataset is not read for its labels; see `Source.labels`."""

    def fingerprint(self) -> dict[str, Any]:
        """Return number, shapes, types and a checksum of the first examples.

        The checksum is `None` if the dataset shuffles, or is random in each pass. See
        `Source.fingerprint`.
        """
        return {
            "examples": self.examples,
            "shapes": [
                [*part.shape.as_list(), part.dtype.name]
                for part in tf.nest.flatten(self.element_spec)
            ],
            "checksum": self._checksum() if has_fixed_order(self.given) else None,
        }

    def _checksum(self) -> int | None:
        first, again = (
            [tf.nest.flatten(example) for example in self.one_by_one.take(COMPARED_EXAMPLES)]
            for _ in range(2)
        )
        if [checksum(parts) for parts in first] != [checksum(parts) for parts in again]:
            return None
        return checksum(part for parts in first[:FINGERPRINT_EXAMPLES] for part in parts)


def _batched(examples: tf.data.Dataset, size: Any, padding: Any) -> tf.data.Dataset:
    if padding is None:
        return examples.batch(size)
    return examples.padded_batch(size, padding_values=padding)


def _fused() -> tf.data.Options:
    options = tf.data.Options()
    # Without this fusion, shuffle and repeat read a whole buffer at once at the start of each pass;
    # fused, they read one example for each example taken.
    options.experimental_optimization.shuffle_and_repeat_fusion = True
    return options


def _padding(dataset: tf.data.Dataset, batched: bool) -> Any:
    values = padding_values(dataset) if batched else None
    if values is None:
        raise DataError(
            "Examples that differ in length must come in batches whose padding is known",
            "examples of several shapes",
            "End the dataset with padded_batch(…) after its last map, "
            "or give all examples one shape",
        )
    return values


def _remedy(dataset: tf.data.Dataset) -> str:
    if is_cached(dataset):
        return (
            "the steps after `.cache()` in the dataset are the limit: do less there, or in parallel"
        )
    return (
        "kbatch caches nothing of a dataset: put `.cache()` after the steps that are the same in "
        "each pass, before random augmentation"
    )


PYDATASET_REMEDY = "the PyDataset is the limit: give it more `workers`, or make its batches cheaper"


def from_pydataset(given: Any) -> tuple[tf.data.Dataset, Survey]:
    """Return a dataset of the batches of a `keras.utils.PyDataset`, and its survey.

    Every pass calls `on_epoch_begin`, asks for each batch once, and calls `on_epoch_end`, so that a
    PyDataset shuffles and augments as in `fit`. It is read by as many threads as it has workers.
    """
    length = given.num_batches
    if not length:
        raise DataError(
            "A PyDataset must have a length of at least 1",
            length,
            "Let `__len__` return its number of batches",
        )
    structure, specs, known = _read_once(given, length)

    def read(number: Any) -> Any:
        parts = tf.numpy_function(
            lambda i: keras.tree.flatten(_batch(given, int(i))),
            [number],
            [spec.dtype for spec in specs],
        )
        return keras.tree.pack_sequence_as(
            structure,
            [tf.ensure_shape(part, spec.shape) for part, spec in zip(parts, specs, strict=True)],
        )

    batches = tf.data.Dataset.range(length).map(
        read, num_parallel_calls=max(int(given.workers), 1), deterministic=True
    )
    begin, end = (
        _none_but_call(method).map(read) for method in (given.on_epoch_begin, given.on_epoch_end)
    )
    whole = begin.concatenate(batches).concatenate(end)
    # else Keras warns at each evaluation that its input ran out
    return whole.apply(tf.data.experimental.assert_cardinality(length)), known


def _none_but_call(method: Callable[[], Any]) -> tf.data.Dataset:
    """Return a dataset without elements that calls a method when it is read."""

    def call(_: Any) -> bool:
        method()
        return False

    return tf.data.Dataset.range(1).filter(
        lambda number: tf.ensure_shape(tf.numpy_function(call, [number], tf.bool), ())
    )


def _read_once(given: Any, length: int) -> tuple[Any, list[tf.TensorSpec], Survey]:
    """Return the structure of a batch, the specs that fit all batches, and their survey."""
    given.on_epoch_begin()
    structure = _batch(given, 0)
    first = keras.tree.flatten(structure)
    shapes: list[list[int | None]] = [list(part.shape[1:]) for part in first]
    examples = total_bytes = 0
    for number in range(length):
        parts = keras.tree.flatten(_batch(given, number))
        if _types(parts) != _types(first):
            raise DataError(
                "All batches of a PyDataset must hold the same arrays",
                f"other arrays in batch {number}",
                "Let `__getitem__` return the same arrays for every batch",
            )
        shapes = [_common(shape, part.shape[1:]) for shape, part in zip(shapes, parts, strict=True)]
        examples += len(parts[0])
        total_bytes += sum(part.nbytes for part in parts)
    given.on_epoch_end()
    specs = [
        tf.TensorSpec((None, *shape), type_name(part))
        for shape, part in zip(shapes, first, strict=True)
    ]
    return structure, specs, Survey(examples, total_bytes, any(None in shape for shape in shapes))


def _types(parts: list[np.ndarray]) -> list[tuple[int, str]]:
    """Return the number of dimensions and the type of each array."""
    return [(part.ndim, type_name(part)) for part in parts]


def _common(one: list[int | None], other: tuple[int, ...]) -> list[int | None]:
    return [size if size == again else None for size, again in zip(one, other, strict=True)]


def _batch(given: Any, number: int) -> Any:
    """Return one batch as a tuple `(x, y)` or `(x, y, sample_weight)` of arrays."""
    item = given[number]
    items = item if isinstance(item, (tuple, list)) else ()
    parts = tuple(part for part in items if part is not None)
    if len(parts) not in (2, 3):
        raise DataError(
            "The batches of a PyDataset must be (x, y) or (x, y, sample_weight)",
            type(item).__name__,
            "Return such a tuple",
        )
    return keras.tree.map_structure(_cast, as_arrays(parts))


def _cast(array: np.ndarray) -> np.ndarray:
    return array.astype(keras.config.floatx(), copy=False) if array.dtype.kind == "f" else array
