"""Rungs: the moments of a trial at which the search asks whether it is worth the rest."""

from __future__ import annotations

from collections.abc import Sequence

# Marks of the curve (see `kbatch.scoring.marks`) after which a trial may be stopped: a ninth and a
# third of the horizon.
RUNG_MARKS = (4, 7)
KEPT = 3  # one trial in so many goes on


def goes_on(value: float, others: Sequence[float]) -> bool:
    """Tell whether a trial is among the best third of those that reached its rung.

    The first two trials at a rung have nobody to lead but each other: the better one goes on. This
    is asynchronous successive halving in its stopping form, Li et al., "A System for Massively
    Parallel Hyperparameter Tuning" (2020): a trial goes on at once or not at all, so that going on
    needs no stored state, and is the same to the bit as never having been asked.

    Args:
        value: Float, what the trial holds above chance.
        others: Sequence of floats, what the other trials held at this rung.

    >>> goes_on(0.2, []), goes_on(0.2, [0.3]), goes_on(0.2, [0.3, 0.1, 0.1, 0.1, 0.1])
    (True, False, True)
    """
    places = max((len(others) + 1) // KEPT, 1)
    better = sum(other > value for other in others)
    return better < places
