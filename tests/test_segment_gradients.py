"""Which gradients the segments of a plan compute where weights are frozen."""

import collections

import keras
import pytest
import recompute_models
import tensorflow as tf
from recompute_plans import compiled, cut, plain_trained_once, slow

from kbatch import recompute
from kbatch.runtime.liveness import needed

pytestmark = pytest.mark.usefixtures("own_policy")


def frozen_front(model):
    for layer in model.layers[: len(model.layers) // 2]:
        layer.trainable = False


def frozen_statistics(model):
    for layer in model.layers:
        layer.trainable = not isinstance(layer, keras.layers.BatchNormalization)


def only_the_head(model):
    for layer in model.layers[:-1]:
        layer.trainable = False


def one_frozen_weight(model):
    next(
        layer for layer in model.layers if isinstance(layer, keras.layers.Conv2D)
    ).kernel.trainable = False


@pytest.mark.parametrize(
    "freeze",
    [one_frozen_weight, frozen_front, slow(frozen_statistics), slow(only_the_head)],
    ids=lambda freeze: freeze.__name__,
)
def test_what_is_frozen_stays_and_the_rest_is_the_same(freeze):
    def build():
        model, data = recompute_models.residual()
        freeze(model)
        return model, data

    model, data = compiled(build, "float64")
    trained = len(model.trainable_variables)
    assert 0 < trained < len(compiled(recompute_models.residual, "float64")[0].trainable_variables)
    assert recompute.verify(model, cut(model), *data).exact


def in_use(model, data):
    """How often each kind of operation is in a traced step, those that nothing needs left out."""

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                keras.losses.sparse_categorical_crossentropy(y, model(x, training=True))
            )
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    return collections.Counter(
        operation.type
        for operation in needed(step.get_concrete_function(*map(tf.constant, data)).graph)
    )


def test_no_gradient_is_made_that_leads_to_nothing_trained():
    x, y = recompute_models.images()
    inputs = keras.Input((16, 16, 3))
    value, other = inputs, keras.layers.Conv2D(4, 3, padding="same", trainable=False)(inputs)
    for index in range(6):
        value = keras.layers.Conv2D(4, 3, padding="same", activation="relu", trainable=index > 2)(
            value
        )
        other = keras.layers.Conv2D(4, 3, padding="same", activation="relu", trainable=False)(other)
        value = keras.layers.Add()([value, other])
    model = keras.Model(inputs, recompute_models.head(keras.layers.GlobalAveragePooling2D()(value)))
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    plain = in_use(model, (x, y))
    plans = (
        recompute.plan(model, 16, "sqrt"),
        recompute.plan(model, 16, "minimal"),
        cut(model, 6),
    )
    with plain_trained_once():
        assert all(recompute.verify(model, plan, x, y).exact for plan in plans)
    for plan in plans:
        recompute.apply(model, plan)
        found = in_use(model, (x, y))
        assert found["Conv2D"] > plain["Conv2D"]
        assert all(
            found[kind] == plain[kind]
            for kind in ("Conv2DBackpropInput", "Conv2DBackpropFilter", "ReluGrad")
        )
