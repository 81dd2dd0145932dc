"""Alone: one recipe trained without a tuner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from kbatch.building.compiled import CompileArguments
from kbatch.building.hyperparameters import Build
from kbatch.building.making import Maker
from kbatch.data.elements import inputs_of
from kbatch.outcome import Outcome
from kbatch.recipe import Recipe
from kbatch.training.arguments import FitArguments
from kbatch.training.attempt import Attempt
from kbatch.training.goal import goal_of
from kbatch.training.running import Around, check_sizes
from kbatch.training.watching import Watcher


def train(
    recipe: Recipe,
    build: Build,
    x: Any,
    y: Any = None,
    validation_data: Any = None,
    *,
    seconds: float,
    loss: Any = None,
    metrics: Any = None,
    metric: str = "val_accuracy",
    direction: str | None = None,
    chance: float | None = None,
    target: float | None = None,
    seed: int = 0,
    sample_weight: Any = None,
    validation_split: float = 0.0,
    validation_batch_size: int | None = None,
    batched: bool | None = None,
    class_weight: Mapping[int, float] | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    verbose: Any = 0,
) -> tuple[keras.Model, Outcome]:
    """Train one recipe for a number of seconds and measure it, just as a trial of a search would.

    Use it to try a recipe by hand, or to train the one that a search found for longer.

    Args:
        recipe: `Recipe` to follow.
        build: Function `build(hp)` or `build()` that returns a model, compiled or not.
        x: Array, tensor, list, tuple or dict of them, a `tf.data.Dataset` of `(x, y)`, batched or not, or a `keras.utils.PyDataset`.
        y: Labels, for arrays.
        validation_data: `(x, y)`, `(x, y, sample_weight)` or a dataset.
        seconds: Float, training seconds on the clock.
        loss: Loss, if `build` does not compile.
        metrics: List of metrics, if `build` does not compile.
        metric: String, what is measured. Defaults to `"val_accuracy"`.
        direction: `"max"` or `"min"`; inferred for accuracies and AUC.
        chance: Float; inferred for accuracies and AUC.
        target: Float, the value at which training may end. Optional.
        seed: Integer, seed of weights, data order and dropout. Defaults to `0`.
        sample_weight: Weights of the examples, for arrays. Optional.
        validation_split: Float, the share of the arrays' last examples to validate on. Defaults to `0`.
        validation_batch_size: Integer, examples per validation batch. Defaults to `32`.
        batched: Boolean, whether a dataset's elements are batches. Defaults to finding out.
        class_weight: Mapping from class to weight. Optional.
        callbacks: Keras callbacks of your own. Optional.
        verbose: As in Keras' `fit`. Defaults to `0`.

    Returns:
        A tuple of the model, with the weights of the value held, and the `Outcome`.

    Raises:
        KbatchError: If recipe, model or data cannot be used; the message says what to do.

    Example:
    ```python
    recipe = kbatch.Recipe(batch_size=128, optimizer="sgd", learning_rate=0.04)
    model, outcome = kbatch.train(recipe, build, x, y, (x_val, y_val), seconds=30)
    print(outcome.value, outcome.examples_per_second)
    ```
    """
    arguments = FitArguments(
        x, y, sample_weight, validation_data, validation_split, validation_batch_size, batched, class_weight, tuple(callbacks), verbose
    )
    maker = Maker(build, CompileArguments(loss, metrics), seed)
    data = arguments.data(lambda: inputs_of(maker.raw(recipe.policy)))
    check_sizes([recipe.batch_size], data)
    goal = goal_of(seconds, metric, direction, chance, target, data.labels)
    attempt = Attempt()
    model = attempt.make(maker, recipe)
    around = Around(seed, maker.own_policy, list(callbacks), class_weight=class_weight, verbose=verbose, watcher=Watcher())
    return model, attempt.train(model, recipe, data, goal, around)
