"""Utilisation: how busy and how full the NVIDIA card was while something ran, sampled by a thread of its own.

The card is asked through `pynvml` (the package nvidia-ml-py), which is optional. NVML sees all
processes on the card; and TensorFlow takes most of a card's memory at its start unless memory
growth is on, so the bytes are those that others cannot have.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any

FREE_STEP = 1 << 28
STOPPING_SECONDS = 5.0  # a driver that hangs must not hold up training; the thread is a daemon


@dataclass(frozen=True)
class Utilisation:
    """What the samples of one stretch say.

    Attributes:
        mean_gpu_percent: Float, the mean share of time in which a kernel ran.
        max_gpu_percent: Float, the highest share of a sample.
        mean_memory_bytes: Float, the mean memory in use on the card.
        max_memory_bytes: Integer, the most memory in use in a sample.
        samples: Integer, how often the card answered.
    """

    mean_gpu_percent: float
    max_gpu_percent: float
    mean_memory_bytes: float
    max_memory_bytes: int
    samples: int


class Sampler:
    """Samples the first visible NVIDIA card for as long as the `with` block runs; without card or `pynvml` it does nothing.

    Args:
        interval_seconds: Float, from one sample to the next.

    Example:
    >>> with Sampler() as sampler:
    ...     pass
    >>> sampler.result() is None or sampler.result().samples > 0
    True
    """

    def __init__(self, interval_seconds: float = 0.5) -> None:
        self.interval_seconds = interval_seconds
        self._samples: list[tuple[float, int]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Sampler:
        self._samples, self._stop = [], threading.Event()
        # a measurement beside the training must not end it, however broken `pynvml` is
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
        """What the samples so far say, or `None` if there is no sample."""
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
        with contextlib.suppress(Exception):  # no driver, or no such card
            nvml.nvmlInit()
            try:
                card = _first_visible(nvml)
                while card is not None:
                    with contextlib.suppress(Exception):  # what fails once may answer the next time
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
    """The card that CUDA calls 0, or `None` if none is visible.

    NVML counts by bus, and so does CUDA among equal cards; with mixed cards only a UUID, or
    `CUDA_DEVICE_ORDER=PCI_BUS_ID`, is sure.
    """
    entry = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if entry.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(entry))
    if entry.startswith("GPU-"):  # CUDA takes the beginning of a UUID, NVML the whole only
        cards = [
            nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())
        ]
        return next((card for card in cards if _uuid(nvml, card).startswith(entry)), None)
    return nvml.nvmlDeviceGetHandleByUUID(entry) if entry.startswith("MIG-") else None


def _uuid(nvml: ModuleType, card: Any) -> str:
    uuid = nvml.nvmlDeviceGetUUID(card)
    return uuid.decode() if isinstance(uuid, bytes) else str(uuid)


def memory_bytes() -> tuple[int, int] | None:
    """What the first visible card has, and what of it is free now in quarters of a GiB, in bytes; `None` if NVML cannot tell."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        try:
            card = _first_visible(nvml)
            told = None if card is None else nvml.nvmlDeviceGetMemoryInfo(card)
        finally:
            nvml.nvmlShutdown()
    except Exception:  # no package, no driver, or no such card
        return None
    return None if told is None else (int(told.total), int(told.free) // FREE_STEP * FREE_STEP)
