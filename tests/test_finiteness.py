"""When a training is lost to numbers that are not finite, and when a batch only overflowed."""

import keras
import numpy as np
import pytest

from kbatch.callbacks.horizon import MOST_IN_A_ROW, Finiteness, scaled_updates, weights_are_finite

NAN = {"loss": float("nan")}


@pytest.fixture
def model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    model.train_on_batch(np.ones((2, 2)), np.ones((2, 1)))
    return model


def test_some_losses_in_a_row_are_no_end_and_many_are(model):
    watched = Finiteness()
    assert not any(watched.lost(model, NAN) for _ in range(MOST_IN_A_ROW - 1))
    assert not watched.lost(model, {"loss": 0.5})  # counts anew
    assert [watched.lost(model, NAN) for _ in range(MOST_IN_A_ROW)].index(True) == MOST_IN_A_ROW - 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_one_weight_that_is_not_finite_is_the_end(model, value):
    assert weights_are_finite(model)
    model.layers[0].kernel.assign([[0.0], [value]])
    assert not weights_are_finite(model)
    assert Finiteness().lost(model, NAN)


def test_metrics_that_the_update_spoiled_begin_anew(model):
    spoiled = next(metric for metric in model.metrics if metric.name == "loss")
    spoiled.total.assign(float("nan"))
    assert not Finiteness().lost(model, NAN)
    assert float(spoiled.total) == 0.0


def test_updates_are_counted_apart_only_under_loss_scaling(model):
    assert scaled_updates(model) is None
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.train_on_batch(np.ones((2, 2)), np.ones((2, 1)))
    assert scaled_updates(model) == 1
