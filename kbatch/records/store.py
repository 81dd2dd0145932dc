"""Store: one line of JSON a training, appended and synced."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kbatch import plain_text
from kbatch.errors import RecordError
from kbatch.outcome import Outcome
from kbatch.plain_text import Below, Name, Number, Text, Whole
from kbatch.recipe import Recipe
from kbatch.records import files

BASELINE_TRIAL = -1
# A confirmation of a trial's recipe with the baseline's own hyperparameters, which parts a gain.
PARTED = "parted"
FRESH = ("confirmation", PARTED)  # purposes of trainings with fresh seeds


def key_of(values: Mapping[Name, Any], recipe: Recipe, seed: int, purpose: str) -> str:
    """Return a short hash that is equal for two trainings only if they are the same training."""
    text = json.dumps(
        [dict(values), json.loads(recipe.to_json()), seed, purpose], sort_keys=True, default=str
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def drawn_of(values: Mapping[str, Any], seed: int) -> str:
    """Return the drawn values and the seed of a trial as a text to compare."""
    return json.dumps([dict(values), seed], sort_keys=True, default=str)


@dataclass(frozen=True)
class Record:
    """One training that ended."""

    key: Name  # hash that identifies the training (see `key_of`)
    # `"search"`, `"baseline"`, `"confirmation"` or `"parted"` (a confirmation of the trial's recipe
    # with the baseline's own hyperparameters)
    purpose: Name
    trial: Whole  # number of the KerasTuner trial; -1 for the baseline
    seed: Whole  # seed of the weights, of the order of the data and of dropout
    recipe: Recipe
    outcome: Outcome
    score: Number  # score of the outcome; 0 if the training ended in an error, NaN or a crash
    # values of all hyperparameters of the trial, including the user's own
    values: Mapping[str, Any] = field(default_factory=dict)
    # number of the trial whose recipe a search trained again; `None` for any other training
    repeats: Whole | None = None
    # the learning rate scaled back to batch 32. `None` if the optimizer has a rate of its own.
    learning_rate_at_32: Number | None = None
    # metrics of the kept weights on test data, such as `{"accuracy": 0.71}`; empty without test
    # data
    test: Mapping[Name, float] = field(default_factory=dict)
    # path of the kept weights, relative to the project; empty if none were kept
    checkpoint: Below = ""
    # versions of Python, TensorFlow, Keras, KerasTuner and kbatch
    versions: Mapping[Name, Name] = field(default_factory=dict)
    device: Text = ""  # the device that trained
    finished_at: Name = ""  # date and time of the end (UTC, ISO 8601)

    @property
    def baseline(self) -> bool:
        """Boolean, whether this is a training of the baseline recipe."""
        return self.trial == BASELINE_TRIAL

    @property
    def drawn(self) -> str:
        """String, the drawn values and the seed (see `drawn_of`)."""
        return drawn_of(self.values, self.seed)

    @property
    def first_trial(self) -> int:
        """Integer, number of the trial that trained the recipe first."""
        return self.trial if self.repeats is None else self.repeats

    def to_dict(self) -> dict[str, Any]:
        """Return the record as a dict that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Record:
        """Read a record from the dict that `to_dict` made, also after JSON."""
        record = plain_text.read_json(cls, fields, _no_record)
        record.outcome.checked()
        return record


def _no_record(received: str) -> RecordError:
    return RecordError(
        "A record must have the fields that `Record.to_dict` writes",
        received,
        "Read it with the version of kbatch that wrote it",
    )


RECORDS_FILE = "records.jsonl"


@dataclass(frozen=True)
class RecordLine:
    """One line of the file."""

    event: str  # `"started"`, `"interrupted"` or `"ended"`
    key: str  # hash that identifies the training (see `key_of`)
    record: Record | None = None  # of a training that ended, else `None`


