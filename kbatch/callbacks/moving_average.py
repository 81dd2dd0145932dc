"""The moving average of the weights in a training, which is measured in place of the weights."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras

from kbatch.callbacks.averaged_weights import AveragedWeights
from kbatch.callbacks.training_clock import TrainingClock


class MovingAverage(keras.callbacks.Callback):
    """Callback that averages the weights over the whole updates of a training.

    Put it between the clock and the horizon, which takes `measured` as its argument. Keras'
    `use_ema` averages after each pass of an accumulating optimizer; here only whole updates count.
    The time of averaging is on the clock.

    Args:
        clock: `TrainingClock` that counts the updates.
        momentum: Float between 0 and 1.
    """

    def __init__(self, clock: TrainingClock, momentum: float) -> None:
        super().__init__()
        self._clock, self._momentum = clock, momentum
        self._updates_seen = 0
        self._average: AveragedWeights | None = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Take the weights of a whole update into the average."""
        if self._clock.updates == self._updates_seen:
            return
        self._updates_seen = self._clock.updates
        if self._average is None:
            self._average = AveragedWeights(self.model, self._momentum)
        else:
            self._average.update()

    def measured(self) -> AbstractContextManager[None]:
        """Return a `with` block in which the model has the averaged weights."""
        return nullcontext() if self._average is None else self._average.in_place()
