"""The batches that a recipe trains on, in the order of a search."""

import keras
import numpy as np
import tensorflow as tf


def order_of_pass(examples, seed, number):
    """Return the numbers of the examples in the order of one pass over the data."""
    return tf.random.experimental.stateless_shuffle(tf.range(examples), seed=[seed, number])


def batches(x, y, size, seed, sample_weight=None):
    """Return endless batches: each pass holds every example once, in another order."""
    data = keras.utils.pack_x_y_sample_weight(x, y, sample_weight)
    with tf.device("CPU:0"):
        arrays = keras.tree.map_structure(tf.convert_to_tensor, data)
    examples = len(keras.tree.flatten(arrays)[0])

    def one_pass(number):
        return tf.data.Dataset.from_tensor_slices(order_of_pass(examples, seed, number))

    def gather(rows):
        return keras.tree.map_structure(lambda array: tf.gather(array, rows), arrays)

    rows = tf.data.Dataset.counter().flat_map(one_pass).batch(size, drop_remainder=True)
    return rows.map(gather).prefetch(2)


def growing_batches(x, y, sizes, seed, sample_weight=None):
    """Return batches of these sizes, in the same order."""
    data = keras.utils.pack_x_y_sample_weight(x, y, sample_weight)
    with tf.device("CPU:0"):
        arrays = keras.tree.map_structure(tf.convert_to_tensor, data)
        examples, total = len(keras.tree.flatten(arrays)[0]), sum(sizes)
        passes = range(-(-total // examples))
        order = np.concatenate([order_of_pass(examples, seed, number) for number in passes])
        rows = tf.RaggedTensor.from_row_lengths(order[:total], sizes)

    def gather(rows):
        return keras.tree.map_structure(lambda array: tf.gather(array, rows), arrays)

    return tf.data.Dataset.from_tensor_slices(rows).map(gather).prefetch(2)
