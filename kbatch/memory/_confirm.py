"""Confirmation of a batch size: fresh processes train it, and smaller ones until one passes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kbatch.memory._next_size import Allowed, ProbeOf
from kbatch.memory._probe import Probe

EQUAL_STEPS = 2  # down, before they double


@dataclass(frozen=True)
class Confirmed:
    """What the confirmations found.

    Attributes:
        batch_size: Integer, the size that passed; 0 if none did.
        first_failing: Integer, the smallest that failed, or `None` if none did.
        probes: Tuple of `Probe`, one per training.
    """

    batch_size: int
    first_failing: int | None
    probes: tuple[Probe, ...]

    @property
    def steps(self) -> int:
        """Steps that the size was trained, in all processes together."""
        return sum(
            len(probe.step_seconds)
            for probe in self.probes
            if probe.passed and probe.batch_size == self.batch_size
        )

    @property
    def peak_bytes(self) -> int:
        """The most bytes in use when the size was confirmed."""
        return max(
            (
                probe.peak_bytes
                for probe in self.probes
                if probe.passed and probe.batch_size == self.batch_size
            ),
            default=0,
        )


def confirmed(confirm: ProbeOf, batch_size: int, step: float, allowed: Allowed) -> Confirmed:
    """The largest batch size, from a given one down, that trains and validates long enough.

    Args:
        confirm: Function that trains a size, long enough to rely on.
        batch_size: Integer, where to begin; 0 if nothing is left to confirm.
        step: Float, the part of a size that is taken off after it failed; from the third failure on
            twice as much as before, and then the middle is tried until what passed and what failed
            are one step apart.
        allowed: Function that rounds a size down to one that may be used.
    """
    probes: list[Probe] = []
    failed: list[int] = []
    size = batch_size

    def passes(size: int) -> bool:
        probes.append(confirm(size))
        if not probes[-1].passed:
            failed.append(size)
        return probes[-1].passed

    while size >= 1 and not passes(size):
        part = min(0.5, step * 2 ** max(0, len(failed) - EQUAL_STEPS))
        size = max(1, allowed(min(size - 1, int(size * (1 - part))))) if size > 1 else 0
    # the steps down had become long
    while size and failed and min(failed) - size > math.ceil(step * min(failed)):
        middle = allowed((size + min(failed)) // 2)
        if middle <= size:
            break
        size = middle if passes(middle) else size
    return Confirmed(size, min(failed, default=None), tuple(probes))
