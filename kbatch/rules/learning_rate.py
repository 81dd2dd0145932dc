"""Learning-rate rules, which scale a rate found at batch 32 to another batch size."""

from __future__ import annotations

import math

from kbatch.errors import SpaceError

REFERENCE_BATCH_SIZE = 32  # the default batch size of Keras' `fit`
RULES = ("linear", "sqrt", "constant")
DEFAULT_RULES = {"sgd": "linear", "adam": "sqrt"}


def factor(batch_size: int, rule: str) -> float:
    """Return the factor by which a rule scales a learning rate from batch 32 to `batch_size`.

    Args:
        batch_size: Integer, examples per weight update.
        rule: `"linear"` (`batch_size / 32`; Goyal et al. 2017, for SGD), `"sqrt"` (its square root;
            Hoffer et al. 2017, Malladi et al. 2022 for Adam) or `"constant"`.

    Raises:
        SpaceError: If the rule is unknown.

    Example:
    >>> factor(128, "linear"), factor(128, "sqrt"), factor(128, "constant")
    (4.0, 2.0, 1.0)
    """
    ratio = batch_size / REFERENCE_BATCH_SIZE
    if rule == "linear":
        return ratio
    if rule == "sqrt":
        return math.sqrt(ratio)
    if rule == "constant":
        return 1.0
    raise SpaceError(
        f"A learning-rate rule must be one of {', '.join(RULES)}", rule, "Pass one of these names"
    )
