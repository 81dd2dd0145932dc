"""Models with losses of their own, and their data, whose exported code is compared."""

import keras
import numpy as np

layers = keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 6)).astype("float32")
ONE = (X[:, :1] > 0).astype("float32")
CLASS = np.abs(X[:, 0] * 3).astype("int32") % 3
WEIGHT = RNG.uniform(0.2, 2, 48).astype("float32")
PICTURES = RNG.normal(size=(48, 8, 8, 1)).astype("float32")
PARTS = {"a": ONE, "b": CLASS}


def hidden(width=6):
    inputs = keras.Input((width,))
    return inputs, layers.Dense(8, "tanh")(inputs)


def single(loss, units=1):
    """A function that builds a model of one output, without an activation."""

    def build(hp=None):
        inputs, x = hidden()
        model = keras.Model(inputs, layers.Dense(units)(x))
        model.compile("sgd", loss, metrics=["mae" if units == 1 else "accuracy"])
        return model

    return build


def from_logits(hp=None):
    return single(keras.losses.BinaryCrossentropy(from_logits=True))()


def focal(hp=None):
    return single(keras.losses.BinaryFocalCrossentropy(gamma=3.0, from_logits=True))()


def sparse(hp=None):
    return single(keras.losses.SparseCategoricalCrossentropy(from_logits=True), 3)()


def own(hp=None):
    """A loss of the user's own, which no name stands for."""
    return single(lambda y, p: keras.ops.mean(keras.ops.square(y - p) ** 2, axis=-1))()


def several(hp=None):
    inputs, x = hidden()
    outputs = {
        "a": layers.Dense(1, "sigmoid", name="a")(x),
        "b": layers.Dense(3, "softmax", name="b")(x),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer="sgd",
        loss={"a": "binary_crossentropy", "b": "sparse_categorical_crossentropy"},
        loss_weights={"a": 1.0, "b": 0.01},
        metrics={"a": ["mae"], "b": ["accuracy"]},
        weighted_metrics={"a": ["mse"], "b": []},
    )
    return model


class Penalty(layers.Layer):
    def call(self, x):
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        return x


def penalized(hp=None):
    inputs, x = hidden()
    model = keras.Model(inputs, layers.Dense(1)(Penalty()(x)))
    model.compile("sgd", "mse", weighted_metrics=["mae"])
    return model


def loaded(hp=None):
    """A model that is compiled by loading it."""
    model = from_logits()
    copy = keras.models.model_from_json(model.to_json())
    copy.set_weights(model.get_weights())
    copy.compile_from_config(model.get_compile_config())
    return copy


def segments(hp=None):
    model = keras.Sequential(
        [keras.Input((8, 8, 1)), layers.Conv2D(3, 3, padding="same"), layers.Dense(1)]
    )
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile("sgd", loss, loss_weights=[2.0], metrics=["mae"])
    return model


PLAIN = {"batch_size": 12, "optimizer": "sgd", "learning_rate": 0.1}
KEPT = {**PLAIN, "optimizer": "compiled", "learning_rate": None}
PASSES = {**PLAIN, "micro_batch_size": 4}
MASKS = (PICTURES > 0).astype("float32")
# build, x, y, fields of the recipe, other arguments of `train`
CASES = {
    "logits": (from_logits, X, ONE, PLAIN, {}),
    "logits compiled": (from_logits, X, ONE, KEPT, {}),
    "logits passes": (from_logits, X, ONE, PASSES, {}),
    "logits smoothed": (from_logits, X, ONE, {**PLAIN, "label_smoothing": 0.1}, {}),
    "focal": (focal, X, ONE, PLAIN, {}),
    "focal smoothed": (focal, X, ONE, {**PLAIN, "label_smoothing": 0.2}, {}),
    "sparse smoothed": (sparse, X, CLASS, {**PLAIN, "label_smoothing": 0.2}, {}),
    "sparse mixup": (sparse, X, CLASS, {**PLAIN, "augmentation": "mixup"}, {}),
    "own": (own, X, ONE, PLAIN, {}),
    "several": (several, X, PARTS, PLAIN, {}),
    "several compiled": (several, X, PARTS, KEPT, {}),
    "several passes": (several, X, PARTS, PASSES, {}),
    "several smoothed": (several, X, PARTS, {**PLAIN, "label_smoothing": 0.1}, {}),
    "several sam": (several, X, PARTS, {**PLAIN, "training": "sam:0.05"}, {}),
    "several grows": (several, X, PARTS, {**PLAIN, "batch_schedule": "linear:2"}, {}),
    "add_loss": (penalized, X, ONE, PLAIN, {}),
    "add_loss passes": (penalized, X, ONE, PASSES, {}),
    "loaded": (loaded, X, ONE, PLAIN, {}),
    "weights": (from_logits, X, ONE, PLAIN, {"sample_weight": WEIGHT}),
    "weights passes": (penalized, X, ONE, PASSES, {"sample_weight": WEIGHT}),
    "weights mixup": (
        sparse,
        X,
        CLASS,
        {**PLAIN, "augmentation": "mixup"},
        {"sample_weight": WEIGHT},
    ),
    "classes": (sparse, X, CLASS, PLAIN, {"class_weight": {0: 1.0, 1: 0.2, 2: 3.0}}),
    "classes mixup": (
        sparse,
        X,
        CLASS,
        {**PLAIN, "augmentation": "mixup"},
        {"class_weight": {0: 1.0, 1: 0.2, 2: 3.0}},
    ),
    "masks": (segments, PICTURES, MASKS, {**PLAIN, "augmentation": "flip_shift"}, {}),
    "masks weights": (
        segments,
        PICTURES,
        MASKS,
        {**PLAIN, "augmentation": "flip"},
        {"sample_weight": RNG.uniform(0, 2, (48, 8, 8)).astype("float32")},
    ),
    "masks passes": (
        segments,
        PICTURES,
        MASKS,
        {**PASSES, "augmentation": "flip_shift_contrast"},
        {},
    ),
}
