"""Store: an append-only file of started, interrupted and ended trainings."""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbatch.errors import RecordError
from kbatch.records.record import Record

FILE = "records.jsonl"


@dataclass(frozen=True)
class Line:
    """One line of the file: what happened to which training, and its record if it ended."""

    event: str
    key: str
    record: Record | None = None


def read(path: Path) -> list[Line]:
    """All complete lines of a file of records; an incomplete last one is named in a warning and left out.

    Args:
        path: The file; one that does not exist has no lines.

    Raises:
        RecordError: If a line before the last cannot be read.
    """
    if not path.exists():
        return []
    rows = path.read_bytes().split(b"\n")
    lines = []
    for number, row in enumerate(rows, 1):
        try:
            if row:
                lines.append(_parse(json.loads(row)))
        except (ValueError, KeyError, TypeError) as error:
            if number < len(rows):
                raise RecordError(
                    f"Every line of {path} must be a record", f"line {number}: {row[:60]!r}…", "Remove that line, or move the file away"
                ) from error
            warnings.warn(f"{path}: the last line is incomplete and was ignored: {row[:60]!r}…", stacklevel=2)
    return lines


class Store:
    """The records of one project, appended line by line and synced to disk.

    Args:
        directory: Folder of the project's records; made if it does not exist.

    Raises:
        RecordError: If the folder cannot be made or written, or a line before the last cannot be read.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory) / FILE
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lines = read(self.path)
            self._drop_incomplete_line()
        except OSError as error:
            raise RecordError("The folder of the records must be writable", f"{self.path.parent}: {error.strerror}", "Pass another folder") from error

    def _drop_incomplete_line(self) -> None:
        """Cut a half-written last line, or end a whole one, so that the next record does not grow onto it."""
        text = self.path.read_bytes() if self.path.exists() else b""
        if text and not text.endswith(b"\n"):
            whole = len(self._lines) == len(text.splitlines())  # only the line's end was lost
            with open(self.path, "r+b") as file:
                if whole:
                    file.seek(0, os.SEEK_END)
                    file.write(b"\n")
                else:
                    file.truncate(text.rfind(b"\n") + 1)

    def finished(self, key: str) -> Record | None:
        """The record of a training that ended, or `None`."""
        return next((line.record for line in reversed(self._lines) if line.key == key and line.record), None)

    def unfinished_starts(self, key: str) -> int:
        """How often a training was started and neither ended nor was interrupted by the user: its process died."""
        return sum({"started": 1, "interrupted": -1}.get(line.event, 0) for line in self._lines if line.key == key)

    def records(self) -> list[Record]:
        """All records, in the order they were made."""
        return [line.record for line in self._lines if line.record]

    def start(self, key: str) -> None:
        """Note that a training is about to begin."""
        self._append({"event": "started", "key": key})

    def interrupt(self, key: str) -> None:
        """Note that the user stopped a training, which is no crash."""
        self._append({"event": "interrupted", "key": key})

    def end(self, record: Record) -> None:
        """Keep the record of a training that ended."""
        self._append({"event": "ended", "key": record.key, "record": record.to_dict()})

    def _append(self, fields: dict[str, Any]) -> None:
        row = json.dumps(fields, allow_nan=True).encode() + b"\n"
        with open(self.path, "ab") as file:
            file.write(row)
            file.flush()
            os.fsync(file.fileno())
        self._lines.append(_parse(json.loads(row)))


def _parse(fields: dict[str, Any]) -> Line:
    return Line(fields["event"], fields["key"], Record.from_dict(fields["record"]) if "record" in fields else None)
