"""Combinations of a space that may differ in memory, and that of a recipe."""

import keras_tuner

from kbatch import Recipe, Space
from kbatch.memory import _micro_batch
from kbatch.memory._max_batch import Row, Table
from kbatch.space import Combination, combinations

SPACE = Space(
    optimizer="sgd",
    policy="float32",
    jit_compile=False,
    batch_size=(16, 64),
    training=("plain", "sam:0.05", "sam:0.1", "proximal:0.1", "proximal:1:5"),
    ema=(None, 0.9, 0.99),
    momentum_rule="examples",
)


def test_values_with_the_same_memory_make_one_row():
    found = combinations(SPACE)
    assert [each.training for each in found[::2]] == ["plain", "sam:1", "proximal:1"]
    assert [each.ema for each in found[:2]] == [None, 0.99]
    assert len(found) == 6


def test_every_recipe_of_a_space_has_a_row():
    """The moving average of a recipe differs from the space's where the rule carries it."""
    rows = [Row(each, 8, 4, 10**8, None, 5) for each in combinations(SPACE)]
    table = Table(tuple(rows), 10**9, "none", 3, 0, 2.0)
    drawn = set()
    for seed in range(40):
        hp = keras_tuner.HyperParameters()
        SPACE.declare(hp)
        for axis in hp.space:
            hp.values[axis.name] = axis.random_sample(seed + 40 * len(axis.name))
        recipe = SPACE.recipe(hp)
        drawn.add(recipe)
        assert _micro_batch.sizes(recipe, table) == (8, 4)
    assert len({recipe.ema for recipe in drawn}) > 3


def test_words_name_what_is_not_the_default():
    recipe = Recipe(32, "lamb", 0.01, training="sam:0.3", normalization="group", ema=0.5)
    words = "lamb, float32, training sam:1, ema 0.99, normalization group"
    assert str(Combination.of(recipe)) == words
