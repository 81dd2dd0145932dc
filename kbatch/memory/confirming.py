"""Confirming: longer trainings in fresh processes, of a size that a search found and of smaller ones until one passes. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kbatch.data import VALIDATION_BATCH_SIZE
from kbatch.errors import MemoryLimitError
from kbatch.memory.probe import Probe
from kbatch.memory.searching import Allowed, ProbeOf

# Of the confirmed size: without XLA the largest that passes is a band, not a number. One that had failed before was in it.
KEPT_FREE, KEPT_FREE_IN_BAND = 0.03, 0.05
EQUAL_STEPS = 4  # down, before they double
SMALL = 10  # a size from which on at least one example is left out there


@dataclass(frozen=True)
class Confirmed:
    """What the confirmations found.

    Attributes:
        batch_size: Integer, the size that passed; 0 if none did.
        first_failing: Integer, the smallest that failed, or `None` if none did.
        probes: Tuple of `Probe`, one per fresh process.
    """

    batch_size: int
    first_failing: int | None
    probes: tuple[Probe, ...]

    @property
    def steps(self) -> int:
        """Steps that the size was trained, in all processes together."""
        return sum(len(probe.step_seconds) for probe in self.probes if probe.passed and probe.batch_size == self.batch_size)

    @property
    def peak_bytes(self) -> int:
        """The most bytes in use when the size was confirmed."""
        return max((probe.peak_bytes for probe in self.probes if probe.passed and probe.batch_size == self.batch_size), default=0)

    @property
    def safe(self) -> int:
        """A size a little smaller, that each process should be able to train."""
        if self.first_failing is None or self.batch_size < SMALL:
            return self.batch_size - round(KEPT_FREE * self.batch_size)
        return self.batch_size - max(1, round(KEPT_FREE_IN_BAND * self.batch_size))


def confirmed(confirm: ProbeOf, batch_size: int, step: float, allowed: Allowed, processes: int = 1) -> Confirmed:
    """The largest batch size, from a given one down, that fresh processes train and validate.

    Args:
        confirm: Function that trains a size in a fresh process, long enough to rely on.
        batch_size: Integer, where to begin; 0 if nothing is left to confirm.
        step: Float, the part of a size that is taken off after it failed; from the fifth failure on twice as much as before, and then the
            middle is tried until what passed and what failed are one step apart.
        allowed: Function that rounds a size down to one that may be used.
        processes: Integer, how many processes have to train it. Where tensors lie is decided early in each: several short
            trainings show more than a long one. Defaults to `1`.

    Raises:
        MemoryLimitError: If a size trains but cannot be validated.
    """
    probes: list[Probe] = []
    failed: list[int] = []
    size = batch_size

    def passes(size: int) -> bool:
        for _ in range(processes):
            probes.append(confirm(size))
            if probes[-1].phase == "validation" and not probes[-1].passed:
                raise _validation_does_not_fit(probes[-1])
            if not probes[-1].passed:
                failed.append(size)
                return False
        return True

    while size >= 1 and not passes(size):
        part = min(0.5, step * 2 ** max(0, len(failed) - EQUAL_STEPS))
        size = max(1, allowed(min(size - 1, int(size * (1 - part))))) if size > 1 else 0
    while size and failed and min(failed) - size > math.ceil(step * min(failed)):  # the steps down had become long
        middle = allowed((size + min(failed)) // 2)
        if middle <= size:
            break
        size = middle if passes(middle) else size
    return Confirmed(size, min(failed, default=None), tuple(probes))


def _validation_does_not_fit(probe: Probe) -> MemoryLimitError:
    return MemoryLimitError(
        f"A validation batch of {VALIDATION_BATCH_SIZE} examples must fit into the memory limit",
        f"a model that trains with {probe.batch_size} and then ended: {probe.ended.replace('_', ' ')}",
        "Raise the limit, or take a smaller model",
    )
