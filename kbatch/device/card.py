"""The NVIDIA GPUs of this machine, asked for without TensorFlow."""

from __future__ import annotations

import functools
import glob
import os
import subprocess
import warnings

# a container may have any one of the cards
PLACES = ("/dev/nvidia[0-9]*", "/proc/driver/nvidia/gpus/*")
# Windows' GPUs in WSL2, of any maker: `nvidia-smi` tells whether one is NVIDIA's
WSL = "/dev/dxg"
TIMEOUT_SECONDS = 20
QUERY = "name,uuid,driver_version,memory.total"


def has_card() -> bool:
    """Tell whether this machine has an NVIDIA GPU."""
    return any(map(glob.glob, PLACES)) or (os.path.exists(WSL) and bool(names()))


def names() -> tuple[str, ...]:
    """Return a line for each card and each of its MIG instances, as `nvidia-smi -L` lists them."""
    return _kept_answer("-L")


def described() -> tuple[str, ...]:
    """Return name, UUID, driver version and memory of each card, as `nvidia-smi` tells them."""
    return _kept_answer(f"--query-gpu={QUERY}", "--format=csv,noheader")


def told(*fields: str, of: str = "") -> list[list[str]]:
    """Return the values of some fields for each card, or for one; none without a driver.

    Args:
        *fields: Fields as `nvidia-smi --help-query-gpu` lists them; bytes are in MiB.
        of: String, the number or UUID of one card. Defaults to all cards.
    """
    one = [f"--id={of}"] if of else []
    lines = _answer(f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", *one)
    return [[cell.strip() for cell in line.split(",")] for line in lines]


def memory_bytes() -> tuple[int, int] | None:
    """Return the total and the free bytes of the first visible card; `None` if unknown."""
    first = first_visible()
    rows = told("memory.total", "memory.free", of=first) if first else []
    if len(rows) != 1 or len(rows[0]) != 2 or not all(cell.isdecimal() for cell in rows[0]):
        return None  # a MIG instance, or a card that does not tell its memory
    return int(rows[0][0]) << 20, int(rows[0][1]) << 20


def is_hidden() -> bool:
    """Tell whether the environment hides all cards from TensorFlow."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible is not None and visible.strip() in ("", "-1")


def may_be_used() -> bool:
    """Tell whether there is a card, and the environment does not hide it."""
    return has_card() and not is_hidden()


def unused(device: str) -> str:
    """Return a warning if TensorFlow trains on the processor of a machine with a card, else `""`.

    Args:
        device: String, the training device in words; see `kbatch.device.meter.device_words`.
    """
    if not device.startswith("CPU") or not may_be_used():
        return ""
    return (
        "This machine has an NVIDIA card that TensorFlow does not see, so training runs on the "
        "processor. `kbatch doctor` says what is missing."
    )


def tell_of_unused(device: str) -> None:
    """Warn, once in a process, of a card that TensorFlow does not see.

    Args:
        device: String, the training device in words.
    """
    words = unused(device)
    if words and words not in _told:
        _told.add(words)
        warnings.warn(words, stacklevel=3)


_told: set[str] = set()


def first_visible() -> str | None:
    """Return the number or UUID by which `nvidia-smi` knows the GPU that CUDA calls 0, or `None`.

    See `kbatch.device.utilisation` for cards of different models.
    """
    entry = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    cards = [line.split(", ") for line in described()]
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