def read(path: Path) -> list[RecordLine]:
    """Read all complete lines of a file of records.

    A last line that is incomplete is left out, with a warning.
    """
    rows = (files.read(path) or b"").split(b"\n")
    lines = []
    for number, row in enumerate(rows, 1):
        try:
            if row:
                lines.append(_parsed(row))
        except RecordError as error:
            if number < len(rows):
                raise RecordError(
                    f"Every line of {path} must be a record",
                    f"line {number}: {row[:60]!r}… ({error.received})",
                    "Put back a copy of the file, or remove that line: what it held is then "
                    "trained again",
                ) from error
            warnings.warn(
                f"{path}: the last line is incomplete and was ignored: {row[:60]!r}…", stacklevel=2
            )
    return lines


class Store:
    """The records of one project, appended line by line and synced to disk."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory) / RECORDS_FILE
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordError(
                "The folder of the records must be writable",
                f"{self.path.parent}: {error.strerror}",
                "Pass another folder",
            ) from error
        self._lines: list[RecordLine] = []
        self.read_again()

    def read_again(self) -> None:
        """Read the file again, since another process may have written to it."""
        self._lines = read(self.path)
        self._repaired = False

    def _drop_incomplete_line(self) -> None:
        """Remove a half-written last line, or end a whole one, before the next line is appended."""
        text = files.read(self.path) or b""
        if text and not text.endswith(b"\n"):
            only_end_lost = len(self._lines) == len(text.splitlines())
            with open(self.path, "r+b") as file:
                if only_end_lost:
                    file.seek(0, os.SEEK_END)
                    file.write(b"\n")
                else:
                    file.truncate(text.rfind(b"\n") + 1)
        self._repaired = True

    def finished(self, key: str) -> Record | None:
        """Return the record of a training that ended, or `None`."""
        of_key = (line.record for line in reversed(self._lines) if line.key == key)
        return next((record for record in of_key if record), None)

    def unfinished_starts(self, key: str) -> int:
        """Count how often the process of a training died: it started, but has no end.

        A training that the user interrupted did not die.
        """
        events = [line.event for line in self._lines if line.key == key]
        return events.count("started") - events.count("interrupted")

    def records(self) -> list[Record]:
        """Return all records, in the order in which the trainings ended."""
        return [line.record for line in self._lines if line.record]

    def start(self, key: str) -> None:
        """Write that a training is about to start."""
        self._append({"event": "started", "key": key})

    def interrupt(self, key: str) -> None:
        """Write that the user stopped a training, so that it does not count as a crash.

        On a full disk, remove the line of its start instead, which needs no room.
        """
        try:
            self._append({"event": "interrupted", "key": key})
        except RecordError:
            if not self._lines or self._lines[-1] != RecordLine("started", key):
                raise
            text = files.read(self.path) or b""
            os.truncate(self.path, text.rfind(b"\n", 0, len(text) - 1) + 1)
            self._lines.pop()

    def end(self, record: Record) -> None:
        """Write the record of a training that ended."""
        self._append({"event": "ended", "key": record.key, "record": record.to_dict()})

    def _append(self, fields: dict[str, Any]) -> None:
        """Append one line; if that fails, leave the file as it was."""
        row = json.dumps(fields, allow_nan=True).encode() + b"\n"
        try:
            if not self._repaired:
                self._drop_incomplete_line()
            with open(self.path, "ab", buffering=0) as file:
                before, left = file.seek(0, os.SEEK_END), memoryview(row)
                try:
                    while left:
                        left = left[file.write(left) :]
                    os.fsync(file.fileno())
                except OSError:
                    with contextlib.suppress(OSError):
                        os.truncate(self.path, before)
                    raise
        except OSError as error:
            raise files.refusal(error, self.path) from error
        self._lines.append(_line(json.loads(row)))


@functools.lru_cache(maxsize=20_000)
def _parsed(row: bytes) -> RecordLine:
    """A line of the file; a live page reads the same lines again and again."""
    return _line(plain_text.parse_json(row, _no_line))


def _line(fields: Any) -> RecordLine:
    line = plain_text.read_json(RecordLine, fields, _no_line)
    if line.record is not None:
        line.record.outcome.checked()
    return line


def _no_line(received: str) -> RecordError:
    return RecordError(
        "A line of records must hold an event and the key of its training",
        received,
        "Remove the line",
    )
