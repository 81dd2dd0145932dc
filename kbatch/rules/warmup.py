"""Warm-up rule: how many updates the learning rate takes to rise."""

from __future__ import annotations

import math

from kbatch.rules.learning_rate import REFERENCE_BATCH_SIZE


def updates(batch_size: int, examples: int, passes: float = 1.0) -> int:
    """Warm-up in weight updates: none up to batch 32, else `passes` over the data.

    A rate carried up from batch 32 is larger than the first, steep updates bear (Goyal et al. 2017).

    Args:
        batch_size: Integer, examples per weight update.
        examples: Integer, number of training examples.
        passes: Float, passes over the data that warm-up takes. Defaults to `1.0`.

    Example:
    >>> updates(32, 1200), updates(256, 1200)
    (0, 5)
    """
    return 0 if batch_size <= REFERENCE_BATCH_SIZE else math.ceil(passes * examples / batch_size)
