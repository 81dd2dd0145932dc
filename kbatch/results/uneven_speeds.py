"""Uneven speeds: trainings of one recipe that did far fewer examples per second than others."""

from __future__ import annotations

from collections.abc import Sequence

from kbatch.batch_growth import CONSTANT
from kbatch.outcome import SCORED
from kbatch.records.store import Record

# Times that the fastest training of a recipe is the slowest. Of the 61 recipes of replay_resnet40,
# confirmed twice for 8 s on one core with work on the other, half differed by less than 1.05 and
# all by less than 1.37 (by hand, from the project, which is not kept).
UNEVEN = 1.5
LEAST_SECONDS = 1.0  # of training: the speed of a shorter one is chance; chosen by hand


def uneven_speeds(records: Sequence[Record]) -> list[str]:
    """Return a sentence for each recipe whose fresh seeds trained at very different speeds.

    The trainings of a confirmation are compared, on each device by itself. A batch that grows is
    left out, since its speed depends on how long it trained.

    Args:
        records: All records of a search and its confirmation.
    """
    groups: dict[tuple[int, str], list[float]] = {}
    for record in records:
        if record.purpose == "confirmation" and _is_comparable(record):
            key = (record.first_trial, record.device)
            groups.setdefault(key, []).append(record.outcome.examples_per_second)
    return [
        f"{_whose(trial)} fresh seeds trained on {min(speeds):,.0f} to {max(speeds):,.0f} examples "
        "per second: the machine had other work, or several workers, and the scores differ by that"
        for (trial, _), speeds in sorted(groups.items())
        if max(speeds) >= UNEVEN * min(speeds)
    ]


def _is_comparable(record: Record) -> bool:
    """Whether a training tells the speed of its recipe."""
    outcome = record.outcome
    ended = outcome.ended in SCORED and outcome.train_seconds >= LEAST_SECONDS
    return ended and record.recipe.batch_schedule == CONSTANT


def _whose(trial: int) -> str:
    return "the baseline's" if trial < 0 else f"trial {trial}'s"
