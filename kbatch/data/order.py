"""The order of training examples: shuffled once a pass, and cut into batches."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def shuffled_batches(examples: int, batch_size: int, seed: int) -> tf.data.Dataset:
    """Return an endless dataset of batches of the numbers `0` to `examples - 1`.

    Each pass holds every number once, in another order. A batch may reach over the end of a pass.
    The order depends only on the seed, not on the batch size or on earlier reading.

    Args:
        examples: Integer, number of examples.
        batch_size: Integer, numbers per batch.
        seed: Integer, seed of the order.
    """
    kind = _kind(examples)

    def cut(carry: tf.Tensor, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Cut the rest of the last pass and this pass into batches, and keep the new rest."""
        one_pass = _one_pass(examples, seed, number)
        order = tf.concat([carry, one_pass], 0)
        whole = tf.size(order) // batch_size * batch_size
        return order[whole:], tf.reshape(order[:whole], (-1, batch_size))

    passes = tf.data.Dataset.counter().scan(tf.zeros((0,), kind), cut)
    # the next pass is shuffled while this pass trains, as in Keras
    return passes.prefetch(1).unbatch()


def shuffled_cuts(examples: int, cuts: tf.data.Dataset, seed: int) -> tf.data.Dataset:
    """Return a dataset of batches of given sizes, in the order of `shuffled_batches`.

    Args:
        examples: Integer, number of examples.
        cuts: `tf.data.Dataset` of `(first, size)` of each batch, as `kbatch.data.cuts` makes it.
        seed: Integer, seed of the order.
    """
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
