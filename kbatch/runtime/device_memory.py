"""Device memory: the bytes that a training may take, and those in use, now and at most."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import platform
import re
from collections.abc import Iterable, Mapping
from typing import Any

import psutil

from kbatch.errors import MemoryLimitError, NoMemoryLimitError
from kbatch.runtime import device as runtime_device
from kbatch.runtime import nvidia, tensorflow_private

MIB = 1 << 20

# TensorFlow allocates whole MiB, in which the need of a tiny model cannot be seen. A search under
# 5 MB took minutes and killed its workers. 32 was chosen by hand, not tuned.
LEAST_BYTES = 32 * MIB

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
    """Return a limit in bytes.

    Example:
    >>> bytes_of("8GB"), bytes_of("1.5 GiB"), bytes_of(10**9)
    (8000000000, 1610612736, 1000000000)
    """
    parts = re.fullmatch(r"\s*([0-9.]+)\s*([a-z]*)\s*", str(limit).lower())
    size = 0.0
    if parts and not isinstance(limit, bool):
        with contextlib.suppress(KeyError, ValueError):  # no such unit, or no number
            size = float(parts.group(1)) * UNITS[parts.group(2)]
    if not 0 < size < math.inf:
        raise MemoryLimitError(
            "`memory_limit` must be bytes above 0",
            limit,
            'Pass a number of bytes, or text such as "8GB" or "900MiB"',
        )
    return int(size)


def checked_limit(limit: int | float | str | None) -> int | None:
    """Return the limit of a training on this machine in bytes; `None` for no limit."""
    if limit is None:
        return None
    size = bytes_of(limit)
    if size < LEAST_BYTES:
        raise MemoryLimitError(
            f"`memory_limit` must be at least {LEAST_BYTES // MIB} MiB, or TensorFlow has no room",
            limit,
            "Raise the limit",
        )
    most = most_bytes()
    if size > most:
        raise MemoryLimitError(
            f"`memory_limit` must be at most what this machine has, {most / 1e9:.1f} GB",
            limit,
            "Lower the limit: batch sizes are trained, not computed",
        )
    return size


def most_bytes() -> int:
    """Return the memory of the first GPU in bytes; without a GPU, that of the machine."""
    card = nvidia.memory_bytes()
    return int(psutil.virtual_memory().total) if card is None else card[0]


def limit_environment(limit_bytes: int | None) -> dict[str, str]:
    """Return the environment variables that make a CPU count its bytes and keep to a limit.

    They do not affect a GPU.
    """
    if limit_bytes is None:
        return {CPU_BFC: "true"}
    return {CPU_BFC: "true", CPU_LIMIT: str(max(1, limit_bytes // MIB))}


def apply_limit(limit_bytes: int | None) -> int | None:
    """Set the memory limit of this process, in which TensorFlow has not started yet.

    A CPU keeps to the limit by its environment (see `limit_environment`), a GPU by a logical device
    of that size.

    Returns the limit in effect, in bytes; `None` for a CPU without a limit.
    """
    import tensorflow as tf

    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        return cpu_limit()
    # The allocator of every visible card takes all of its memory at the first operation there. A
    # module of the user's may have begun TensorFlow while it was imported.
    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices(gpus[:1], "GPU")
    for name in (CPU_BFC, CPU_LIMIT):
        # with a GPU they would limit the memory of the host, where batches wait
        os.environ.pop(name, None)
    if limit_bytes is None:
        # makes the allocator as training does, so that it can be asked
        tf.config.list_logical_devices("GPU")
        return gpu_limit()
    mebibytes = max(1, limit_bytes // MIB)
    tf.config.set_logical_device_configuration(
        gpus[0], [tf.config.LogicalDeviceConfiguration(memory_limit=mebibytes)]
    )
    return mebibytes * MIB


def cpu_counts() -> bool:
    """Tell whether a CPU counts every byte; the allocator of oneDNN counts large blocks only."""
    return os.environ.get(CPU_BFC, "").lower() in ("true", "1")


def cpu_limit() -> int | None:
    """Return the limit that the environment sets for a CPU, or `None`.

    TensorFlow reads it only together with `TF_CPU_ALLOCATOR_USE_BFC`.
    """
    said = os.environ.get(CPU_LIMIT, "")
    return int(said) * MIB if cpu_counts() and said.isdigit() and int(said) > 0 else None


def gpu_limit() -> int | None:
    """Return the bytes that TensorFlow's allocator has of the first GPU, or `None`."""
    found = tensorflow_private.memory_limits("GPU")
    return found[0] if found and found[0] else None


