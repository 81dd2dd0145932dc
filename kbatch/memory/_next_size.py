"""Next size: the batch to probe after those that were, by memory and by speed."""

from __future__ import annotations

import itertools
import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kbatch.memory._max_batch import MARGINS, Margins, SearchResult
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


ProbeOf = Callable[[int], Probe]
Allowed = Callable[[int], int]


def any_size(batch_size: int) -> int:
    """Every batch size may be used."""
    return batch_size


def power_of_two(batch_size: int) -> int:
    """The largest power of two up to a batch size."""
    return 1 << (batch_size.bit_length() - 1) if batch_size > 0 else 0


def multiple_of_8(batch_size: int) -> int:
    """The largest multiple of 8 up to a batch size; below 8, any size."""
    return batch_size // 8 * 8 if batch_size >= 8 else batch_size


ALLOWED: dict[str, Allowed] = {
    "any": any_size,
    "powers_of_two": power_of_two,
    "multiples_of_8": multiple_of_8,
}


class Log:
    """The probes of a search so far."""

    def __init__(self, probe: ProbeOf) -> None:
        self._probe = probe
        self.probes: list[Probe] = []

    def passes(self, batch_size: int) -> bool:
        """Try a batch size, and return whether it passed."""
        self.probes.append(self._probe(batch_size))
        return self.probes[-1].passed

    def result(self) -> SearchResult:
        """The largest size that passed, below all that failed."""
        passed = [probe.batch_size for probe in self.probes if probe.passed]
        failed = [probe.batch_size for probe in self.probes if not probe.passed]
        # A size that passed once and failed once is not reliable.
        low = max((size for size in passed if not failed or size < min(failed)), default=0)
        return SearchResult(low, min(failed, default=None), tuple(self.probes))


