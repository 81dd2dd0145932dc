"""Growth: functions that choose the size of the next batch of a growing training."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kbatch.batch_growth import BatchGrowth
from kbatch.rules import batch_schedule

SizeNow = Callable[[int], int]


def by_progress(
    growth: BatchGrowth, last: int, multiple: int, progress: Callable[[int], float]
) -> SizeNow:
    """Return a function that chooses sizes by the share of the training behind it.

    Args:
        growth: `BatchGrowth` of kind `"linear"`, `"exponential"` or `"steps"`.
        last: Integer, the last batch size.
        multiple: Integer that divides every size.
        progress: Function from the number of examples before a batch to that share.
    """
    return lambda examples: batch_schedule.at(
        growth.kind, progress(examples), last, growth.factor, multiple
    )


def by_plateau(
    growth: BatchGrowth,
    last: int,
    multiple: int,
    values: Callable[[], Iterable[float]],
    direction: str,
) -> SizeNow:
    """Return a function that doubles the size whenever a metric has stopped improving.

    Args:
        growth: `BatchGrowth` of kind `"plateau"`.
        last: Integer, the last batch size.
        multiple: Integer that divides every size.
        values: Function that returns the measurements so far.
        direction: `"max"` or `"min"`, the direction in which the metric should go.
    """

    def size_now(examples: int) -> int:
        doublings = batch_schedule.plateaus(values(), direction)
        return batch_schedule.doubled(doublings, last, growth.factor, multiple)

    return size_now


def by_noise(
    growth: BatchGrowth, last: int, multiple: int, noise_scale: Callable[[], float | None]
) -> SizeNow:
    """Return a function that chooses the gradient noise scale as the size, and never a smaller one.

    Args:
        growth: `BatchGrowth` of kind `"noise"`.
        last: Integer, the last batch size.
        multiple: Integer that divides every size.
        noise_scale: Function that returns the noise scale in examples as last measured, or `None`
            before that. It is called in a thread of TensorFlow, so it should not measure itself.
    """
    sizes = [batch_schedule.first(last, growth.factor, multiple)]

    def size_now(examples: int) -> int:
        measured = noise_scale()
        if measured is not None:
            now = batch_schedule.within(measured, last, growth.factor, multiple)
            sizes[0] = max(sizes[0], now)
        return sizes[0]

    return size_now
