"""Cache: answers that took minutes, kept on disk under a digest of all that they depend on."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import platformdirs

import kbatch
from kbatch.errors import KbatchError
from kbatch.records import files
from kbatch.runtime import device as runtime_device
from kbatch.runtime import nvidia

Value = TypeVar("Value")
VARIABLE = "KBATCH_CACHE"
VERSIONS = ("tensorflow", "keras", "numpy", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
SETTINGS = ("TF_", "XLA_FLAGS", "CUDA_VISIBLE_DEVICES")
SILENT = ("TF_CPP_MIN_LOG_LEVEL", "TF_CLI_CONFIG_FILE")


def folder() -> Path:
    """Return the folder of the cache: `$KBATCH_CACHE`, else `kbatch` in the user's cache folder."""
    own = os.environ.get(VARIABLE)
    return Path(own) if own else platformdirs.user_cache_path("kbatch", appauthor=False)


def key(facts: Mapping[str, Any]) -> str:
    """A digest of `facts`, this device, the versions, and the settings that TensorFlow reads."""
    everything = {**facts, "versions": _versions(), "device": device(), "settings": _settings()}
    return hashlib.sha256(json.dumps(everything, sort_keys=True, default=str).encode()).hexdigest()[
        :32
    ]


def load(name: str) -> Any | None:
    """The answer kept under a name, or `None`; an unreadable file counts as none."""
    with contextlib.suppress(KbatchError, ValueError, RecursionError):
        return json.loads(files.read(folder() / f"{name}.json") or b"null")
    return None


def load_as(name: str, read: Callable[[Any], Value]) -> Value | None:
    """Return the answer kept under a name as the value that `read` makes, or `None`.

    An answer that cannot be read, such as one of another version of kbatch, counts as none.
    """
    answer = load(name)
    if answer is None:
        return None
    try:
        return read(answer)
    except (KbatchError, TypeError, AttributeError, LookupError, ValueError, OverflowError):
        return None


def save(name: str, answer: Any) -> None:
    """Keep an answer. The file appears whole or not at all; an unwritable folder is no error."""
    with contextlib.suppress(OSError, KbatchError):
        folder().mkdir(parents=True, exist_ok=True)
        files.write(folder() / f"{name}.json", json.dumps(answer))


def device() -> str:
    """Describe the GPUs and the processor of this machine, without TensorFlow."""
    cards = [*nvidia.card_names(), *nvidia.described_cards()]  # MIG profiles, and driver versions
    for path in sorted(glob.glob("/proc/driver/nvidia/gpus/*/information")):
        with contextlib.suppress(OSError), open(path, encoding="utf-8") as lines:
            cards += [line.split(":", 1)[1].strip() for line in lines if line.startswith("Model")]
    name = runtime_device.processor_name()
    names = [*cards, name] if name else cards
    listed = ", ".join(names) or platform.processor()
    return f"{listed}; {platform.machine()}, {runtime_device.cores()} cores"


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "kbatch": kbatch.__version__}
    for name in VERSIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _settings() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(SETTINGS) and name not in SILENT
    }
