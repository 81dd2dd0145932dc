"""Ratio interval: the confidence interval of a ratio of two means that are measured together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

LEVEL, LEAST = 0.95, 3  # pairs at least


def interval(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the ratio of two means above 0, by Fieller's theorem (1954).

    It is right also where the mean of the denominators is near 0: then it has no upper end. The
    variances are those of successive differences (von Neumann et al. 1941), so that a slow drift of
    the true means is not taken for error.

    Args:
        numerators: Sequence of floats, at least 3.
        denominators: Sequence of as many floats, each measured together with its numerator.

    Returns:
        The lower end, at least 0, and the upper end, which may be infinite.

    Example:
    >>> low, high = interval([8.1, 7.9, 8.0, 8.2, 7.8], [2.0, 2.1, 1.9, 2.0, 2.0])
    >>> low < 4 < high < 4.6
    True
    >>> interval([8.1, 7.9, 8.0, 8.2, 7.8], [2.0, -1.9, 1.8, -2.1, 0.4])[1]
    inf
    """
    pairs = np.array([numerators, denominators], float)
    mean, count = pairs.mean(axis=1), pairs.shape[1]
    differences = np.diff(pairs, axis=1)
    covariance = differences @ differences.T / (2 * (count - 1) * count)
    # degrees of freedom of a variance by successive differences
    freedom = 2 * (count - 1) ** 2 / (3 * count - 4)
    bound = float(special.stdtrit(freedom, 0.5 + LEVEL / 2)) ** 2
    # all ratios r with (mean[0] - r mean[1])^2 <= bound * its variance: a r^2 - 2 b r + c <= 0
    (c, b), (_, a) = (np.outer(mean, mean) - bound * covariance).tolist()
    root = math.sqrt(max(b * b - a * c, 0.0))
    if c <= 0:  # the numerator may be 0
        return 0.0, (b + root) / a if a > 0 else math.inf
    if a > 0:
        return max((b - root) / a, 0.0), max((b + root) / a, 0.0)
    return (c / (b + root) if b + root > 0 else 0.0), math.inf
