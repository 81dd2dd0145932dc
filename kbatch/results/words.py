"""Words: recipes, scores and own hyperparameters as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kbatch.axes import RESERVED
from kbatch.outcome import Outcome
from kbatch.records.store import Record

# The unit of every score that is shown, also of KerasTuner's output and of the column `score`.
SCORE = "score/s"
ENDED = {"stopped": "stopped at a rung"}  # where the name of an ending says too little
CHANGED = 1e-3  # relative change of a learning rate that is worth telling; chosen by hand


def score_text(score: float, like: float | None = None) -> str:
    """Return a score per second to three digits.

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


def own_values(record: Record) -> dict[str, Any]:
    """Return the user's own hyperparameters of a training.

    In records of old versions the baseline has none: it took the defaults.
    """
    return {
        name: value
        for name, value in record.values.items()
        if name not in RESERVED and not name.startswith("tuner/")
    }


def own_words(record: Record) -> str:
    """Return the user's own hyperparameters in words, such as "units 64, dropout 0.2"."""
    return words_of(own_values(record))


def words_of(values: Mapping[str, Any]) -> str:
    """Return values by name in words, such as "units 64, dropout 0.2"."""
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )


def apart(one: Record, other: Record) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the own values in which two trainings differ: those of the one, and of the other.

    A value that only one of them has is of no effect unless another differs, such as the number of
    layers: then it counts.
    """
    first, second = own_values(one), own_values(other)
    if all(first[name] == second[name] for name in first.keys() & second.keys()):
        return {}, {}
    return (
        {name: value for name, value in first.items() if second.get(name) != value},
        {name: value for name, value in second.items() if first.get(name) != value},
    )
