"""Predictions of a plan's bytes: what is held by frozen weights, losses and constants."""

import keras
import pytest
import tensorflow as tf
from keras import layers

from kbatch import recompute
from kbatch.recompute._loss import loss_bytes
from kbatch.runtime.trace import PRIME

BATCH, CLASSES = 16, 3000


def classifier(loss, activation=None):
    inputs = keras.Input((32, 16))
    model = keras.Model(inputs, layers.Dense(CLASSES, activation=activation)(inputs))
    model.compile("sgd", loss)
    return model


LOGITS = BATCH * 32 * CLASSES * 4  # bytes
OF_LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def test_the_loss_of_many_classes_is_counted():
    without = classifier(OF_LOGITS)
    without.loss = None
    models = without, classifier(OF_LOGITS)
    told = [recompute.plan(model, BATCH, "none").peak_bytes for model in models]
    assert told[0] + 0.9 * LOGITS < told[1] < told[0] + 1.5 * LOGITS


@pytest.mark.parametrize(
    "loss", [OF_LOGITS, "sparse_categorical_crossentropy", "categorical_crossentropy", "mse"]
)
def test_losses_are_called_on_labels_that_they_take(loss):
    found = loss_bytes(classifier(loss), [tf.TensorSpec((PRIME, 32, CLASSES))])
    assert found.at(BATCH) >= LOGITS


def own(y_true, y_pred):
    raise TypeError("no such labels")


@pytest.mark.parametrize("loss", [own, None, ["mse", "mse"]])
def test_a_loss_that_cannot_be_called_counts_nothing(loss):
    model = classifier("mse")
    model.loss = loss
    assert loss_bytes(model, [tf.TensorSpec((PRIME, 32, CLASSES))]).at(BATCH) == 0


class Places(layers.Layer):
    """Multiplies by the places of pairs, as relative positions are."""

    def call(self, inputs):
        places = keras.ops.arange(64, dtype="float32")
        pairs = places[:, None] - places
        pairs = keras.ops.broadcast_to(pairs, (keras.ops.shape(inputs)[0], 64, 64))
        return keras.ops.matmul(pairs, inputs)


def kept(*middle):
    """Predicted bytes that the forward pass keeps."""
    model = keras.Sequential([keras.Input((64, 8)), layers.Dense(8), *middle, layers.Dense(8)])
    return recompute.plan(model, BATCH, "none").kept_bytes


def test_what_shapes_alone_tell_is_not_kept_by_each_layer():
    assert kept(*(Places() for _ in range(6))) == kept(Places())


def frozen():
    layer = layers.EinsumDense("abc,cd->abd", output_shape=(None, 8))
    layer.trainable = False
    return layer


def test_a_frozen_product_keeps_nothing():
    assert kept(*(frozen() for _ in range(6))) == kept()
    trained = layers.EinsumDense("abc,cd->abd", output_shape=(None, 8))
    assert kept(trained) > kept()


def residual(count):
    x = inputs = keras.Input((8,))
    for _ in range(count):
        x = layers.Add()([x, layers.Dense(8)(layers.Dense(8, "relu")(x))])
    return keras.Model(inputs, layers.Dense(2)(x))


@pytest.mark.parametrize("count", [2, 5])
def test_blocks_end_with_their_residual_connection(count):
    plan = recompute.plan(residual(count), BATCH, "blocks")
    ends = [segment.last for segment in plan.segments]
    assert len(ends) == count + 1
    assert all(name.startswith("add") for name in ends[:-1])
