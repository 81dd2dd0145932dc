"""Validation data: read once, measured whole, and compared with the training data."""

from __future__ import annotations

import math
import operator
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.data import VALIDATION_BATCH_SIZE, datasets
from kbatch.data.arrays import (
    STRINGS,
    as_arrays,
    as_tensors,
    bytes_of,
    check_labels,
    checksum,
    common_length,
    type_name,
)
from kbatch.data.datasets import from_pydataset
from kbatch.data.pipeline import untuned
from kbatch.data.streams import (
    Inputs,
    Source,
    agree_on_batches,
    are_batches,
    check_dataset,
    check_weights,
    training_source,
    unknown_inputs,
)
from kbatch.errors import DataError

SUMS = 2**32  # that many checksums there are
VALIDATION_CACHE_BYTES = 1 << 30  # kept in host memory at most; chosen by hand, not tuned


@dataclass(frozen=True)
class Data:
    """Training and validation data."""

    training: Source
    # `tf.data.Dataset` of batches of `(x, y)` or `(x, y, sample_weight)`
    validation: tf.data.Dataset
    labels: Callable[[], np.ndarray]  # function that returns all validation labels as one array
    fingerprint: dict[str, Any]  # facts that tell these data from others, as JSON can hold them
    # a checksum of the validation examples with their labels, in any order; `None` for a dataset
    # that shuffles, or draws anew in each pass
    pairs: int | None = None
    remarks: tuple[str, ...] = ()  # sentences for the user about the data
    arrays: Any = None  # structure of the validation arrays; `None` for a dataset
    # the checksums of the validation examples when they were first read; `None` for
    # arrays, which are the same in each pass
    first_pass: np.ndarray | None = None
    kept: bool = True  # whether the validation examples are kept in memory once they are read


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
    """Prepare training and validation data from the arguments of `fit`."""
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

        starts = tf.data.Dataset.range(0, examples, batch_size)
        self.batches = untuned(starts.map(cut).prefetch(1))
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
            self.batches = untuned(batches.cache().prefetch(1))
        else:
            self.batches, self.kept = untuned(batches.prefetch(1)), False
            self.remarks = (
                "the validation data are read anew at each mark: "
                f"they take {total_bytes / 2**30:.1f} GB, more than the "
                f"{VALIDATION_CACHE_BYTES / 2**30:.1f} GB that kbatch keeps in memory",
            )


def _holds_batches(spec: Any, element_spec: Any) -> bool:
    return are_batches(spec) if element_spec is None else agree_on_batches(spec, element_spec)


def _comes_again(batches: tf.data.Dataset, sums: list[int]) -> bool:
    """Whether a second pass begins with the same examples: nothing shuffles or draws at random."""
    if not datasets.has_fixed_order(batches):
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


LOOKED_AT, FEWEST, BYTES = 1000, 100, 128 << 20  # validation examples; chosen by hand
PROBED = 64  # values of each example that are compared first; chosen by hand


class PaddedForm:
    """The form of examples: which of their parts are padded, and with what."""

    def __init__(self, element_spec: Any, padding: Any = None) -> None:
        self.pads = [
            self._pads_of(element_spec[part], None if padding is None else padding[part])
            for part in (0, 1)
        ]

    def _pads_of(self, spec: Any, padding: Any) -> list[Any]:
        """The value that each part is padded with; `None` for a part whose shape is fixed."""
        specs = keras.tree.flatten(spec)
        if padding is None:
            return [None] * len(specs)
        values = [np.asarray(value)[()] for value in keras.tree.flatten(padding)]
        fixed = [each.shape.is_fully_defined() for each in specs]
        return [None if known else pad for known, pad in zip(fixed, values, strict=True)]

    def fits(self, batch: Any) -> bool:
        """Tell whether a batch has as many inputs and labels."""
        return [len(keras.tree.flatten(part)) for part in batch[:2]] == list(map(len, self.pads))

    def keys(self, batch: Any) -> np.ndarray:
        """Return two numbers for each example, of its inputs and of its labels."""
        pairs = zip(batch[:2], self.pads, strict=True)
        return np.stack([_keys(keras.tree.flatten(part), pads) for part, pads in pairs])

    def contents(self, batch: Any, row: int) -> int:
        """Return a checksum of all input values of one example."""
        total = 0
        for part, pad in zip(keras.tree.flatten(batch[0]), self.pads[0], strict=True):
            total = zlib.crc32(_content(part[row], pad), total)
        return total


