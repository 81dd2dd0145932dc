"""The processor of this machine, and the cores of it that this process may use."""

from __future__ import annotations

import os
import platform


def name() -> str | None:
    """Return the model name of the processor; `None` if the system does not tell it.

    Linux tells it in /proc/cpuinfo only: neither psutil nor `platform.processor` reads that file.
    """
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [
                line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
            ]
    except OSError:
        return None
    return names[0] if names else None


def cores() -> int:
    """Return the cores that this process may use: `taskset` or a scheduler may have left it few."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def words() -> str:
    """Describe the processor for people: its name, or else its architecture, and its cores."""
    count = cores()
    return f"{name() or platform.machine()}, {count} core{'s' if count > 1 else ''}"
