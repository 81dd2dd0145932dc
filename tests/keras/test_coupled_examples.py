"""What couples the examples of a batch: made exact, or refused; the oracle is the whole batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbatch
from kbatch.checks import state
from kbatch.errors import ModelError

ops, layers = keras.ops, keras.layers
N, PASS = 32, 8
rng = np.random.default_rng(0)
X = rng.normal(size=(1600, 6)).astype("float32")
Y = 2 * X[:, :1]
RARE = np.where(np.arange(1600)[:, None] % 533 == 7, -99.0, Y).astype("float32")
SIGNS = (Y[:, 0] > 0).astype("float32")


class Centred(layers.Layer):
    def call(self, inputs):
        return inputs - ops.mean(inputs, axis=0, keepdims=True)


class SpreadInTraining(layers.Layer):
    def call(self, inputs, training=None):
        return inputs * ops.std(inputs) if training else inputs


class AddsInTraining(layers.Layer):
    def call(self, inputs, training=None):
        if training:
            self.add_loss(0.01 * ops.sum(inputs**2))
        return inputs


class Annealed(layers.Layer):
    """Adds a loss whose weight grows with every call in training."""

    def build(self, shape):
        self.calls = self.add_weight(name="calls", initializer="zeros", trainable=False)

    def call(self, inputs, training=None):
        if training:
            self.calls.assign_add(1.0)
        self.add_loss(0.01 * self.calls * ops.mean(inputs**2))
        return inputs


class Counting(layers.Layer):
    """Counts its calls, which change nothing."""

    def build(self, shape):
        self.calls = self.add_weight(name="calls", initializer="zeros", trainable=False)

    def call(self, inputs):
        self.calls.assign_add(1.0)
        return inputs


class WeightedMean(keras.losses.Loss):
    """Divides by the sum of the weights."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        errors = ops.reshape(ops.square(ops.reshape(y_true, (-1, 1)) - y_pred), (-1,))
        weights = ops.ones_like(errors) if sample_weight is None else sample_weight
        weights = ops.reshape(ops.cast(weights, errors.dtype), (-1,))
        return ops.sum(weights * errors) / ops.sum(weights)


def known_only(y, p):
    known = ops.cast(y > -50, p.dtype)
    return ops.sum(known * (y - p) ** 2) / ops.maximum(ops.sum(known), 1.0)


def flooded(y, p):
    return ops.abs(ops.mean((y - p) ** 2) - 0.3) + 0.3


def bounded(y, p):
    return ops.mean((y - p) ** 2) + 10 * ops.relu(ops.mean(p**2) - 2.0)


def mean_of_squares(y, p):
    return ops.mean((y - p) ** 2)


def model_of(loss, *more):
    def build(hp=None):
        keras.utils.set_random_seed(0)
        dense = [layers.Dense(4, "tanh"), *(each() for each in more), layers.Dense(1)]
        model = keras.Sequential([keras.Input((6,)), *dense])
        model.compile(keras.optimizers.SGD(0.05), loss() if isinstance(loss, type) else loss)
        return model

    return build


def contrastive(hp=None):
    """Similarities of a batch are made inside the model: their shape is the batch's."""
    one, other = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    similar = ops.matmul(layers.Dense(4)(one), ops.transpose(layers.Dense(4)(other)))
    model = keras.Model({"a": one, "b": other}, similar)

    def loss(y, p):
        places = ops.arange(ops.shape(p)[0])
        return keras.losses.sparse_categorical_crossentropy(places, p, from_logits=True)

    model.compile(keras.optimizers.SGD(0.05), loss)
    return model


