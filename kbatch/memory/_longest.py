"""Longest: the longest sequences and strings of the data, which need the most memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from kbatch.errors import DataError
from kbatch.memory._sample import batching_of, is_dataset, is_py_dataset, is_shape, leaves, nested

# A survey ends here, and the answer says so. Both chosen by hand, not tuned.
SECONDS = 20.0
ELEMENTS = 200_000


@dataclass(frozen=True)
class Longest:
    """The shape of one example that an answer holds for.

    Attributes:
        parts: Tuple of nested arrays of sizes, as the data's elements are nested.
        words: String, such as `"the longest shape (512,)"`.
    """

    parts: tuple[Any, ...]
    words: str

    def of(self, sample: tuple[Any, ...]) -> tuple[Any, ...]:
        """A sample whose examples are padded with zeros, or cut, to this shape."""
        return paired(sample, self.parts, widened)


def longest_of(
    x: Any, sample: tuple[Any, ...], shape: Any = None, clock: Callable[[], float] = time.monotonic
) -> Longest | None:
    """The longest shape of data whose examples may differ, or the one that is named.

    A dataset that leaves sizes open, and a `PyDataset`, are read once, for the shapes only: for
    `SECONDS` and `ELEMENTS` at most. Of several sizes that differ, the largest of each is taken.

    Returns the `Longest`, or `None` if all examples have the shape of the sample.
    """
    elements = _elements(x)
    seen = None if elements is None else _Seen(elements, clock)
    if shape is not None:
        return _named(shape, sample, None if seen is None else seen.highest)
    if seen is None or not any(len(sizes) for sizes in leaves(seen.highest)):
        return None
    if seen.differs and is_dataset(x) and batching_of(x) is None:
        raise DataError(
            "All examples must have the same shape",
            f"examples of up to {_text(seen.highest[0])}",
            "Pad or crop them, make padded batches, or pass shape=",
        )
    return Longest(seen.highest, seen.words())


class _Seen:
    """What a pass over the shapes of data saw.

    Attributes:
        highest: Tuple of nested arrays, the largest of each size.
        differs: Boolean, whether examples differ in shape.
    """

    def __init__(
        self, elements: Iterable[tuple[int, tuple[Any, ...]]], clock: Callable[[], float]
    ) -> None:
        began, self._examples, self._is_whole = clock(), 0, True
        self.highest: tuple[Any, ...] = ()
        lowest: tuple[Any, ...] = ()
        for count, (examples, shapes) in enumerate(elements, 1):
            self.highest = paired(self.highest, shapes, np.maximum) if self.highest else shapes
            lowest = paired(lowest, shapes, np.minimum) if lowest else shapes
            self._examples += examples
            if count >= ELEMENTS or clock() - began > SECONDS:
                self._is_whole = False
                break
        ends = zip(leaves(lowest), leaves(self.highest), strict=True)
        self.differs = any((low != high).any() for low, high in ends)
        inputs = zip(leaves(lowest[:1]), leaves(self.highest[:1]), strict=True)
        self._open_sizes = sum(int((low != high).sum()) for low, high in inputs)

    def words(self) -> str:
        """The words that name the shape in an answer."""
        kind = "the longest shape"
        if self._open_sizes > 1:
            kind = "the largest of each size,"
        seen = "" if self._is_whole else f" of the first {self._examples:,} examples"
        return f"{kind} {_text(self.highest[0])}{seen}"


def _elements(x: Any) -> Iterator[tuple[int, tuple[Any, ...]]] | None:
    """The number of examples and the shapes of each element; `None` if all have one shape."""
    if is_dataset(x):
        return _of_dataset(x)
    if is_py_dataset(x):
        return _of_py_dataset(x)
    return None


def _of_dataset(x: Any) -> Iterator[tuple[int, tuple[Any, ...]]] | None:
    tf = sys.modules["tensorflow"]
    specs = tf.nest.flatten(x.element_spec)
    if any(not isinstance(spec, tf.TensorSpec) for spec in specs):
        return None
    skipped = int(batching_of(x) is not None)
    if all(spec.shape.rank is not None for spec in specs) and all(
        size is not None for spec in specs for size in spec.shape[skipped:]
    ):
        return None
    shapes = x.map(lambda *element: tf.nest.map_structure(tf.shape, element))
    return (
        (int(next(leaves(each))[0]) if skipped else 1, nested(each, lambda sizes: sizes[skipped:]))
        for each in shapes.as_numpy_iterator()
    )


def _of_py_dataset(x: Any) -> Iterator[tuple[int, tuple[Any, ...]]]:
    number = 0
    while x.num_batches is None or number < x.num_batches:
        shapes = nested(tuple(x[number]), lambda part: np.array(np.shape(part), int))
        yield int(next(leaves(shapes))[0]), nested(shapes, lambda sizes: sizes[1:])
        number += 1


def _named(shape: Any, sample: tuple[Any, ...], highest: tuple[Any, ...] | None) -> Longest:
    """The shape that the user names, which labels that are as long as the inputs follow."""
    sizes = nested(sample, lambda part: np.array(part.shape[1:], int))
    before = sizes if highest is None else highest
    try:
        named = paired(before[0], nested(shape, _checked), _same_rank)
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(
            f"`shape` must be the shape of one example, nested as `x` is: {_text(before[0])}",
            shape,
            "Pass such a shape, without the batch",
        ) from error
    pairs = zip(leaves(before[0]), leaves(named), strict=True)
    follow = {
        int(old): int(new)
        for olds, news in pairs
        for old, new in zip(olds, news, strict=True)
        if old != new
    }

    def followed(part: np.ndarray) -> np.ndarray:
        return np.array([follow.get(int(size), size) for size in part], int)

    others = tuple(nested(part, followed) for part in before[1:])
    return Longest((named, *others), f"shape {_text(named)}")


def _checked(shape: Any) -> np.ndarray:
    shape = tuple(shape)
    if not is_shape(shape) or any(size < 1 for size in shape):
        raise ValueError(shape)
    return np.array(shape, int)


def _same_rank(one: np.ndarray, other: Any) -> np.ndarray:
    if not isinstance(other, np.ndarray) or len(one) != len(other):
        raise ValueError(other)
    return other


def widened(array: np.ndarray, shape: Any) -> np.ndarray:
    """An array of examples, padded with zeros or cut to the shape of each."""
    empty: Any = b"" if array.dtype == object else np.zeros((), array.dtype)[()]
    wide = np.full((len(array), *map(int, shape)), empty, array.dtype)
    common = tuple(map(slice, (len(array), *map(min, array.shape[1:], shape))))
    wide[common] = array[common]
    return wide


def paired(one: Any, other: Any, function: Callable[[Any, Any], Any]) -> Any:
    """A function of the parts of two structures that are nested alike."""
    if isinstance(one, Mapping):
        if set(one) != set(other):
            raise ValueError(other)
        return {name: paired(part, other[name], function) for name, part in one.items()}
    if isinstance(one, tuple):
        pairs = zip(one, other, strict=True)
        return tuple(paired(part, its, function) for part, its in pairs)
    return function(one, other)


def _text(shapes: Any) -> str:
    """Shapes in words: `(512,)`, or `question (64,), answer (16,)`."""
    if isinstance(shapes, Mapping):
        return ", ".join(f"{name} {_text(part)}" for name, part in shapes.items())
    if isinstance(shapes, tuple):
        return ", ".join(map(_text, shapes))
    return str(tuple(int(size) for size in shapes))


MOST_BATCHES = 100_000  # of a PyDataset without a length, which the seconds end before
CHUNK = 1024  # examples of arrays that are looked at between two looks at the clock


@dataclass
class Strings:
    """The examples with the longest strings, of those that were looked at.

    Attributes:
        examples: Integer, how many examples were looked at.
        is_whole: Boolean, whether these are all.
        rows: Dict from what is longest, and in which input, to that example, as a batch of one.
    """

    examples: int = 0
    is_whole: bool = True
    rows: dict[tuple[str, int], tuple[Any, ...]] = field(default_factory=dict)
    _most: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The words that name the strings in an answer."""
        seen = "" if self.is_whole else f" of the first {self.examples:,} examples"
        most = {
            kind: max(most for (each, _), most in self._most.items() if each == kind)
            for kind, _ in self._most
        }
        lengths = ", ".join(f"{most[kind]:,} {kind}" for kind in sorted(most, reverse=True))
        return f"the longest strings ({lengths}){seen}"

    def of(self, sample: tuple[Any, ...]) -> tuple[Any, ...]:
        """A sample that begins with the examples of the longest strings."""
        for row in reversed(self.rows.values()):
            sample = _before(row, sample)
        return sample

    def look(self, batch: tuple[Any, ...]) -> None:
        """Take the longest strings of a batch, and their examples, if they are longer."""
        parts = list(leaves(batch[0]))
        self.examples += len(parts[0])
        for number, part in enumerate(parts):
            if not is_text(part):
                continue
            for kind, lengths in string_lengths(part).items():
                row, most = int(np.argmax(lengths)), int(lengths.max())
                if most > self._most.get((kind, number), -1):
                    self._most[kind, number] = most
                    self.rows[kind, number] = _row(batch, row)


