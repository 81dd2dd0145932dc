"""Store: an append-only file of started, interrupted and ended trainings."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbatch.errors import RecordError
from kbatch.records import atomic_file, disk, kinds
from kbatch.records.record import Record

FILE = "records.jsonl"
# what broken JSON, or another's, raises
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


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
        RecordError: If a line before the last cannot be read, or the file is no regular one.
    """
    rows = (atomic_file.read(path) or b"").split(b"\n")
    lines = []
    for number, row in enumerate(rows, 1):
        try:
            if row:
                lines.append(_parse(kinds.parsed(row)))
        except UNREADABLE as error:
            if number < len(rows):
                reason = f" ({error})" if isinstance(error, TypeError) else ""
                raise RecordError(
                    f"Every line of {path} must be a record",
                    f"line {number}: {row[:60]!r}…{reason}",
                    "Remove that line, or move the file away",
                ) from error
            warnings.warn(
                f"{path}: the last line is incomplete and was ignored: {row[:60]!r}…", stacklevel=2
            )
    return lines


class Store:
    """The records of one project, appended line by line and synced to disk.

    Args:
        directory: Folder of the project's records; made if it does not exist.

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
        """Take up what another process has written meanwhile."""
        self._lines = read(self.path)
        self._repaired = False

    def _drop_incomplete_line(self) -> None:
        """Cut a half-written last line, or end a whole one, so that the next record does not grow onto it."""
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
        """The record of a training that ended, or `None`."""
        return next(
            (line.record for line in reversed(self._lines) if line.key == key and line.record), None
        )

    def unfinished_starts(self, key: str) -> int:
        """How often a training was started and neither ended nor was interrupted by the user: its process died."""
        return sum(
            {"started": 1, "interrupted": -1}.get(line.event, 0)
            for line in self._lines
            if line.key == key
        )

    def records(self) -> list[Record]:
        """All records, in the order they were made."""
        return [line.record for line in self._lines if line.record]

    def start(self, key: str) -> None:
        """Note that a training is about to begin."""
        self._append({"event": "started", "key": key})

    def interrupt(self, key: str) -> None:
        """Note that the user stopped a training, which is no crash; on a full disk, take its start back instead."""
        try:
            self._append({"event": "interrupted", "key": key})
        except RecordError:
            if not self._lines or self._lines[-1] != Line("started", key):
                raise
            text = atomic_file.read(self.path) or b""
            os.truncate(self.path, text.rfind(b"\n", 0, len(text) - 1) + 1)  # which needs no room
            self._lines.pop()

    def end(self, record: Record) -> None:
        """Keep the record of a training that ended."""
        self._append({"event": "ended", "key": record.key, "record": record.to_dict()})

    def _append(self, fields: dict[str, Any]) -> None:
        """Add a line whole, or none of it.

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
        self._lines.append(_parse(json.loads(row)))


def _parse(fields: dict[str, Any]) -> Line:
    return Line(
        fields["event"],
        fields["key"],
        Record.from_dict(fields["record"]) if "record" in fields else None,
    )
