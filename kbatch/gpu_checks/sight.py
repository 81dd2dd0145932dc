"""Sight: the GPUs that TensorFlow sees, asked in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from kbatch.errors import KbatchError
from kbatch.gpu_checks.scale import FAKE, is_rehearsal

TIMEOUT_SECONDS = 120
QUESTION = """
import json, tensorflow as tf
details = tf.config.experimental.get_device_details
gpus = tf.config.list_physical_devices("GPU")
print(json.dumps([details(gpu).get("device_name", "GPU") for gpu in gpus]))
"""
FAKE_NAME = "FAKE GPU"


def wear_fake(folder: Path | None) -> None:
    """Put the fake GPU on the `PYTHONPATH` of new processes, if the environment asks for it."""
    if not is_rehearsal():
        return
    if folder is None or not (folder / "sitecustomize.py").is_file():
        raise KbatchError(
            f"{FAKE} needs tests/fake_gpu, which only a checkout of the repository has",
            "none" if folder is None else str(folder),
            f"Run `python scripts/gpu_check.py` in a checkout, or unset {FAKE}",
        )
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), before)))


def gpus() -> list[str]:
    """Return the names of the GPUs that TensorFlow sees."""
    try:
        process = subprocess.run(
            [sys.executable, "-c", QUESTION],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _unseen(f"no answer within {TIMEOUT_SECONDS} seconds") from error
    lines = process.stdout.strip().splitlines()
    names: list[str] = json.loads(lines[-1]) if process.returncode == 0 and lines else []
    if is_rehearsal() and FAKE_NAME not in names:
        said = ", ".join(names) or "no GPU"
        raise KbatchError(
            f"With {FAKE} TensorFlow must see the fake GPU", said, "See tests/fake_gpu"
        )
    if not names:
        raise _unseen("none" if process.returncode == 0 else process.stderr.strip()[-300:])
    return names


def _unseen(received: str) -> KbatchError:
    return KbatchError(
        "TensorFlow must see a GPU for these checks",
        received,
        f"Run `kbatch doctor` to see why, or rehearse with {FAKE}=1 in a checkout",
    )
