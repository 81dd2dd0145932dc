"""TensorBoard's view of a search: every training is a run, and a row of the HParams tab."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from kbatch.axes import RESERVED
from kbatch.callbacks import user_callbacks
from kbatch.outcome import Outcome
from kbatch.recipe import Recipe
from kbatch.records.store import Record
from kbatch.training import event_file
from kbatch.training.forecast import Forecast
from kbatch.training.progress import Watcher
from kbatch.training.search import Search
from kbatch.training.session import Session, experiment, hparams_of_recipe

EXPERIMENT, SESSION = "experiment", "session"  # kinds of files


class Board(Watcher):
    """Writes every training of a search for TensorBoard, once it has ended.

    What is written follows from the records, so that a resumed search adds nothing twice, and
    brings what an earlier run without TensorBoard left out.

    Args:
        search: `Search` whose callbacks have the folders to write to.
        declared: Function that returns KerasTuner's hyperparameters.
    """

    def __init__(self, search: Search, declared: Callable[[], Sequence[Any]]) -> None:
        self._shown, self._declared = search.watcher, declared
        self._metric = search.goal.metric
        self._folders = user_callbacks.log_dirs(checked(search.arguments.callbacks))
        self._sessions = [
            Session.of(record, self._metric) for record in search.project.store.records()
        ]
        for folder in self._folders:
            self._warn_of_others(folder)
            for session in self._sessions:
                _write_session(folder, session)
        self._write_experiment()

    def begins(self, forecast: Forecast, parts: str) -> None:
        """Pass on."""
        self._shown.begins(forecast, parts)

    def started(self, purpose: str, trial: int, recipe: Recipe, seconds: float) -> None:
        """Pass on."""
        self._shown.started(purpose, trial, recipe, seconds)

    def progress(self, train_seconds: float, value: float | None) -> None:
        """Pass on."""
        self._shown.progress(train_seconds, value)

    def ended(self, record: Record) -> None:
        """Write the training, and pass on."""
        self._write(record)
        self._shown.ended(record)

    def answered(self, record: Record) -> None:
        """Write the training, if it is not there yet, and pass on."""
        self._write(record)
        self._shown.answered(record)

    def _write(self, record: Record) -> None:
        session = Session.of(record, self._metric)
        if session not in self._sessions:
            self._sessions.append(session)
        for folder in self._folders:
            _write_session(folder, session)
        self._write_experiment()

    def _write_experiment(self) -> None:
        """Write the columns of the HParams tab, once the baseline's values are known."""
        if not self._sessions:
            return
        events = experiment(self._declared(), self._sessions, self._metric)
        name = event_file.name_of(EXPERIMENT, 0.0, "columns")
        for folder in self._folders:
            event_file.write(os.path.join(folder, name), events)

    def _warn_of_others(self, folder: str) -> None:
        """Warn of runs of another search in the same folder."""
        own = {_file_of(session) for session in self._sessions}
        runs = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
        paths = [os.path.join(folder, run.rstrip("/")) for run in runs]
        others = [path for path in paths if event_file.names(path, SESSION) - own]
        if others:
            warnings.warn(
                f"{folder} holds {len(others)} TensorBoard runs of another search. Runs of the "
                "same name are replaced: pass another log_dir to keep them.",
                stacklevel=2,
            )


def shown(search: Search, declared: Callable[[], Sequence[Any]]) -> Search:
    """Return a search whose trainings TensorBoard shows, if its callbacks ask for that.

    Args:
        search: `Search` with the user's callbacks.
        declared: Function that returns KerasTuner's hyperparameters.
    """
    if not user_callbacks.log_dirs(search.arguments.callbacks):
        return search
    return replace(search, watcher=Board(search, declared))


def checked(callbacks: Sequence[Any]) -> tuple[Any, ...]:
    """Return the user's callbacks, once the folders of TensorBoard are made.

    Raises:
        SearchError: If one cannot be made.
    """
    for folder in user_callbacks.log_dirs(callbacks):
        event_file.make_folder(folder)
    return tuple(callbacks)


def write_training(
    callbacks: Sequence[Any],
    recipe: Recipe,
    outcome: Outcome,
    metric: str,
    values: Mapping[str, Any],
) -> None:
    """Write one training outside of a search, for each callback of TensorBoard.

    Args:
        callbacks: The user's callbacks.
        recipe: `Recipe` of the training.
        outcome: `Outcome` of the training.
        metric: String, the metric of the training.
        values: Values of the user's hyperparameters.
    """
    own = {name: value for name, value in values.items() if name not in RESERVED}
    for folder in user_callbacks.log_dirs(callbacks):
        session = Session(
            run="",
            group=os.path.basename(os.path.abspath(folder)),
            key="train",
            hparams={**hparams_of_recipe(recipe, outcome), **own},
            outcome=outcome,
            metric=metric,
            score=None,
            ended_at=time.time(),
        )
        _write_session(folder, session)


def _write_session(folder: str, session: Session) -> None:
    """Write a session that is not there yet, instead of an older one of its run."""
    run = os.path.join(folder, session.run) if session.run else folder
    there, own = event_file.names(run, SESSION), _file_of(session)
    if own in there:
        return
    event_file.write(os.path.join(run, own), session.events())
    for name in there:
        tf.io.gfile.remove(os.path.join(run, name))


def _file_of(session: Session) -> str:
    return event_file.name_of(SESSION, session.ended_at, session.key)
