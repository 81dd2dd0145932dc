"""Data and models of the checks, which travel to workers by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import layers

from kbatch.cli.gpu_check import Scale
from kbatch.models.case_study import cnn, small_resnet

WORDS, LENGTH = 5000, 128
WIDE_SIDE, WIDE_CHANNELS = 200, 32
WIDE_ELEMENTS = WIDE_SIDE**2 * WIDE_CHANNELS  # of one example; 2**31 of them at batch 1677
APPLICATIONS = {"resnet50": "ResNet50", "mobilenetv2": "MobileNetV2"}
APPLICATION_SIDE = 128
MINUTES = "a CPU takes a minute or more for it"  # why the fake cannot run a check


def noise(shape: tuple[int, ...], examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random pictures, as numbers from 0 to 255, and random labels of two classes."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (examples, *shape), dtype="uint8")
    return x, rng.integers(0, 2, (examples, 1)).astype("float32")


def builder(name: str, scale: Scale) -> Callable[..., keras.Model]:
    """Return a build function of a model: "cnn", "small-resnet", "lstm" and so on."""
    return partial(built, name, scale.image_size, scale.rehearsed)


def built(name: str, image_size: int, small: bool, hp: Any = None) -> keras.Model:
    """Make a model."""
    if name in APPLICATIONS:
        shape = (APPLICATION_SIDE, APPLICATION_SIDE, 3)
        make = getattr(keras.applications, APPLICATIONS[name])
        base = make(weights=None, input_shape=shape, include_top=False, pooling="avg")
        return keras.Model(base.inputs, layers.Dense(1, "sigmoid", dtype="float32")(base.output))
    length = LENGTH // 8 if small else LENGTH
    makers: dict[str, Callable[[], keras.Model]] = {
        "cnn": partial(cnn, image_size),
        "small-resnet": partial(small_resnet, image_size),
        "lstm": partial(lstm, length),
        "transformer": partial(transformer, length),
    }
    return makers[name]()


def lstm(length: int) -> keras.Model:
    """Return an embedding and an LSTM."""
    return keras.Sequential(
        [
            keras.Input((length,), dtype="int32"),
            layers.Embedding(WORDS, 64),
            layers.LSTM(128),
            layers.Dense(1, "sigmoid", dtype="float32"),
        ]
    )


def transformer(length: int) -> keras.Model:
    """Return two blocks of attention."""
    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(WORDS, 128)(inputs)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 32)(x, x))
        dense = layers.Dense(128)(layers.Dense(512, "gelu")(x))
        x = layers.LayerNormalization()(x + dense)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(1, "sigmoid", dtype="float32")(x))


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
