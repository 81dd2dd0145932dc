"""Group D: data stay on the host, and the training does not wait for them."""

from __future__ import annotations

import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import kbatch
from kbatch.data.streams import training_source
from kbatch.gpu_checks._data import builder, noise
from kbatch.gpu_checks.check import Result
from kbatch.gpu_checks.scale import Scale
from kbatch.runtime import device_memory

LARGE_BYTES, MOST_BYTES = 6 * 10**9, 10**8
FED = 0.7  # share of the speed without a pipeline, below which a remark must say so
LOSS = "binary_crossentropy"


def prepared(scale: Scale) -> Result:
    """D1: prepare more data than the GPU may hold."""
    device_memory.apply_limit(scale.limit_bytes)
    side = scale.image_size
    x = np.zeros((LARGE_BYTES // (side * side * 3), side, side, 3), "uint8")
    y = np.zeros((len(x), 1), "float32")
    tf.zeros(1)
    before = device_memory.bytes_now() or 0
    device_memory.reset_peak()
    source = training_source(x, y)
    source.fingerprint()
    for _ in source.stream(scale.batch_size, seed=0).take(2):
        pass
    peak = (device_memory.bytes_peak() or 0) - before
    return Result(peak < MOST_BYTES, {"x_bytes": x.nbytes, "peak_bytes": peak})


def speed(scale: Scale) -> Result:
    """D2: compare the examples per second with those of data that are on the GPU already."""
    device_memory.apply_limit(None)
    side, build = scale.image_size, builder("cnn", scale)
    x, y = noise((side, side, 3), 20 * scale.batch_size)
    recipe = kbatch.Recipe(scale.batch_size, "sgd", 0.001)
    few = (x[: scale.batch_size], y[: scale.batch_size])
    arguments: dict[str, Any] = {"loss": LOSS, "metrics": ["accuracy"]}
    _, outcome = kbatch.train(recipe, build, x, y, few, seconds=scale.seconds, **arguments)
    kept = _examples_per_second_on_the_device(scale, build(), *few)
    share = outcome.examples_per_second / kept
    remarks = [remark for remark in outcome.remarks if "waits for input" in remark]
    measured = {
        "examples_per_second": outcome.examples_per_second,
        "kept_on_the_device": kept,
        "share": share,
        "remarks": list(outcome.remarks),
    }
    text = "" if share >= FED or remarks else "slow, and no remark says that it waits for input"
    result = Result(not text, measured, text)
    return result.unless_rehearsed(scale.rehearsed, "the fake copies nothing to a device")


def _examples_per_second_on_the_device(
    scale: Scale, model: keras.Model, x: np.ndarray, y: np.ndarray
) -> float:
    """The speed of a plain train function on one batch that stays where it is."""
    model.compile(keras.optimizers.SGD(0.001), LOSS, metrics=["accuracy"], jit_compile=False)
    batch = (tf.identity(tf.constant(x)), tf.identity(tf.constant(y)))
    model.optimizer.build(model.trainable_variables)
    step = tf.function(model.train_step)
    for _ in range(3):
        step(batch)
    device_memory.wait()
    began = time.perf_counter()
    for _ in range(scale.updates):
        step(batch)
    device_memory.wait()
    return scale.updates * len(x) / (time.perf_counter() - began)
