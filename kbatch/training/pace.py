"""Pace: batch sizes and the share of the rate (warm-up, decay) in a training, and its options."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from kbatch.callbacks.batch_schedule import SizeNow, by_noise, by_plateau, by_progress
from kbatch.callbacks.clock import GrowingClock, TrainingClock
from kbatch.callbacks.rate import PassEnd, RateCallbacks, warmup_share
from kbatch.data.order import Cuts
from kbatch.errors import ModelError
from kbatch.models.gradient_noise import INTERVAL, NoiseMeter
from kbatch.outcome import Goal
from kbatch.recipe import Recipe
from kbatch.recipe_words import CONSTANT
from kbatch.rules import batch_schedule, scaling


@dataclass(frozen=True)
class RunOptions:
    """The options of one training, besides model, recipe, data and goal."""

    seed: int = 0  # seed of the order of the data and of dropout
    own_policy: str = "float32"  # the user's dtype policy, set again afterwards
    callbacks: Sequence[keras.callbacks.Callback] = ()
    # callbacks that come last at the end of an epoch, when the kept weights are back
    checkpoint_callbacks: Sequence[keras.callbacks.Callback] = ()
    class_weight: Mapping[int, float] | None = None
    verbose: Any = 0
    # function that gets the training seconds and the last value measured, every tenth of a second.
    # Optional.
    on_progress: Callable[[float, float | None], None] | None = None
    # the largest micro-batch that has trained in this project; 0 if none has. An ambiguous error
    # (such as "No algorithm worked") is taken for out of memory only for a larger micro-batch than
    # this.
    largest_passed: int = 0
    # examples to train on instead of the goal's seconds, rounded up to whole updates. `None` for
    # the seconds.
    examples: int | None = None
    # function of the curve that is asked after each measurement, but the last, whether the training
    # goes on
    goes_on: Callable[[Sequence[tuple[float, float]]], bool] | None = None
    # weight updates from one whose gradient noise is measured to the next
    noise_interval: int = INTERVAL


class Pace:
    """The size of each batch of one training, and the learning rate that goes with it.

    Both follow the progress of the training: its share of the horizon on the training clock, or of
    its examples if these end it. The decay of the rate begins after warm-up. The rate of a smaller
    batch follows the usual rule of the optimizer, which a recipe is enough to tell.

    Attributes:
        cuts: `Cuts` of a growing batch; `None` for a constant one.
        share: Float, share of the learning rate that the last update trained at, warm-up aside.
    """

    def __init__(
        self,
        recipe: Recipe,
        of_pass: int,
        goal: Goal,
        options: RunOptions,
        clock: TrainingClock,
        curve: Callable[[], Sequence[tuple[float, float]]],
    ) -> None:
        self._recipe, self._of_pass, self._clock = recipe, of_pass, clock
        self._goal, self._options, self._curve = goal, options, curve
        self._decays_from: float | None = None
        self._noise_meter: NoiseMeter | None = None
        self._noise_scale: float | None = None
        self._reads_noise_at = 0
        self.share = 1.0
        self.cuts: Cuts | None = None
        if recipe.batch_schedule != CONSTANT:
            self.cuts = Cuts(self._size_now(), recipe.steps_per_update)

    def examples(self) -> int:
        """Return the number of examples trained on so far."""
        if self.cuts is None:
            return self._clock.updates * self._recipe.batch_size
        return self.cuts.examples(self._clock.updates)

    def measure_noise_by(self, noise_meter: NoiseMeter | None, model: keras.Model) -> None:
        """Take the measurement of the gradient noise, which begins with the training."""
        if noise_meter is None and self._recipe.growth.kind == "noise":
            raise ModelError(
                "A model must have Keras' own train_step, and train on one device, for its batch "
                "to grow by the noise scale",
                f"{type(model).__name__} with batch_schedule={self._recipe.batch_schedule!r}",
                "Take another schedule, such as exponential:8",
            )
        self._noise_meter = noise_meter

    def horizon_clock(self) -> TrainingClock | GrowingClock:
        """Return the clock for the horizon, which expects the seconds of the next update."""
        if self.cuts is None:
            return self._clock
        return GrowingClock(self._clock, self.cuts.size)

    def around(self, callbacks: Sequence[keras.callbacks.Callback]) -> list[Any]:
        """Return callbacks with those of the pace around them."""
        around = list(callbacks)
        if self._recipe.warmup_updates or self._recipe.schedule != "constant" or self.cuts:
            rate = RateCallbacks(self._share)
            around = [rate.before, *around, rate.after]
        if self.cuts:
            pass_end = PassEnd(self.examples, self._of_pass)
            around = [pass_end.before, *around, pass_end.after]
        return around

    def _size_now(self) -> SizeNow:
        growth = self._recipe.growth
        last, multiple = self._recipe.batch_size, self._recipe.accumulation_steps
        if growth.kind == "plateau":
            return by_plateau(
                growth,
                last,
                multiple,
                lambda: [value for _, value in self._curve()],
                self._goal.direction,
            )
        if growth.kind == "noise":
            return by_noise(growth, last, multiple, lambda: self._noise_scale)
        return by_progress(growth, last, multiple, self._progress)

    def _progress(self, examples: int) -> float:
        """Share of the training that is behind it after so many examples, or now on the clock."""
        if self._options.examples is not None:
            return examples / self._options.examples
        return self._clock.seconds / self._goal.seconds

    def _share(self) -> float:
        """Share of the full learning rate for the next update."""
        update, warmup = self._clock.updates, self._recipe.warmup_updates
        self._read_noise(update)
        self.share = self._decay() * self._of_batch(update)
        return self.share * warmup_share(update, warmup)

    def _read_noise(self, update: int) -> None:
        """Read the noise scale once in several updates, since it waits for the device.

        It is read here, since a thread of TensorFlow asks for the size.
        """
        if self._noise_meter is None or self._recipe.growth.kind != "noise":
            return
        if update >= self._reads_noise_at:
            self._noise_scale = self._noise_meter.noise_scale()
            self._reads_noise_at = update + self._options.noise_interval

    def _decay(self) -> float:
        if self._recipe.schedule == "constant" or self._clock.updates < self._recipe.warmup_updates:
            return 1.0
        progress = self._progress(self.examples())
        if self._decays_from is None:
            self._decays_from = progress
        left = 1 - self._decays_from
        done = (progress - self._decays_from) / left if left > 0 else 1.0
        return scaling.decay_factor(self._recipe.schedule, done)

    def _of_batch(self, update: int) -> float:
        if self.cuts is None:
            return 1.0
        rule = scaling.DEFAULT_LEARNING_RATE_RULES[self._recipe.optimizer]
        full = scaling.learning_rate_factor(self._recipe.batch_size, rule)
        return scaling.learning_rate_factor(self.cuts.size(update), rule) / full


def most_updates(recipe: Recipe, of_pass: int) -> int:
    """Return the most updates that one pass over the data takes."""
    smallest = recipe.batch_size
    if recipe.batch_schedule != CONSTANT:
        smallest = batch_schedule.first(smallest, recipe.growth.factor, recipe.accumulation_steps)
    return math.ceil(of_pass / smallest)
