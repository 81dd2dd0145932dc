"""Shortages of memory of twelve kinds, each brought about in a worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from keras import layers

from kbatch.gpu_checks._data import builder, noise
from kbatch.gpu_checks.scale import Scale
from kbatch.runtime import device_memory
from kbatch.runtime.oom import is_out_of_memory, is_suspect

CHANNELS, SIDE = 32, 64
WIDE_SIDE, WIDE_CHANNELS = 200, 32
WIDE_ELEMENTS = WIDE_SIDE**2 * WIDE_CHANNELS  # of one example; 2**31 of them at batch 1677


def run_out(kind: str, limit_bytes: int) -> tuple[str, str]:
    """Run out of memory, and return how that shows and the text of the error."""
    device_memory.apply_limit(limit_bytes)
    try:
        KINDS[kind](limit_bytes)
        device_memory.wait()
    except Exception as error:
        return _how(error), f"{type(error).__name__}: {error}"[-800:]
    return "nothing", "it did not run out of memory"


def environment(kind: str) -> dict[str, str]:
    """Environment variables that a kind needs when TensorFlow is imported."""
    if kind == "cuda_graph":
        return {"XLA_FLAGS": "--xla_gpu_graph_min_graph_size=1"}
    return {}


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
            first = _how(error)
    x, y = noise((side, side, 3), 4)
    return [first, *(float(model.train_on_batch(x, y)) for _ in range(3))]


def wide_model(kind: str) -> Callable[..., keras.Model]:
    """Return a build function whose model has one wide tensor for each example."""
    return partial(_wide, kind)


def _wide(kind: str, hp: Any = None) -> keras.Model:
    inputs = keras.Input((WIDE_SIDE, WIDE_SIDE, 1))
    conv = layers.Conv2D(WIDE_CHANNELS, 1, use_bias=kind == "bias_gradient")
    x = conv(inputs)
    if kind == "broadcast_add":
        x = layers.Add()([x, inputs])
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(1, dtype="float32")(x))


def _how(error: Exception) -> str:
    if is_out_of_memory(error):
        return "certain"
    return "suspect" if is_suspect(error) else "another error"


def _floats(limit_bytes: int, share: float) -> int:
    """Numbers of 4 bytes that take a share of the limit."""
    return int(limit_bytes * share) // 4


def _pictures(limit_bytes: int, share: float) -> int:
    """Pictures of `CHANNELS` channels that take a share of the limit."""
    return max(1, _floats(limit_bytes, share) // (SIDE * SIDE * CHANNELS))


def _elementwise(limit_bytes: int) -> None:
    x = tf.zeros((_floats(limit_bytes, 0.4),))
    tf.stack([x * 2 + 1, tf.exp(x)])


def _conv_forward(limit_bytes: int) -> None:
    x = tf.zeros((_pictures(limit_bytes, 0.3), SIDE, SIDE, CHANNELS))
    tf.nn.conv2d(x, tf.zeros((3, 3, CHANNELS, 4 * CHANNELS)), 1, "SAME")


def _conv_backward(limit_bytes: int) -> None:
    x = tf.zeros((_pictures(limit_bytes, 0.2), SIDE, SIDE, CHANNELS))
    weights = tf.Variable(tf.zeros((3, 3, CHANNELS, CHANNELS)))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nn.conv2d(tf.nn.conv2d(x, weights, 1, "SAME"), weights, 1, "SAME")
        loss = tf.reduce_sum(y)
    tape.gradient(loss, [x, weights])


def _matmul(limit_bytes: int) -> None:
    rows = int(_floats(limit_bytes, 1.2) ** 0.5)
    tf.matmul(tf.zeros((rows, 8)), tf.zeros((8, rows)))


def _initialiser(limit_bytes: int) -> None:
    layers.Dense(_floats(limit_bytes, 1.2) // 64).build((None, 64))


def _optimizer_slots(limit_bytes: int) -> None:
    weights = keras.Variable(tf.zeros((_floats(limit_bytes, 0.4),)))
    keras.optimizers.Adam().build([weights])


def _batch_copy(limit_bytes: int) -> None:
    model = keras.Sequential([keras.Input((1024,)), layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    with tf.device("CPU:0"):
        x = tf.zeros((_floats(limit_bytes, 1.2) // 1024, 1024))
        batch = tf.data.Dataset.from_tensors((x, tf.zeros((x.shape[0], 1))))
    model.fit(batch, verbose=0)


def _lstm(limit_bytes: int) -> None:
    model = keras.Sequential([keras.Input((64, 32)), layers.LSTM(128), layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    rows = _floats(limit_bytes, 0.2) // (64 * 32)
    model.train_on_batch(tf.zeros((rows, 64, 32)), tf.zeros((rows, 1)))


def _evaluate(limit_bytes: int) -> None:
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


def _xla_run(limit_bytes: int) -> None:
    x = tf.zeros((_floats(limit_bytes, 0.3),))
    outputs = tf.function(lambda x: tuple(x * k for k in range(1, 6)), jit_compile=True)
    outputs(x)


def _xla_compile(limit_bytes: int) -> None:
    rows = _pictures(limit_bytes, 0.4)
    x = tf.zeros((rows, SIDE, SIDE, CHANNELS))
    weights = tf.zeros((3, 3, CHANNELS, 2 * CHANNELS))
    tf.function(lambda x: tf.nn.conv2d(x, weights, 1, "SAME"), jit_compile=True)(x)


def _cuda_graph(limit_bytes: int) -> None:
    x = tf.zeros((_floats(limit_bytes, 0.15),))

    @tf.function(jit_compile=True)
    def many(x: Any) -> Any:
        return [tf.cumsum(x * k) for k in range(1, 9)]

    for _ in range(3):  # a graph is recorded at the second run of the same buffers
        many(x)


KINDS: dict[str, Callable[[int], None]] = {
    "elementwise": _elementwise,
    "conv_forward": _conv_forward,
    "conv_backward": _conv_backward,
    "matmul": _matmul,
    "initialiser": _initialiser,
    "optimizer_slots": _optimizer_slots,
    "batch_copy": _batch_copy,
    "lstm": _lstm,
    "evaluate": _evaluate,
    "xla_run": _xla_run,
    "xla_compile": _xla_compile,
    "cuda_graph": _cuda_graph,
}
