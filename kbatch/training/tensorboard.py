"""TensorBoard: the trainings of a search in its HParams tab."""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api as hparams_api
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.summary import session_end_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from kbatch.axes import AXES, AXIS, RESERVED
from kbatch.callbacks import user_callbacks
from kbatch.errors import SearchError
from kbatch.outcome import Outcome
from kbatch.recipe import Recipe
from kbatch.records.at_most_once import name_of
from kbatch.records.store import FRESH, PARTED, Record
from kbatch.training.progress import Forecast, Watcher
from kbatch.training.search import Search

# Prefixes of the tags, by which TensorBoard groups its charts.
FINAL, CURVE, CURVE_IN_TIME = "final", "curve", "curve_over_milliseconds"
NUMBERS = {
    "train_seconds": "Seconds on the training clock.",
    "examples_per_second": "Examples per second of the training clock.",
    "peak_bytes": "Peak device memory above what was in use before.",
}

# Columns besides the hyperparameters that a tuner draws. No rate of an axis may be above 100.
OWN_COLUMNS = {
    "purpose": hparams_api.Discrete(["baseline", "confirmation", "search"]),
    "learning_rate": hparams_api.RealInterval(0.0, 100.0),
}


@dataclass(frozen=True)
class Session:
    """One training as TensorBoard shows it."""

    run: str  # name of the run; empty for that of the folder itself
    # name of the row in the HParams tab. The trainings of one recipe's confirmation share a row,
    # which shows their means.
    group: str
    key: str  # tells the training from others
    hparams: Mapping[str, Any]
    outcome: Outcome
    metric: str  # the measured metric, such as `"val_accuracy"`
    score: float | None  # its score; `None` for a training outside of a search
    ended_at: float  # unix time of its end

    @classmethod
    def of(cls, record: Record, metric: str) -> Session:
        """Return the session of a record."""
        run = name_of(record.purpose, record.trial, record.seed)
        row = run
        if record.purpose == "confirmation":
            row = f"{'baseline' if record.baseline else record.trial}, confirmed"
        elif record.purpose == PARTED:
            row = f"{record.trial}, confirmed with the baseline's own values"
        return cls(
            run=run,
            group=row,
            key=record.key,
            hparams=hparams_of(record),
            outcome=record.outcome,
            metric=metric,
            score=record.score,
            ended_at=_unix(record.finished_at),
        )

    def events(self) -> list[Event]:
        """Return all events of the session.

        The time of a measurement is the begin of the training plus its training seconds, so that
        TensorBoard's relative axis shows training seconds.
        """
        outcome = self.outcome
        began = self.ended_at - outcome.seconds.get("total", outcome.train_seconds)
        started = hparams_api.hparams_pb(self.hparams, trial_id=self.group, start_time_secs=began)
        status = api_pb2.STATUS_FAILURE if outcome.failed else api_pb2.STATUS_SUCCESS
        events = [Event(wall_time=began, summary=started)]
        for mark, (seconds, value) in enumerate(outcome.curve):
            at, milliseconds = began + seconds, round(1000 * seconds)
            events.append(_scalar(CURVE_IN_TIME, self.metric, value, at, milliseconds))
            if outcome.curve_updates:  # old records lack them
                updates = outcome.curve_updates[mark]
                events.append(_scalar(CURVE, self.metric, value, at, updates))
        for name, number in self._numbers().items():
            if number is not None:
                events.append(_scalar(FINAL, name, number, self.ended_at, outcome.updates))
        # its class is TensorFlow's, not that of TensorBoard's events
        ended = session_end_pb(status, self.ended_at).SerializeToString()
        return [*events, Event(wall_time=self.ended_at, summary=Summary.FromString(ended))]

    def _numbers(self) -> dict[str, float | None]:
        numbers = {name: getattr(self.outcome, name) for name in NUMBERS}
        return {"score": self.score, self.metric: self.outcome.value, **numbers}


def experiment(declared: Sequence[Any], sessions: Sequence[Session], metric: str) -> list[Event]:
    """Return the event that tells the HParams tab its columns and their domains."""
    columns = dict(OWN_COLUMNS)
    for name in dict.fromkeys(each.name for each in declared):
        same_name = [each for each in declared if each.name == name]
        seen = [each.hparams[name] for each in sessions if name in each.hparams]
        columns[name] = _domain(same_name, seen)
    hparams = [hparams_api.HParam(name, domain) for name, domain in columns.items()]
    about = {"score": "Accuracy held above chance, per second of the horizon.", metric: "Held."}
    metrics = [
        hparams_api.Metric(f"{FINAL}/{name}", display_name=name, description=words)
        for name, words in {**about, **NUMBERS}.items()
    ]
    summary = hparams_api.hparams_config_pb(hparams, metrics, time_created_secs=0.0)
    return [Event(wall_time=0.0, summary=summary)]


def hparams_of(record: Record) -> dict[str, Any]:
    """Return the hyperparameters of a record: purpose, learning rate, and all that were drawn.

    The baseline draws nothing; its axes have the values of its recipe.
    """
    recipe = record.recipe
    purpose = "confirmation" if record.purpose in FRESH else record.purpose
    hparams = {"purpose": purpose, **hparams_of_recipe(recipe, record.outcome)}
    if record.learning_rate_at_32 is not None:
        hparams[f"learning_rate_{recipe.optimizer}"] = record.learning_rate_at_32
    for name, value in record.values.items():
        below = AXIS[name].only_if if name in AXIS else None
        if below is None or record.values.get(below[0], below[1][0]) in below[1]:
            hparams[name] = value
    return hparams


