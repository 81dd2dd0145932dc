"""Scores and endings as people read them."""

from __future__ import annotations

import math

from kbatch.outcome import Outcome

# The unit of every score that is shown, also of KerasTuner's output and of the column `score`.
SCORE = "score/s"
ENDED = {"stopped": "stopped at a rung"}  # where the name of an ending says too little
CHANGED = 1e-3  # relative change of a learning rate that is worth telling; chosen by hand


def score_text(score: float, like: float | None = None) -> str:
    """Return a score per second to three digits.

    Args:
        score: Float.
        like: Float that decides the digits after the point, so that the numbers of a column line
            up. Defaults to `score`.

    Example:
    >>> score_text(0.035312), score_text(0.0004, like=0.035312), score_text(0.0), score_text(749.2)
    ('0.0353', '0.0004', '0', '749')
    """
    model = abs(score if like is None else like)
    digits = max(0, 2 - math.floor(math.log10(model))) if model > 0 and math.isfinite(model) else 0
    return f"{score:,.{digits}f}"


def ended_text(outcome: Outcome) -> str:
    """Return how a training ended, in words.

    If it ended before its horizon, the seconds are named. So are a changed learning rate and
    updates that loss scaling skipped.

    >>> ended_text(Outcome("callback", train_seconds=2.31, stopped_by="EarlyStopping"))
    'EarlyStopping after 2.31 s'
    """
    words = outcome.stopped_by or ENDED.get(outcome.ended, outcome.ended.replace("_", " "))
    if outcome.ended != "horizon" and outcome.train_seconds:
        words += f" after {outcome.train_seconds:.3g} s"
    if _changed(outcome.learning_rate, outcome.final_learning_rate):
        words += f", rate then {outcome.final_learning_rate:.3g}"
    if outcome.skipped_updates:
        words += f", {outcome.skipped_updates} updates skipped"
    return words


def ended_by(outcome: Outcome) -> str:
    """Return what ended a training, as the end of a sentence about it.

    >>> ended_by(Outcome("horizon")), ended_by(Outcome("stopped", train_seconds=0.5))
    ('ended by horizon', 'stopped at a rung after 0.5 s')
    """
    words = ended_text(outcome)
    return words if outcome.ended in ENDED else f"ended by {words}"


def _changed(rate: float | None, final: float | None) -> bool:
    return rate is not None and final is not None and not math.isclose(rate, final, rel_tol=CHANGED)
