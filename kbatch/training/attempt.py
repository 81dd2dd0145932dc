"""Attempt: one model's life: made, trained once, forgotten, with the clock running from the first moment."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import keras

from kbatch.building.making import Maker
from kbatch.data.batches import Data
from kbatch.device import leak
from kbatch.device.oom import is_out_of_memory
from kbatch.outcome import Outcome
from kbatch.recipe import Recipe
from kbatch.training.goal import Goal
from kbatch.training.running import Around, run
from kbatch.training.stopwatch import Stopwatch


class Attempt:
    """One model from `build` to the end of its training.

    Attributes:
        stopwatch: Runs since the attempt was made.
        failure: `Outcome` of a model that did not fit into memory when it was built, else `None`.
    """

    def __init__(self) -> None:
        # Before the clock runs: collecting the graphs of many models at once, in the middle of a later one's first step,
        # was seen to take minutes.
        gc.collect()
        self._registered = leak.registered()
        self.stopwatch = Stopwatch()
        self.failure: Outcome | None = None

    def make(self, maker: Maker, recipe: Recipe, hp: Any = None) -> keras.Model:
        """The compiled model, or an empty one if memory ran out, which is an outcome and no error."""
        with self.stopwatch.part("build"):
            try:
                return maker.make(recipe, hp)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                self.failure = Outcome(ended="out_of_memory", message=str(error)[:2000])
                return keras.Sequential()

    def refuse(self, message: str) -> keras.Model:
        """An empty model for a recipe that is known not to fit into memory, which is an outcome and no error."""
        self.failure = Outcome(ended="out_of_memory", message=message)
        return keras.Sequential()

    def train(self, model: keras.Model, recipe: Recipe, data: Data, goal: Goal, around: Around) -> Outcome:
        """Train the model for the goal's seconds; its outcome tells the seconds since this attempt was made."""
        outcome = self.failure or run(model, recipe, data, goal, around)
        return self.stopwatch.stop(replace(outcome, learning_rate=outcome.learning_rate or recipe.learning_rate))

    def forget(self) -> None:
        """Give back what TensorFlow holds of the model beyond its life."""
        leak.purge(self._registered)
