"""The processor of this machine, by name."""

from __future__ import annotations


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
