"""Shortages of memory, each brought about in a worker, and memory that is held there."""

from __future__ import annotations

import os
from typing import Any

import keras
import tensorflow as tf
from gpu_models import builder, noise
from keras import layers

from kbatch.cli.gpu_check import Scale
from kbatch.cli.quick_checks import floats, how_it_shows
from kbatch.runtime import device_memory

CHANNELS, SIDE = 32, 64


def hold(size: int) -> int:
    """Take bytes of the device in a worker, and return its process id."""
    global _held
    device_memory.apply_limit(2 * size)
    _held = tf.zeros((size // 4,))
    device_memory.wait()
    return os.getpid()


_held: object = None


def losses(scale: Scale, begins_with_shortage: bool) -> list[Any]:
    """Train three steps on a small batch, after one on far too large a batch or without."""
    device_memory.apply_limit(scale.small_limit_bytes)
    keras.utils.set_random_seed(0)
    model = builder("cnn", scale)()
    model.compile(keras.optimizers.SGD(0.001), "binary_crossentropy", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    side, first = scale.image_size, "none"
    if begins_with_shortage:
        count = scale.small_limit_bytes // (side * side * 3 * 8)
        try:
            model.train_on_batch(*noise((side, side, 3), count))
        except Exception as error:
            first = how_it_shows(error)
    x, y = noise((side, side, 3), 4)
    return [first, *(float(model.train_on_batch(x, y)) for _ in range(3))]


def _pictures(limit_bytes: int, share: float) -> int:
    """Pictures of `CHANNELS` channels that take a share of the limit."""
    return max(1, floats(limit_bytes, share) // (SIDE * SIDE * CHANNELS))


def conv_forward(limit_bytes: int) -> None:
    x = tf.zeros((_pictures(limit_bytes, 0.3), SIDE, SIDE, CHANNELS))
    tf.nn.conv2d(x, tf.zeros((3, 3, CHANNELS, 4 * CHANNELS)), 1, "SAME")


def conv_backward(limit_bytes: int) -> None:
    x = tf.zeros((_pictures(limit_bytes, 0.2), SIDE, SIDE, CHANNELS))
    weights = tf.Variable(tf.zeros((3, 3, CHANNELS, CHANNELS)))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nn.conv2d(tf.nn.conv2d(x, weights, 1, "SAME"), weights, 1, "SAME")
        loss = tf.reduce_sum(y)
    tape.gradient(loss, [x, weights])


def matmul(limit_bytes: int) -> None:
    rows = int(floats(limit_bytes, 1.2) ** 0.5)
    tf.matmul(tf.zeros((rows, 8)), tf.zeros((8, rows)))


def initialiser(limit_bytes: int) -> None:
    layers.Dense(floats(limit_bytes, 1.2) // 64).build((None, 64))


def optimizer_slots(limit_bytes: int) -> None:
    weights = keras.Variable(tf.zeros((floats(limit_bytes, 0.4),)))
    keras.optimizers.Adam().build([weights])


def batch_copy(limit_bytes: int) -> None:
    model = keras.Sequential([keras.Input((1024,)), layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    with tf.device("CPU:0"):
        x = tf.zeros((floats(limit_bytes, 1.2) // 1024, 1024))
        batch = tf.data.Dataset.from_tensors((x, tf.zeros((x.shape[0], 1))))
    model.fit(batch, verbose=0)


def lstm(limit_bytes: int) -> None:
    model = keras.Sequential([keras.Input((64, 32)), layers.LSTM(128), layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    rows = floats(limit_bytes, 0.2) // (64 * 32)
    model.train_on_batch(tf.zeros((rows, 64, 32)), tf.zeros((rows, 1)))


def evaluate(limit_bytes: int) -> None:
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, CHANNELS)),
            layers.Conv2D(8 * CHANNELS, 3, padding="same"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse", jit_compile=False)
    rows = _pictures(limit_bytes, 0.3)
    x = tf.zeros((rows, SIDE, SIDE, CHANNELS))
    model.evaluate(tf.data.Dataset.from_tensors((x, tf.zeros((rows, 1)))), verbose=0)


def xla_run(limit_bytes: int) -> None:
    x = tf.zeros((floats(limit_bytes, 0.3),))
    outputs = tf.function(lambda x: tuple(x * k for k in range(1, 6)), jit_compile=True)
    outputs(x)


def xla_compile(limit_bytes: int) -> None:
    rows = _pictures(limit_bytes, 0.4)
    x = tf.zeros((rows, SIDE, SIDE, CHANNELS))
    weights = tf.zeros((3, 3, CHANNELS, 2 * CHANNELS))
    tf.function(lambda x: tf.nn.conv2d(x, weights, 1, "SAME"), jit_compile=True)(x)


def cuda_graph(limit_bytes: int) -> None:
    x = tf.zeros((floats(limit_bytes, 0.15),))

    @tf.function(jit_compile=True)
    def many(x: Any) -> Any:
        return [tf.cumsum(x * k) for k in range(1, 9)]

    for _ in range(3):  # a graph is recorded at the second run of the same buffers
        many(x)
