"""Cuts: batch sizes that are decided while the input pipeline runs, kept in their order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

SizeNow = Callable[[int], int]
END = [-1, -1]  # a cut that says that there are no more


class Cuts:
    """The sizes of the batches of one training, in the order in which they are trained.

    The input pipeline asks for the size of a batch a few batches before it is trained, and the
    training may ask first. So a size is decided once, when somebody asks, and kept.

    Args:
        size_now: Function that gets the number of examples in all batches before, and returns the
            size of the next. It is called in a thread of TensorFlow too.
        steps: Integer, equal steps that each batch is taken in; divides every size. Defaults to
            `1`.
        within: Integer, examples of a pass whose end no batch reaches over: the last batch of a
            pass is smaller. `None` (the default) for full batches.
    """

    def __init__(self, size_now: SizeNow, steps: int = 1, within: int | None = None) -> None:
        self._size_now, self._steps, self._within = size_now, steps, within
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Forget all sizes, for another training."""
        with self._lock:
            self._ends = [0]  # examples up to the end of each batch
            self._handed = 0  # batches to the input pipeline

    def size(self, number: int) -> int:
        """Return the size of a batch, counted from 0; the next one is decided now."""
        self._decide(number)
        return self._ends[number + 1] - self._ends[number]

    def examples(self, batches: int) -> int:
        """Return the examples in so many batches from the first on."""
        return self._ends[batches]

    def endless(self) -> tf.data.Dataset:
        """Return a dataset without end of `(first example, size)` of each step."""
        cuts = _dataset(lambda number: self._hand_out())
        if self._steps == 1:
            return cuts

        def split(first: Any, size: Any) -> tf.data.Dataset:
            of_step = size // self._steps
            return tf.data.Dataset.range(self._steps).map(
                lambda step: (first + step * of_step, of_step)
            )

        endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        return cuts.flat_map(split).apply(endless)

    def one_pass(self) -> tf.data.Dataset:
        """Return a dataset of `(first example, size)` of each batch that ends after a pass.

        Iterated again, it goes on with the next pass. Needs `within`.
        """

        def next_of_pass(number: int) -> list[int]:
            ended = number > 0 and self._ends[self._handed] % (self._within or 1) == 0
            return END if ended else self._hand_out()

        return _dataset(next_of_pass).take_while(lambda _, size: size > 0)

    def _hand_out(self) -> list[int]:
        number = self._handed
        self._handed += 1
        return [self._ends[number], self.size(number)]

    def _decide(self, number: int) -> None:
        with self._lock:
            while len(self._ends) <= number + 1:
                before = self._ends[-1]
                size = self._size_now(before)
                if self._within is not None:
                    size = min(size, self._within - before % self._within)
                self._ends.append(before + size)


def _dataset(next_cut: Callable[[int], list[int]]) -> tf.data.Dataset:
    def ask(number: Any) -> Any:
        cut = tf.numpy_function(lambda n: np.array(next_cut(int(n)), np.int64), [number], tf.int64)
        return tuple(tf.unstack(tf.ensure_shape(cut, (2,))))

    return tf.data.Dataset.counter().map(ask)
