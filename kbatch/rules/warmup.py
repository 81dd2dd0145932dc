"""The warm-up rule: the number of updates over which the learning rate rises."""

from __future__ import annotations

from kbatch.rules.learning_rate import REFERENCE_BATCH_SIZE

# Share of the horizon: a recipe that spends more of it below its own rate is not the recipe that
# was asked for. Chosen by hand, not tuned.
MOST_OF_HORIZON = 0.1


def updates(
    batch_size: int, examples: int, passes: float = 1.0, horizon_examples: float | None = None
) -> int:
    """Return the weight updates of warm-up: none up to batch 32, more passes for larger batches.

    A learning rate that was scaled up from batch 32 is too large for the first, steep updates
    (Goyal et al. 2017, who take five passes for batches of 8,192). The passes over the data grow as
    `passes * (1 - 32 / batch_size)`, from 0 at batch 32, so that 33 differs little from 32.

    Args:
        batch_size: Integer, examples per weight update.
        examples: Integer, number of training examples.
        passes: Float, passes over the data for very large batches. Defaults to `1.0`.
        horizon_examples: Float, examples of a training within its horizon; warm-up takes at most a
            tenth of its updates. `None` (the default) sets no limit.

    Example:
    >>> updates(32, 1200), updates(64, 1200), updates(256, 1200)
    (0, 9, 4)
    >>> updates(64, 1200, horizon_examples=1200)
    1
    """
    if batch_size <= REFERENCE_BATCH_SIZE:
        return 0
    full = round(passes * (1 - REFERENCE_BATCH_SIZE / batch_size) * examples / batch_size)
    if horizon_examples is None:
        return full
    return min(full, int(MOST_OF_HORIZON * horizon_examples / batch_size))
