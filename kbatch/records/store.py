"""The append-only file of trainings that started, were interrupted or ended."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbatch import json_form
from kbatch.errors import RecordError
from kbatch.records import atomic_file, disk
from kbatch.records.record import Record

FILE = "records.jsonl"


@dataclass(frozen=True)
class Line:
    """One line of the file.

    Attributes:
        event: `"started"`, `"interrupted"` or `"ended"`.
        key: String, hash that identifies the training (see `key_of`).
        record: `Record` of a training that ended, else `None`.
    """

    event: str
    key: str
    record: Record | None = None


def read(path: Path) -> list[Line]:
    """Read all complete lines of a file of records.

    A last line that is incomplete is left out, with a warning.

    Args:
        path: `Path` of the file; a missing file has no lines.

    Raises:
        RecordError: If a line before the last cannot be read, or the path is not a regular file.
    """
    rows = (atomic_file.read(path) or b"").split(b"\n")
    lines = []
    for number, row in enumerate(rows, 1):
        try:
            if row:
                lines.append(_line(json_form.parse(row, _no_line)))
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
    """The records of one project, appended line by line and synced to disk.

    Args:
        directory: Path of the folder for the records; made if it does not exist.

    Raises:
        RecordError: If the folder cannot be made or written, or a line before the last cannot be
            read.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory) / FILE
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordError(
                "The folder of the records must be writable",
                f"{self.path.parent}: {error.strerror}",
                "Pass another folder",
            ) from error
        self._lines: list[Line] = []
        self.read_again()

    def read_again(self) -> None:
        """Read the file again, since another process may have written to it."""
        self._lines = read(self.path)
        self._repaired = False

    def _drop_incomplete_line(self) -> None:
        """Remove a half-written last line, or end a whole one, before the next line is appended."""
        text = atomic_file.read(self.path) or b""
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
            if not self._lines or self._lines[-1] != Line("started", key):
                raise
            text = atomic_file.read(self.path) or b""
            os.truncate(self.path, text.rfind(b"\n", 0, len(text) - 1) + 1)
            self._lines.pop()

    def end(self, record: Record) -> None:
        """Write the record of a training that ended."""
        self._append({"event": "ended", "key": record.key, "record": record.to_dict()})

    def _append(self, fields: dict[str, Any]) -> None:
        """Append one line; if that fails, leave the file as it was.

        Raises:
            RecordError: If the disk is full, or the file cannot be written.
        """
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
            raise disk.refusal(error, self.path) from error
        self._lines.append(_line(json.loads(row)))


def _line(fields: Any) -> Line:
    line = json_form.read(Line, fields, _no_line)
    if line.record is not None:
        line.record.outcome.checked()
    return line


def _no_line(received: str) -> RecordError:
    return RecordError(
        "A line of records must hold an event and the key of its training",
        received,
        "Remove the line",
    )
