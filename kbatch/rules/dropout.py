"""Dropout rules, which scale the rates of dropout from batch 32 to another batch size."""

from __future__ import annotations

from kbatch.rules import learning_rate

RULES = ("constant", "sqrt")
MOST = 0.5  # half of the units dropped, the usual rate of Srivastava et al. 2014


def factor(batch_size: int, rule: str) -> float:
    """Return the factor by which a rule scales dropout from batch 32 to `batch_size`.

    A large batch has less gradient noise; more dropout puts noise back.

    Args:
        batch_size: Integer, examples per weight update.
        rule: `"sqrt"` (the square root of `batch_size / 32`) or `"constant"`.

    Example:
    >>> factor(128, "sqrt"), factor(8, "sqrt"), factor(128, "constant")
    (2.0, 0.5, 1.0)
    """
    return learning_rate.factor(batch_size, rule)


def scaled(rate: float, scale: float) -> float:
    """Return a layer's rate times a factor, at most 0.5; a rate above 0.5 is never raised.

    Example:
    >>> scaled(0.2, 2.0), scaled(0.4, 2.0), scaled(0.6, 2.0), scaled(0.6, 0.5)
    (0.4, 0.5, 0.6, 0.3)
    """
    return min(rate * scale, max(MOST, rate))
