"""Warm-up rule: how many updates the learning rate takes to rise."""

from __future__ import annotations

from kbatch.rules.learning_rate import REFERENCE_BATCH_SIZE

# a recipe that spends more of its time below its own rate is not the recipe that was asked for
MOST_OF_HORIZON = 0.1


def updates(
    batch_size: int, examples: int, passes: float = 1.0, horizon_examples: float | None = None
) -> int:
    """Warm-up in weight updates: none up to batch 32, then more passes over the data the larger the batch.

    A rate carried up from batch 32 is larger than the first, steep updates bear (Goyal et al. 2017,
    who take five passes for batches of 8,192). The passes grow as `passes * (1 - 32 / batch_size)`,
    from nothing at 32, so that 33 differs little from 32.

    Args:
        batch_size: Integer, examples per weight update.
        examples: Integer, number of training examples.
        passes: Float, passes over the data that warm-up takes for very large batches. Defaults to
            `1.0`.
        horizon_examples: Float, examples that a training sees within its horizon; warm-up takes at
            most a tenth of the updates that these are. `None` (the default) sets no limit.

    Example:
    >>> updates(32, 1200), updates(64, 1200), updates(256, 1200)
    (0, 9, 4)
    >>> updates(64, 1200, horizon_examples=1200)
    1
    """
    if batch_size <= REFERENCE_BATCH_SIZE:
        return 0
    wanted = round(passes * (1 - REFERENCE_BATCH_SIZE / batch_size) * examples / batch_size)
    return (
        wanted
        if horizon_examples is None
        else min(wanted, int(MOST_OF_HORIZON * horizon_examples / batch_size))
    )
