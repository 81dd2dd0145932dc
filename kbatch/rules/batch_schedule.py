"""Batch schedule: the sizes of a batch that grows during the training."""

from __future__ import annotations

import math
from collections.abc import Iterable

from kbatch.rules.scaling import DECAY_STEPS

# A size that is new costs tracing or autotuning on some devices, so a batch grows in few steps.
# Chosen by hand, not tuned.
LEVELS = 8
PATIENCE = 2  # measurements without a better value before the batch doubles; not tuned


def first(last: int, factor: float, multiple: int = 1) -> int:
    """Return the batch size that a training begins with, `factor` times smaller than the last.

    `multiple` divides every size, such as the passes per update.

    Example:
    >>> first(256, 8), first(256, 8, multiple=64), first(30, 8)
    (32, 64, 4)
    """
    return _rounded(last / factor, last, multiple)


def at(kind: str, progress: float, last: int, factor: float, multiple: int = 1) -> int:
    """Return the batch size with a share of the training behind it; shares above 1 count as 1.

    `"linear"` and `"exponential"` are eight sizes for equal shares of the training, with equal
    differences or equal ratios; `"steps"` are three equal ratios at the points where the learning
    rate would fall (Smith et al. 2018; see `kbatch.rules.scaling`).

    Example:
    >>> [at("steps", share, 512, 8) for share in (0.0, 0.5, 0.7, 0.9)]
    [64, 128, 256, 512]
    >>> [at("linear", level / 8, 256, 8) for level in range(8)]
    [32, 64, 96, 128, 160, 192, 224, 256]
    """
    begin = first(last, factor, multiple)
    done = min(max(progress, 0.0), 1.0)
    if kind == "steps":
        share = sum(done >= step for step in DECAY_STEPS) / len(DECAY_STEPS)
    else:
        share = min(int(done * LEVELS), LEVELS - 1) / (LEVELS - 1)
    if kind == "linear":
        return _rounded(begin + (last - begin) * share, last, multiple)
    return _rounded(begin * (last / begin) ** share, last, multiple)


def first_pass(last: int, factor: float, passes: int) -> int:
    """Return the examples of each pass of the first update.

    Example:
    >>> first_pass(64, 8, passes=2), first_pass(64, 1, passes=2)
    (4, 32)
    """
    return first(last, factor, passes) // passes


def updates(kind: str, examples: float, last: int, factor: float, multiple: int = 1) -> int:
    """Return the number of updates of a batch that grows over so many examples.

    Example:
    >>> updates("exponential", 15360, 256, 8), math.ceil(15360 / 256)
    (213, 60)
    """
    shares = (
        [*DECAY_STEPS, 1.0]
        if kind == "steps"
        else [(1 + level) / LEVELS for level in range(LEVELS)]
    )
    done, count = 0, 0
    for share in shares:
        size = at(kind, done / examples, last, factor, multiple)
        taken = max(math.ceil((share * examples - done) / size), 0)
        done, count = done + taken * size, count + taken
    return count


def doubled(doublings: int, last: int, factor: float, multiple: int = 1) -> int:
    """Return the batch size after so many doublings, up to the last.

    Example:
    >>> [doubled(times, 256, 6) for times in range(5)]
    [43, 86, 172, 256, 256]
    """
    return min(first(last, factor, multiple) * 2**doublings, last)


def plateaus(values: Iterable[float], direction: str = "max", patience: int = PATIENCE) -> int:
    """Return how often a metric has stopped improving.

    Each time the best value so far is not beaten in `patience` measurements in a row, one plateau
    is counted, and the next measurements are counted anew.

    Example:
    >>> plateaus([0.5, 0.6, 0.6, 0.5, 0.7]), plateaus([0.9, 0.8, 0.8, 0.8, 0.8, 0.8], "min")
    (1, 2)
    """
    best, waited, found = None, 0, 0
    for value in values:
        if best is None or (value > best if direction == "max" else value < best):
            best, waited = value, 0
            continue
        waited += 1
        if waited == patience:
            waited, found = 0, found + 1
    return found


def within(noise_scale: float, last: int, factor: float, multiple: int = 1) -> int:
    """Return the largest size that a batch takes as it grows, and that is within a noise scale.

    The gradient noise scale is the batch size beyond which more examples buy little (McCandlish et
    al. 2018). The sizes are those of `at("exponential", …)`.

    Example:
    >>> [within(scale, 256, 8) for scale in (5.0, 60.0, 1000.0)]
    [32, 58, 256]
    """
    sizes = {at("exponential", level / LEVELS, last, factor, multiple) for level in range(LEVELS)}
    return max((size for size in sizes if size <= noise_scale), default=min(sizes))


def _rounded(size: float, last: int, multiple: int) -> int:
    """Return the nearest multiple of a number, at least one of it and at most the last size."""
    return min(max(round(size / multiple) * multiple, multiple), last)
