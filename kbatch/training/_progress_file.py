"""The progress of a training in another process, in a file of three numbers."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

NUMBERS = struct.Struct("=qdd")


@dataclass
class ProgressFile:
    """Tells another process how a training goes, on another machine too if both see the file.

    Attributes:
        path: Path of the file.
        times: Integer, how often this object has written it.
    """

    path: Path
    times: int = 0

    def write(self, train_seconds: float, value: float | None) -> int:
        """Write the training seconds and the last value measured.

        Returns:
            Integer, how often this object has written by now.
        """
        self.times += 1
        numbers = NUMBERS.pack(self.times, train_seconds, math.nan if value is None else value)
        # in place, so that a reader always finds a file
        with open(self.path, "r+b" if self.path.exists() else "wb", buffering=0) as file:
            file.write(numbers)
        return self.times

    def read(self) -> tuple[int, float, float | None]:
        """Return how often it was written, the training seconds and the last value measured."""
        times, train_seconds, value = NUMBERS.unpack(self.path.read_bytes())
        return times, train_seconds, None if math.isnan(value) else value