def no_limit() -> NoMemoryLimitError:
    """Return the error for a device that has no limit, or does not report it."""
    return NoMemoryLimitError(
        "A device must have a memory limit",
        "a device that reports none, such as a CPU without a limit",
        f'Pass memory_limit="8GB", say (--memory-limit 8GB), or set {CPU_LIMIT}',
    )


TF32 = (8, 0)  # compute capability of Ampere, the first GPUs with it


@functools.cache
def device() -> str:
    """Return the device that Keras trains on: `"GPU:0"` if there is a GPU, else `"CPU:0"`."""
    import tensorflow as tf

    return "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"


def devices() -> tuple[str, ...]:
    """Return the devices that train: those of the strategy whose scope is entered, or `device`."""
    return runtime_device.strategy_devices() or (device(),)


def device_words() -> str:
    """Describe the training device for people: the GPU, or the processor and its cores.

    Of several GPUs Keras trains on the first, unless a strategy says otherwise; their number then
    comes first. One that multiplies float32 as TF32, with 10 bits of mantissa, is said to.
    """
    count = len(devices())
    return f"{count} x {_one_device()}" if count > 1 else _one_device()


def _one_device() -> str:
    import tensorflow as tf

    cards = runtime_device.gpus_of_trainings()
    if cards:
        details = tf.config.experimental.get_device_details(cards[0])
        name = details.get("device_name", "GPU")
        return f"{name}, float32 as TF32" if _has_tf32(details) else str(name)
    # The machine's cores, not those left to this process: projects are compared by these words.
    return f"CPU {runtime_device.processor_name() or platform.machine()}, {os.cpu_count()} cores"


def tell_of_unused_card() -> None:
    """Warn, once in a process, if the machine has a card that TensorFlow does not see."""
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):  # one that the user hides is seen
        nvidia.tell_of_unused_card(device_words())


def bytes_now() -> int | None:
    """Return the bytes in use on the device, or `None` if the device does not report them.

    Of several devices that train, it is the one with the most.
    """
    return _info("current")


def bytes_peak() -> int | None:
    """Return the peak bytes since `reset_peak`, or `None` if the device does not report them."""
    return _info("peak")


def reset_peak() -> None:
    """Start a new peak at the bytes in use now, if the device reports them."""
    if bytes_now() is not None:
        import tensorflow as tf

        for name in devices():
            tf.config.experimental.reset_memory_stats(name)


def tries_algorithms() -> bool:
    """Tell whether the first step of a shape needs more memory than the later ones.

    On a GPU cuDNN and XLA then try their algorithms, with scratch memory for each
    (`GetDnnWorkspaceLimitOrDefault`, tensorflow/core/kernels/conv_ops_gpu.h: up to 8 GiB).
    """
    return device() != "CPU:0"


def wait() -> None:
    """Wait until the GPU has finished its work; a step on a CPU has ended when it returns.

    Only training devices are asked: an operation on another GPU takes all of its memory.
    """
    if device() != "CPU:0":
        import tensorflow as tf

        for name in devices():
            with tf.device(name):
                tf.raw_ops.SyncDevice()


def _has_tf32(details: Mapping[str, Any]) -> bool:
    """Whether a GPU multiplies float32 as TF32."""
    import tensorflow as tf

    capable = details.get("compute_capability", (0, 0)) >= TF32
    return capable and tf.config.experimental.tensor_float_32_execution_enabled()


