"""The final choice: the recipe that is best once its score and its neighbours' are weighed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kbatch.search import axis_ranges
from kbatch.search.observation import Observation

REACH = 0.15  # ranges of the axes: neighbours nearer than this count most; chosen by hand


def ranking(space: list[Any], observations: Sequence[Observation]) -> list[int]:
    """Return the numbers of the observations, the one with the best estimate first.

    Args:
        space: List of KerasTuner's hyperparameters.
        observations: Sequence of `Observation` with a score.
    """
    if not observations:
        return []
    return [int(place) for place in np.argsort(-estimates(space, observations), kind="stable")]


def estimates(
    space: list[Any], observations: Sequence[Observation], reach: float = REACH
) -> np.ndarray:
    """Return the score of each observation, moved towards the mean of its neighbours.

    Each score is weighed with the scores of the others, which count the less the farther they are:
    the kernel regression of Nadaraya and Watson (1964), where a trial counts fully for itself.

    Args:
        space: List of KerasTuner's hyperparameters.
        observations: Sequence of `Observation` with a score.
        reach: Float, how far neighbours count, in ranges of the axes.
    """
    scores = np.array([each.score for each in observations], float)
    apart = np.array(
        [
            [axis_ranges.distance(space, one.values, other.values) for other in observations]
            for one in observations
        ]
    )
    weights = np.exp(-((apart / reach) ** 2) / 2)
    return weights @ scores / weights.sum(1)
