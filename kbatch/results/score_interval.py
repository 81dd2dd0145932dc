"""The interval around the difference of two mean scores."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import special

from kbatch.goal import Goal
from kbatch.records.store import Record
from kbatch.results.noise import score_error

# The spread of two seeds has one degree of freedom: the interval would be 13 standard errors wide.
FEWEST_SEEDS = 3
FALSE_CLAIMS = 0.05
# The share of the binomial variance p (1 - p) / n that recipe and examples cause together. Further
# seeds do not reduce it, since they are measured on the same examples. Measured: 5 % (three
# recipes, eight seeds each, 2,000 drawn pets; 54 % is the seed's).
SAME_EXAMPLES = 0.05


def interval(first: Any, second: Any, first_error: Any, second_error: Any, recipes: int) -> Any:
    """Return half of the 95 % interval around the difference of two mean scores.

    Args:
        first: Scores of one recipe, one per seed. Arrays may hold the scores of many confirmations,
            with seeds along the last axis.
        second: Scores of the other recipe.
        first_error: Standard error of measuring one score of `first`.
        second_error: Standard error of measuring one score of `second`.
        recipes: Integer, the number of recipes of which the better one was chosen by these scores.

    Returns:
        A float, or an array of them; `nan` if there are fewer than three seeds.
    """
    sides = [
        (np.asarray(first), np.square(first_error)),
        (np.asarray(second), np.square(second_error)),
    ]
    if min(scores.shape[-1] for scores, _ in sides) < FEWEST_SEEDS:
        return math.nan
    # Few seeds may agree by luck, but not better than they were measured.
    spreads = [
        np.maximum(scores.var(axis=-1, ddof=1), measured) / scores.shape[-1]
        for scores, measured in sides
    ]
    variance = sum(spreads) + SAME_EXAMPLES * sum(measured for _, measured in sides)
    unsure = sum(
        spread**2 / (scores.shape[-1] - 1)
        for spread, (scores, _) in zip(spreads, sides, strict=True)
    )
    # Rounded down: with three seeds, and recipes of very unequal spread, Welch's own number lets
    # 6 % of false claims pass.
    freedom = np.floor(np.square(variance) / np.maximum(unsure, np.finfo(float).tiny))
    return special.stdtrit(freedom, 1 - FALSE_CLAIMS / (2 * recipes)) * np.sqrt(variance)


def measuring_error(records: Sequence[Record], goal: Goal, examples: int) -> float:
    """The standard error of measuring one score, averaged over a recipe's trainings."""
    errors = [score_error(record.outcome, goal, examples) or 0.0 for record in records]
    return math.sqrt(statistics.fmean(error**2 for error in errors))
