"""What the driver says of the NVIDIA GPUs, asked by `nvidia-smi`: no library is needed."""

from __future__ import annotations

import os
import subprocess

from kbatch.device.limit import MIB

TIMEOUT_SECONDS = 30


def told(*names: str) -> list[list[str]]:
    """Return the values of some fields for each GPU; an empty list without a driver.

    Args:
        *names: Fields as `nvidia-smi --help-query-gpu` lists them.
    """
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
    try:
        process = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [[cell.strip() for cell in row.split(",")] for row in process.stdout.splitlines()]


def used_bytes() -> list[int]:
    """Return the bytes in use on each GPU, by all processes."""
    return _bytes("memory.used")


def free_bytes() -> int | None:
    """Return the free bytes of the GPU that TensorFlow trains on; `None` without a driver."""
    return _of_first(_bytes("memory.free"))


def total_bytes() -> int | None:
    """Return all bytes of the GPU that TensorFlow trains on; `None` without a driver."""
    return _of_first(_bytes("memory.total"))


def used_bytes_of_first() -> int | None:
    """Return the used bytes of the GPU that TensorFlow trains on; `None` without a driver."""
    return _of_first(used_bytes())


def _bytes(name: str) -> list[int]:
    return [int(row[0]) * MIB for row in told(name) if row[0].isdigit()]


def _of_first(values: list[int]) -> int | None:
    """The value of the first visible GPU."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    index = int(first) if first.isdigit() else 0
    return values[index] if index < len(values) else None
