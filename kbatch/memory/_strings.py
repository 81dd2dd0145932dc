"""Longest strings: the examples that a model may split into the most parts.

The values of numbers do not change the memory of a step. The lengths of strings do, where a layer
such as `TextVectorization` splits them inside of the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from kbatch.memory._longest import paired, widened
from kbatch.memory._sample import batching_of, is_dataset, is_py_dataset, leaves, nested

SECONDS = 20.0  # a survey ends here, and the answer says so; chosen by hand, not tuned
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
    """Find the examples with the longest strings; `None` if no input is a string.

    Args:
        x: The user's data; see `sample_of`.
        y: The labels of arrays.
        sample: Tuple of nested arrays, a few of the examples.
        clock: Function that returns seconds.
    """
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
