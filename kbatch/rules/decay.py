"""Decay of the learning rate over a training: cosine and steps."""

from __future__ import annotations

import math

# Shares of the training at which the rate is divided by ten (Goyal et al. 2017: 30, 60 and 80 of 90
# epochs).
STEPS = (1 / 3, 2 / 3, 8 / 9)


def factor(schedule: str, progress: float) -> float:
    """Return the share of the full learning rate at some point of a training.

    Args:
        schedule: `"constant"`; `"cosine"`, half a cosine wave down to 0 (Loshchilov & Hutter
            2017); or `"steps"`, a tenth more at each of three points (Goyal et al. 2017).
        progress: Float from 0 to 1, the share of the training behind it; larger values count as 1.

    Example:
    >>> factor("cosine", 0.0), factor("cosine", 0.5), factor("constant", 0.5)
    (1.0, 0.5, 1.0)
    >>> [round(factor("steps", share), 4) for share in (0.3, 0.5, 0.7, 0.9)]
    [1.0, 0.1, 0.01, 0.001]
    """
    done = min(max(progress, 0.0), 1.0)
    if schedule == "cosine":
        return round(0.5 * (1 + math.cos(math.pi * done)), 12)
    if schedule == "steps":
        return 10.0 ** -sum(done >= step for step in STEPS)
    return 1.0
