"""The progress of a training in another process, in a file of three numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import numpy as np


class ProgressFile:
    """Tells another process how a training goes.

    Args:
        path: Path of the file.
        mode: `"w+"` to make it, `"r+"` to write to it.

    Attributes:
        path: Path of the file.
    """

    def __init__(self, path: Path, mode: Literal["w+", "r+"]) -> None:
        self.path = path
        self._numbers = np.memmap(path, np.float64, mode, shape=(3,))

    def write(self, train_seconds: float, value: float | None) -> None:
        """Write the training seconds and the last value measured."""
        self._numbers[1:] = train_seconds, math.nan if value is None else value
        self._numbers[0] += 1

    def read(self) -> tuple[int, float, float | None]:
        """Return how often it was written, the training seconds and the last value measured."""
        times, train_seconds, value = map(float, self._numbers)
        return int(times), train_seconds, None if math.isnan(value) else value
