"""Need: bytes as a function of the batch size, predicted from a trace and corrected by probes."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from kbatch.memory._margins import MARGINS, Margins
from kbatch.memory._probe import Probe

UNBOUNDED = 1 << 24  # no batch is larger
LEAST_SLOPE = 1e-3  # of two probes far apart: a need that hardly rises must still rise


@dataclass(frozen=True)
class Need:
    """A curve of bytes over batch sizes that never falls: the highest of some lines.

    Attributes:
        lines: Tuple of pairs (fixed bytes, bytes per example).
    """

    lines: tuple[tuple[float, float], ...]

    def at(self, batch_size: int) -> float:
        """Bytes needed at a batch size."""
        return max(fixed + slope * batch_size for fixed, slope in self.lines)

    def largest(self, limit_bytes: float) -> int:
        """The largest batch size that needs at most `limit_bytes`; 0 if none does."""
        return bisect_right(range(1, UNBOUNDED + 1), limit_bytes, key=self.at)

    def corrected(
        self, probes: list[Probe], limit_bytes: float, margins: Margins = MARGINS
    ) -> tuple[Need, ...]:
        """Rescale the predicted curve so that it agrees with the probes.

        Only probes whose peak is reliable (`margins.reliable`) set the slope: two of them if their
        sizes differ by `margins.apart` or more, otherwise one, which may only make it steeper.
        Returns that curve through the largest such probe, and the same slope through the largest
        probe of all, whose peak may include allocator slack. Without a probe that passed, the
        prediction is returned as it is.
        """
        passed = _largest_last(probes)
        if not passed:
            return (self,)
        trusted_bytes = margins.reliable * limit_bytes
        reliable = [probe for probe in passed if probe.peak_bytes <= trusted_bytes] or passed[:1]
        rise = self._rise(reliable, margins)
        if passed[-1] is not reliable[-1]:
            # A peak near the limit is never below the need, so it may only lower the slope.
            near_limit = self._rise([reliable[-1], passed[-1]], margins)
            rise = min(rise, max(near_limit, margins.flatter))
        return tuple(self._through(probe, rise) for probe in {reliable[-1], passed[-1]})

    def scale(self, probe: Probe, margins: Margins = MARGINS) -> tuple[float, float]:
        """The factor on the slope, and the bytes to add, that lead the curve through a probe."""
        rise = max(self._ratio(probe, margins), margins.flatter)
        return rise, probe.peak_bytes - self._lowest - rise * (
            self.at(probe.batch_size) - self._lowest
        )

    def scaled(self, rise: float, added_bytes: float) -> Need:
        """The curve with a steeper slope above its lowest part, and some bytes added."""
        lowest = self._lowest
        return Need(
            tuple(
                (lowest + added_bytes + rise * (fixed - lowest), rise * slope)
                for fixed, slope in self.lines
            )
        )

    @property
    def _lowest(self) -> float:
        return min(fixed for fixed, _ in self.lines)

    def _rise(self, measured: list[Probe], margins: Margins) -> float:
        """The factor between the measured and the predicted slope."""
        last = measured[-1]
        if len(measured) == 1 or last.batch_size < margins.apart * measured[-2].batch_size:
            # One probe cannot tell a wrong slope from a wrong constant.
            return max(self._ratio(last, margins), 1.0)
        before = measured[-2]
        predicted = self.at(last.batch_size) - self.at(before.batch_size)
        rise = (last.peak_bytes - before.peak_bytes) / max(predicted, 1.0)
        near = last.batch_size < margins.far * before.batch_size
        return min(max(rise, margins.flattest if near else LEAST_SLOPE), margins.steepest)

    def _ratio(self, probe: Probe, margins: Margins) -> float:
        """Measured over predicted bytes, both above the lowest part of the curve."""
        predicted = max(self.at(probe.batch_size) - self._lowest, 1.0)
        return min((probe.peak_bytes - self._lowest) / predicted, margins.steepest)

    def _through(self, probe: Probe, rise: float) -> Need:
        offset = probe.peak_bytes - rise * self.at(probe.batch_size)
        return Need(tuple((offset + rise * fixed, rise * slope) for fixed, slope in self.lines))


def _largest_last(probes: list[Probe]) -> list[Probe]:
    """The last passed probe of each size, by size."""
    by_size = {each.batch_size: each for each in probes if each.passed and each.peak_bytes}
    return [by_size[size] for size in sorted(by_size)]
