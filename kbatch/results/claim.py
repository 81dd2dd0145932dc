"""Claim: what a confirmation says of the best recipe against the baseline, with the spread over its seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kbatch import scoring
from kbatch.records.record import Record


@dataclass(frozen=True)
class Mean:
    """A mean over seeds and its standard error (`nan` for one seed)."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """The mean of values and its standard error."""
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        return cls(statistics.fmean(values), error)


@dataclass(frozen=True)
class Side:
    """One recipe, trained with several seeds.

    Attributes:
        trial: Integer, the trial it comes from; -1 for the baseline.
        recipe: The recipe in words.
        seeds: Integer, how many trainings.
        score: Score per second.
        value: The metric held at the horizon.
        test: The same metric on the test data; `None` without any.
        seconds_to_baseline: Mean training seconds to the baseline's final value; a training that did not get there
            counts with the whole horizon.
        missed: Integer, how many trainings did not get there.
    """

    trial: int
    recipe: str
    seeds: int
    score: Mean
    value: Mean
    test: Mean | None
    seconds_to_baseline: float
    missed: int


@dataclass(frozen=True)
class Claim:
    """Baseline against the best confirmed recipe.

    Attributes:
        baseline: The baseline's side.
        best: The side of the recipe with the highest mean score among those confirmed.
        others: The other recipes' sides, best first.
        standard_errors: Difference of the mean scores in standard errors of that difference, each the larger of the
            spread over seeds and what so many validation examples can tell; `nan` if that is unknown.
    """

    baseline: Side
    best: Side
    others: tuple[Side, ...]
    standard_errors: float

    @property
    def speed_up(self) -> float:
        """How many times sooner the best recipe reaches the baseline's final value; 0 if it mostly does not."""
        return 0.0 if 2 * self.best.missed > self.best.seeds else self.baseline.seconds_to_baseline / self.best.seconds_to_baseline


def claim_of(confirmations: Sequence[Record], seconds: float, metric: str, direction: str, chance: float, validation_examples: int) -> Claim | None:
    """What the confirmations say, or `None` if baseline or candidates are missing.

    Args:
        confirmations: Records of a confirmation, the baseline's among them.
        seconds: Float, the horizon.
        metric: Name of the metric, such as `"val_accuracy"`.
        direction: `"max"` or `"min"`.
        chance: Float, what counts for a training that failed.
        validation_examples: Integer, how many examples the metric was measured on.
    """
    groups: dict[tuple[int, str], list[Record]] = {}
    for record in confirmations:
        groups.setdefault((record.trial, str(record.recipe)), []).append(record)
    own = [records for records in groups.values() if records[0].baseline]
    rest = [records for records in groups.values() if not records[0].baseline]
    if not own or not rest:
        return None
    final = statistics.fmean(_values(own[0], chance))
    baseline = _side(own[0], final, seconds, metric, direction, chance)
    # Its own final value is what each baseline run held, so that none of them can miss it.
    reached = [
        scoring.seconds_to(record.outcome.curve, value, direction) or seconds for record, value in zip(own[0], _values(own[0], chance), strict=True)
    ]
    baseline = Side(**{**vars(baseline), "seconds_to_baseline": statistics.fmean(reached), "missed": 0})
    sides = sorted((_side(records, final, seconds, metric, direction, chance) for records in rest), key=lambda side: -side.score.mean)
    errors = [_score_error(side, seconds, validation_examples, metric) for side in (baseline, sides[0])]
    apart = (sides[0].score.mean - baseline.score.mean) / math.hypot(*errors) if math.hypot(*errors) else math.nan
    return Claim(baseline, sides[0], tuple(sides[1:]), apart)


def _values(records: Sequence[Record], chance: float) -> list[float]:
    values = [record.outcome.value for record in records]
    return [chance if value is None or not math.isfinite(value) else float(value) for value in values]


def _side(records: Sequence[Record], final: float, seconds: float, metric: str, direction: str, chance: float) -> Side:
    times = [scoring.seconds_to(record.outcome.curve, final, direction) for record in records]
    tests = [record.test[metric.removeprefix("val_")] for record in records if metric.removeprefix("val_") in record.test]
    return Side(
        trial=records[0].trial,
        recipe=str(records[0].recipe),
        seeds=len(records),
        score=Mean.of([record.score for record in records]),
        value=Mean.of(_values(records, chance)),
        test=Mean.of(tests) if tests else None,
        seconds_to_baseline=statistics.fmean(seconds if time is None else time for time in times),
        missed=sum(time is None for time in times),
    )


def _score_error(side: Side, seconds: float, examples: int, metric: str) -> float:
    """The larger of the spread over seeds and, for a share, the error of measuring it on so many examples."""
    seeds = 0.0 if math.isnan(side.score.error) else side.score.error
    share = 0.0 <= side.value.mean <= 1.0 and "accuracy" in metric and examples > 0
    measured = scoring.standard_error(side.value.mean, examples) / math.sqrt(side.seeds) / seconds if share else 0.0
    return max(seeds, measured)