class Weights(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.last = self.model.get_weights()


def trained(build, x, y, micro_batch_size=None, updates=60, **more):
    kept = Weights()
    recipe = kbatch.Recipe(N, "compiled", None, micro_batch_size=micro_batch_size)
    _, outcome = kbatch.train(
        recipe,
        build,
        x,
        y,
        (x, y),
        updates=updates,
        metric="val_loss",
        direction="min",
        chance=99.0,
        callbacks=[kept],
        **more,
    )
    return kept.last, outcome


LOSSES = {
    "rare labels that are left out": (known_only, RARE, {}),
    "flooding below the first loss": (flooded, Y, {}),
    "a bound on the mean output": (bounded, Y, {}),
    "divided by the class weights": (WeightedMean, SIGNS, {"class_weight": {0: 1.0, 1: 9.0}}),
}


@pytest.mark.parametrize("case", LOSSES)
def test_a_loss_that_couples_only_somewhere_is_exact(case):
    loss, y, more = LOSSES[case]
    whole, _ = trained(model_of(loss), X, y, **more)
    passes, outcome = trained(model_of(loss), X, y, PASS, **more)
    assert any("not the mean over its passes" in each for each in outcome.remarks)
    for one, other in zip(whole, passes, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


@pytest.mark.parametrize("loss", ["mse", mean_of_squares], ids=["Keras'", "own"])
def test_a_mean_stays_a_mean(loss):
    _, outcome = trained(model_of(loss), X, Y, PASS, updates=2)
    assert not any("over its passes" in each for each in outcome.remarks)


@pytest.mark.parametrize("layer", [Centred, SpreadInTraining, AddsInTraining])
def test_a_layer_that_couples_examples_is_refused(layer):
    name = "adds_in_training" if layer is AddsInTraining else layer.__name__
    with pytest.raises(ModelError, match=f"accumulates differently: .*{name}"):
        trained(model_of("mse", layer), X, Y, PASS, updates=2)
    trained(model_of("mse", layer), X, Y, updates=2)  # in one pass there is nothing to refuse


def test_a_layer_that_counts_passes_is_refused_where_it_matters():
    with pytest.raises(ModelError, match="what each pass leaves in layers of its own, Annealed"):
        trained(model_of("mse", Annealed), X, Y, PASS, updates=2)
    _, outcome = trained(model_of("mse", Annealed), X, Y, updates=2)
    assert any("changes the next" in each for each in outcome.remarks)
    trained(model_of("mse", Counting), X, Y, PASS, updates=2)


class LeftOut(layers.Layer):
    """Leaves a batch out at random, as stochastic depth does."""

    def call(self, inputs, training=None):
        if not training:
            return inputs
        return inputs * keras.ops.cast(tf.random.uniform(()) > 0.5, inputs.dtype)


def test_what_is_drawn_once_a_batch_is_no_state():
    model = model_of("mse", LeftOut)()
    assert not any(state.carries(model, X[:32]) for _ in range(10))


def test_labels_of_several_lengths_are_tried_too():
    """Labels that are padded for each batch, under a loss that counts the known ones."""

    def words(hp=None):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((None,), dtype="int32")
        x = layers.Dense(1)(layers.Embedding(9, 4)(inputs))
        model = keras.Model(inputs, layers.Reshape((-1,))(x))
        model.compile(keras.optimizers.SGD(0.05), known_only)
        return model

    def examples():
        for number in range(64):
            length = 3 + number % 5
            yield np.full(length, 1 + number % 8, "int32"), np.full(length, 0.1 * number, "float32")

    specs = [tf.TensorSpec((None,), "int32"), tf.TensorSpec((None,), "float32")]
    data = tf.data.Dataset.from_generator(examples, output_signature=tuple(specs))
    data = data.padded_batch(8, padding_values=(0, -99.0))
    ends = []
    for passes in (None, 4):
        kept = Weights()
        recipe = kbatch.Recipe(16, "compiled", None, micro_batch_size=passes)
        given = {"metric": "val_loss", "direction": "min", "chance": 99.0, "callbacks": [kept]}
        kbatch.train(recipe, words, data, validation_data=data, updates=4, **given)
        ends.append(kept.last)
    for one, other in zip(*ends, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_similarities_inside_a_model_are_refused():
    x = {"a": X[:64], "b": X[64:128]}
    with pytest.raises(ModelError, match="the output of an example depends on its batch"):
        trained(contrastive, x, np.zeros(64, "int32"), PASS, updates=2)


@pytest.mark.parametrize("layer", [layers.BatchNormalization, lambda: layers.Dropout(0.5)])
def test_normalization_and_dropout_are_taken_as_ever(layer):
    _, outcome = trained(model_of("mse", layer), X, Y, PASS, updates=2)
    assert outcome.updates == 2
