"""Bytes that the driver says are in use, by all processes."""

from __future__ import annotations

from kbatch.runtime import nvidia
from kbatch.runtime.device_memory import MIB


def used_bytes() -> list[int]:
    """Return the bytes in use on each GPU."""
    return [int(row[0]) * MIB for row in nvidia.told("memory.used") if row[0].isdecimal()]


def used_bytes_of_first() -> int | None:
    """Return the used bytes of the GPU that TensorFlow trains on; `None` if unknown."""
    memory = nvidia.smi_memory_bytes()
    return None if memory is None else memory[0] - memory[1]


def free_bytes() -> int | None:
    """Return the free bytes of the GPU that TensorFlow trains on; `None` if unknown."""
    memory = nvidia.smi_memory_bytes()
    return None if memory is None else memory[1]


def total_bytes() -> int | None:
    """Return all bytes of the GPU that TensorFlow trains on; `None` if unknown."""
    memory = nvidia.smi_memory_bytes()
    return None if memory is None else memory[0]
