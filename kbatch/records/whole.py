"""Whole: a text file that appears whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, text: str) -> None:
    """Write a text file, synced, in the place of the one before; half a file is never left.

    Args:
        path: The file, in a folder that exists.
        text: What it is to hold.
    """
    half = path.with_name(path.name + ".tmp")
    with half.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(half, path)
