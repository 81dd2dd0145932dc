"""Comparison: what two batch sizes gave over the seeds, with an interval around the difference."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from kbatch.results.uncertainty import FEWEST_SEEDS, interval
from kbatch.studies.study_table import NOTHING, mean_text

CHANCE = 0.5  # of two classes
Answer: TypeAlias = Literal["higher", "lower", "within noise"]


@dataclass(frozen=True)
class Values:
    """What one batch size gave: a value for each seed.

    Attributes:
        size: Integer, the batch size.
        values: Tuple of floats, one for each seed; NaN for a cell without a value.
        error: Float, standard error of measuring one value, such as on 400 pictures.
    """

    size: int
    values: tuple[float, ...]
    error: float = 0.0

    @property
    def known(self) -> bool:
        """Boolean, whether every seed has a value."""
        return bool(self.values) and all(map(math.isfinite, self.values))

    @property
    def mean(self) -> float:
        """Float, the mean over the seeds; NaN if a seed has no value."""
        return statistics.fmean(self.values)

    def times(self, factor: float) -> Values:
        """Return the values times a factor, which is exact."""
        values = tuple(factor * value for value in self.values)
        return Values(self.size, values, factor * self.error)

    def __str__(self) -> str:
        return f"{mean_text(self.values) if self.known else NOTHING} at batch {self.size}"


@dataclass(frozen=True)
class Comparison:
    """The mean of one size less that of another.

    Attributes:
        difference: Float.
        half_width: Float, half of the 95 % interval around it; infinite with too few seeds.
    """

    difference: float
    half_width: float

    @property
    def low(self) -> float:
        """Float, the lower end of the interval."""
        return self.difference - self.half_width

    @property
    def high(self) -> float:
        """Float, the upper end of the interval."""
        return self.difference + self.half_width

    @property
    def answer(self) -> Answer:
        """Whether the first is `"higher"`, `"lower"`, or not told from the second by these seeds.

        >>> Comparison(0.2, 0.1).answer, Comparison(-0.2, 0.1).answer, Comparison(0.1, 0.1).answer
        ('higher', 'lower', 'within noise')
        """
        if not abs(self.difference) > self.half_width:
            return "within noise"
        return "higher" if self.difference > 0 else "lower"

    def __str__(self) -> str:
        if not math.isfinite(self.half_width):
            return f"fewer than {FEWEST_SEEDS} seeds decide nothing"
        return (
            f"difference {self.difference:+.3f}, 95 % interval {self.low:+.3f} to {self.high:+.3f}"
        )


def compared(first: Values, second: Values, pairs: int = 1) -> Comparison:
    """Return the difference of two sizes, with the interval of `kbatch.results.uncertainty`.

    Args:
        first: Values of one size, all of them known.
        second: Values of the other size.
        pairs: Integer, the number of pairs of which these values chose this one (Bonferroni).
    """
    difference = first.mean - second.mean
    if min(len(first.values), len(second.values)) < FEWEST_SEEDS:
        return Comparison(difference, math.inf)
    if not any((first.error, second.error, _spread(first), _spread(second))):
        return Comparison(difference, 0.0)  # without any spread there is no t
    width = interval(first.values, second.values, first.error, second.error, pairs)
    return Comparison(difference, float(width))


def above_chance(values: Values, sizes: int) -> bool:
    """Return whether an accuracy is above that of guessing by more than noise.

    Args:
        values: Accuracies of one size.
        sizes: Integer, the number of sizes of which these accuracies chose this one.
    """
    guessed = Values(values.size, (CHANCE,) * len(values.values))
    return compared(values, guessed, sizes).answer == "higher"


def best(sizes: Sequence[Values]) -> Values:
    """Return the values of the size with the highest mean; of equal ones the first."""
    return max(sizes, key=lambda values: values.mean)


def bests(sizes: Sequence[Values]) -> str:
    """Return the size with the highest mean in words, with those that equal it.

    >>> bests([Values(16, (0.5,)), Values(32, (0.4,)), Values(64, (0.5,))])
    '16 = 64'
    """
    top = best(sizes).mean
    return " = ".join(str(values.size) for values in sizes if values.mean == top)


def _spread(values: Values) -> float:
    return max(values.values) - min(values.values)
