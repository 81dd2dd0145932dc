"""User's callbacks: which a search takes, their copies, and their calls in a training."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras

from kbatch.callbacks.horizon import Horizon
from kbatch.errors import SearchError


class UserCallback(keras.callbacks.Callback):
    """Stand-in for one callback of the user's, which it calls with the clock paused.

    Validation is measured at the marks of the horizon, not after every epoch. A callback that
    monitors a validation value is called only after epochs with a measurement, so that its patience
    counts these epochs.

    The clock is paused at batches too: TensorBoard writes its graph after the first batch.

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


def is_of_keras(callback: keras.callbacks.Callback) -> bool:
    """Tell whether a callback is Keras' own, which holds to the model that it is given.

    Code of a user's may change settings that a trace holds, or reach the model in another way.
    """
    own = type(callback).__module__.startswith("keras.src.callbacks.")
    return own and not isinstance(callback, keras.callbacks.LambdaCallback)


def works_at_batches(callback: keras.callbacks.Callback) -> bool:
    """Tell whether a callback does anything at the start or the end of batches."""
    hooks = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
    return any(
        hook in vars(callback)
        or getattr(type(callback), hook) is not getattr(keras.callbacks.Callback, hook)
        for hook in hooks
    )


RATE_SETTERS = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)


def check_callbacks(callbacks: Sequence[Any], *, schedule: bool) -> None:
    """Refuse callbacks that cannot work in a search, by name."""
    for callback in callbacks:
        name = type(callback).__name__
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise SearchError(
                "Every training must begin at its first update",
                name,
                "Leave it out: finished trainings are kept, one that was stopped begins again",
            )
        _check_copy(callback)
        if schedule and isinstance(callback, RATE_SETTERS):
            raise SearchError(
                "A learning rate that a callback sets must be a number",
                f"{name}, and a model compiled with a learning-rate schedule",
                "Leave out the callback or the schedule",
            )


def _check_copy(callback: keras.callbacks.Callback) -> None:
    """Refuse a callback that cannot be copied, as TensorBoard's after a training."""
    try:
        copy.deepcopy(callback)
    except TypeError as error:
        raise SearchError(
            "Every trial must get copies of the callbacks",
            f"{type(callback).__name__}: {error}",
            "Make a new one, that no training has used and that holds no file or lock",
        ) from error


def belongs_to_trial(callback: Any) -> bool:
    """Return whether KerasTuner made a callback for one trial, as for TensorBoard's HParams."""
    return type(callback).__module__.startswith("tensorboard.plugins.hparams")


def without_trial(callbacks: Sequence[Any]) -> list[Any]:
    """Return the user's callbacks without KerasTuner's changes for a trial.

    KerasTuner adds a callback of HParams for each TensorBoard, and lets TensorBoard write to
    `<log_dir>/<trial>/execution0` (keras_tuner/src/engine/base_tuner.py, KerasTuner 1.4.8).
    """
    own = copy.deepcopy([callback for callback in callbacks if not belongs_to_trial(callback)])
    for callback in own:
        if isinstance(callback, keras.callbacks.TensorBoard):
            callback.log_dir = str(Path(callback.log_dir).parent.parent)
    return own


def log_dirs(callbacks: Sequence[Any]) -> list[str]:
    """Return the folders of the user's TensorBoard callbacks, each once."""
    boards = [each for each in callbacks if isinstance(each, keras.callbacks.TensorBoard)]
    return list(dict.fromkeys(str(board.log_dir) for board in boards))


def without_boards(callbacks: Sequence[Any]) -> list[Any]:
    """Return the callbacks that KerasTuner may know of.

    It would give TensorBoard a folder and rows of HParams of its own, besides those of
    `kbatch.training.tensorboard`.
    """
    return [each for each in callbacks if not isinstance(each, keras.callbacks.TensorBoard)]


def with_boards(others: Sequence[Any], callbacks: Sequence[Any], training: str) -> list[Any]:
    """Return a trial's callbacks: KerasTuner's copies, and those of TensorBoard where they stood.

    Args:
        others: Copies of `without_boards(callbacks)`.
        callbacks: The user's callbacks.
        training: Name of the training, and of TensorBoard's folder.
    """
    copied = iter(others)
    return [
        copies_of_callbacks([each], training)[0]
        if isinstance(each, keras.callbacks.TensorBoard)
        else next(copied)
        for each in callbacks
    ]


def copies_of_callbacks(callbacks: Sequence[Any], training: str) -> list[Any]:
    """Return copies of the user's callbacks for a training outside KerasTuner.

    Their files do not overwrite those of trials.
    """
    own = copy.deepcopy(list(callbacks))
    for callback in own:
        if isinstance(callback, keras.callbacks.TensorBoard):
            callback.log_dir = os.path.join(callback.log_dir, training)
        elif isinstance(callback, keras.callbacks.ModelCheckpoint):
            callback.filepath = _prefixed(callback.filepath, training)
        elif isinstance(callback, keras.callbacks.CSVLogger):
            callback.filename = _prefixed(callback.filename, training)
    return own


def _prefixed(path: Any, training: str) -> str:
    return str(Path(path).with_name(f"{training}.{Path(path).name}"))
