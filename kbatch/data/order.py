"""Order: the numbers of the examples in each pass over the data, in batches and cuts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

SizeNow = Callable[[int], int]  # the size of an update's batch, by its number


def open_size(batch_size: int) -> tf.Tensor:
    """Return a batch size that a trace does not know, so that one trace serves all, as in Keras."""
    return tf.compat.v1.placeholder_with_default(batch_size, ())


def shuffled_batches(examples: int, batch_size: int, seed: int) -> tf.data.Dataset:
    """Return an endless dataset of batches of the numbers `0` to `examples - 1`.

    Each pass holds every number once, in another order. A batch may reach over the end of a pass.
    The order depends only on the seed, not on the batch size or on earlier reading.
    """
    kind = _kind(examples)

    def cut(carry: tf.Tensor, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Cut the rest of the last pass and this pass into batches, and keep the new rest."""
        one_pass = _one_pass(examples, seed, number)
        order = tf.concat([carry, one_pass], 0)
        whole = tf.size(order) // batch_size * batch_size
        return order[whole:], tf.reshape(order[:whole], (-1, open_size(batch_size)))

    passes = tf.data.Dataset.counter().scan(tf.zeros((0,), kind), cut)
    # the next pass is shuffled while this pass trains, as in Keras
    return passes.prefetch(1).unbatch()


def shuffled_cuts(examples: int, cuts: tf.data.Dataset, seed: int) -> tf.data.Dataset:
    """Return a dataset of batches of given sizes, in the order of `shuffled_batches`."""
    kind = _kind(examples)
    none = (tf.constant(-1, tf.int64), tf.zeros((0,), kind))  # no pass has been shuffled yet

    def cut(state: Any, place: Any) -> Any:
        """Take a batch from one pass, or from several if it reaches over the end of a pass."""
        first, size = place

        def take(number: Any, order: Any, at: Any, batch: Any) -> Any:
            wanted = at // examples
            order = tf.cond(
                tf.equal(wanted, number),
                lambda: order,
                lambda: _one_pass(examples, seed, wanted),
            )
            begin = at - wanted * examples
            end = tf.minimum(begin + first + size - at, examples)
            return wanted, order, at + end - begin, tf.concat([batch, order[begin:end]], 0)

        unknown = tf.TensorShape([None])
        number, order, _, batch = tf.while_loop(
            lambda number, order, at, batch: at < first + size,
            take,
            (*state, first, tf.zeros((0,), kind)),
            shape_invariants=(tf.TensorShape([]), unknown, tf.TensorShape([]), unknown),
        )
        return (number, order), batch

    return cuts.scan(none, cut)


def _kind(examples: int) -> Any:
    return tf.int32 if examples <= tf.int32.max else tf.int64


def _one_pass(examples: int, seed: int, number: Any) -> Any:
    """The numbers of the examples in the order of a pass."""
    return tf.random.experimental.stateless_shuffle(
        tf.range(examples, dtype=_kind(examples)), seed=tf.stack([seed % 2**63, number])
    )


END = [-1, -1]  # a cut that says that there are no more


class Cuts:
    """The sizes of the batches of one training, in the order in which they are trained.

    The input pipeline asks for the size of a batch a few batches before it is trained, and the
    training may ask first. So a size is decided once, when somebody asks, and kept.
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