def hparams_of_recipe(recipe: Recipe, outcome: Outcome) -> dict[str, Any]:
    """Return the fields of a recipe as hyperparameters, with the learning rate that was used."""
    fields = {
        axis.name: axis.absent if value is None else value
        for axis in AXES
        if axis.in_recipe
        for value in [getattr(recipe, axis.name)]
    }
    rate = outcome.learning_rate if recipe.learning_rate is None else recipe.learning_rate
    return fields if rate is None else {**fields, "learning_rate": rate}


def _domain(same_name: Sequence[Any], seen: Iterable[Any]) -> hparams_api.Domain:
    """The domain of KerasTuner's hyperparameters of one name, which stand below other values."""
    if all(hasattr(each, "min_value") for each in same_name):
        lowest = min(float(each.min_value) for each in same_name)
        return hparams_api.RealInterval(lowest, max(float(each.max_value) for each in same_name))
    values = dict.fromkeys(value for each in same_name for value in each.values)
    values |= dict.fromkeys(seen)
    kind = type(next(iter(values)))
    return hparams_api.Discrete([value for value in values if type(value) is kind], dtype=kind)


def _unix(date_and_time: str) -> float:
    """A date and time of ISO 8601 as Unix time; 0 if a record has none."""
    if not date_and_time:
        return 0.0
    return datetime.datetime.fromisoformat(date_and_time).timestamp()


def _scalar(prefix: str, name: str, number: float, at: float, step: int) -> Event:
    value = Summary.Value(tag=f"{prefix}/{name}", simple_value=number)
    return Event(wall_time=at, step=step, summary=Summary(value=[value]))


EVENT_FORMAT = "brain.Event:2"  # the first event of a file


def event_file_name(kind: str, at: float, key: str) -> str:
    """Return the name of a file of events; of the same events it is the same."""
    return f"events.out.tfevents.{int(at):010d}.kbatch-{kind}.{key}"


def event_files(folder: str, kind: str) -> set[str]:
    """Return the names of the files of one kind in a folder, or in none."""
    found = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else ()
    return {name for name in found if f".kbatch-{kind}." in name and not name.endswith(".tmp")}


def write_events(path: str, events: Iterable[Event]) -> None:
    """Write a file of events, unless it is there with these very events."""
    content = io.BytesIO()
    writer = RecordWriter(content)
    for event in (Event(wall_time=0.0, file_version=EVENT_FORMAT), *events):
        writer.write(event.SerializeToString(deterministic=True))
    with _explained():
        if tf.io.gfile.exists(path) and _read(path) == content.getvalue():
            return
        tf.io.gfile.makedirs(os.path.dirname(path))
        half = f"{path}.tmp"
        with tf.io.gfile.GFile(half, "wb") as file:
            file.write(content.getvalue())
        tf.io.gfile.rename(half, path, overwrite=True)


def make_log_folder(folder: str) -> None:
    """Make a folder, if it is not there."""
    with _explained():
        tf.io.gfile.makedirs(folder)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Tell of TensorFlow's errors of files in kbatch's words."""
    try:
        yield
    except tf.errors.OpError as error:
        raise SearchError(
            "The log_dir of TensorBoard must be a folder that can be written",
            error.message,
            "Pass another log_dir, or make room: finished trainings are kept",
        ) from error


def _read(path: str) -> bytes:
    with tf.io.gfile.GFile(path, "rb") as file:
        return bytes(file.read())


EXPERIMENT, SESSION = "experiment", "session"  # kinds of files


class Board(Watcher):
    """Writes every training of a search for TensorBoard, once it has ended.

    What is written follows from the records, so that a resumed search adds nothing twice, and
    brings what an earlier run without TensorBoard left out.
    """

    def __init__(self, search: Search, declared: Callable[[], Sequence[Any]]) -> None:
        self._shown, self._declared = search.watcher, declared
        self._metric = search.goal.metric
        self._folders = user_callbacks.log_dirs(checked_callbacks(search.arguments.callbacks))
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
        name = event_file_name(EXPERIMENT, 0.0, "columns")
        for folder in self._folders:
            write_events(os.path.join(folder, name), events)

    def _warn_of_others(self, folder: str) -> None:
        """Warn of runs of another search in the same folder."""
        own = {_file_of(session) for session in self._sessions}
        runs = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
        paths = [os.path.join(folder, run.rstrip("/")) for run in runs]
        others = [path for path in paths if event_files(path, SESSION) - own]
        if others:
            warnings.warn(
                f"{folder} holds {len(others)} TensorBoard runs of another search. Runs of the "
                "same name are replaced: pass another log_dir to keep them.",
                stacklevel=2,
            )


def shown_search(search: Search, declared: Callable[[], Sequence[Any]]) -> Search:
    """Return a search whose trainings TensorBoard shows, if its callbacks ask for that."""
    if not user_callbacks.log_dirs(search.arguments.callbacks):
        return search
    return replace(search, watcher=Board(search, declared))


def checked_callbacks(callbacks: Sequence[Any]) -> tuple[Any, ...]:
    """Return the user's callbacks, once the folders of TensorBoard are made."""
    for folder in user_callbacks.log_dirs(callbacks):
        make_log_folder(folder)
    return tuple(callbacks)


def write_training(
    callbacks: Sequence[Any],
    recipe: Recipe,
    outcome: Outcome,
    metric: str,
    values: Mapping[str, Any],
) -> None:
    """Write one training outside of a search, for each callback of TensorBoard."""
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
    there, own = event_files(run, SESSION), _file_of(session)
    if own in there:
        return
    write_events(os.path.join(run, own), session.events())
    for name in there:
        tf.io.gfile.remove(os.path.join(run, name))


def _file_of(session: Session) -> str:
    return event_file_name(SESSION, session.ended_at, session.key)