@dataclass(frozen=True)
class HeldOut:
    """Validation examples that training examples are compared with, up to 1,000."""

    form: PaddedForm
    rows: np.ndarray  # their places in the validation data
    keys: np.ndarray  # two rows: the numbers of inputs, and of labels
    contents: list[int]  # the checksums of their input values
    sums: list[int]  # the checksums of the whole examples
    discrete: bool  # whether all inputs are text, or whole numbers in rows, which repeat in nature

    @classmethod
    def of(cls, batches: Iterable[Any], rows: np.ndarray, form: PaddedForm) -> HeldOut | None:
        """Read validation examples; `None` if their parts are not those of the training examples.

        Args:
            batches: Iterable of batches of arrays.
            rows: Array, the places of the examples to look at, rising.
            form: `PaddedForm` of the training examples.
        """
        begin, keys, contents, sums = 0, [np.zeros((2, 0), np.uint64)], [], []
        discrete = True
        for batch in batches:
            if not form.fits(batch):
                return None
            parts = keras.tree.flatten(batch)
            end = begin + len(parts[0])
            own = rows[(begin <= rows) & (rows < end)] - begin
            begin = end
            if not len(own):
                continue
            chosen = keras.tree.map_structure(lambda part, own=own: part[own], batch)
            keys.append(form.keys(chosen))
            discrete = discrete and all(map(_is_discrete, keras.tree.flatten(chosen[0])))
            contents += [form.contents(chosen, row) for row in range(len(own))]
            sums += [checksum(part[row] for part in parts) for row in own]
        return cls(form, rows[: len(sums)], np.concatenate(keys, 1), contents, sums, discrete)

    def __len__(self) -> int:
        return len(self.sums)


@dataclass(frozen=True)
class Pass:
    """What one pass over the training data shows."""

    keys: np.ndarray  # two rows: the numbers of inputs and of labels, in the order read
    # boolean array of two rows: which validation examples have the inputs of a training example,
    # and which its label too
    found: np.ndarray
    complete: bool  # whether the pass was read to its end
    # how probable it is that two examples have the same inputs, if all their values are drawn
    # independently
    by_chance: float

    @classmethod
    def of(cls, batches: Iterable[Any], held_out: HeldOut, seconds: float) -> Pass:
        """Read training examples for some seconds, or to their end."""
        sought = np.unique(held_out.keys[0])
        found, read = np.zeros((2, len(held_out)), bool), [np.zeros((2, 0), np.uint64)]
        by_chance, complete, end = 0.0, True, time.perf_counter() + seconds
        for batch in batches:
            keys = held_out.form.keys(batch)
            if len(read) == 1:
                by_chance = _by_chance(keras.tree.flatten(batch[0]), held_out.form.pads[0])
            read.append(keys)
            _note(found, held_out, batch, keys, end, sought)
            # An example that is found with its label needs no other look.
            sought = np.unique(held_out.keys[0, ~found[1]])
            if time.perf_counter() > end:
                complete = False
                break
        return cls(np.concatenate(read, 1), found, complete, by_chance)


def looked_at(examples: int, bytes_of_example: int | None) -> int:
    """Return how many validation examples are looked at: up to 1,000 or 128 MB, at least 100."""
    fitting = LOOKED_AT if not bytes_of_example else BYTES // bytes_of_example
    return min(examples, LOOKED_AT, max(fitting, FEWEST))


