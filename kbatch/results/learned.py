"""What was learned where no training held more than chance, and what to give."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from kbatch.goal import Goal
from kbatch.outcome import SCORED, STOPPED
from kbatch.records.store import Record
from kbatch.results.noise import value_error

ROOM = 3  # horizons in which a rise in the middle of one can be held; chosen by hand


def learned(records: Sequence[Record], goal: Goal, examples: int) -> list[str]:
    """Return sentences for a search whose trainings are all at chance; none for any other.

    Args:
        records: Records of the search.
        goal: The goal of the search.
        examples: Integer, validation examples.
    """
    shown = [each for each in records if each.outcome.ended in (*SCORED, STOPPED)]
    trials = [each for each in shown if each.purpose == "search"]
    if not trials or any(each.score > 0 for each in shown):
        return []
    first = min(_risen(shown, goal, examples), default=None)
    if first is None:
        return [
            f"Nothing was learned in any of {_trials(trials)}, nor by the baseline: {goal.metric} "
            f"stayed at chance ({goal.chance:.4g}) for {goal.seconds:.4g} training seconds. Give "
            "more seconds_per_trial, or another metric, and check the labels."
        ]
    seconds, whose = first
    return [
        f"No training held more than chance ({goal.chance:.4g}). Something was learned first after "
        f"{seconds:.3g} of {goal.seconds:.4g} training seconds, by {whose}: give "
        f"seconds_per_trial={_more(seconds, goal.seconds):g}, say."
    ]


def _risen(records: Sequence[Record], goal: Goal, examples: int) -> Iterator[tuple[float, str]]:
    """When each training rose above chance by more than noise, and whose it is."""
    sign = 1 if goal.direction == "max" else -1
    noise = 2 * (value_error(goal.chance, goal.metric, examples) or 0.0)
    for record in records:
        whose = "the baseline" if record.baseline else f"trial {record.trial}"
        for seconds, value in record.outcome.curve:
            if sign * (value - goal.chance) > noise:
                yield seconds, whose
                break


def _more(seconds: float, horizon: float) -> float:
    """Seconds in which what rose can be held: two digits, above the horizon."""
    wanted = ROOM * max(seconds, horizon / 2)
    digits = max(math.floor(math.log10(wanted)) - 1, 0)
    return float(math.ceil(wanted / 10**digits) * 10**digits)


def _trials(trials: Sequence[Record]) -> str:
    return "1 trial" if len(trials) == 1 else f"{len(trials)} trials"
