"""Training examples of a `tf.data.Dataset`, read afresh in each pass."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from kbatch.data import pipeline
from kbatch.data.arrays import checksum
from kbatch.data.survey import Survey, bytes_of_one, survey
from kbatch.errors import DataError

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

    Args:
        dataset: `tf.data.Dataset` of `(x, y)` or `(x, y, sample_weight)`, with single examples or
            batches as elements.
        batched: Boolean, whether the elements are batches. Defaults to `False`.
        known: `Survey` of the dataset, if there was one.
        remedy: String, advice for a user whose training waits for the dataset. Found out if empty
            (the default).

    Attributes:
        given: `tf.data.Dataset`, as it was passed.
        one_by_one: `tf.data.Dataset` of single examples.
        padding: Structure of the values that batches are padded with; `None` for one shape.

    Raises:
        DataError: If the dataset is empty or endless, or has examples of several shapes that kbatch
            cannot batch again.
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
        if told and not pipeline.is_cached(self.given):
            return None
        return survey(self.given, batched=batched)

    def _remarks(self, bytes_of_example: int) -> Sequence[str]:
        found = []
        if int(self.given.cardinality()) == tf.data.UNKNOWN_CARDINALITY:
            found.append(
                "the dataset did not tell how many examples it holds: "
                f"{self.examples} were counted in one pass before training"
            )
        if self._buffer < self.examples and not pipeline.is_shuffled(self.given):
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
        return batches.map(lambda _, batch: batch).with_options(_fused()).prefetch(1)

    def unshuffled(self, batch_size: int) -> tf.data.Dataset:
        """Return the same batches in the order of the dataset; see `Source.unshuffled`."""
        return self._batches(self.one_by_one.repeat(), batch_size)

    def one_pass(self) -> Iterator[Any]:
        """Iterate over all examples once; see `Source.one_pass`."""
        batches = _batched(self.one_by_one, self._at_once, self.padding)
        return iter(batches.as_numpy_iterator())

    def _batches(self, examples: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
        batches = _batched(examples, batch_size, self.padding, drop_remainder=True)
        return batches.with_options(_fused()).prefetch(1)

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
            "checksum": self._checksum() if pipeline.has_fixed_order(self.given) else None,
        }

    def _checksum(self) -> int | None:
        first, again = (
            [tf.nest.flatten(example) for example in self.one_by_one.take(COMPARED_EXAMPLES)]
            for _ in range(2)
        )
        if [checksum(parts) for parts in first] != [checksum(parts) for parts in again]:
            return None
        return checksum(part for parts in first[:FINGERPRINT_EXAMPLES] for part in parts)


def _batched(
    examples: tf.data.Dataset, size: Any, padding: Any, drop_remainder: bool = False
) -> tf.data.Dataset:
    if padding is None:
        return examples.batch(size, drop_remainder=drop_remainder)
    return examples.padded_batch(size, padding_values=padding, drop_remainder=drop_remainder)


def _fused() -> tf.data.Options:
    options = tf.data.Options()
    # Without this fusion, shuffle and repeat read a whole buffer at once at the start of each pass;
    # fused, they read one example for each example taken.
    options.experimental_optimization.shuffle_and_repeat_fusion = True
    return options


def _padding(dataset: tf.data.Dataset, batched: bool) -> Any:
    values = pipeline.padding_values(dataset) if batched else None
    if values is None:
        raise DataError(
            "Examples that differ in length must come in batches whose padding is known",
            "examples of several shapes",
            "End the dataset with padded_batch(…) after its last map, "
            "or give all examples one shape",
        )
    return values


def _remedy(dataset: tf.data.Dataset) -> str:
    if pipeline.is_cached(dataset):
        return (
            "the steps after `.cache()` in the dataset are the limit: do less there, or in parallel"
        )
    return (
        "kbatch caches nothing of a dataset: put `.cache()` after the steps that are the same in "
        "each pass, before random augmentation"
    )
