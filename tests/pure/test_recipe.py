import dataclasses

import numpy as np
import pytest

from kbatch import Recipe, Space
from kbatch.errors import RecipeError, SpaceError


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
    assert (
        words == "batch 256 (4 x 64), sgd 0.08, momentum 0.9, warm-up 5, mixed_float16, flip, jit"
    )


@pytest.mark.parametrize(
    ("name", "given", "held"),
    [
        ("training", "sam:0.050", "sam:0.05"),
        ("training", "sam: 5e-2", "sam:0.05"),
        ("training", "proximal:0.10:3", "proximal:0.1"),
        ("training", "proximal:1.0:5", "proximal:1:5"),
        ("batch_schedule", "exponential:8.0", "exponential:8"),
        ("recompute", "budget:0.50", "budget:0.5"),
    ],
)
def test_a_value_in_words_has_one_spelling(name, given, held):
    recipe = Recipe(**{name: given})
    assert getattr(recipe, name) == held
    assert recipe == Recipe(**{name: held})
    assert Space(**{name: given}, jit_compile=False) == Space(**{name: held}, jit_compile=False)
    with pytest.raises(SpaceError, match="each once"):
        Space(**{name: (given, held)}, jit_compile=False)


@pytest.mark.parametrize("text", ["sam:1_0", "sam:٥", "sam:0x1", "sam:nan", "proximal:inf"])
def test_numbers_in_words_are_plain_digits(text):
    with pytest.raises(RecipeError, match="`training` must be"):
        Recipe(training=text)


NUMBERS = {
    **dict.fromkeys(
        ("learning_rate", "label_smoothing", "weight_decay", "momentum", "beta_2"), 0.5
    ),
    **dict.fromkeys(("dropout_scale", "clip_norm", "ema"), 0.5),
    **dict.fromkeys(("batch_size", "warmup_updates", "micro_batch_size"), 8),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_numpy_are_stored_as_pythons(name):
    value = NUMBERS[name]
    kinds = (np.int64, np.uint8) if isinstance(value, int) else (np.float32, np.float64)
    for kind in kinds:
        held = getattr(Recipe(**{name: kind(value)}), name)
        assert (type(held), held) == (type(value), value)
    for wrong in (np.float32("nan"), np.bool_(True), np.array([value]), 10**400):
        with pytest.raises(RecipeError, match=f"`{name}` must be"):
            Recipe(**{name: wrong})
    if isinstance(value, float) and name in ("learning_rate", "clip_norm", "dropout_scale"):
        assert type(getattr(Recipe(**{name: np.int64(1)}), name)) is float


@pytest.mark.parametrize("value", [np.array(["cosine"]), np.array(["cosine", "steps"]), ["cosine"]])
def test_an_array_is_no_name(value):
    with pytest.raises(RecipeError, match="`schedule` must be one of"):
        Recipe(schedule=value)
    assert type(Recipe(schedule=np.str_("cosine")).schedule) is str
