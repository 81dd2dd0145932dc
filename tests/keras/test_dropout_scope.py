"""Scaled dropout: the same layers with other rates, restored afterwards."""

import keras
import numpy as np
import pytest

import kbatch
from kbatch import Recipe
from kbatch.errors import ModelError
from kbatch.models.scopes import check_dropout, dropouts, scaled_dropout


def model_of(*rates):
    layers = [keras.layers.Dropout(rate) for rate in rates]
    return keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1)])


def test_rates_are_scaled_capped_and_restored():
    model = model_of(0.1, 0.4, 0.6, 0.0)
    layers = dropouts(model)
    with scaled_dropout(model, 2.0):
        assert [layer.rate for layer in dropouts(model)] == [0.2, 0.5, 0.6, 0.0]
        assert dropouts(model) == layers
    assert [layer.rate for layer in layers] == [0.1, 0.4, 0.6, 0.0]


def test_rates_are_restored_after_an_error():
    model = model_of(0.1)
    with pytest.raises(RuntimeError), scaled_dropout(model, 3.0):
        raise RuntimeError
    assert dropouts(model)[0].rate == 0.1


def test_layers_inside_of_other_layers_are_found():
    inside = keras.Sequential([keras.layers.Dropout(0.2), keras.layers.SpatialDropout1D(0.1)])
    attention = keras.layers.MultiHeadAttention(2, 4, dropout=0.3)
    x = keras.Input((6, 8))
    model = keras.Model(x, attention(*[inside(x)] * 2))
    with scaled_dropout(model, 1.5):
        assert sorted(layer.rate for layer in dropouts(model)) == pytest.approx([0.15, 0.3, 0.45])


@pytest.mark.parametrize("jit_compile", [False, True])
def test_units_are_dropped_at_the_scaled_rate_in_training_only(jit_compile):
    """Two fits of one model: the second must not run the step that was traced for the first."""
    model = keras.Sequential([keras.Input((20_000,)), keras.layers.Dropout(0.1)])
    kept = []

    def loss(y, prediction):
        return keras.ops.mean(keras.ops.cast(prediction != 0, "float32"))

    model.compile("sgd", loss, jit_compile=jit_compile)
    x = np.ones((1, 20_000), "float32")
    for scale in (1.0, 3.0, 1.0):
        with scaled_dropout(model, scale):
            kept.append(model.fit(x, x, verbose=0).history["loss"][0])
            assert model.evaluate(x, x, verbose=0) == 1.0
    assert kept == pytest.approx([0.9, 0.7, 0.9], abs=0.02)


def test_a_model_without_dropout_is_refused(points):
    (x, y), validation = points
    check_dropout(model_of(0.0), 1.0)
    for model in (model_of(), model_of(0.0)):
        with pytest.raises(ModelError, match=r"Dropout layer.*Received: .*dropout_scale=2"):
            check_dropout(model, 2.0)

    def build():
        return keras.Sequential([keras.Input((x.shape[1],)), keras.layers.Dense(1, "sigmoid")])

    with pytest.raises(ModelError, match="Dropout layer"):
        kbatch.train(
            Recipe(dropout_scale=2.0),
            build,
            x,
            y,
            validation,
            epochs=1,
            loss="binary_crossentropy",
            metrics=["accuracy"],
        )
