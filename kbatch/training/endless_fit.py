"""The surroundings and the arguments of an endless Keras `fit`, which a callback ends."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from kbatch.building.augmentation_scope import augmented
from kbatch.building.pass_weights import weighed
from kbatch.building.policy_scope import policy_scope
from kbatch.building.seed_scope import seed_scope
from kbatch.callbacks.training_clock import TrainingClock
from kbatch.data import augmentation
from kbatch.data.batches import Data
from kbatch.recipe import Recipe
from kbatch.training.run_options import RunOptions

ENDLESS = 1_000_000  # epochs: the horizon ends a training, not their number


@contextmanager
def recipe_scope(model: keras.Model, recipe: Recipe, options: RunOptions) -> Iterator[None]:
    """Set the recipe's policy, seed, augmentation and weights of passes inside the `with`."""
    with (
        policy_scope(recipe.policy, options.own_policy),
        seed_scope(options.seed),
        augmented(model, augmentation.layers(recipe.augmentation)),
        weighed(model, recipe),
    ):
        yield


def fit_arguments(recipe: Recipe, data: Data, options: RunOptions) -> dict[str, Any]:
    """Return the arguments of `fit` but for the callbacks.

    An epoch is one pass over the data, rounded up to whole updates.
    """
    updates_per_epoch = math.ceil(data.training.examples / recipe.batch_size)
    return {
        "x": data.training.stream(recipe.examples_per_pass, options.seed),
        "epochs": ENDLESS,
        "steps_per_epoch": updates_per_epoch * recipe.accumulation_steps,
        "class_weight": options.class_weight,
        "verbose": options.verbose,
        "shuffle": False,  # the stream shuffles itself, and Keras warns otherwise
    }


def median_update_seconds(
    model: keras.Model, recipe: Recipe, data: Data, updates: range, options: RunOptions
) -> float:
    """Return the median seconds of some updates, input included; the model is spent afterwards.

    Args:
        model: Model compiled for the recipe.
        recipe: `Recipe` to follow.
        data: Examples to train on.
        updates: Range of the updates to take, counted from 1.
        options: Seed and the rest; its callbacks are not called.
    """
    clock = TrainingClock(recipe.accumulation_steps)

    def stop(batch: int, logs: Any = None) -> None:
        if clock.updates >= updates[-1]:
            model.stop_training = True

    stopper = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    with recipe_scope(model, recipe, options):
        model.fit(callbacks=[clock, stopper], **fit_arguments(recipe, data, options))
    return statistics.median(clock.update_seconds[updates[0] - 1 : updates[-1]])
