"""The rehearsal of a search: models made for its unusual values before anything is trained."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import keras

from kbatch.batch_growth import measures_noise
from kbatch.dtype_policy import FLOAT8, FLOAT16
from kbatch.errors import KbatchError, ModelError
from kbatch.models.maker import ModelMaker
from kbatch.problems import Problems
from kbatch.recipe import Recipe
from kbatch.recipe_fields import COMPILED
from kbatch.runtime.oom import is_out_of_memory
from kbatch.space import Space

STAND_IN_RATE = 0.01  # of a model that is not trained


def check(model_maker: ModelMaker, model: keras.Model, space: Space, problems: Problems) -> None:
    """Note what the model cannot be trained with, though the space may draw it.

    A model is made for each value that not every model can take. A default space has none.

    Args:
        model_maker: Makes the models.
        model: The model that `build` makes by default.
        space: `Space` of the search.
        problems: Problems to add to.
    """
    for recipe in recipes(space):
        problems.of(functools.partial(_made, model_maker, recipe))
    own_step = type(model).train_step is not keras.Model.train_step
    by_noise = [each for each in space.batch_schedule if measures_noise(each)]
    if own_step and by_noise:
        problems.of(functools.partial(_refuse_own_step, model, by_noise[0]))


def recipes(space: Space) -> Iterator[Recipe]:
    """Iterate over recipes with one unusual value each, for each kind of optimizer."""
    named = [name for name in space.optimizer if name != COMPILED]
    kinds = [*named[:1], *(name for name in space.optimizer if name == COMPILED)]
    for field, values in _unusual(space).items():
        for value in values:
            for optimizer in kinds:
                rate = None if optimizer == COMPILED else STAND_IN_RATE
                fields: dict[str, Any] = {field: value}
                yield Recipe(optimizer=optimizer, learning_rate=rate, **fields)


def _unusual(space: Space) -> dict[str, list[Any]]:
    """The values of a space that not every model can take, by field of a recipe."""
    scaled = "sqrt" in space.dropout_rule or any(scale != 1 for scale in space.dropout_scale)
    return {
        "training": [each for each in space.training if each != "plain"],
        "policy": [each for each in space.policies if each in (FLOAT16, FLOAT8)],
        "normalization": [each for each in space.normalization if each != "batch"],
        "ema": [each for each in space.ema if each is not None][:1],
        "dropout_scale": [2.0] if scaled else [],
    }


def _made(model_maker: ModelMaker, recipe: Recipe) -> None:
    try:
        model_maker.make(recipe)
    except KbatchError:
        raise
    except Exception as error:  # TensorFlow has no one class for running out of memory
        if not is_out_of_memory(error):
            raise


def _refuse_own_step(model: keras.Model, schedule: str) -> None:
    raise ModelError(
        "A model must have Keras' own train_step for its batch to grow by the noise scale",
        f"{type(model).__name__} with batch_schedule={schedule!r}",
        "Take another schedule, such as exponential:8",
    )
