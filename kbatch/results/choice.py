"""Choice: the one training of a search whose recipe is taken home."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kbatch.errors import RecordError
from kbatch.records.store import Record
from kbatch.results.loading import load_race, load_records, root_of
from kbatch.results.winner import best_of


def best_training(source: Any) -> Record:
    """Return the training of the best recipe, the one that `kbatch.best_recipe` gives.

    Args:
        source: Tuner or folder of a search.

    Raises:
        RecordError: If no trial has ended well.
    """
    records = load_records(source)
    best = best_of(records, load_race(source).dropped)
    if best is None:
        raise _missing(source, "a trial that did not fail or stop at a rung", records)
    return best


def baseline_training(source: Any) -> Record:
    """Return the search's own training of the baseline, or else a confirmation's.

    Args:
        source: Tuner or folder of a search.

    Raises:
        RecordError: If there is none.
    """
    records = load_records(source)
    own = [record for record in records if record.baseline]
    own.sort(key=lambda record: record.purpose != "baseline")
    if not own:
        raise _missing(source, "a training of the baseline", records)
    return own[0]


def trial_training(source: Any, number: int) -> Record:
    """Return the training of a trial.

    Args:
        source: Tuner or folder of a search.
        number: Integer, number of the trial, as tables show it.

    Raises:
        RecordError: If there is no such trial.
    """
    records = load_records(source)
    own = [record for record in records if record.purpose == "search" and record.trial == number]
    if not own:
        raise _missing(source, f"the trial {number}", records)
    return own[-1]


def _missing(source: Any, what: str, records: Sequence[Record]) -> RecordError:
    trials = sorted({record.trial for record in records if record.purpose == "search"})
    received = f"the trials {', '.join(map(str, trials))}" if trials else "no trial"
    return RecordError(
        f"{root_of(source)} must hold {what}", received, "Name another one, or let the search go on"
    )