def evenly_spread(examples: int, count: int = LOOKED_AT) -> np.ndarray:
    """Return the places of up to so many of the examples."""
    return np.unique(np.linspace(0, examples - 1, min(examples, count)).astype(int))


def _note(
    found: np.ndarray,
    held_out: HeldOut,
    batch: Any,
    keys: np.ndarray,
    end: float,
    sought: np.ndarray,
) -> None:
    """Note the validation examples that are in a batch of training examples, until a time."""
    contents = np.asarray(held_out.contents)
    for row in np.flatnonzero(np.isin(keys[0], sought)):
        places = np.flatnonzero((held_out.keys[0] == keys[0, row]) & ~found[1])
        if len(places):
            equal = places[contents[places] == held_out.form.contents(batch, int(row))]
            found[0, equal] = True
            found[1, equal] |= held_out.keys[1, equal] == keys[1, row]
        if time.perf_counter() > end:
            return


def _keys(parts: list[np.ndarray], pads: list[Any]) -> np.ndarray:
    """A number for each example that is equal for equal examples, from a few of its values."""
    odd = np.random.default_rng(0)
    total = np.zeros(len(parts[0]), np.uint64)
    for part, pad in zip(parts, pads, strict=True):
        values = _probed(part) if pad is None else _sums(part, pad)
        bits = values.view(np.uint64)
        factors = odd.integers(1, 1 << 63, size=bits.shape[1], dtype=np.uint64)
        # High bits are brought down first: a product carries upwards only.
        total += ((bits ^ (bits >> np.uint64(29))) * factors).sum(axis=1, dtype=np.uint64)
    return total


def _sums(part: np.ndarray, pad: Any) -> np.ndarray:
    """A checksum of each example without its padding, in a column."""
    sums = [zlib.crc32(_content(row, pad)) for row in part]
    return np.asarray(sums, np.float64).reshape(len(part), 1)


def _is_discrete(part: np.ndarray) -> bool:
    if part.dtype.kind in STRINGS:
        return True
    return part.ndim <= 2 and np.array_equal(part, np.round(part))


def _probed(part: np.ndarray) -> np.ndarray:
    """A few values of each example as numbers, in columns."""
    flat = part.reshape(len(part), -1)
    columns = np.unique(np.linspace(0, max(flat.shape[1] - 1, 0), PROBED).astype(int))
    values = flat[:, columns] if flat.shape[1] else flat
    if part.dtype.kind in STRINGS:
        values = np.vectorize(_number_of_text, otypes=[float])(values)
    return np.ascontiguousarray(_as_trained(values), np.float64)


def _number_of_text(text: Any) -> float:
    return float(hash(text if isinstance(text, bytes) else str(text).encode()))


def _as_trained(values: np.ndarray) -> np.ndarray:
    """Values with the precision that models get: copies may be of another float type."""
    return values.astype(keras.config.floatx()) if values.dtype.kind == "f" else values


def _content(values: np.ndarray, pad: Any) -> bytes:
    """All values of a part of one example as bytes, without those that it is padded with."""
    array = np.asarray(values)
    if pad is not None:
        array = array[array != pad]
    if array.dtype.kind in STRINGS:
        return bytes_of(array)
    return np.ascontiguousarray(array, keras.config.floatx()).tobytes()


def _by_chance(parts: list[np.ndarray], pads: list[Any]) -> float:
    """The probability that two examples agree, from how often the values of each column do."""
    probability = 1.0
    rows = evenly_spread(len(parts[0]))
    for part, pad in zip(parts, pads, strict=True):
        if pad is None and len(rows) > 1:
            for column in _probed(part[rows]).T:
                counts = np.unique(column, return_counts=True)[1].astype(float)
                probability *= (counts * (counts - 1)).sum() / (len(rows) * (len(rows) - 1))
    return probability
