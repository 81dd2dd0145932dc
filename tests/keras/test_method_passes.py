"""SAM and proximal training in passes equal the whole batch, with every optimizer."""

import itertools

import keras
import method_models
import numpy as np
import pytest

import kbatch
from kbatch import Recipe
from kbatch.models.optimizers import optimizer_of

RATES = {"sgd": 0.1, "adam": 0.01, "adamw": 0.01, "lars": 1.0, "lamb": 0.01}
METHODS = ("sam:0.1", "proximal:0.5:3")
FAST = (("lars", "sam:0.1"), ("adam", "proximal:0.5:3"))
CASES = [
    pytest.param(*case, marks=[] if case in FAST else pytest.mark.slow)
    for case in itertools.product(RATES, METHODS)
]


@pytest.mark.parametrize(("optimizer", "method"), CASES)
def test_passes_equal_the_whole_batch_in_float64(optimizer, method, own_policy):
    settings = {"weight_decay": 0.01, "clip_norm": 0.5}
    recipe = Recipe(32, optimizer, RATES[optimizer], training=method, **settings)
    ends = []
    for micro in (None, 8):
        own = Recipe(**{**vars(recipe), "micro_batch_size": micro})
        keras.utils.set_random_seed(3)
        model, before, _ = method_models.equations(optimizer_of(own), own)
        ends.append(model.get_weights())
    for whole, passes, start in zip(*ends, before, strict=True):
        np.testing.assert_allclose(passes, whole, rtol=1e-6, atol=1e-9)
        assert np.abs(whole - start).max() > 1e-3


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("lars", marks=pytest.mark.slow)])
def test_passes_equal_the_whole_batch_in_float16(optimizer, method):
    """To the precision of float16; the labels are so small that no pass overflows."""
    x, _ = method_models.data(128)
    x, y = x / 10, x[:, 0] / 10

    def regression():
        layers = [keras.layers.Dense(4), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((5,)), *layers])

    ends = []
    for micro in (None, 32):
        recipe = Recipe(
            128, optimizer, 0.1, policy="float16", training=method, micro_batch_size=micro
        )
        named = {"loss": "mse", "metrics": ["mae"], "metric": "val_mae", "epochs": 5}
        model, outcome = kbatch.train(recipe, regression, x, y, (x, y), **named)
        assert (outcome.updates, outcome.skipped_updates) == (5, 0)
        ends.append(np.concatenate([each.ravel() for each in model.get_weights()]))
    np.testing.assert_allclose(*ends, rtol=4e-3, atol=2e-3)


@pytest.mark.parametrize("method", METHODS)
def test_float16_refuses_adam_with_methods_too(method):
    with pytest.raises(kbatch.errors.RecipeError, match="without the Adam family"):
        Recipe(32, "adam", 1e-3, policy="float16", training=method)
