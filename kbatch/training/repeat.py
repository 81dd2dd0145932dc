"""Repeat: a leader's second training in a search, which has another seed."""

from __future__ import annotations

import dataclasses

import keras_tuner

from kbatch.models.maker import ModelMaker
from kbatch.recipe import Recipe
from kbatch.records.project import Job
from kbatch.search.oracle import REPEAT

SEED = 100_000  # above that of the search: far from those of a confirmation, which are to be fresh


def maker_of(model_maker: ModelMaker, hp: keras_tuner.HyperParameters) -> ModelMaker:
    """Return the maker of a trial's model: the search's, with another seed for a repeat.

    Args:
        model_maker: Maker of the models of the search.
        hp: Hyperparameters of the trial.
    """
    seed = model_maker.seed + SEED * (REPEAT in hp.values)
    return dataclasses.replace(model_maker, seed=seed)


def job_of(
    hp: keras_tuner.HyperParameters,
    model_maker: ModelMaker,
    number: int,
    recipe: Recipe,
    rate: float | None,
    remarks: tuple[str, ...],
) -> Job:
    """Return the training of a trial.

    Args:
        hp: Hyperparameters of the trial.
        model_maker: Maker of the models of the search.
        number: Integer, number of the trial.
        recipe: `Recipe` that was drawn.
        rate: Float, its learning rate at batch 32, or `None`.
        remarks: Sentences on the recipe.
    """
    values = {name: value for name, value in hp.values.items() if name != REPEAT}
    seed = maker_of(model_maker, hp).seed
    first = hp.values.get(REPEAT)
    repeats = None if first is None else int(first)
    return Job("search", number, seed, recipe, values, rate, remarks, repeats)
