"""Tuner: what of KerasTuner's tuners, trials and checkpoints a search touches."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import keras
import keras_tuner

from kbatch.errors import SearchError

OBJECTIVE = "score"
UNSCORED = -1.0  # below every score, so that KerasTuner keeps only the first weights and the last


class Announcement:
    """Tells KerasTuner's checkpoint, at the end of an epoch, whether these weights are the ones that are kept.

    Without a number for the objective it writes the weights at every epoch. Put its two callbacks
    around the checkpoint; nobody else sees the number.
    """

    def __init__(self) -> None:
        self.before = keras.callbacks.LambdaCallback(on_epoch_end=self._say)
        self.after = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: logs.pop(OBJECTIVE, None)
        )

    def _say(self, epoch: int, logs: dict[str, float]) -> None:
        """Put a score into the logs that is the best so far only at the first epoch and at the last."""
        logs[OBJECTIVE] = 0.0 if self.before.model.stop_training else UNSCORED


def only(callbacks: list[Any], kind: type[Any]) -> Any:
    """The one callback of a kind that KerasTuner gives to every trial."""
    found = [callback for callback in callbacks if isinstance(callback, kind)]
    if len(found) != 1:
        raise SearchError(
            "HyperModel.fit must be called by a tuner's search()",
            f"{len(found)} {kind.__name__}",
            "Without a tuner, use kbatch.train",
        )
    return found[0]


def check(tuner: Any) -> None:
    """Refuse, by name, what cannot be compared fairly."""
    if isinstance(tuner.oracle, keras_tuner.oracles.HyperbandOracle):
        raise SearchError(
            "Every trial must get the same seconds",
            "Hyperband, which gives them different ones",
            "Use RandomSearch, BayesianOptimization or GridSearch",
        )
    if getattr(tuner, "executions_per_trial", 1) != 1:
        raise SearchError(
            "executions_per_trial must be 1: an average of ratios is no score",
            tuner.executions_per_trial,
            "Use kbatch.confirm for more seeds",
        )
    if getattr(tuner, "distribution_strategy", None) is not None:
        raise SearchError(
            "A search must run on one device", "distribution_strategy", "Leave it out"
        )
    overriding = [name for name in ("optimizer", "loss", "metrics") if getattr(tuner, name, None)]
    if overriding:
        instead = "Leave them out of the tuner: the optimizer is an axis of Space, loss and metrics belong into compile() or kbatch.HyperModel"
        raise SearchError(
            "A tuner must not compile the models again",
            ", ".join(f"{name}=" for name in overriding),
            instead,
        )
    wanted = tuner.oracle.objective
    if getattr(wanted, "name", None) != OBJECTIVE or wanted.direction != "max":
        raise SearchError(
            "The tuner must maximize the score",
            f"objective={getattr(wanted, 'name', wanted)!r}",
            "Pass objective=kbatch.objective()",
        )


def narrow(tuner: Any, sizes: list[int]) -> None:
    """Take batch sizes out of a space that the tuner has declared, before it draws."""
    for axis in tuner.oracle.hyperparameters.space:
        if axis.name == "batch_size" and isinstance(
            axis, keras_tuner.engine.hyperparameters.Choice
        ):
            axis._values = sizes
            axis._default = axis._default if axis._default in sizes else sizes[-1]


def number(trial: Any) -> int:
    """KerasTuner's trial number, which it keeps as text."""
    return int(trial.trial_id)


def bring(kept: Path, wanted: Path) -> None:
    """Let a trial that was answered from another's record have its weights too."""
    if kept.exists() and not wanted.exists():
        wanted.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(kept, wanted)
