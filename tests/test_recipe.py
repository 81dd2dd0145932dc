import dataclasses

import numpy as np
import pytest

from kbatch import Recipe
from kbatch.errors import RecipeError


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(
            batch_size=256,
            optimizer="sgd",
            learning_rate=0.1,
            warmup_updates=7,
            micro_batch_size=32,
        ),
        Recipe(
            optimizer="compiled",
            learning_rate=None,
            policy="mixed_bfloat16",
            augmentation="flip",
            jit_compile=True,
        ),
    ],
)
def test_json_round_trip(recipe):
    assert Recipe.from_json(recipe.to_json()) == recipe


def test_recipes_are_frozen_hashable_values():
    assert len({Recipe(), Recipe(), Recipe(batch_size=64)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().batch_size = 1


def test_numpy_integers_become_plain_ones():
    assert type(Recipe(batch_size=np.int64(64)).batch_size) is int


@pytest.mark.parametrize(
    ("batch", "micro", "steps"), [(32, None, 1), (32, 32, 1), (512, 32, 16), (96, 32, 3)]
)
def test_accumulation_steps(batch, micro, steps):
    assert Recipe(batch_size=batch, micro_batch_size=micro).accumulation_steps == steps


@pytest.mark.parametrize(
    "fields",
    [
        {"batch_size": 0},
        {"batch_size": 1.5},
        {"batch_size": True},
        {"batch_size": "32"},
        {"optimizer": "lion"},
        {"learning_rate": 0},
        {"learning_rate": float("nan")},
        {"learning_rate": None},
        {"optimizer": "compiled"},
        {"optimizer": "compiled", "learning_rate": None, "warmup_updates": 3},
        {"warmup_updates": -1},
        {"policy": "float16"},
        {"augmentation": ""},
        {"augmentation": None},
        {"micro_batch_size": 24},
        {"micro_batch_size": 64},
        {"jit_compile": "auto"},
    ],
)
def test_nonsense_is_refused_in_three_clauses(fields):
    with pytest.raises(RecipeError, match=r"must .*Received: .*\..*\."):
        Recipe(**fields)


def test_unknown_fields_are_refused():
    with pytest.raises(RecipeError, match="known fields"):
        Recipe.from_json('{"batch": 3}')


def test_words_say_what_differs():
    assert str(Recipe()) == "batch 32, adam 0.001"
    words = str(Recipe(256, "sgd", 0.08, 5, "mixed_float16", "flip", 64, True))
    assert words == "batch 256 (4 x 64), sgd 0.08, warm-up 5, mixed_float16, flip, jit"
