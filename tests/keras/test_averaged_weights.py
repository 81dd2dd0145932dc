"""The moving average of the weights against NumPy, over whole updates, measured and kept."""

import keras
import numpy as np
import pytest

import kbatch
from kbatch import Recipe
from kbatch.callbacks.rate import AveragedWeights, averages


def dense(hp=None):
    model = keras.Sequential(
        [keras.Input((12,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1, "sigmoid")]
    )
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
    return model


def test_the_average_is_that_of_numpy():
    model = dense()
    average = AveragedWeights(model, 0.9)
    wanted = [weight.numpy() for weight in model.trainable_variables]
    rng = np.random.default_rng(0)
    for _ in range(5):
        for weight in model.trainable_variables:
            weight.assign(rng.normal(size=weight.shape))
        average.update()
        new = [weight.numpy() for weight in model.trainable_variables]
        wanted = [0.9 * old + 0.1 * own for old, own in zip(wanted, new, strict=True)]
    for variable, value in zip(average.variables, wanted, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, rtol=1e-5, atol=1e-7)


def test_the_model_has_the_average_inside_of_the_block_only():
    model = dense()
    average = AveragedWeights(model, 0.5)
    own = [np.ones(weight.shape) for weight in model.trainable_variables]
    before = model.get_weights()
    for weight, value in zip(model.trainable_variables, own, strict=True):
        weight.assign(value)
    with pytest.raises(RuntimeError), average.in_place():
        inside = model.get_weights()
        raise RuntimeError
    for found, wanted in zip(inside, before, strict=True):
        np.testing.assert_array_equal(found, wanted)
    for found, wanted in zip(model.get_weights(), own, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_half_precision_weights_are_averaged_in_float32():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype="float16")])
    (kernel, _), average = averages(model, 0.999), AveragedWeights(model, 0.999)
    assert kernel.dtype == "float32"
    for weight in model.trainable_variables:
        weight.assign(np.ones(weight.shape))
    start = average.variables[0].numpy()
    for _ in range(10):
        average.update()
    np.testing.assert_allclose(average.variables[0].numpy(), 1 - (1 - start) * 0.999**10, rtol=1e-5)
    assert averages(model, None) == []


class Weights(keras.callbacks.Callback):
    """Weights after each update of a training."""

    def __init__(self, passes):
        super().__init__()
        self.passes, self.batches, self.seen = passes, 0, []

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if self.batches % self.passes == 0:
            self.seen.append(self.model.get_weights())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"micro_batch_size": 8},
        {"optimizer": "adamw", "weight_decay": 0.01, "policy": "mixed_float16"},
        {"jit_compile": True, "micro_batch_size": 16},
    ],
    ids=str,
)
def test_the_kept_weights_average_whole_updates(points, settings):
    (x, y), validation = points
    recipe = Recipe(32, learning_rate=0.01, ema=0.8, **settings)
    seen = Weights(recipe.accumulation_steps)
    model, outcome = kbatch.train(
        recipe, dense, x[:64], y[:64], validation, epochs=1, callbacks=[seen]
    )
    assert len(seen.seen) == outcome.updates == 2
    average = [0.8 * one + 0.2 * two for one, two in zip(*seen.seen, strict=True)]
    # with fewer than three measurements the last one is kept
    assert len(outcome.curve) == 2
    assert not np.allclose(seen.seen[0][0], average[0], atol=1e-4)
    for found, wanted in zip(model.get_weights(), average, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    value = model.evaluate(*validation, verbose=0, return_dict=True)["accuracy"]
    assert value == pytest.approx(outcome.value, abs=1e-6)
