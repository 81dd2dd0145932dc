"""The rung: where a trial is compared with the others, and whether it goes on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kbatch.outcome import Curve, marks

# The mark of the curve (see `kbatch.outcome.marks`) after which a trial may be stopped: a third of
# the horizon. A ninth tells too little to stop at (docs/benchmarks.md).
RUNG_MARK = 7
KEPT = 3  # one trial in so many goes on
# The first trainings go on unless they are clearly worse, so that there is soon more to recommend
# than the baseline.
WHOLE_RUNG = 4

ROUNDING = 1e-9  # of a share: epochs over epochs is a mark but for rounding


def gain_at_rung(curve: Curve, horizon: float, gain: Callable[[Curve], float]) -> float | None:
    """Return what a curve had gained above chance at the rung; `None` if it did not reach it.

    The rung is judged at the first measurement at or past its mark.
    """
    rung = marks(horizon)[RUNG_MARK - 1]
    before = sum(seconds < rung for seconds, _ in curve)
    return None if before == len(curve) else gain(curve[: before + 1])


class Question:
    """Asks whether a trial goes on, once: after the first measurement that has reached the rung."""

    def __init__(
        self,
        horizon: float,
        gain: Callable[[Curve], float],
        ask: Callable[[float], bool],
    ) -> None:
        self._horizon, self._gain, self._ask = horizon, gain, ask
        self._asked = False

    def __call__(self, curve: Curve) -> bool:
        """Tell whether a trial goes on after the last measurement of its curve."""
        gained = gain_at_rung(curve, self._horizon, self._gain)
        if gained is None or self._asked:
            return True
        self._asked = True
        return self._ask(gained)


# What Hyperband notes in the values of a trial: its epochs, and with whose weights it goes on. A
# trial of more epochs is another training than that of fewer, so they stay among its values.
EPOCHS, GOES_ON_FROM = "tuner/epochs", "tuner/trial_id"
BRACKET = (GOES_ON_FROM, "tuner/initial_epoch", "tuner/bracket", "tuner/round")
LEAST_MEASURED = 3  # measurements of a share of the horizon: fewer hold no value


@dataclass(frozen=True)
class Share:
    """The share of the horizon that Hyperband gives a trial; it can be pickled.

    The trial ends at the first measurement at or past it.
    """

    share: float

    def question(self, horizon: float) -> Callable[[Curve], bool]:
        """Return what tells after each measurement whether the trial goes on."""
        ends = self.share * horizon * (1 - ROUNDING)
        return lambda curve: len(curve) < LEAST_MEASURED or curve[-1][0] < ends


@dataclass(frozen=True)
class Standing:
    """What the other trials had gained at the rung when a trial began; it can be pickled."""

    others: tuple[float, ...]  # of those that reached it
    whole: bool  # whether the trial trains to the horizon whatever it gains
    # by how much the gains of equal recipes may differ; infinity if unknown
    margin: float = math.inf

    def __call__(self, value: float) -> bool:
        """Tell whether the trial is to go on after the rung."""
        return self.whole or goes_on(value, self.others, KEPT, self.margin)


def goes_on(value: float, others: Sequence[float], kept: int, margin: float = math.inf) -> bool:
    """Tell whether a trial is among the best of those that reached the rung.

    The first four go on, but for one that is worse than another by more than chance. This is
    asynchronous successive halving in its stopping form, Li et al., "A System for Massively
    Parallel Hyperparameter Tuning" (2020): a trial goes on at once or not at all, so that going on
    needs no stored state, and is the same to the bit as never having been asked. Their number is
    rounded up, so that a rung that tells nothing loses little.

    Args:
        value: Float, what the trial has gained above chance.
        others: Sequence of floats, what the other trials gained there.
        kept: Integer, one trial in so many goes on.
        margin: Float, by how much the gains of equal recipes may differ. Defaults to infinity.

    >>> goes_on(0.2, [0.3, 0.3, 0.3], 3), goes_on(0.2, [0.3, 0.3, 0.3], 3, margin=0.07)
    (True, False)
    >>> goes_on(0.2, [0.3, 0.3, 0.1, 0.1], 3), goes_on(0.2, [0.3, 0.1, 0.1, 0.1], 3)
    (False, True)
    """
    if len(others) < WHOLE_RUNG:
        return _is_near(value, others, margin)
    better = sum(other > value for other in others)
    return better < (len(others) + 1) / kept


def _is_near(value: float, others: Sequence[float], margin: float) -> bool:
    """Whether chance alone may set a gain behind the best."""
    return value >= max(others, default=value) - margin
