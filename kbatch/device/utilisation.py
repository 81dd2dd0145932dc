"""The load of the NVIDIA GPU while a training runs, sampled by a thread.

The GPU is asked through `pynvml` (the package nvidia-ml-py), which is optional. NVML counts all
processes on the GPU. Unless memory growth is on, TensorFlow takes most of the memory at its start,
so the bytes are those that other processes cannot have.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any

# free memory is rounded down to quarters of a GiB, so that a cache key rarely changes with it;
# chosen by hand, not tuned
FREE_STEP = 1 << 28
STOPPING_SECONDS = 5.0  # a driver that hangs must not hold up training; chosen by hand, not tuned


@dataclass(frozen=True)
class Utilisation:
    """The load of a GPU over a time, summed up from samples.

    Attributes:
        mean_gpu_percent: Float, mean share of the time in which a kernel ran, in percent.
        max_gpu_percent: Float, highest such share of a sample, in percent.
        mean_memory_bytes: Float, mean memory in use on the GPU, in bytes.
        max_memory_bytes: Integer, highest memory in use in a sample, in bytes.
        samples: Integer, number of samples.
    """

    mean_gpu_percent: float
    max_gpu_percent: float
    mean_memory_bytes: float
    max_memory_bytes: int
    samples: int


class Sampler:
    """A context manager that samples the load of the first visible NVIDIA GPU.

    Without a GPU or without `pynvml` it does nothing.

    Args:
        interval_seconds: Float, seconds between two samples. Defaults to `0.5`.

    Example:
    >>> with Sampler() as sampler:
    ...     pass
    >>> load = sampler.result()  # `None` without a GPU
    """

    def __init__(self, interval_seconds: float = 0.5) -> None:
        self.interval_seconds = interval_seconds
        self._samples: list[tuple[float, int]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Sampler:
        self._samples, self._stop = [], threading.Event()
        # sampling must not end the training, however broken `pynvml` is
        with contextlib.suppress(Exception):
            nvml = importlib.import_module("pynvml")
            thread = threading.Thread(
                target=self._sample,
                args=(nvml, self._samples, self._stop),
                name="kbatch-utilisation",
                daemon=True,
            )
            thread.start()
            self._thread = thread
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(STOPPING_SECONDS)
            self._thread = None

    def result(self) -> Utilisation | None:
        """Return the load over all samples so far, or `None` if there is no sample."""
        taken = list(self._samples)
        if not taken:
            return None
        percents, used = zip(*taken, strict=True)
        return Utilisation(
            sum(percents) / len(taken), max(percents), sum(used) / len(taken), max(used), len(taken)
        )

    def _sample(
        self, nvml: ModuleType, samples: list[tuple[float, int]], stop: threading.Event
    ) -> None:
        with contextlib.suppress(Exception):  # no driver, or no such GPU
            nvml.nvmlInit()
            try:
                card = _first_visible(nvml)
                while card is not None:
                    with contextlib.suppress(Exception):  # the next sample may succeed
                        samples.append(
                            (
                                float(nvml.nvmlDeviceGetUtilizationRates(card).gpu),
                                int(nvml.nvmlDeviceGetMemoryInfo(card).used),
                            )
                        )
                    if stop.wait(self.interval_seconds):
                        return
            finally:
                nvml.nvmlShutdown()


def _first_visible(nvml: ModuleType) -> Any:
    """Return NVML's handle of the GPU that CUDA calls 0, or `None` if no GPU is visible.

    NVML counts GPUs by bus, and so does CUDA if all are of the same model. With different models
    only a UUID, or `CUDA_DEVICE_ORDER=PCI_BUS_ID`, names a GPU reliably.
    """
    entry = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if entry.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(entry))
    if entry.startswith("GPU-"):  # CUDA takes the beginning of a UUID, NVML only all of it
        cards = [
            nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())
        ]
        return next((card for card in cards if _uuid(nvml, card).startswith(entry)), None)
    return nvml.nvmlDeviceGetHandleByUUID(entry) if entry.startswith("MIG-") else None


def _uuid(nvml: ModuleType, card: Any) -> str:
    uuid = nvml.nvmlDeviceGetUUID(card)
    return uuid.decode() if isinstance(uuid, bytes) else str(uuid)


def memory_bytes() -> tuple[int, int] | None:
    """Return the total and the free bytes of the first visible GPU; `None` if NVML does not tell.

    The free bytes are rounded down to a quarter of a GiB.
    """
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        try:
            card = _first_visible(nvml)
            told = None if card is None else nvml.nvmlDeviceGetMemoryInfo(card)
        finally:
            nvml.nvmlShutdown()
    except Exception:  # no package, no driver, or no such GPU
        return None
    return None if told is None else (int(told.total), int(told.free) // FREE_STEP * FREE_STEP)
