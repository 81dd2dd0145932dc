"""The overlap of training and validation data: which examples are in both."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from kbatch.data.arrays import STRINGS, bytes_of, checksum

LOOKED_AT, FEWEST, BYTES = 1000, 100, 128 << 20  # validation examples; chosen by hand
# Values of each example that are compared first, and examples of arrays that are read at once;
# chosen by hand.
PROBED, AT_ONCE = 64, 1 << 14


class Form:
    """The form of examples: which of their parts are padded, and with what.

    Args:
        element_spec: `tf.TensorSpec` structure of a single example.
        padding: Structure of the values that parts are padded with; `None` without padding.
    """

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
    """Validation examples that training examples are compared with, up to 1,000.

    Attributes:
        form: `Form` of the examples.
        rows: Array of their places in the validation data.
        keys: Array of two rows: the numbers of inputs, and of labels.
        contents: List of the checksums of their input values.
        sums: List of the checksums of the whole examples.
        discrete: Boolean, whether all inputs are text, or whole numbers in rows, which repeat in
            nature.
    """

    form: Form
    rows: np.ndarray
    keys: np.ndarray
    contents: list[int]
    sums: list[int]
    discrete: bool

    @classmethod
    def of(cls, batches: Iterable[Any], rows: np.ndarray, form: Form) -> HeldOut | None:
        """Read validation examples; `None` if their parts are not those of the training examples.

        Args:
            batches: Iterable of batches of arrays.
            rows: Array, the places of the examples to look at, rising.
            form: `Form` of the training examples.
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
    """What one pass over the training data shows.

    Attributes:
        keys: Array of two rows: the numbers of inputs and of labels, in the order read.
        found: Boolean array of two rows: which validation examples have the inputs of a training
            example, and which its label too.
        complete: Boolean, whether the pass was read to its end.
        by_chance: Float, how probable it is that two examples have the same inputs, if all their
            values are drawn independently.
    """

    keys: np.ndarray
    found: np.ndarray
    complete: bool
    by_chance: float

    @classmethod
    def of(cls, batches: Iterable[Any], held_out: HeldOut, seconds: float) -> Pass:
        """Read training examples for some seconds, or to their end.

        Args:
            batches: Iterable of batches of arrays.
            held_out: `HeldOut` to compare with.
            seconds: Float, after which no other batch is begun.
        """
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


def cut(examples: Any, size: int = AT_ONCE) -> Iterator[Any]:
    """Cut arrays into batches, in their order.

    Args:
        examples: Arrays in tuples and dicts.
        size: Integer, examples of a batch. Defaults to 16,384.
    """
    for start in range(0, len(keras.tree.flatten(examples)[0]), size):
        yield keras.tree.map_structure(
            lambda array, start=start: array[start : start + size], examples
        )


def looked_at(examples: int, bytes_of_example: int | None) -> int:
    """Return how many validation examples are looked at: up to 1,000 or 128 MB, at least 100.

    Args:
        examples: Integer, how many there are.
        bytes_of_example: Integer; `None` if that is unknown.
    """
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
