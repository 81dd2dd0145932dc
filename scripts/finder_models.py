"""The models of the benchmark of finders, and examples for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SHAPES = {"cnn": (200, 200, 3), "transformer": (128,), "lstm": (100,), "unet": (64, 64, 3)}


def build(name: str):
    """Return the model of a name, compiled."""
    import keras
    from keras import layers

    applications = {
        "resnet50": "ResNet50",
        "mobilenetv2": "MobileNetV2",
        "efficientnetb0": "EfficientNetB0",
    }
    loss = "sparse_categorical_crossentropy"
    if name == "cnn":
        from kbatch.models.case_study import cnn

        model, loss = cnn(200), "binary_crossentropy"
    elif name in applications:
        model = getattr(keras.applications, applications[name])(
            weights=None, input_shape=(96, 96, 3), classes=10
        )
    elif name == "unet":
        model = unet()
    elif name == "lstm":
        model = keras.Sequential(
            [
                keras.Input((100,), dtype="int32"),
                layers.Embedding(5000, 64),
                layers.LSTM(128),
                layers.Dense(2, "softmax"),
            ]
        )
    else:
        model = transformer()
    model.compile("sgd", loss)
    return model


def transformer():
    """Return four blocks of attention over 128 words, uncompiled."""
    import keras
    from keras import layers

    inputs = keras.Input((128,), dtype="int32")
    x = layers.Embedding(5000, 128)(inputs)
    for _ in range(4):
        attention = layers.Dropout(0.1)(layers.MultiHeadAttention(4, 32)(x, x))
        x = layers.LayerNormalization()(x + attention)
        dense = layers.Dropout(0.1)(layers.Dense(128)(layers.Dense(512, "gelu")(x)))
        x = layers.LayerNormalization()(x + dense)
    return keras.Model(inputs, layers.Dense(2, "softmax")(layers.GlobalAveragePooling1D()(x)))


def unet():
    """Return an encoder and decoder with skip connections, uncompiled."""
    import keras
    from keras import layers

    def block(x, filters):
        for _ in range(2):
            x = layers.ReLU()(
                layers.BatchNormalization()(
                    layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
                )
            )
        return x

    inputs = x = keras.Input((64, 64, 3))
    skips = []
    for filters in (8, 16, 32):
        x = block(x, filters)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = block(x, 64)
    for filters, skip in zip((32, 16, 8), reversed(skips), strict=True):
        x = block(layers.Concatenate()([layers.UpSampling2D()(x), skip]), filters)
    return keras.Model(inputs, layers.Conv2D(3, 1, activation="softmax")(x))


def data(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return eight examples in place of many: their values do not change the memory."""
    rng, shape = np.random.default_rng(0), SHAPES.get(name, (96, 96, 3))
    if len(shape) == 1:
        x = rng.integers(0, 5000, (8, *shape)).astype("int32")
    else:
        x = rng.random((8, *shape)).astype("float32")
    labels = (8, 64, 64) if name == "unet" else 8
    return x, rng.integers(0, 2, labels).astype("int32")


@dataclass(frozen=True)
class Spec:
    """Shape and type of one example, which need no TensorFlow and set no ceiling."""

    shape: tuple[int, ...]
    dtype: str


def specs(name: str) -> tuple[Spec, Spec]:
    """Return the shapes and types of one example and its label."""
    x, y = data(name)
    return Spec(x.shape[1:], str(x.dtype)), Spec(y.shape[1:], str(y.dtype))
