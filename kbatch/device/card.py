"""The NVIDIA GPU of this machine, asked for without TensorFlow."""

from __future__ import annotations

import os

PLACES = ("/dev/nvidia0", "/proc/driver/nvidia/gpus")


def has_card() -> bool:
    """Tell whether this machine has an NVIDIA GPU."""
    return any(os.path.exists(path) for path in PLACES)
