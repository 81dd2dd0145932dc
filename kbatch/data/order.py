"""The order of training examples: shuffled once a pass, and cut into batches."""

from __future__ import annotations

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
    kind = tf.int32 if examples <= tf.int32.max else tf.int64

    def cut(carry: tf.Tensor, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Cut the rest of the last pass and this pass into batches, and keep the new rest."""
        one_pass = tf.random.experimental.stateless_shuffle(
            tf.range(examples, dtype=kind), seed=tf.stack([seed % 2**63, number])
        )
        order = tf.concat([carry, one_pass], 0)
        whole = tf.size(order) // batch_size * batch_size
        return order[whole:], tf.reshape(order[:whole], (-1, batch_size))

    passes = tf.data.Dataset.counter().scan(tf.zeros((0,), kind), cut)
    # the next pass is shuffled while this pass trains, as in Keras
    return passes.prefetch(1).unbatch()