def _info(which: str) -> int | None:
    if device() == "CPU:0" and not cpu_counts():
        return None
    import tensorflow as tf

    try:
        return max(int(tf.config.experimental.get_memory_info(name)[which]) for name in devices())
    except (ValueError, tf.errors.OpError):
        return None


ALIGNMENT = 256
FIRST_REGION = 2 << 20
# A chunk is split if it is twice as large as asked for, or larger by this much.
MOST_WASTED = 128 << 20


class Allocator:
    """Where TensorFlow's best-fit allocator with coalescing places allocations.

    With XLA the temporary buffers of a step are one allocation. So the largest *contiguous* free
    block decides what fits, and the block depends on where the variables lie. A limited CPU grows
    its memory by regions that double; a GPU has one region. Read in TensorFlow 2.21.0:
    `third_party/xla/xla/tsl/framework/bfc_allocator.cc` (`Extend`, `FindChunkPtr`, `SplitChunk`).
    """

    def __init__(self, limit_bytes: int, first_region: int = FIRST_REGION) -> None:
        self.limit_bytes = limit_bytes
        self._next_region = min(first_region, limit_bytes)
        # of each region its chunks in order: [bytes, 1 if in use]
        self._regions: list[list[list[int]]] = []

    def allocate(self, size: int) -> list[int] | None:
        """Take a chunk of at least `size` bytes; `None` if there is none."""
        rounded = max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)
        chunk = self._take(rounded)
        if chunk is None and self._extend(rounded):
            chunk = self._take(rounded)
        return chunk

    def free(self, chunk: list[int]) -> None:
        """Give a chunk back; free neighbours become one."""
        chunk[1] = 0
        for chunks in self._regions:
            merged: list[list[int]] = []
            for one in chunks:
                if merged and not merged[-1][1] and not one[1]:
                    merged[-1][0] += one[0]
                else:
                    merged.append(one)
            chunks[:] = merged

    def largest(self) -> int:
        """The largest allocation that would succeed now."""
        free = max(
            (chunk[0] for chunks in self._regions for chunk in chunks if not chunk[1]), default=0
        )
        return max(free, self._available() // ALIGNMENT * ALIGNMENT)

    def _available(self) -> int:
        return self.limit_bytes - sum(chunk[0] for chunks in self._regions for chunk in chunks)

    def _take(self, rounded: int) -> list[int] | None:
        fitting = [
            (chunk[0], region, index)
            for region, chunks in enumerate(self._regions)
            for index, chunk in enumerate(chunks)
            if _fits(chunk, rounded)
        ]
        if not fitting:
            return None
        size, region, index = min(fitting)
        chunks = self._regions[region]
        if size >= 2 * rounded or size - rounded >= MOST_WASTED:
            chunks.insert(index + 1, [size - rounded, 0])
            chunks[index][0] = rounded
        chunks[index][1] = 1
        return chunks[index]

    def _extend(self, rounded: int) -> bool:
        available = self._available() // ALIGNMENT * ALIGNMENT
        if rounded > available:
            return False
        increased = False
        while rounded > self._next_region:
            self._next_region *= 2
            increased = True
        self._regions.append([[min(self._next_region, available), 0]])
        if not increased:
            self._next_region *= 2
        return True


def contiguous(
    limit_bytes: int, variables: Iterable[tuple[int, bool]], first_region: int = FIRST_REGION
) -> int:
    """Bytes of the largest contiguous free block after variables are allocated in order.

    A randomly initialised variable needs three buffers for a moment (draw, scaled draw, final
    copy). A constant one needs one.
    """
    allocator = Allocator(limit_bytes, first_region)
    allocator.allocate(ALIGNMENT)  # a small constant of TensorFlow's own
    for size, drawn in variables:
        # The last of the three buffers is the variable's own.
        *before, value = (allocator.allocate(size) for _ in range(3 if drawn else 1))
        if value is None:
            return 0
        for chunk in before:
            if chunk is not None:
                allocator.free(chunk)
    return allocator.largest()


def _fits(chunk: list[int], rounded: int) -> bool:
    return not chunk[1] and chunk[0] >= rounded
