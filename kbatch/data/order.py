"""Order: the numbers of examples, shuffled once a pass and cut into batches."""

from __future__ import annotations

import tensorflow as tf


def shuffled_batches(examples: int, batch_size: int, seed: int) -> tf.data.Dataset:
    """Batches of the numbers `0` to `examples - 1` without end, each number once a pass, in another order each pass.

    A batch may reach over the end of a pass. The order depends on the seed alone: neither on the
    batch size nor on how often or how far the dataset was read before.

    Args:
        examples: Integer, how many there are.
        batch_size: Integer, numbers per batch.
        seed: Integer.
    """
    kind = tf.int32 if examples <= tf.int32.max else tf.int64

    def cut(carry: tf.Tensor, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The whole batches of what the last pass left and this pass, and what this one leaves."""
        one_pass = tf.random.experimental.stateless_shuffle(
            tf.range(examples, dtype=kind), seed=tf.stack([seed % 2**63, number])
        )
        order = tf.concat([carry, one_pass], 0)
        whole = tf.size(order) // batch_size * batch_size
        return order[whole:], tf.reshape(order[:whole], (-1, batch_size))

    passes = tf.data.Dataset.counter().scan(tf.zeros((0,), kind), cut)
    # the next pass is shuffled while this one trains, as Keras does it
    return passes.prefetch(1).unbatch()
