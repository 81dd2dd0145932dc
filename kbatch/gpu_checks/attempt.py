"""Attempt: the process of one check, from its start to its result."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kbatch.gpu_checks.check import Check, Result
from kbatch.gpu_checks.scale import is_rehearsal

CHILD = "kbatch.gpu_checks.child"
SAID_CHARACTERS = 1500  # kept of the output of a process that failed; chosen by hand, not tuned


class Attempt:
    """A running check, in a group of processes of its own, so that its workers end with it."""

    def __init__(self, check: Check, limit_seconds: float) -> None:
        self.check, self.limit_seconds = check, limit_seconds
        self._folder = tempfile.TemporaryDirectory(
            prefix="kbatch-gpu-check-", ignore_cleanup_errors=True
        )
        self._file = Path(self._folder.name) / "result.json"
        self._said = Path(self._folder.name) / "said.txt"
        self._began = time.monotonic()
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", CHILD, check.function, str(self._file), *check.arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=self._environment(),
                start_new_session=True,
            )

    @property
    def seconds(self) -> float:
        """Float, wall-clock seconds since the start."""
        return time.monotonic() - self._began

    def result(self) -> Result | None:
        """Return the result of a process that has ended or is past its time; else `None`."""
        if self._process.poll() is None and self.seconds < self.limit_seconds:
            return None
        result = self._read() or self._without_result()
        self.kill()
        return result

    def kill(self) -> None:
        """End the process and all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._folder.cleanup()

    def _environment(self) -> dict[str, str]:
        """The environment, with quiet libraries and a cache that ends with the check."""
        return {
            **os.environ,
            # of a CPU that stands for a GPU: oneDNN ends the process where memory runs out
            **({"TF_ENABLE_ONEDNN_OPTS": "0"} if is_rehearsal() else {}),
            "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
            "KBATCH_CACHE": str(Path(self._folder.name) / "cache"),
            "TMPDIR": self._folder.name,
        }

    def _read(self) -> Result | None:
        """The result that the process wrote, if it did."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            fields: dict[str, Any] = json.loads(self._file.read_text(encoding="utf-8"))
            return Result(**fields)
        return None

    def _without_result(self) -> Result:
        said = self._said.read_text(errors="replace").strip()[-SAID_CHARACTERS:]
        code = self._process.poll()
        if code is not None:
            measured = {"exit_code": code}
            return Result(False, measured, f"its process ended with code {code}: {said}")
        if self.limit_seconds < self.check.seconds_limit:
            return Result(None, text="the budget was spent while it ran")
        return Result(False, text=f"no answer within {self.limit_seconds:.0f} seconds: {said}")
