"""Finding: one line of the doctor's report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report.

    Attributes:
        topic: String, such as a library, a device or a setting.
        value: String, its version, name or value.
        problem: String, the problem as a clause without a full stop; empty if there is none.
        do: String, the remedy as a clause without a full stop.
    """

    topic: str
    value: str
    problem: str = ""
    do: str = ""
