"""Warm-up: a learning rate that rises over the first updates, and stays readable for callbacks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from kbatch.callbacks.training_clock import TrainingClock


class Warmup:
    """Two callbacks that raise the learning rate linearly over the first weight updates.

    Update `i` (counted from 0) of `n` trains at `rate * (i + 1) / (n + 1)`, so that no update is
    wasted at rate 0. The rate stays a variable of the optimizer. At the start and at the end of an
    epoch, callbacks between `before` and `after` see the full rate, and may set another.

    Put the two callbacks around the user's: `[clock, warmup.before, *user's, warmup.after]`.

    Args:
        clock: `TrainingClock` that counts the updates.
        updates: Integer, number of weight updates over which the rate rises.
    """

    def __init__(self, clock: TrainingClock, updates: int) -> None:
        self._clock, self._updates = clock, updates
        self._full = self._shown = 0.0
        self.before = keras.callbacks.LambdaCallback(
            on_epoch_begin=self._show, on_epoch_end=self._show
        )
        self.after = keras.callbacks.LambdaCallback(
            on_train_begin=self._take,
            on_epoch_begin=self._take,
            on_epoch_end=self._take,
            on_train_batch_begin=self._rise,
        )

    @property
    def _rate(self) -> float:
        return float(self.after.model.optimizer.learning_rate)

    def _set(self, rate: float) -> None:
        self.after.model.optimizer.learning_rate = rate
        self._shown = float(np.float32(rate))

    def _show(self, epoch: int, logs: Any = None) -> None:
        """Show the full rate to the user's callbacks."""
        if self._full and self._rate == self._shown:
            self._set(self._full)

    def _take(self, *ignored: Any) -> None:
        """Take the rate that the user's callbacks have left as the full rate."""
        self._full = self._shown = self._rate

    def _rise(self, batch: int, logs: Any = None) -> None:
        made = self._clock.updates
        if made > self._updates:
            return
        if self._rate != self._shown:  # a callback of the user's has set it between two batches
            self._take()
        self._set(self._full * min((made + 1) / (self._updates + 1), 1.0))
