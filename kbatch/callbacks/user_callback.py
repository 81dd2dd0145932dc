"""A stand-in for a callback of the user's during a training."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from kbatch.callbacks.horizon import Horizon


class UserCallback(keras.callbacks.Callback):
    """Stand-in for one callback of the user's, which it calls with the clock paused.

    Validation is measured at the marks of the horizon, not after every epoch. A callback that
    monitors a validation value is called only after epochs with a measurement, so that its patience
    counts these epochs.

    The clock is paused at batches too: TensorBoard writes its graph after the first batch.

    Args:
        callback: `keras.callbacks.Callback` of the user.
        horizon: `Horizon` of the training, which is told which callback stopped the training.

    Attributes:
        batch_seconds: Float, wall-clock seconds of the callback at the start and the end of
            batches.
    """

    def __init__(self, callback: keras.callbacks.Callback, horizon: Horizon) -> None:
        super().__init__()
        self._callback, self._horizon = callback, horizon
        self.batch_seconds = 0.0
        self._works_at_batches = works_at_batches(callback)
        self._needs_validation = looks_at_validation(callback)

    def set_params(self, params: Any) -> None:
        """Pass on Keras' parameters of the training."""
        super().set_params(params)
        self._callback.set_params(params)

    def set_model(self, model: keras.Model) -> None:
        """Pass on the model."""
        super().set_model(model)
        self._callback.set_model(model)

    def on_train_begin(self, logs: Any = None) -> None:
        """Pass on."""
        self._callback.on_train_begin(logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Pass on."""
        self._callback.on_epoch_begin(epoch, logs)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Pass on, with the clock paused."""
        if self._works_at_batches:
            with self._off_the_clock():
                self._callback.on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Pass on, with the clock paused; note if the callback stopped the training."""
        if self._works_at_batches:
            with self._off_the_clock():
                self._callback.on_train_batch_end(batch, logs)
            self._note()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Pass on if the callback's value was measured; note if it stopped the training."""
        if self._needs_validation and not self._horizon.measured_in_epoch:
            return
        self._callback.on_epoch_end(epoch, logs)
        self._note()

    def on_train_end(self, logs: Any = None) -> None:
        """Pass on."""
        self._callback.on_train_end(logs)

    @contextmanager
    def _off_the_clock(self) -> Iterator[None]:
        began = time.perf_counter()
        with self._horizon.clock.paused():
            yield
        self.batch_seconds += time.perf_counter() - began

    def _note(self) -> None:
        unexplained = self._horizon.ended is None and not self._horizon.stopped_by
        if self.model.stop_training and unexplained:
            self._horizon.stopped_by = type(self._callback).__name__


def looks_at_validation(callback: keras.callbacks.Callback) -> bool:
    """Tell whether a callback decides by a validation value, or names its files by one."""
    monitors = str(getattr(callback, "monitor", "")).startswith("val_")
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        return (monitors and callback.save_best_only) or "{val_" in str(callback.filepath)
    return monitors


def works_at_batches(callback: keras.callbacks.Callback) -> bool:
    """Tell whether a callback does anything at the start or the end of batches."""
    hooks = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
    return any(
        hook in vars(callback)
        or getattr(type(callback), hook) is not getattr(keras.callbacks.Callback, hook)
        for hook in hooks
    )
