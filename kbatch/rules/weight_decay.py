"""Weight-decay rules, which scale a weight decay found at batch 32 to another batch size."""

from __future__ import annotations

from kbatch.rules import learning_rate

RULES = ("sqrt", "constant")


def factor(batch_size: int, rule: str) -> float:
    """Return the factor by which a rule scales weight decay from batch 32 to `batch_size`.

    Args:
        batch_size: Integer, examples per weight update.
        rule: `"sqrt"` (the square root of `batch_size / 32`, the normalized weight decay of
            Loshchilov & Hutter 2019, appendix B.1, for equal passes over the data) or `"constant"`.

    Example:
    >>> factor(128, "sqrt"), factor(128, "constant")
    (2.0, 1.0)
    """
    return learning_rate.factor(batch_size, rule)
