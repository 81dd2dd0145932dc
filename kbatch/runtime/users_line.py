"""The user's line: where a warning points to, however deep in kbatch it arises."""

from __future__ import annotations

import inspect
import warnings
from types import FrameType

PASSED = ("kbatch", "keras_tuner", "contextlib")  # packages through which a call comes


def warn(words: str) -> None:
    """Warn at the line outside of kbatch and KerasTuner that made the call.

    Args:
        words: String, the warning.
    """
    frame, level = inspect.currentframe(), 1
    while frame is not None and _package(frame) in PASSED:
        frame, level = frame.f_back, level + 1
    warnings.warn(words, stacklevel=level)


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
