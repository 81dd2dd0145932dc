"""A training traces its step once, and ends in the weights of one that traced it twice."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbatch
from kbatch.models.traces import steps_by_shapes
from kbatch.training import run

rng = np.random.default_rng(0)
X = rng.normal(size=(96, 6)).astype("float32")
Y = rng.integers(0, 3, 96)
TRACED = []


class Traced(keras.layers.Dense):
    """A layer that notes each time that a graph of the train step is made of it."""

    def call(self, x, training=None):
        if training:
            TRACED.append(type(x).__name__)
        return super().call(x)


def build(metrics=("accuracy",), loss="sparse_categorical_crossentropy", kind=keras.Model):
    x = keras.Input((6,))
    hidden = keras.layers.Dropout(0.2)(Traced(8, "relu")(x))
    model = kind(x, keras.layers.Dense(3, "softmax")(hidden))
    model.compile("adam", loss, metrics=list(metrics))
    return model


def weighted():
    x = keras.Input((6,), name="x")
    model = keras.Model(x, keras.layers.Dense(3, "softmax")(Traced(8)(x)))
    model.compile("sgd", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    return model


def two_metrics():
    return build(["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2")])


class OwnStep(keras.Model):
    """A model whose own step hands other labels to its metrics."""

    def train_step(self, data):
        x, y = data[:2]
        return super().train_step((x, keras.ops.one_hot(y, 3)))

    def test_step(self, data):
        x, y = data[:2]
        return super().test_step((x, keras.ops.one_hot(y, 3)))


def own_step():
    return build(loss="categorical_crossentropy", kind=OwnStep)


CASES = {
    "plain": (two_metrics, {}),
    "weighted metrics": (weighted, {}),
    "accumulating": (
        build,
        {"batch_size": 32, "micro_batch_size": 8, "ema": 0.9, "clip_norm": 1.0},
    ),
    "sam": (build, {"training": "sam:0.05"}),
    "half": (build, {"policy": "mixed_float16", "jit_compile": True}),
}


def trained(make, changes, callbacks=()):
    TRACED.clear()
    recipe = kbatch.Recipe(**{"batch_size": 16, **changes})
    model, outcome = kbatch.train(
        recipe, make, X[:64], Y[:64], (X[64:], Y[64:]), updates=8, callbacks=callbacks
    )
    return TRACED.count("SymbolicTensor"), model.get_weights(), outcome.metrics


@pytest.mark.parametrize(("make", "changes"), CASES.values(), ids=CASES)
def test_the_step_is_traced_once_and_trains_the_same(make, changes, monkeypatch):
    once, weights, metrics = trained(make, changes)
    monkeypatch.setattr(run, "make_step_ready", lambda model, batch: None)
    twice, other_weights, other_metrics = trained(make, changes)
    assert twice == 2 * once > 0
    assert metrics == other_metrics
    assert all(map(np.array_equal, weights, other_weights))


class Compiled(keras.metrics.Mean):
    """A metric whose update is a `tf.function`, which keeps what it was traced to first."""

    @tf.function
    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(y_pred[:, 0])


class Unfreezing(keras.callbacks.Callback):
    """A callback that lets a layer train."""

    def on_train_begin(self, logs=None):
        self.model.layers[1].trainable = True


class Extra(keras.layers.Layer):
    """A layer that calls another one in training only."""

    def __init__(self):
        super().__init__()
        self.head = keras.layers.Dense(1)

    def call(self, x, training=None):
        if training:
            self.add_loss(keras.ops.mean(self.head(x) ** 2))
        return x


def compiled_metric():
    return build(["accuracy", Compiled(name="first")])


def frozen():
    model = build()
    model.layers[1].trainable = False
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def extra():
    x = keras.Input((6,))
    model = keras.Model(x, keras.layers.Dense(3, "softmax")(Extra()(Traced(8)(x))))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def step_of_instance():
    model = build(loss="categorical_crossentropy")
    for name in ("train_step", "test_step"):
        own = getattr(model, name)
        setattr(model, name, lambda data, own=own: own((data[0], keras.ops.one_hot(data[1], 3))))
    return model


UNKNOWN = {
    "compiled metric": (compiled_metric, ()),
    "unfrozen": (frozen, (Unfreezing(),)),
    "built in training": (extra, ()),
    "own step": (own_step, ()),
    "step of the instance": (step_of_instance, ()),
}


@pytest.mark.parametrize(("make", "callbacks"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_the_first_step_alone_tells_waits_for_it(make, callbacks, monkeypatch):
    _, weights, metrics = trained(make, {}, callbacks)
    monkeypatch.setattr(run, "make_step_ready", lambda model, batch: None)
    _, other_weights, other_metrics = trained(make, {}, callbacks)
    assert metrics == other_metrics
    assert all(map(np.array_equal, weights, other_weights))


@pytest.mark.parametrize("make", [own_step, extra, step_of_instance])
def test_only_what_shapes_tell_is_made_ready(make):
    assert steps_by_shapes(build())
    assert not steps_by_shapes(make())
