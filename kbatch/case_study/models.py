"""The models of the case study: a small network, and a small residual network."""

from __future__ import annotations

from collections.abc import Callable

import keras
from keras import layers


def cnn(image_size: int) -> keras.Model:
    """Return the case study's model: one convolution, one pooling, two dense layers.

    Args:
        image_size: Integer, height and width of the images, whose pixels run from 0 to 255.
    """
    return keras.Sequential(
        [
            keras.Input((image_size, image_size, 3)),
            layers.Rescaling(1 / 255),
            layers.Conv2D(
                32, 3, activation="relu", kernel_initializer="he_uniform", padding="same"
            ),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(128, activation="relu", kernel_initializer="he_uniform"),
            layers.Dense(1, activation="sigmoid", dtype="float32"),
        ],
        name="cnn",
    )


def small_resnet(image_size: int) -> keras.Model:
    """Return a residual network with batch normalization and about 180,000 weights.

    Args:
        image_size: Integer, height and width of the images, whose pixels run from 0 to 255.
    """
    inputs = keras.Input((image_size, image_size, 3))
    x = layers.Rescaling(1 / 255)(inputs)
    x = _normed(layers.Conv2D(16, 3, strides=2, padding="same", use_bias=False)(x))
    for filters in (16, 32, 64):
        x = _block(x, filters)
    x = layers.GlobalAveragePooling2D()(x)
    outputs = layers.Dense(1, activation="sigmoid", dtype="float32")(layers.Dropout(0.2)(x))
    return keras.Model(inputs, outputs, name="small_resnet")


MODELS: dict[str, Callable[[int], keras.Model]] = {"cnn": cnn, "small-resnet": small_resnet}


def _block(x: keras.KerasTensor, filters: int) -> keras.KerasTensor:
    """Two convolutions around a shortcut, halving height and width."""
    shortcut = layers.Conv2D(filters, 1, strides=2, use_bias=False)(x)
    y = _normed(layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False)(x))
    y = layers.Conv2D(filters, 3, padding="same", use_bias=False)(y)
    return layers.ReLU()(layers.Add()([shortcut, layers.BatchNormalization()(y)]))


def _normed(x: keras.KerasTensor) -> keras.KerasTensor:
    return layers.ReLU()(layers.BatchNormalization()(x))
