"""Winner: the model that was to be trained, trained by a recipe for the epochs it was to have."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import keras
import tensorflow as tf

from kbatch.callbacks.clock import TrainingClock
from kbatch.callbacks.horizon import measure_validation
from kbatch.callbacks.rate import MovingAverage
from kbatch.data.streams import Source
from kbatch.data.validation import Data
from kbatch.errors import ModelError
from kbatch.models.compilation import as_built, compile_for
from kbatch.models.maker import ModelMaker
from kbatch.models.preprocessor import hide, show
from kbatch.outcome import Goal
from kbatch.recipe import Recipe
from kbatch.recipe_words import policy_of_keras
from kbatch.standin.copies import NEW_MODEL, give_labels_back, take_labels_away
from kbatch.standin.fit_call import FitCall
from kbatch.standin.taken import Taken, callbacks_of
from kbatch.training.pace import Pace, RunOptions
from kbatch.training.run import fit_arguments, recipe_scope


def trained(
    taken: Taken, recipe: Recipe, maker: ModelMaker, data: Data, goal: Goal
) -> keras.callbacks.History:
    """Train the user's own model by a recipe, and return what `fit` returns.

    It sees as many examples as it was to see, in epochs of one pass each, with its callbacks.
    Validation is measured after each epoch. A recipe that takes another model, such as one of
    another dtype policy, trains that; the user's own model gets its weights.
    """
    call = taken.call
    own = call.model
    examples = taken.epochs * data.training.examples
    options = RunOptions(
        maker.seed,
        maker.own_policy,
        class_weight=taken.arguments.get("class_weight"),
        verbose=call.arguments["verbose"],
        examples=examples,
    )
    if _takes_another_model(recipe, maker.own_policy):
        model = maker.make(recipe)
        history = fit(model, recipe, data.training, data.validation, goal, options, call)
        _hand_over(model, own)
    else:
        maker.start.put_back()  # of a model that could not be made anew, and trained in the search
        compile_for(as_built(own), recipe, maker.arguments)
        if taken.build.unlabelled is not None:
            take_labels_away(own, taken.build.unlabelled)
        hide(own)
        try:
            history = fit(own, recipe, data.training, data.validation, goal, options, call)
        finally:
            give_labels_back(own)
            show(own)
    own.history = history
    # What is compiled for the shapes of kbatch's batches would be generalized to no shape at all.
    own.train_function = own.test_function = None
    return history


def _takes_another_model(recipe: Recipe, own_policy: str) -> bool:
    if policy_of_keras(recipe.policy) != own_policy:
        return True
    plain = Recipe()
    return any(getattr(recipe, name) != getattr(plain, name) for name in NEW_MODEL[1:])


def fit(
    model: keras.Model,
    recipe: Recipe,
    training: Source,
    validation: tf.data.Dataset | None,
    goal: Goal,
    options: RunOptions,
    call: FitCall,
) -> keras.callbacks.History:
    """Train a model that was made for a recipe, for the epochs and with the callbacks of a call."""
    clock = TrainingClock(recipe.steps_per_update)
    average = MovingAverage(clock, recipe.ema) if recipe.ema is not None else None
    measured = nullcontext if average is None else average.measured
    curve: list[tuple[float, float]] = []
    own: list[Any] = callbacks_of(call)
    if validation is not None:
        every = call.arguments["validation_freq"]
        own.insert(0, _EpochValidation(validation, clock, measured, goal.metric, every, curve))
    pace = Pace(recipe, training.examples, goal, options, clock, lambda: curve)
    callbacks: Sequence[Any] = [
        clock,
        *([] if average is None else [average]),
        *pace.around(own),
    ]
    arguments = fit_arguments(recipe, training, options, pace.cuts)
    with recipe_scope(model, recipe, options) as noise_meter:
        pace.measure_noise_by(noise_meter, model)
        first = int(call.arguments["initial_epoch"])
        epochs = {"initial_epoch": first, "epochs": first + call.epochs}
        return model.fit(callbacks=callbacks, **{**arguments, **epochs})


class _EpochValidation(keras.callbacks.Callback):
    """Puts what validation measures after an epoch into its logs, as `fit` does.

    It adds the training seconds and the value of the metric to a curve.
    """

    def __init__(
        self,
        batches: Any,
        clock: TrainingClock,
        measured: Any,
        metric: str,
        every: Any,
        curve: list[tuple[float, float]],
    ) -> None:
        super().__init__()
        self._batches, self._clock, self._measured = batches, clock, measured
        self._metric, self._every = metric, every  # as `validation_freq`: a number, or epochs
        self._curve = curve

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not self._is_due(epoch + 1):
            return
        with self._clock.paused(), self._measured():
            found = measure_validation(self.model, self._batches)
        logs |= {f"val_{name}": value for name, value in found.items()}
        if self._metric in logs:
            self._curve.append((self._clock.seconds, logs[self._metric]))

    def _is_due(self, epoch: int) -> bool:
        if isinstance(self._every, int):
            return epoch % self._every == 0
        return epoch in self._every


def _hand_over(model: keras.Model, own: keras.Model) -> None:
    """Give the user's model the weights of another one that was trained for it."""
    shapes = [[tuple(each.shape) for each in one.weights] for one in (model, own)]
    if shapes[0] != shapes[1]:
        raise ModelError(
            "The winner's weights must fit the model that was to be trained",
            f"{len(shapes[0])} weights for {len(shapes[1])}",
            "Take the winner's own code: kbatch export",
        )
    own.set_weights(model.get_weights())
