"""The surroundings and the arguments of an endless Keras `fit`, which a callback ends."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import keras

from kbatch.batch_growth import CONSTANT
from kbatch.callbacks.clock import TrainingClock
from kbatch.data import augmentation
from kbatch.data.arrays import Cuts
from kbatch.data.streams import weighed as weighed_by_class
from kbatch.data.validation import Data
from kbatch.models.accumulation import weighed_passes
from kbatch.models.call_passes import called_in_passes
from kbatch.models.gradient_noise import NoiseMeter, measured
from kbatch.models.policies import explained, policy_scope
from kbatch.models.replicas import as_one_device
from kbatch.models.scopes import augmented, scaled_dropout
from kbatch.models.start import seed_scope
from kbatch.models.train_step import trained_by_method
from kbatch.recipe import Recipe
from kbatch.training.pace import most_updates
from kbatch.training.run_options import RunOptions

ENDLESS = 1_000_000  # epochs: the horizon ends a training, not their number


@contextmanager
def recipe_scope(
    model: keras.Model, recipe: Recipe, options: RunOptions
) -> Iterator[NoiseMeter | None]:
    """Set policy, seed, method, augmentation and weights of passes inside the `with` block.

    Yields:
        The `NoiseMeter` that measures the training meanwhile; `None` without accumulation.
    """
    with (
        explained(recipe.policy),
        policy_scope(recipe.policy, options.own_policy),
        seed_scope(options.seed),
        scaled_dropout(model, recipe.dropout_scale),
        called_in_passes(model, recipe),
        trained_by_method(model, recipe),
        augmented(model, augmentation.layers(recipe.augmentation)),
        weighed_passes(model, recipe) as pass_count,
        measured(model, recipe, pass_count, options.noise_interval) as noise_meter,
        as_one_device(model),
    ):
        yield noise_meter


def fit_arguments(
    recipe: Recipe, data: Data, options: RunOptions, cuts: Cuts | None = None
) -> dict[str, Any]:
    """Return the arguments of `fit` but for the callbacks.

    An epoch is one pass over the data, rounded up to whole updates. Of a growing batch it ends
    earlier, by `kbatch.callbacks.rate`.

    Args:
        recipe: `Recipe` to follow.
        data: Examples to train on.
        options: Seed and the rest.
        cuts: Sizes of a growing batch. `None` (the default) for a constant one.
    """
    updates_per_epoch = most_updates(recipe, data.training.examples)
    if cuts is None:
        batches = data.training.stream(recipe.examples_per_step, options.seed)
    else:
        batches = data.training.cut(cuts.endless(), options.seed)
    return {
        "x": weighed_by_class(batches, options.class_weight),
        "epochs": ENDLESS,
        "steps_per_epoch": updates_per_epoch * recipe.steps_per_update,
        "verbose": options.verbose,
        "shuffle": False,  # the stream shuffles itself, and Keras warns otherwise
    }


def median_update_seconds(
    model: keras.Model, recipe: Recipe, data: Data, updates: range, options: RunOptions
) -> float:
    """Return the median seconds of some updates, input included; the model is spent afterwards.

    A growing batch has its last size from the start here.

    Args:
        model: Model compiled for the recipe.
        recipe: `Recipe` to follow.
        data: Examples to train on.
        updates: Range of the updates to take, counted from 1.
        options: Seed and the rest; its callbacks are not called.
    """
    recipe = replace(recipe, batch_schedule=CONSTANT)
    clock = TrainingClock(recipe.steps_per_update)

    def stop(batch: int, logs: Any = None) -> None:
        if clock.updates >= updates[-1]:
            model.stop_training = True

    stopper = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    with recipe_scope(model, recipe, options):
        model.fit(callbacks=[clock, stopper], **fit_arguments(recipe, data, options))
    return statistics.median(clock.update_seconds[updates[0] - 1 : updates[-1]])