def longest_strings(
    x: Any, y: Any, sample: tuple[Any, ...], clock: Callable[[], float] = time.monotonic
) -> Strings | None:
    """Find the examples with the longest strings; `None` if no input is a string."""
    if not sample or not any(map(is_text, leaves(sample[0]))):
        return None
    began, strings = clock(), Strings()
    for batch in _batches(x, y):
        if strings.examples and clock() - began > SECONDS:
            strings.is_whole = False
            break
        strings.look(batch)
    return strings if strings.rows else None


def is_text(part: Any) -> bool:
    """Whether an array holds strings."""
    if not isinstance(part, np.ndarray) or part.dtype.kind not in "OSU":
        return False
    return any(isinstance(each, (str, bytes)) for each in part.reshape(-1)[:CHUNK])


def _batches(x: Any, y: Any) -> Iterator[tuple[Any, ...]]:
    if is_dataset(x):
        single = batching_of(x) is None
        for element in x.as_numpy_iterator():
            yield nested(element, lambda part: np.asarray(part)[None]) if single else element
        return
    if is_py_dataset(x):
        for number in range(x.num_batches or MOST_BATCHES):
            yield nested(tuple(x[number]), np.asarray)
        return
    parts = nested(tuple(part for part in (x, y) if part is not None), lambda part: part)
    if any(not hasattr(part, "__array__") for part in leaves(parts)):
        return  # a shape beside arrays
    for start in range(0, len(next(leaves(parts))), CHUNK):
        rows = slice(start, start + CHUNK)
        yield nested(parts, partial(_rows, rows=rows))


def string_lengths(part: np.ndarray) -> dict[str, np.ndarray]:
    """The most words, and the most characters, of the strings of each example."""
    rows = [
        [each if isinstance(each, (str, bytes)) else "" for each in row]  # such as None
        for row in part.reshape(len(part), -1).tolist()
    ]
    return {
        "words": np.array([max(len(each.split()) for each in row) for row in rows]),
        "characters": np.array([max(map(len, row)) for row in rows]),
    }


def _row(batch: tuple[Any, ...], number: int) -> tuple[Any, ...]:
    return tuple(nested(part, partial(_rows, rows=slice(number, number + 1))) for part in batch)


def _rows(part: Any, rows: slice) -> np.ndarray:
    return np.asarray(part[rows])


def _before(row: tuple[Any, ...], sample: tuple[Any, ...]) -> tuple[Any, ...]:
    """A sample with one example before it, padded with zeros or cut to the shape of the others."""
    shapes = nested(sample, lambda part: np.array(part.shape[1:], int))
    wide = paired(row, shapes, widened)
    return tuple(paired(wide, sample, lambda *parts: np.concatenate(parts)))
