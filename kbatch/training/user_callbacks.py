"""The user's callbacks: which of them a search takes, and their copies for single trainings."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from kbatch.errors import SearchError

RATE_SETTERS = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)


def check(callbacks: Sequence[Any], *, schedule: bool) -> None:
    """Refuse callbacks that cannot work in a search, by name.

    Args:
        callbacks: The user's callbacks.
        schedule: Boolean, whether the model is compiled with an optimizer whose learning rate is a
            schedule.

    Raises:
        SearchError: If one cannot work; the message names it.
    """
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
    `kbatch.training.board`.
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
        copies([each], training)[0]
        if isinstance(each, keras.callbacks.TensorBoard)
        else next(copied)
        for each in callbacks
    ]


def copies(callbacks: Sequence[Any], training: str) -> list[Any]:
    """Return copies of the user's callbacks for a training outside KerasTuner.

    Their files do not overwrite those of trials.

    Args:
        callbacks: The user's callbacks.
        training: Name of the training, such as `"baseline"`. TensorBoard writes to a folder of this
            name, and the names of other files begin with it.
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
