"""Need: bytes as a function of the batch size, predicted and then corrected by probes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kbatch.memory._probe import Probe

UNBOUNDED = 1 << 24
# Times the predicted slope: of one probe, of two that are not far apart, of any.
FLATTER, FLATTEST, STEEPEST = 0.75, 0.375, 4.0
# times as large: two probes nearer to one another than the first give no slope, than the second a
# rough one
APART, FAR = 1.3, 2.0
RELIABLE_SHARE = 0.85  # a peak nearer to the limit shows the allocator's slack rather than the need


@dataclass(frozen=True)
class Need:
    """A curve of bytes over batch sizes that never falls.

    Attributes:
        lines: Tuple of pairs (fixed bytes, bytes per example); the need is the highest of these
            lines.
    """

    lines: tuple[tuple[float, float], ...]

    def at(self, batch_size: int) -> float:
        """Bytes needed at a batch size."""
        return max(fixed + slope * batch_size for fixed, slope in self.lines)

    def largest(self, limit_bytes: float) -> int:
        """The largest batch size that needs at most so many bytes; 0 if none does."""
        return largest(lambda size: self.at(size) <= limit_bytes, UNBOUNDED)

    def corrected(self, probes: list[Probe], limit_bytes: float) -> tuple[Need, ...]:
        """The needs that fit what was measured; the prediction as it is if nothing passed.

        One goes through the last reliable probe that passed: one such probe may make the prediction
        steeper, two that are apart give its slope. Another with the same slope goes through the
        largest that passed, reliable or not: its peak is never below the need. An extrapolation
        keeps the prediction's bends.
        """
        passed = sorted(
            {
                probe.batch_size: probe for probe in probes if probe.passed and probe.peak_bytes
            }.values(),
            key=_size,
        )
        reliable = [
            probe for probe in passed if probe.peak_bytes <= RELIABLE_SHARE * limit_bytes
        ] or passed[:1]
        if not passed:
            return (self,)
        rise = self._rise(reliable)
        if passed[-1] is not reliable[-1]:
            # A peak near the limit is never below the need: it may show that the need rises less.
            rise = min(rise, max(self._rise([reliable[-1], passed[-1]]), FLATTER))
        return tuple(self._through(probe, rise) for probe in {reliable[-1], passed[-1]})

    def scale(self, probe: Probe) -> tuple[float, float]:
        """How much steeper than predicted the need rises, and the bytes beside, so that it goes through a probe."""
        rise, fixed = max(self._ratio(probe), FLATTER), min(line[0] for line in self.lines)
        return rise, probe.peak_bytes - fixed - rise * (self.at(probe.batch_size) - fixed)

    def scaled(self, rise: float, beside: float) -> Need:
        """The need with what rises above its lowest part made steeper, and some bytes beside."""
        fixed = min(line[0] for line in self.lines)
        return Need(
            tuple(
                (fixed + beside + rise * (line[0] - fixed), rise * line[1]) for line in self.lines
            )
        )

    def _rise(self, measured: list[Probe]) -> float:
        """How much steeper than predicted the need rises."""
        last = measured[-1]
        if len(measured) > 1 and last.batch_size >= APART * measured[-2].batch_size:
            before = measured[-2]
            rise = (last.peak_bytes - before.peak_bytes) / max(
                self.at(last.batch_size) - self.at(before.batch_size), 1.0
            )
            return min(
                max(rise, FLATTEST if last.batch_size < FAR * before.batch_size else 1e-3), STEEPEST
            )
        # a single probe cannot tell a wrong slope from a wrong constant
        return max(self._ratio(last), 1.0)

    def _ratio(self, probe: Probe) -> float:
        """What was measured above the lowest part, times what was predicted."""
        fixed = min(line[0] for line in self.lines)
        return min(
            (probe.peak_bytes - fixed) / max(self.at(probe.batch_size) - fixed, 1.0), STEEPEST
        )

    def _through(self, probe: Probe, rise: float) -> Need:
        offset = probe.peak_bytes - rise * self.at(probe.batch_size)
        return Need(tuple((offset + rise * line[0], rise * line[1]) for line in self.lines))


def largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest whole number from 0 to `most` that fits, by bisection; 0 always does."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _size(probe: Probe) -> int:
    return probe.batch_size