class _Jump:
    """State of `jump`: the largest size that passed and the smallest that failed."""

    def __init__(
        self, need: Need, limit_bytes: float, ceiling: int, allowed: Allowed, margins: Margins
    ) -> None:
        self._need, self._limit_bytes, self._margins = need, limit_bytes, margins
        self._ceiling, self._allowed = ceiling, allowed
        self._predicted, self._stride = need.largest(limit_bytes), margins.tolerance
        self.low, self._high, self._failures = 0, 0, 0

    def note(self, size: int, passed: bool) -> None:
        """Narrow the interval by one probe."""
        if passed:
            self.low = max(self.low, size)
            return
        self._failures += 1
        self._high = min(self._high or size, size)
        if self.low >= self._high:
            self.low = 0  # a smaller size failed later: what passed above it is not reliable

    def following(self, probes: list[Probe]) -> int:
        """The size to probe next; at most `low` if the search ends."""
        curves = self._need.corrected(probes, self._limit_bytes, self._margins)
        fitting_bytes = self._margins.computed * self._limit_bytes
        guess = max(curve.largest(fitting_bytes) for curve in curves)
        if self._high:
            return self._between(guess)
        size = self._allowed(min(self._ceiling, guess))
        if self._allowed is power_of_two:
            above = min(self._ceiling, int(guess * self._margins.rounded_up))
            size = max(size, self._allowed(above))
        if size > self.low * (1 + self._margins.near):
            return size
        if self._distrusted() and probes[-1].peak_bytes <= self._limit_bytes:
            return self._further()
        return self.low if size < self._allowed(self._ceiling) else size

    def _distrusted(self) -> bool:
        """Whether the first prediction was so wrong that it may be wrong near the limit too."""
        trusted = self._margins.trusted
        return not self.low * trusted <= self._predicted <= self.low / trusted

    def _further(self) -> int:
        """A little above what passed, so that a failure ends the search; each time further."""
        above = self.low + max(1, int(self._stride * self.low))
        self._stride *= 2
        return self._allowed(min(self._ceiling, above))

    def _between(self, guess: int) -> int:
        """The next size between what passed and what failed; 0 if they are near enough."""
        low, high, tolerance = self.low, self._high, self._margins.tolerance
        if high - low <= max(1, tolerance * low):
            return 0
        if guess >= high and self._failures == 1:
            guess = int(high / (1 + tolerance))  # a little too high a prediction: just below
        # A guess far down, or one that failed before, has been wrong already: halve the gap.
        usable = low + (high - low) // 8 < guess < high
        size = self._allowed(guess if usable else (low + high) // 2)
        return size if size > low else 0


def jump(
    probe: ProbeOf,
    need: Need,
    limit_bytes: float,
    ceiling: int,
    allowed: Allowed,
    margins: Margins = MARGINS,
) -> SearchResult:
    """Probe near half of the limit, correct the prediction, jump to the limit, and close in.

    The search ends when the largest size that passed is within `margins.tolerance` (or 1) of the
    smallest that failed, or within `margins.near` of the corrected prediction. A peak near the
    limit does not end the search earlier. A peak above the limit ends the steps beyond a
    prediction that was far off.
    """
    log = Log(probe)
    state = _Jump(need, limit_bytes, ceiling, allowed, margins)
    size = first_size(need, limit_bytes, ceiling, allowed, margins)
    while True:
        state.note(size, log.passes(size))
        size = state.following(log.probes)
        if size <= state.low:
            return log.result()


def first_size(
    need: Need, limit_bytes: float, ceiling: int, allowed: Allowed, margins: Margins = MARGINS
) -> int:
    """The first batch size to probe: near half of the largest that is predicted."""
    fixed = min(need.at(0), limit_bytes)
    aimed = need.largest(fixed + margins.first * (limit_bytes - fixed))
    return max(1, allowed(min(ceiling, aimed)))


def settle(probe: ProbeOf, guess: int, ceiling: int, allowed: Allowed) -> SearchResult:
    """Probe an exact prediction, and smaller sizes only if it fails.

    The first step down is 1 % of the size, and each later one twice as large.
    """
    log, size, percent = Log(probe), max(1, allowed(min(guess, ceiling))), 1
    while not log.passes(size) and size > 1:
        size = max(1, allowed(min(size - 1, int(size * (1 - percent / 100)))))
        percent *= 2
    return log.result()


# steps of a probe that are not counted: the first traces, compiles and fills the input pipeline
UNSTEADY = 1
NEARLY = 0.95  # of the best speed: what "as fast" means; chosen by hand


@dataclass(frozen=True)
class Line:
    """Seconds of a step: `overhead_seconds + seconds_per_example * batch_size`.

    Attributes:
        overhead_seconds: Float, seconds of a step that do not depend on the batch size.
        seconds_per_example: Float, seconds that each example adds.
        largest: Integer, the largest batch size that the line was fitted to.
    """

    overhead_seconds: float
    seconds_per_example: float
    largest: int

    def examples_per_second(self, batch_size: int) -> float:
        """Speed at a batch size."""
        return batch_size / (self.overhead_seconds + self.seconds_per_example * batch_size)

    def smallest(self, share: float = NEARLY) -> int:
        """The smallest batch size with at least that share of the best speed up to `largest`.

        Example:
        >>> line = Line(overhead_seconds=0.01, seconds_per_example=0.001, largest=10_000)
        >>> line.smallest(0.95)
        187
        """
        speed = share * self.examples_per_second(self.largest)
        room = 1 - speed * self.seconds_per_example
        return min(self.largest, max(1, math.ceil(speed * self.overhead_seconds / room - 1e-9)))

    def flat_from(self, gain: float) -> int:
        """The batch size from which on twice as many examples gain at most `gain` of speed.

        Example:
        >>> Line(overhead_seconds=0.01, seconds_per_example=0.001, largest=64).flat_from(0.02)
        245
        """
        return max(
            1, math.ceil(self.overhead_seconds / self.seconds_per_example * (1 / gain - 1) / 2)
        )


def fitted_line(seconds: Mapping[int, Sequence[float]]) -> Line | None:
    """Fit a line through the median steps of batch sizes, robust to disturbed ones.

    Args:
        seconds: Steady seconds of steps, by batch size.

    Returns:
        The `Line`, or `None` if there are not two sizes. Its slope is the median of those between
        all pairs (Theil 1950, Sen 1968), each pair weighted by how far apart it is.
    """
    medians = {size: statistics.median(steps) for size, steps in seconds.items() if steps}
    pairs = [(small, large) for small, large in itertools.combinations(sorted(medians), 2)]
    if not pairs:
        return None
    slopes = sorted(
        ((medians[large] - medians[small]) / (large - small), large - small)
        for small, large in pairs
    )
    slope = max(_weighted_median(slopes), 1e-12)
    overhead = max(
        0.0, statistics.median(second - slope * size for size, second in medians.items())
    )
    if overhead == 0.0:
        slope = statistics.median(second / size for size, second in medians.items())
    return Line(overhead, slope, max(medians))


def line_of_probes(probes: Iterable[Probe]) -> Line | None:
    """The line of probes that passed; `None` if they tried one size only."""
    seconds: dict[int, list[float]] = {}
    for probe in probes:
        if probe.passed:
            seconds.setdefault(probe.batch_size, []).extend(probe.step_seconds[UNSTEADY:])
    return fitted_line(seconds)


def _weighted_median(values: list[tuple[float, int]]) -> float:
    half, weight = sum(weight for _, weight in values) / 2, 0
    for value, own in values:
        weight += own
        if weight >= half:
            return value
    return values[-1][0]


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
    """
    if largest <= SIZES[-1]:
        return SpeedBound()
    probes = tuple(steps(size, STEPS) for size in SIZES)
    line = line_of_probes(probes)
    if line is None:
        return SpeedBound(probes)
    return SpeedBound(probes, max(SIZES[-1], line.flat_from(GAIN)))
