"""Pure functions from a stored curve to the score: accuracy held above chance, per second of the horizon."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

Curve = Sequence[tuple[float, float]]

MARKS = 12
# with a target: the next measurement is at most and at least so many times later
WIDEST_STEP, FINEST_STEP = 1.25, 1.02
# consecutive measurements that must all hold a value; one alone is noise (shared measurements: 2.8
# against 4.9 points lost)
WINDOW = 3


@dataclass(frozen=True)
class Held:
    """The best value that three consecutive measurements all reached.

    Attributes:
        value: Float, the worst of the three.
        seconds: Float, training seconds at the last of the three, when the value was first held.
        index: Integer, position in the curve of the measurement whose value it is.
    """

    value: float
    seconds: float
    index: int


def marks(horizon: float) -> tuple[float, ...]:
    """Training seconds at which validation is measured: `horizon * (k / 12) ** 2` for k = 1…12.

    Dense early, so that a recipe twenty times faster than another can show it.

    >>> marks(144.0)[:3]
    (1.0, 4.0, 9.0)
    """
    return tuple(horizon * (k / MARKS) ** 2 for k in range(1, MARKS + 1))


def next_mark(
    curve: Curve, horizon: float, target: float | None = None, direction: str = "max"
) -> float:
    """Training seconds at which validation is measured next.

    Without a target these are the twelve marks. With one, it is measured at least every quarter of
    the time so far, and where the line through the last two measurements reaches the target, but no
    sooner than 2 % later: so times to the target are told apart within 5 % of themselves.

    Args:
        curve: Sequence of `(train_seconds, value)` so far; may be empty.
        horizon: Float, training seconds of the trial.
        target: Float, the value that is good enough. Optional.
        direction: `"max"` or `"min"`. Defaults to `"max"`.

    Returns:
        A float; infinity once all marks have passed.

    Example:
    >>> next_mark([(1.0, 0.5)], horizon=144.0)
    4.0
    >>> next_mark([(16.0, 0.5), (20.0, 0.75)], horizon=144.0, target=0.875)
    22.0
    """
    last = curve[-1][0] if curve else 0.0
    mark = next((mark for mark in marks(horizon) if mark > last), math.inf)
    if target is None or not curve:
        return mark
    return min(
        mark,
        last * WIDEST_STEP,
        max(last * FINEST_STEP, _seconds_of_crossing(curve, target, direction)),
    )


def _seconds_of_crossing(curve: Curve, target: float, direction: str) -> float:
    """Where the line through the last two measurements reaches the target; the last one's time if it has."""
    seconds, value = curve[-1]
    missing = _sign(direction) * (target - value)
    if missing <= 0:
        return seconds
    if len(curve) < 2 or curve[-2][0] >= seconds:
        return math.inf
    slope = _sign(direction) * (value - curve[-2][1]) / (seconds - curve[-2][0])
    return seconds + missing / slope if slope > 0 else math.inf


def held_so_far(curve: Curve, direction: str = "max") -> list[Held | None]:
    """For each measurement, the best value held up to it; `None` before there are three."""
    sign = _sign(direction)
    best: Held | None = None
    so_far: list[Held | None] = []
    for end in range(len(curve)):
        if end >= WINDOW - 1:
            window = range(end - WINDOW + 1, end + 1)
            index = min(
                window,
                key=lambda i: sign * curve[i][1] if math.isfinite(curve[i][1]) else -math.inf,
            )
            if math.isfinite(curve[index][1]) and (
                best is None or sign * curve[index][1] > sign * best.value
            ):
                best = Held(curve[index][1], curve[end][0], index)
        so_far.append(best)
    return so_far


def held(curve: Curve, direction: str = "max") -> Held | None:
    """The best value held over the whole curve, or `None` if fewer than three measurements were made.

    >>> held([(1, 0.5), (2, 0.9), (3, 0.6), (4, 0.7), (5, 0.8)])
    Held(value=0.6, seconds=4, index=2)
    """
    return held_so_far(curve, direction)[-1] if curve else None


def seconds_to(curve: Curve, value: float, direction: str = "max") -> float | None:
    """Training seconds after which `value` was first held, or `None` if it never was."""
    sign = _sign(direction)
    return next(
        (h.seconds for h in held_so_far(curve, direction) if h and sign * h.value >= sign * value),
        None,
    )


def score(
    curve: Curve, horizon: float, chance: float, target: float | None = None, direction: str = "max"
) -> float:
    """Validation accuracy above chance, held, per second of training.

    Use it to score a curve again, with another horizon or target, without training. With `s` the
    best value held by three consecutive measurements:

    * without a target, `max(s(T) - chance, 0) / T`;
    * with a target `A`, `max(min(s(tau), A) - chance, 0) / tau`, where `tau` is the first time with
      `s >= A`, else `T`.

    Args:
        curve: Sequence of `(train_seconds, value)`, in the order measured.
        horizon: Float, `T`, the training seconds that every trial was given.
        chance: Float, what a model that learned nothing reaches (the share of the most frequent
            class).
        target: Float, the value that is good enough. Optional.
        direction: `"max"` for a value that should rise, `"min"` for one that should fall. Defaults
            to `"max"`.

    Returns:
        A float of at least 0, in units of the value per second. Fewer than three measurements ("too
        slow for this horizon"), a value that is not finite, and nothing above chance score 0.

    Raises:
        ValueError: If the horizon is not above 0, or the times do not rise.

    Example:
    >>> score([(1, 0.5), (2, 0.75), (3, 0.8), (4, 0.75)], horizon=5, chance=0.5)
    0.05
    """
    if not (math.isfinite(horizon) and horizon > 0):
        raise ValueError(
            f"`horizon` must be above 0 seconds. Received: {horizon}. Pass the training seconds of the trial."
        )
    seconds = [point[0] for point in curve]
    if any(later < earlier for earlier, later in itertools.pairwise(seconds)):
        raise ValueError(
            f"A curve's times must not fall. Received: {seconds}. Pass the points in the order they were measured."
        )
    if not all(math.isfinite(value) for _, value in curve):
        return 0.0
    final = held(curve, direction)
    if final is None:
        return 0.0
    sign = _sign(direction)
    reached = None if target is None else seconds_to(curve, target, direction)
    if reached is not None and target is not None:
        return max(sign * (target - chance), 0.0) / max(reached, 1e-9)
    best = final.value if target is None else sign * min(sign * final.value, sign * target)
    return max(sign * (best - chance), 0.0) / horizon


def standard_error(share: float, examples: int) -> float:
    """Standard error of a share measured on so many examples: `sqrt(p (1 - p) / n)`.

    >>> round(standard_error(0.75, 400), 4)
    0.0217
    """
    return math.sqrt(max(share * (1 - share), 0.0) / examples)


def _sign(direction: str) -> int:
    if direction not in ("max", "min"):
        raise ValueError(
            f'`direction` must be "max" or "min". Received: {direction!r}. Say whether the value should rise or fall.'
        )
    return 1 if direction == "max" else -1
