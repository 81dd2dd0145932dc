"""The models of the case study: a small network, and a small residual network."""

from __future__ import annotations

from collections.abc import Callable

import keras
from keras import layers


def cnn(image_size: int, classes: int = 2) -> keras.Model:
    """Return the case study's model: one convolution, one pooling, two dense layers."""
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
            _outputs(classes),
        ],
        name="cnn",
    )


def small_resnet(image_size: int, classes: int = 2) -> keras.Model:
    """Return a residual network with batch normalization and about 180,000 weights.

    Args:
        image_size: Integer, height and width of the images, whose pixels run from 0 to 255.
        classes: Integer, the number of classes; two share one output. Defaults to `2`.
    """
    inputs = keras.Input((image_size, image_size, 3))
    x = layers.Rescaling(1 / 255)(inputs)
    x = _normed(layers.Conv2D(16, 3, strides=2, padding="same", use_bias=False)(x))
    for filters in (16, 32, 64):
        x = _block(x, filters)
    x = layers.GlobalAveragePooling2D()(x)
    outputs = _outputs(classes)(layers.Dropout(0.2)(x))
    return keras.Model(inputs, outputs, name="small_resnet")


MODELS: dict[str, Callable[..., keras.Model]] = {"cnn": cnn, "small-resnet": small_resnet}


def _outputs(classes: int) -> layers.Layer:
    """The last layer: a probability of the second of two classes, or one of each class."""
    if classes == 2:
        return layers.Dense(1, activation="sigmoid", dtype="float32")
    return layers.Dense(classes, activation="softmax", dtype="float32")


def _block(x: keras.KerasTensor, filters: int) -> keras.KerasTensor:
    """Two convolutions around a shortcut, halving height and width."""
    shortcut = layers.Conv2D(filters, 1, strides=2, use_bias=False)(x)
    y = _normed(layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False)(x))
    y = layers.Conv2D(filters, 3, padding="same", use_bias=False)(y)
    return layers.ReLU()(layers.Add()([shortcut, _normalization()(y)]))


def _normed(x: keras.KerasTensor) -> keras.KerasTensor:
    return layers.ReLU()(_normalization()(x))


def _normalization() -> layers.Layer:
    """Batch normalization whose moving statistics follow within some twenty updates.

    With Keras' momentum of 0.99 they take hundreds, which large batches do not make in a short
    training: they are then evaluated by the statistics of random weights.
    """
    return layers.BatchNormalization(momentum=0.9)
