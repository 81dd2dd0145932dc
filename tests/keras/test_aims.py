"""Starting recipes: each trains, follows the rules, and gets no advice."""

import re

import keras
import numpy as np
import pytest

import kbatch
from kbatch import advise, errors, starting_recipe
from kbatch.results.advice import AIMS, RATES
from kbatch.rules import scaling


@pytest.mark.parametrize("aim", AIMS)
def test_a_starting_recipe_gets_no_advice(aim):
    for examples in (None, 150, 600, 50_000):
        for optimizer in (None, *RATES):
            recipe = starting_recipe(aim, optimizer=optimizer, examples=examples)
            assert advise(recipe) == [], (recipe, examples)
            assert examples is None or advise(recipe, examples=examples, epochs=30) == []


@pytest.mark.parametrize("aim", AIMS)
def test_a_starting_recipe_trains(aim, points, build):
    (x, y), validation = points
    recipe = starting_recipe(aim, examples=len(x))
    _, outcome = kbatch.train(recipe, build, x, y, validation, epochs=3)
    assert outcome.ended == "horizon"
    assert outcome.updates > 0
    assert np.isfinite(outcome.value)


@pytest.mark.parametrize("aim", AIMS)
def test_a_starting_recipe_learns(aim, points, build):
    """At the same passes over the data, for the aims that train from scratch."""
    (x, y), validation = points
    if aim == "fine-tuning":
        pytest.skip("its rate is for weights that have learned")
    recipe = starting_recipe(aim, examples=len(x))
    _, outcome = kbatch.train(recipe, build, x, y, validation, epochs=40)
    assert outcome.value > 0.75


def test_batches_rates_and_warmup_follow_the_rules():
    for devices in (2, 3, 8):
        recipe = starting_recipe("devices", devices=devices, optimizer="sgd", examples=50_000)
        assert recipe.batch_size == 32 * devices
        assert recipe.learning_rate == pytest.approx(0.01 * devices)
        assert recipe.warmup_updates == scaling.updates_of_warmup(32 * devices, 50_000)
    fast = starting_recipe("speed")
    assert fast.learning_rate == pytest.approx(1e-3 * scaling.learning_rate_factor(256, "sqrt"))
    assert fast.warmup_updates > 0


def test_a_pass_has_at_least_ten_updates():
    for examples in (160, 1000, 5000):
        for aim in AIMS:
            recipe = starting_recipe(aim, examples=examples)
            assert examples >= 10 * recipe.batch_size


def test_a_batch_that_does_not_fit_accumulates():
    assert starting_recipe("speed", largest_batch=100).micro_batch_size == 64
    assert starting_recipe("speed", largest_batch=256).micro_batch_size is None
    # 8 examples on each of 4 devices
    assert starting_recipe("devices", devices=4, largest_batch=8).micro_batch_size == 32
    memory = starting_recipe("memory")
    assert (memory.examples_per_pass, memory.recompute) == (16, "minimal")
    assert advise(starting_recipe("memory", largest_batch=64), max_batch=64) == []


def test_normalization_gets_enough_examples():
    model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization()])
    for aim in AIMS:
        recipe = starting_recipe(aim, examples=200)
        assert advise(recipe, model) == [], aim


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"aim": ["speed"]}, "`aim` must be one of accuracy"),
        ({"optimizer": ["sgd"]}, "`optimizer` must be one of sgd"),
        ({"aim": "fun"}, "`aim` must be one of accuracy, speed, memory, fine-tuning, devices"),
        ({"optimizer": "compiled"}, "`optimizer` must be one of"),
        ({"devices": 2}, '`devices` must come with aim="devices"'),
        ({"aim": "devices", "devices": 0}, "`devices` must be a whole number"),
        ({"examples": 1.5}, "`examples` must be a whole number"),
        ({"largest_batch": "8"}, "`largest_batch` must be a whole number"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused(arguments, text):
    with pytest.raises(errors.RecipeError, match=re.escape(text)):
        starting_recipe(**arguments)
