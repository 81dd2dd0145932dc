"""Speed bound: the batch size from which on larger batches gain no speed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kbatch.memory._probe import Probe
from kbatch.memory._speed_line import of_probes

# Chosen by hand. Two sizes give the line of seconds per step; up to the larger one, a batch is
# worth trying whatever its speed.
SIZES, STEPS = (512, 4096), 6
GAIN = 0.02  # of twice as many examples: chosen by hand, about the noise of a step's seconds


@dataclass(frozen=True)
class SpeedBound:
    """Where larger batches stop being faster.

    Attributes:
        probes: Tuple of `Probe` that show it.
        flat: Integer, the size from which on twice as many examples gain less than 2 % of speed;
            `None` if it was not measured.
    """

    probes: tuple[Probe, ...] = ()
    flat: int | None = None

    def lowered(self, ceiling: int) -> int:
        """The ceiling, or the size from which on speed is flat, whichever is lower."""
        return ceiling if self.flat is None else min(ceiling, self.flat)


def speed_bound(steps: Callable[[int, int], Probe], largest: int) -> SpeedBound:
    """Measure where speed stops rising, if memory allows sizes where that matters.

    A model that needs next to no memory has no other bound on its batch size.

    Args:
        steps: Function `steps(batch_size, steps)` that trains a batch size.
        largest: Integer, the largest size that memory and the ceiling allow.
    """
    if largest <= SIZES[-1]:
        return SpeedBound()
    probes = tuple(steps(size, STEPS) for size in SIZES)
    line = of_probes(probes)
    if line is None:
        return SpeedBound(probes)
    return SpeedBound(probes, max(SIZES[-1], line.flat_from(GAIN)))
