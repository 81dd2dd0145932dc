"""The instruments of one training: its callbacks in their order, and their measurements."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from typing import Any

import keras

from kbatch.callbacks.clock import CountingClock, TrainingClock
from kbatch.callbacks.horizon import EpochEnd, Horizon
from kbatch.callbacks.rate import MovingAverage
from kbatch.callbacks.user_callbacks import UserCallback
from kbatch.data.validation import Data
from kbatch.goal import Goal
from kbatch.outcome import Outcome
from kbatch.recipe import Recipe
from kbatch.runtime import device_memory
from kbatch.runtime.nvidia import Sampler
from kbatch.training.pace import Pace, most_updates
from kbatch.training.run_options import RunOptions


class Instruments:
    """The callbacks of one training, in their order, and their measurements.

    Args:
        recipe: `Recipe` to follow.
        data: Examples to train on and batches to measure on.
        goal: Seconds and metric.
        options: The user's callbacks, and the rest.
        input_seconds: Float, seconds per batch of the input pipeline.
        entered: Float, when the training was begun, on `time.perf_counter`.

    Attributes:
        clock: `TrainingClock`.
        pace: `Pace`.
        horizon: `Horizon`.
        sampler: Samples the use of the GPU inside its `with`.
        callbacks: All callbacks, in their order.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: Data,
        goal: Goal,
        options: RunOptions,
        input_seconds: float,
        entered: float,
    ) -> None:
        self._entered = entered
        self._input_probe_seconds = time.perf_counter() - entered
        of_pass, steps = data.training.examples, recipe.steps_per_update
        # a growing batch is charged for input as in its first size: few of its batches are prepared
        smallest = math.ceil(of_pass / recipe.batch_size) / most_updates(recipe, of_pass)
        self.clock = TrainingClock(steps, input_seconds=input_seconds * steps * smallest)
        self.pace = Pace(recipe, of_pass, goal, options, self.clock, lambda: self.horizon.curve)
        self._counting = (
            None if options.examples is None else CountingClock(self.clock, self.pace.examples)
        )
        self._average: MovingAverage | None = None
        if recipe.ema is not None:
            self._average = MovingAverage(self.clock, recipe.ema)
        self.horizon = Horizon(
            options.examples or goal.seconds,
            data.validation,
            self._counting or self.pace.horizon_clock(),
            goal.metric,
            goal.direction,
            goal.target,
            on_progress=options.on_progress,
            measured=nullcontext if self._average is None else self._average.measured,
            goes_on=options.goes_on,
        )
        self._epoch_end = EpochEnd(self.clock, self.horizon, time.perf_counter)
        self._users = [UserCallback(callback, self.horizon) for callback in options.callbacks]
        self._first_batch = _FirstBatch()
        self._first_times = _FirstTimes(self.clock, self.horizon)
        self.sampler = Sampler()
        self.callbacks = [
            *self._around_users(),
            *options.checkpoint_callbacks,
            self._epoch_end.after,
            self._first_batch,
            self._first_times,
        ]

    def outcome(self, ended: str | None) -> Outcome:
        """Return the measurements, right after the training.

        Args:
            ended: How the training ended, if by an error; else `None`.
        """
        clock, horizon, used = self.clock, self.horizon, self.sampler.result()
        load = {} if used is None else vars(used)
        first_peak, peak = self._first_times.peak_bytes, device_memory.bytes_peak()
        if first_peak is not None and clock.updates <= self._first_times.updates:
            peak = max(first_peak, peak or 0)  # there is no later update
        curve = tuple(horizon.curve)
        if self._counting:
            curve = self._counting.in_seconds(horizon.curve)
        finite = {name: value for name, value in horizon.metrics.items() if math.isfinite(value)}
        return Outcome(
            ended=ended or horizon.ended or "callback",
            curve=curve,
            curve_updates=tuple(horizon.curve_updates),
            value=None if ended else horizon.value,
            metrics=finite,
            train_seconds=clock.seconds,
            median_update_seconds=clock.median_update_seconds,
            updates=clock.updates,
            examples=self.pace.examples(),
            seconds=self._seconds(),
            peak_bytes=peak,
            utilisation={name: value for name, value in load.items() if value is not None},
            stopped_by=horizon.stopped_by,
            first_update_peak_bytes=first_peak,
        )

    def _around_users(self) -> list[keras.callbacks.Callback]:
        """The callbacks of kbatch with the user's in between."""
        average = [] if self._average is None else [self._average]
        return [
            self.clock,
            self._epoch_end.before,
            *average,
            *self.pace.around([self.horizon, *self._users]),
            self._epoch_end.between,
        ]

    def _seconds(self) -> dict[str, float]:
        """Wall-clock seconds of each part of the training."""
        left = time.perf_counter()
        began = self._first_batch.at or left
        ended = self._epoch_end.ended_at or left
        first_step = max(self.clock.first_step_seconds, 0.0) if self.clock.updates else 0.0
        users = sum(user.batch_seconds for user in self._users)
        return {
            "input_probe": self._input_probe_seconds,
            "setup": began - self._entered - self._input_probe_seconds,
            "finish": left - ended,
            "first_step": first_step,
            "training": sum(self.clock.update_seconds) - first_step,
            "stopped": self.clock.stopped_seconds,
            "validation": self.horizon.validation_seconds,
            "callbacks": self._epoch_end.callback_seconds + users,
            "checkpoint": self._epoch_end.checkpoint_seconds,
        }


class _FirstBatch(keras.callbacks.Callback):
    """Notes when the first batch begins."""

    def __init__(self) -> None:
        super().__init__()
        self.at: float | None = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.at = self.at or time.perf_counter()


class _FirstTimes(keras.callbacks.Callback):
    """Notes the peak bytes of the first update and the first validation on a GPU.

    After each of them a new peak begins.

    Attributes:
        peak_bytes: Integer, their peak; `None` before the first update.
        updates: Integer, updates up to the later of them.
    """

    def __init__(self, clock: TrainingClock, horizon: Horizon) -> None:
        super().__init__()
        self._clock, self._horizon = clock, horizon
        self._validated = False
        self.peak_bytes: int | None = None
        self.updates = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        updated = self._clock.updates == 1 and self.peak_bytes is None
        validated = bool(self._horizon.curve) and not self._validated
        if not device_memory.tries_algorithms() or not (updated or validated):
            return
        self._validated = self._validated or validated
        self.peak_bytes = max(self.peak_bytes or 0, device_memory.bytes_peak() or 0)
        self.updates = self._clock.updates
        device_memory.reset_peak()
