"""The error for a process that ended while it made a model or trained a step."""

from __future__ import annotations

import re

from kbatch.errors import ModelError
from kbatch.runtime.oom import is_suspect_exit
from kbatch.runtime.worker import Death

# The lines that TensorFlow prints when it is imported.
GREETING = re.compile(r"[IW]\d{4} |WARNING: All log messages before")


def death_error(death: Death, limit_bytes: int | None) -> ModelError:
    """Return the error for a process that ended.

    Args:
        death: `Death` of the process.
        limit_bytes: Integer, what the process was allowed to use, or `None`.
    """
    said = [line for line in death.said.strip().splitlines() if not GREETING.match(line)]
    remedy = "Build and fit it in a process of your own to see why"
    if limit_bytes is not None and is_suspect_exit(death.exit_code or 0):
        remedy += f", or raise the limit of {limit_bytes / 1e6:,.0f} MB"
    return ModelError(
        "A model must be made, and train a step, without ending its process",
        f"{death}: {said[-1]}" if said else str(death),
        remedy,
    )
