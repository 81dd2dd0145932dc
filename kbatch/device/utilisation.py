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

from kbatch.device import card

# free memory is rounded down to quarters of a GiB, so that a cache key rarely changes with it;
# chosen by hand, not tuned
FREE_STEP = 1 << 28
STOPPING_SECONDS = 5.0  # a driver that hangs must not hold up training; chosen by hand, not tuned


@dataclass(frozen=True)
class Utilisation:
    """The load of a GPU over a time, summed up from samples.

    Attributes:
        mean_gpu_percent: Float, mean share of the time in which a kernel ran, in percent. `None`
            for a MIG instance, whose load NVML does not tell.
        max_gpu_percent: Float, highest such share of a sample, in percent, or `None`.
        mean_memory_bytes: Float, mean memory in use on the GPU, in bytes.
        max_memory_bytes: Integer, highest memory in use in a sample, in bytes.
        samples: Integer, number of samples.
    """

    mean_gpu_percent: float | None
    max_gpu_percent: float | None
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
        self._samples: list[tuple[float | None, int]] = []
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
        percents = [percent for percent, _ in taken if percent is not None]
        used = [in_use for _, in_use in taken]
        return Utilisation(
            sum(percents) / len(percents) if percents else None,
            max(percents, default=None),
            sum(used) / len(taken),
            max(used),
            len(taken),
        )

    def _sample(
        self, nvml: ModuleType, samples: list[tuple[float | None, int]], stop: threading.Event
    ) -> None:
        with contextlib.suppress(Exception):  # no driver, or no such GPU
            nvml.nvmlInit()
            try:
                first = _first_visible(nvml)
                while first is not None:
                    with contextlib.suppress(Exception):  # the next sample may succeed
                        samples.append(
                            (_percent(nvml, first), int(nvml.nvmlDeviceGetMemoryInfo(first).used))
                        )
                    if stop.wait(self.interval_seconds):
                        return
            finally:
                nvml.nvmlShutdown()


def _first_visible(nvml: ModuleType) -> Any:
    """Return NVML's handle of the GPU that CUDA calls 0; `None` if none is visible, or unknown.

    NVML counts GPUs by bus, and so does CUDA if all are of the same model. With different models
    only a UUID, or `CUDA_DEVICE_ORDER=PCI_BUS_ID`, names a GPU: `None` is better than another's.
    """
    entry = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    cards = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    if entry.isdecimal():
        by_bus = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        known = by_bus or len({_text(nvml.nvmlDeviceGetName(card)) for card in cards}) == 1
        return nvml.nvmlDeviceGetHandleByIndex(int(entry)) if known else None
    if entry.startswith("GPU-"):  # CUDA takes the beginning of a UUID, NVML only all of it
        uuids = {_text(nvml.nvmlDeviceGetUUID(each)): each for each in cards}
        return next((each for uuid, each in uuids.items() if uuid.startswith(entry)), None)
    return nvml.nvmlDeviceGetHandleByUUID(entry) if entry.startswith("MIG-") else None


def _percent(nvml: ModuleType, card: Any) -> float | None:
    """The load of a card in percent; `None` where NVML does not support the question."""
    try:
        return float(nvml.nvmlDeviceGetUtilizationRates(card).gpu)
    except nvml.NVMLError_NotSupported:
        return None


def _text(told: bytes | str) -> str:
    """A name or a UUID, which older versions of NVML's package give as bytes."""
    return told.decode() if isinstance(told, bytes) else str(told)


def memory_bytes() -> tuple[int, int] | None:
    """Return the total and the free bytes of the first visible GPU; `None` if unknown.

    NVML is asked, and without its package the program `nvidia-smi`.

    The free bytes are rounded down to a quarter of a GiB.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        known = card.memory_bytes()
    else:
        known = _told_by(nvml)
    return None if known is None else (known[0], known[1] // FREE_STEP * FREE_STEP)


def _told_by(nvml: ModuleType) -> tuple[int, int] | None:
    """The total and the free bytes that NVML tells."""
    try:
        nvml.nvmlInit()
        try:
            first = _first_visible(nvml)
            told = None if first is None else nvml.nvmlDeviceGetMemoryInfo(first)
        finally:
            nvml.nvmlShutdown()
    except Exception:  # no driver, or no such GPU
        return None
    return None if told is None else (int(told.total), int(told.free))
