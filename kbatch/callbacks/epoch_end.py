"""The end of an epoch: callbacks and checkpoint, timed separately."""

from __future__ import annotations

from collections.abc import Callable

import keras

from kbatch.callbacks.horizon import Horizon
from kbatch.callbacks.training_clock import TrainingClock


class EpochEnd:
    """Three callbacks that time the user's callbacks and the checkpoint.

    They also finish the horizon before the checkpoint if a callback of the user's stopped the
    training. Put them around the others:
    `[clock, before, horizon, *user's, between, *checkpoint, after]`.

    Args:
        clock: `TrainingClock` that resumes after the last callback.
        horizon: `Horizon` to finish.
        now: Function that returns the time in seconds.

    Attributes:
        callback_seconds: Float, wall-clock seconds of the user's `on_epoch_end`, without
            measurements.
        checkpoint_seconds: Float, wall-clock seconds of the callbacks between `between` and
            `after`.
        ended_at: Float, time at the end of the last epoch's callbacks; `None` before.
    """

    def __init__(self, clock: TrainingClock, horizon: Horizon, now: Callable[[], float]) -> None:
        self._clock, self._horizon, self._now = clock, horizon, now
        self.callback_seconds = self.checkpoint_seconds = 0.0
        self.ended_at: float | None = None
        self._began = self._between_at = self._validated = 0.0
        self.before = keras.callbacks.LambdaCallback(on_epoch_end=self._begin)
        self.between = keras.callbacks.LambdaCallback(on_epoch_end=self._settle)
        self.after = keras.callbacks.LambdaCallback(on_epoch_end=self._end)

    def _begin(self, epoch: int, logs: dict[str, float]) -> None:
        self._began, self._validated = self._now(), self._horizon.validation_seconds

    def _settle(self, epoch: int, logs: dict[str, float]) -> None:
        if self._horizon.model.stop_training and not self._horizon.finished:
            self._horizon.on_epoch_end(epoch, logs)
        self._between_at = self._now()
        validated = self._horizon.validation_seconds - self._validated
        self.callback_seconds += self._between_at - self._began - validated

    def _end(self, epoch: int, logs: dict[str, float]) -> None:
        self.ended_at = self._now()
        self.checkpoint_seconds += self.ended_at - self._between_at
        self._clock.resume()
