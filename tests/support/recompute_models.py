"""Small models with what makes recompute hard, each with one batch of data."""

import keras
import numpy as np
from keras import layers


def residual(blocks=2):
    """Convolution, BatchNormalization, Dropout and residual connections."""
    inputs = x = keras.Input((16, 16, 3))
    for _ in range(blocks):
        y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(x)))
        x = layers.Add()([layers.Dropout(0.3)(y), layers.Conv2D(8, 1)(x)])
    return keras.Model(inputs, head(layers.GlobalAveragePooling2D()(x))), images()


def one_block():
    """The same once: XLA compiles each block for seconds."""
    return residual(blocks=1)


def noisy():
    """Random augmentation, noise, and dropout of whole channels."""
    inputs = keras.Input((16, 16, 3))
    x = layers.RandomContrast(0.3)(layers.RandomFlip()(inputs))
    x = layers.SpatialDropout2D(0.3)(
        layers.Conv2D(8, 3, activation="relu")(layers.GaussianNoise(0.1)(x))
    )
    return keras.Model(
        inputs, head(layers.GlobalAveragePooling2D()(layers.Conv2D(8, 3, activation="gelu")(x)))
    ), images()


def shared():
    """Dicts of inputs and outputs, and layers that are called twice."""
    a, b = keras.Input((8,), name="a"), keras.Input((8,), name="b")
    dense, norm, drop = layers.Dense(8), layers.BatchNormalization(), layers.Dropout(0.5)
    x, y = drop(norm(dense(a))), drop(norm(dense(b)))
    joined = layers.Dense(8, "gelu")(layers.Concatenate()([x, y]))
    outputs = {"kind": head(joined, "kind"), "size": layers.Dense(1, name="size", dtype=exact())(x)}
    rng = np.random.default_rng(0)
    data = {name: rng.normal(size=(16, 8)).astype("float32") for name in ("a", "b")}
    return keras.Model({"a": a, "b": b}, outputs), (
        data,
        {"kind": rng.integers(0, 4, 16), "size": rng.normal(size=(16, 1))},
    )


def regularised():
    """Losses of layers and of weights, a nested model, weights that are frozen."""
    inner, _ = residual()
    inner.layers[1].trainable = False
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(
        3, 3, padding="same", activity_regularizer="l2", kernel_regularizer="l2", dtype=exact()
    )(inputs)
    x = layers.Dense(
        12, activity_regularizer=keras.regularizers.L1(0.01), kernel_regularizer="l2", dtype=exact()
    )(inner(x))
    return keras.Model(inputs, head(layers.Dropout(0.2)(x))), images()


def tokens():
    """Masks through recurrent layers and attention."""
    inputs = keras.Input((12,), dtype="int32")
    x = layers.LSTM(8, return_sequences=True)(layers.Embedding(50, 8, mask_zero=True)(inputs))
    x = layers.GRU(8, return_sequences=True, dropout=0.2)(x)
    x = layers.LayerNormalization()(
        layers.Add()([x, layers.MultiHeadAttention(2, 4, dropout=0.1)(x, x)])
    )
    rng = np.random.default_rng(0)
    return keras.Model(inputs, head(layers.GlobalAveragePooling1D()(x))), (
        rng.integers(0, 50, (16, 12)),
        rng.integers(0, 4, 16),
    )


@keras.saving.register_keras_serializable("kbatch_tests")
class Hiding(layers.Layer):
    """A layer whose `call` takes no `training`, but that holds one that needs it."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.inner = layers.Dropout(0.5)

    def call(self, inputs):
        return self.inner(inputs)


def hiding():
    inputs = keras.Input((8,))
    x = Hiding()(layers.Dense(8, "relu")(inputs))
    rng = np.random.default_rng(0)
    return keras.Model(inputs, head(layers.Dense(8, "tanh")(x))), (
        rng.normal(size=(16, 8)).astype("float32"),
        rng.integers(0, 4, 16),
    )


def head(x, name="head"):
    return layers.Dense(4, "softmax", dtype=exact(), name=name)(x)


def images():
    rng = np.random.default_rng(0)
    return rng.random((16, 16, 16, 3)).astype("float32"), rng.integers(0, 4, 16)


def exact():
    """The type of what must not be half precision."""
    return "float64" if keras.config.floatx() == "float64" else "float32"


def losses(model):
    kind = "sparse_categorical_crossentropy"
    return {"kind": kind, "size": "mse"} if isinstance(model.output, dict) else kind


BUILDS = (residual, noisy, shared, regularised, tokens, hiding)
