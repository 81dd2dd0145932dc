"""Uneven speeds: trainings of one recipe that took fewer examples per second than its others."""

from __future__ import annotations

from collections.abc import Sequence

from kbatch.records.record import Record

# Times that the fastest training of a recipe is the slowest. Six trainings of one recipe on an idle
# CPU differed by less than 1.1; chosen well above that, not tuned.
UNEVEN = 1.5


def uneven_speeds(records: Sequence[Record]) -> list[str]:
    """Return a sentence for each recipe that trained far slower with one seed than with another.

    Only trainings to the horizon are compared: a growing batch is slower in shorter ones.

    Args:
        records: All records of a search and its confirmation.
    """
    groups: dict[int, list[float]] = {}
    for record in records:
        speed = record.outcome.examples_per_second
        if record.outcome.ended == "horizon" and speed:
            groups.setdefault(record.first_trial, []).append(speed)
    return [
        f"{_whose(trial)} trainings took {min(speeds):,.0f} to {max(speeds):,.0f} examples per "
        "second: something else slowed some of them down, and their scores with them"
        for trial, speeds in sorted(groups.items())
        if max(speeds) >= UNEVEN * min(speeds)
    ]


def _whose(trial: int) -> str:
    return "the baseline's" if trial < 0 else f"trial {trial}'s"
