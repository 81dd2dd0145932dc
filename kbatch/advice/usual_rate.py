"""Usual rate: learning rates that people take at batch 32, and what a recipe does with them."""

from __future__ import annotations

import math

from kbatch.rules import scaling

# Keras' default, and another number that examples and courses take; for an optimizer without an
# entry there is no custom.
USUAL = {"sgd": (0.01, 0.001), "adam": (1e-3, 3e-4), "adamw": (1e-3, 3e-4)}
# Rates at batch 32 above these are for training from scratch. Devlin et al. 2019 fine-tune by Adam
# at 2e-5 to 5e-5, Li et al. 2020 by SGD at 0.0005 to 0.01. Chosen by hand above most of these.
FROM_SCRATCH = {"sgd": 5e-3, "adam": 2e-4, "adamw": 2e-4}
SOURCES = {
    "linear": "linear rule, Goyal et al. 2017 (arXiv:1706.02677)",
    "sqrt": "square-root rule, Malladi et al. 2022 (arXiv:2205.10287)",
}
SAME = 0.05  # relative difference of rates that count as one; chosen by hand


def is_usual(optimizer: str, rate: float) -> bool:
    """Tell whether a learning rate is one that people take at batch 32.

    Example:
    >>> is_usual("adam", 1e-3), is_usual("adam", 4e-3), is_usual("lars", 1e-3)
    (True, False, False)
    """
    return any(math.isclose(rate, each, rel_tol=SAME) for each in USUAL.get(optimizer, ()))


def rule_of(optimizer: str) -> str:
    """Return the learning-rate rule of an optimizer, the square root for unknown ones."""
    return scaling.DEFAULT_LEARNING_RATE_RULES.get(optimizer, "sqrt")


def factor(optimizer: str, batch_size: int) -> float:
    """Return by how much an optimizer's rate grows from batch 32 to a batch size.

    Example:
    >>> factor("sgd", 128), factor("adam", 128)
    (4.0, 2.0)
    """
    return scaling.learning_rate_factor(batch_size, rule_of(optimizer))


def is_from_scratch(optimizer: str, rate: float, batch_size: int) -> bool:
    """Tell whether a rate is one for training from scratch, by the rate that it is at batch 32.

    Example:
    >>> is_from_scratch("adam", 1e-3, 32), is_from_scratch("adam", 1e-4, 32)
    (True, False)
    """
    highest = FROM_SCRATCH.get(optimizer)
    # a smaller batch than 32 is no reason for a rate below those that fine-tuning takes
    return highest is not None and rate > highest * max(factor(optimizer, batch_size), 1.0)


def for_fine_tuning(optimizer: str, batch_size: int) -> float:
    """Return a rate for pretrained weights, a quarter of the lowest one for new ones.

    Example:
    >>> for_fine_tuning("adam", 32), for_fine_tuning("adam", 128)
    (5e-05, 0.0001)
    """
    return FROM_SCRATCH[optimizer] / 4 * factor(optimizer, batch_size)
