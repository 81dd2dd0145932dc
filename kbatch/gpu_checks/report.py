"""Report: the JSON file of the rows, whole after each of them."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from kbatch import __version__
from kbatch.gpu_checks.check import Row
from kbatch.gpu_checks.scale import is_rehearsal
from kbatch.records import files
from kbatch.runtime import device

LIBRARIES = ("tensorflow", "keras", "keras-tuner", "numpy", "nvidia-ml-py", "nvidia-cudnn-cu12")
RUNNING, COMPLETE, STOPPED = "running", "complete", "stopped"


class Report:
    """The rows so far, in a file if there is one."""

    def __init__(self, path: Path | None, gpus: list[str]) -> None:
        self.path, self.rows = path, list[Row]()
        self._ended = RUNNING
        self._head = {
            "kbatch": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cores": device.cores(),
            "libraries": dict(_versions()),
            "gpus": gpus,
            "rehearsed_on_the_fake_gpu": is_rehearsal(),
            "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        self._write()

    def add(self, row: Row) -> None:
        """Add a row, and write the file."""
        self.rows.append(row)
        self._write()

    def end(self, how: str) -> None:
        """Note how the checks ended: `"complete"` or `"stopped"`."""
        self._ended = how
        self._write()

    @property
    def failed(self) -> list[Row]:
        """The rows that failed."""
        return [row for row in self.rows if row.passed is False]

    def summary(self) -> str:
        """Count the rows in one sentence."""
        counted = [sum(row.passed is how for row in self.rows) for how in (True, False, None)]
        told = "{} passed, {} failed, {} could not be judged".format(*counted)
        return told if self.path is None else f"{told}; see {self.path}"

    def _write(self) -> None:
        if self.path is None:
            return
        content: dict[str, Any] = {**self._head, "ended": self._ended}
        content["rows"] = [row.to_dict() for row in self.rows]
        files.write(self.path, json.dumps(content, indent=1, default=str) + "\n")


def _versions() -> Iterator[tuple[str, str]]:
    for name in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            yield name, importlib.metadata.version(name)
