"""Scale: how large the checks are on a real GPU, and in a rehearsal on the fake one."""

from __future__ import annotations

import os
from dataclasses import dataclass

from kbatch.runtime.device_memory import MIB

FAKE = "FAKE_GPU"  # the variable that asks for the fake


@dataclass(frozen=True)
class Scale:
    """Sizes of the checks.

    Attributes:
        rehearsed: Boolean, whether the GPU is the fake, whose kernels are a CPU's.
        limit_bytes: Integer, the memory limit of most checks.
        small_limit_bytes: Integer, the limit that is run out of.
        block_bytes: Integer, size of the tensor that the meter is asked about.
        image_size: Integer, height and width of pictures.
        batch_size: Integer, examples of an ordinary batch.
        updates: Integer, updates of a training that is timed.
        seconds: Float, seconds of a training with a horizon.
        steps: Integer, steps that an answer of the finder must survive.
        processes: Integer, fresh processes in which it must.
        trials: Integer, short trainings in one process.
        retraces: Integer, how often a recomputed model is traced anew.
        ceiling: Integer, the largest batch that the finder may try; `None` for no bound.
    """

    rehearsed: bool
    limit_bytes: int
    small_limit_bytes: int
    block_bytes: int
    image_size: int
    batch_size: int
    updates: int
    seconds: float
    steps: int
    processes: int
    trials: int
    retraces: int
    ceiling: int | None


REAL = Scale(
    rehearsed=False,
    limit_bytes=4 * 10**9,
    small_limit_bytes=2 * 10**9,
    block_bytes=1024 * MIB,
    image_size=200,
    batch_size=64,
    updates=300,
    seconds=5.0,
    steps=100,
    processes=2,
    trials=20,
    retraces=10,
    ceiling=None,
)
REHEARSED = Scale(
    rehearsed=True,
    limit_bytes=200 * 10**6,
    small_limit_bytes=100 * 10**6,
    block_bytes=64 * MIB,
    image_size=32,
    batch_size=16,
    updates=30,
    seconds=3.0,
    steps=10,
    processes=1,
    trials=4,
    retraces=2,
    ceiling=None,
)


def is_rehearsal() -> bool:
    """Tell whether the environment asks for the fake GPU."""
    return bool(os.environ.get(FAKE))


def scale() -> Scale:
    """Return the sizes for this process."""
    return REHEARSED if is_rehearsal() else REAL
