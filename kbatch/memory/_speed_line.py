"""Speed line: seconds per step as a line in the batch size."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kbatch.memory._probe import Probe

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
        >>> Line(overhead_seconds=0.01, seconds_per_example=0.001, largest=10_000).smallest(0.95)
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


def fit(seconds: Mapping[int, Sequence[float]]) -> Line | None:
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


def of_probes(probes: Iterable[Probe]) -> Line | None:
    """The line of probes that passed; `None` if they tried one size only."""
    seconds: dict[int, list[float]] = {}
    for probe in probes:
        if probe.passed:
            seconds.setdefault(probe.batch_size, []).extend(probe.step_seconds[UNSTEADY:])
    return fit(seconds)


def _weighted_median(values: list[tuple[float, int]]) -> float:
    half, weight = sum(weight for _, weight in values) / 2, 0
    for value, own in values:
        weight += own
        if weight >= half:
            return value
    return values[-1][0]
