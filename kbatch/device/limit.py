"""Limit: how many bytes the training device may use, said by the user or asked of the device.

Imports no TensorFlow before it is asked of the device, so that a parent can prepare a worker's
environment.
"""

from __future__ import annotations

import math
import os
import re

from kbatch.device import utilisation
from kbatch.errors import MemoryLimitError, NoMemoryLimitError

MIB = 1 << 20
# TensorFlow takes blocks of whole MiB: below it, what a model needs is lost among them (5 MB took
# minutes and ended in deaths)
LEAST = 32 * MIB
CPU_BFC, CPU_LIMIT = "TF_CPU_ALLOCATOR_USE_BFC", "TF_CPU_BFC_MEM_LIMIT_IN_MB"
UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}


def bytes_of(limit: int | float | str) -> int:
    """A limit in bytes.

    Args:
        limit: Bytes as a number, or text such as `"8GB"`, `"900 MB"` or `"7.5GiB"`.

    Raises:
        MemoryLimitError: If it is neither, or not above 0.

    Example:
    >>> bytes_of("8GB"), bytes_of("1.5 GiB"), bytes_of(10**9)
    (8000000000, 1610612736, 1000000000)
    """
    found = re.fullmatch(r"\s*([0-9.]+)\s*([a-z]*)\s*", str(limit).lower())
    try:
        size = (
            float(found.group(1)) * UNITS[found.group(2)]
            if found and not isinstance(limit, bool)
            else 0.0
        )
    except (KeyError, ValueError):
        size = 0.0
    if not 0 < size < math.inf:
        raise MemoryLimitError(
            "`memory_limit` must be bytes above 0",
            limit,
            'Pass a number of bytes, or text such as "8GB" or "900MiB"',
        )
    return int(size)


def checked(limit: int | float | str | None) -> int | None:
    """A limit under which something is to be trained here, in bytes; `None` for what the device has.

    Raises:
        MemoryLimitError: If it is no limit, or one that TensorFlow cannot keep or this machine does
            not have.
    """
    if limit is None:
        return None
    size = bytes_of(limit)
    if size < LEAST:
        raise MemoryLimitError(
            f"`memory_limit` must be at least {LEAST // MIB} MiB, or TensorFlow itself has no room",
            limit,
            "Raise the limit",
        )
    most = most_bytes()
    if most is not None and size > most:
        raise MemoryLimitError(
            f"`memory_limit` must be at most what this machine has, {most / 1e9:.1f} GB",
            limit,
            "Lower the limit: sizes are tried, not computed",
        )
    return size


def most_bytes() -> int | None:
    """All the memory of the first card, without a card that of the machine; `None` if neither can be told."""
    card = utilisation.memory_bytes()
    if card is not None:
        return card[0]
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return None


def environment(limit_bytes: int | None) -> dict[str, str]:
    """Environment variables that make a CPU tell its bytes and keep to a limit; a GPU is not affected by them."""
    if limit_bytes is None:
        return {CPU_BFC: "true"}
    return {CPU_BFC: "true", CPU_LIMIT: str(max(1, limit_bytes // MIB))}


def apply(limit_bytes: int | None) -> int | None:
    """Keep this process, in which TensorFlow has not begun yet, to a limit, and give the limit it really has.

    A CPU keeps to it by its environment (see `environment`), a GPU by a logical device of that
    size. `None` if the device cannot tell: a CPU without a limit.
    """
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return of_cpu()
    for name in (CPU_BFC, CPU_LIMIT):
        # they would limit the host's memory, where batches wait, to what the GPU may use
        os.environ.pop(name, None)
    if limit_bytes is None:
        # the allocator is made as training makes it, before it is asked
        tf.config.list_logical_devices("GPU")
        return of_gpu()
    mebibytes = max(1, limit_bytes // MIB)
    tf.config.set_logical_device_configuration(
        gpus[0], [tf.config.LogicalDeviceConfiguration(memory_limit=mebibytes)]
    )
    return mebibytes * MIB


def cpu_counts() -> bool:
    """Whether a CPU counts every byte: TensorFlow's own allocator does, the one of oneDNN large blocks alone."""
    return os.environ.get(CPU_BFC, "").lower() in ("true", "1")


def of_cpu() -> int | None:
    """The limit that the environment sets for a CPU; TensorFlow minds it only together with `TF_CPU_ALLOCATOR_USE_BFC`."""
    said = os.environ.get(CPU_LIMIT, "")
    return int(said) * MIB if cpu_counts() and said.isdigit() and int(said) > 0 else None


def of_gpu() -> int | None:
    """What TensorFlow's allocator has of the first GPU."""
    from tensorflow.python.client import device_lib

    found = [
        device.memory_limit
        for device in device_lib.list_local_devices()
        if device.device_type == "GPU"
    ]
    return int(found[0]) if found and found[0] else None


def refuse_none() -> NoMemoryLimitError:
    """The error for a device that has no limit or cannot tell it."""
    return NoMemoryLimitError(
        "A device must have a memory limit",
        "one that cannot tell it, such as a CPU without one",
        f"Give a memory limit, such as 8GB, or set {CPU_LIMIT}",
    )
