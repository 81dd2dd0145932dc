"""Card: whether there is an NVIDIA card, asked without TensorFlow."""

from __future__ import annotations

import os

PLACES = ("/dev/nvidia0", "/proc/driver/nvidia/gpus")


def has_card() -> bool:
    """Whether there is one."""
    return any(os.path.exists(path) for path in PLACES)
