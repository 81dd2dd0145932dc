"""NVIDIA: what the driver says of the card."""

from __future__ import annotations

import contextlib
import functools
import glob
import importlib
import os
import subprocess
import threading
import warnings
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any

# a container may have any one of the cards
PLACES = ("/dev/nvidia[0-9]*", "/proc/driver/nvidia/gpus/*")
# Windows' GPUs in WSL2, of any maker: `nvidia-smi` tells whether one is NVIDIA's
WSL = "/dev/dxg"
TIMEOUT_SECONDS = 20
QUERY = "name,uuid,driver_version,memory.total"


def has_card() -> bool:
    """Tell whether this machine has an NVIDIA GPU."""
    return any(map(glob.glob, PLACES)) or (os.path.exists(WSL) and bool(card_names()))


def card_names() -> tuple[str, ...]:
    """Return a line for each card and each of its MIG instances, as `nvidia-smi -L` lists them."""
    return _kept_answer("-L")


def described_cards() -> tuple[str, ...]:
    """Return name, UUID, driver version and memory of each card, as `nvidia-smi` tells them."""
    return _kept_answer(f"--query-gpu={QUERY}", "--format=csv,noheader")


def told(*fields: str, of: str = "") -> list[list[str]]:
    """Return the values of some fields for each card, or for one; none without a driver."""
    one = [f"--id={of}"] if of else []
    lines = _answer(f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", *one)
    return [[cell.strip() for cell in line.split(",")] for line in lines]


def smi_memory_bytes() -> tuple[int, int] | None:
    """Return the total and the free bytes of the first visible card; `None` if unknown."""
    first = first_visible_card()
    rows = told("memory.total", "memory.free", of=first) if first else []
    if len(rows) != 1 or len(rows[0]) != 2 or not all(cell.isdecimal() for cell in rows[0]):
        return None  # a MIG instance, or a card that does not tell its memory
    return int(rows[0][0]) << 20, int(rows[0][1]) << 20


def is_card_hidden() -> bool:
    """Tell whether the environment hides all cards from TensorFlow."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible is not None and visible.strip() in ("", "-1")


def may_use_card() -> bool:
    """Tell whether there is a card, and the environment does not hide it."""
    return has_card() and not is_card_hidden()


def unused_card(device: str) -> str:
    """Return a warning if TensorFlow trains on the processor of a machine with a card, else `""`.

    Args:
        device: String, the training device in words; see `device_memory.device_words`.
    """
    if not device.startswith("CPU") or not may_use_card():
        return ""
    return (
        "This machine has an NVIDIA card that TensorFlow does not see, so training runs on the "
        "processor. `kbatch doctor` says what is missing."
    )


def tell_of_unused_card(device: str) -> None:
    """Warn, once in a process, of a card that TensorFlow does not see."""
    words = unused_card(device)
    if words and words not in _told:
        _told.add(words)
        warnings.warn(words, stacklevel=3)


_told: set[str] = set()


def first_visible_card() -> str | None:
    """Return the number or UUID by which `nvidia-smi` knows the GPU that CUDA calls 0, or `None`.

    See `_first_visible_handle` for cards of different models.
    """
    entry = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    cards = [line.split(", ") for line in described_cards()]
    if entry.startswith("GPU-"):
        return next((card[1] for card in cards if card[1].startswith(entry)), None)
    models, by_bus = {card[0] for card in cards}, os.environ.get("CUDA_DEVICE_ORDER")
    known = entry.isdecimal() and (len(models) == 1 or by_bus == "PCI_BUS_ID")
    return entry if known else None


@functools.cache
def _kept_answer(*arguments: str) -> tuple[str, ...]:
    """The answer of `nvidia-smi`, which is asked once: it takes up to a second."""
    return _answer(*arguments)


def _answer(*arguments: str) -> tuple[str, ...]:
    """The lines that `nvidia-smi` prints; none without it, or without a driver."""
    try:
        process = subprocess.run(
            ["nvidia-smi", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in process.stdout.splitlines() if line.strip())


# free memory is rounded down to quarters of a GiB, so that a cache key rarely changes with it;
# chosen by hand, not tuned
FREE_STEP = 1 << 28
STOPPING_SECONDS = 5.0  # a driver that hangs must not hold up training; chosen by hand, not tuned


@dataclass(frozen=True)
class Utilisation:
    """The load of a GPU over a time, summed up from samples."""

    # mean share of the time in which a kernel ran, in percent. `None` for a MIG instance, whose
    # load NVML does not tell.
    mean_gpu_percent: float | None
    max_gpu_percent: float | None  # highest such share of a sample, in percent, or `None`
    mean_memory_bytes: float  # mean memory in use on the GPU, in bytes
    max_memory_bytes: int  # highest memory in use in a sample, in bytes
    samples: int


class Sampler:
    """A context manager that samples the load of the first visible NVIDIA GPU.

    Without a GPU or without `pynvml` it does nothing.

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
                first = _first_visible_handle(nvml)
                while first is not None:
                    with contextlib.suppress(Exception):  # the next sample may succeed
                        samples.append(
                            (_percent(nvml, first), int(nvml.nvmlDeviceGetMemoryInfo(first).used))
                        )
                    if stop.wait(self.interval_seconds):
                        return
            finally:
                nvml.nvmlShutdown()


def _first_visible_handle(nvml: ModuleType) -> Any:
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
        known = smi_memory_bytes()
    else:
        known = _told_by(nvml)
    return None if known is None else (known[0], known[1] // FREE_STEP * FREE_STEP)


def _told_by(nvml: ModuleType) -> tuple[int, int] | None:
    """The total and the free bytes that NVML tells."""
    try:
        nvml.nvmlInit()
        try:
            first = _first_visible_handle(nvml)
            told = None if first is None else nvml.nvmlDeviceGetMemoryInfo(first)
        finally:
            nvml.nvmlShutdown()
    except Exception:  # no driver, or no such GPU
        return None
    return None if told is None else (int(told.total), int(told.free))
