"""Momentum rules, for the optimizer's momentum and the moving average of the weights."""

from __future__ import annotations

from kbatch.rules.learning_rate import REFERENCE_BATCH_SIZE

RULES = ("constant", "examples")


def at(batch_size: int, momentum_at_32: float, rule: str) -> float:
    """Return a momentum found at batch 32, carried to `batch_size`.

    Args:
        batch_size: Integer, examples per weight update.
        momentum_at_32: Float between 0 and 1, the momentum at batch 32.
        rule: `"examples"` forgets an example after as many further examples as at batch 32: the
            momentum to the power of `batch_size / 32` (Busbridge et al. 2023 for the moving
            average; Malladi et al. 2022 to first order for the optimizer). `"constant"` forgets it
            after as many updates.

    Example:
    >>> at(64, 0.9, "examples"), at(64, 0.9, "constant")
    (0.81, 0.9)
    """
    if rule == "constant":
        return momentum_at_32
    return float(momentum_at_32 ** (batch_size / REFERENCE_BATCH_SIZE))
