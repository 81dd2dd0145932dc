"""Recipes over their batch sizes: scores, speeds and bytes, computed apart from their drawing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kbatch import scoring
from kbatch.goal import Goal
from kbatch.outcome import SCORED, STOPPED
from kbatch.records.store import BASELINE_TRIAL, Record
from kbatch.results import noise
from kbatch.results.claim import Mean
from kbatch.results.confirmed_recipes import confirmed
from kbatch.results.words import ended_text


@dataclass(frozen=True)
class BatchInfo:
    """One recipe as a point over its batch size.

    Attributes:
        trial: Integer, number of the trial; -1 for the baseline.
        recipe: The recipe in words.
        optimizer: Name of the optimizer, or words for the model's own.
        policy: Keras dtype policy.
        augmentation: Name of the augmentation pipeline.
        kind: What decides speed and memory besides the batch: policy, XLA, recompute, in words.
        batch_size: Integer.
        seeds: Integer, trainings that the point stands for; 1 for a training of the search.
        score: Float, score per second; the mean over the seeds.
        score_error: Float, standard error of the score, or `None`.
        value: The metric held. With a target, the seconds to it. `None` if there is none.
        error: Float, standard error of the value, or `None`.
        examples_per_second: Float.
        peak_bytes: Integer, or `None` if the device does not tell.
        ended: How the training ended, in words.
        failed: Boolean, whether the training ended in an error, NaN or a crash.
        stopped: Boolean, whether a rung stopped it, so that it might have become better.
    """

    trial: int
    recipe: str
    optimizer: str
    policy: str
    augmentation: str
    kind: str
    batch_size: int
    seeds: int
    score: float
    score_error: float | None
    value: float | None
    error: float | None
    examples_per_second: float
    peak_bytes: int | None
    ended: str
    failed: bool
    stopped: bool

    @property
    def baseline(self) -> bool:
        """Boolean, whether this is the baseline."""
        return self.trial == BASELINE_TRIAL

    @property
    def name(self) -> str:
        """String, the recipe's trial in words."""
        return "baseline" if self.baseline else f"trial {self.trial}"


def batch_infos(
    records: Sequence[Record], goal: Goal, examples: int, own_optimizer: str = ""
) -> list[BatchInfo]:
    """Return the trainings of a search, smallest batch first, those that failed among them.

    Args:
        records: All records of a search.
        goal: The goal of the search.
        examples: Integer, validation examples.
        own_optimizer: Name of the optimizer that the user's model was compiled with, if known.
    """
    infos = [
        _info([record], goal, examples, own_optimizer)
        for record in records
        if record.purpose in ("search", "baseline")
    ]
    return sorted(infos, key=lambda info: info.batch_size)


def confirmed_infos(
    records: Sequence[Record], goal: Goal, own_optimizer: str = ""
) -> list[BatchInfo]:
    """Return the confirmed recipes, each once with its means over the fresh seeds.

    Args:
        records: All records of a search and its confirmation.
        goal: The goal of the search.
        own_optimizer: Name of the optimizer that the user's model was compiled with, if known.
    """
    groups = confirmed(records).values()
    infos = [_info(group, goal, 0, own_optimizer) for group in groups]
    return sorted(infos, key=lambda info: info.batch_size)


def measured(infos: Sequence[BatchInfo]) -> list[BatchInfo]:
    """Return the points of the trainings that did not fail."""
    return [info for info in infos if not info.failed]


def sizes(infos: Sequence[BatchInfo]) -> list[int]:
    """Return the batch sizes of some points, each once, smallest first."""
    return sorted({info.batch_size for info in infos})


def _info(group: Sequence[Record], goal: Goal, examples: int, own_optimizer: str) -> BatchInfo:
    """The point of the trainings of one recipe: one of the search, or several fresh seeds."""
    record, recipe = group[0], group[0].recipe
    value, error = _value(group, goal, examples)
    score, score_error = _score(group, goal, examples)
    peaks = [each.outcome.peak_bytes for each in group if each.outcome.peak_bytes is not None]
    return BatchInfo(
        record.trial,
        str(recipe),
        _optimizer_words(recipe.optimizer, own_optimizer),
        recipe.policy,
        recipe.augmentation,
        _kind(record),
        recipe.batch_size,
        len(group),
        score,
        score_error,
        value,
        error,
        statistics.fmean(each.outcome.examples_per_second for each in group),
        max(peaks, default=None),
        ended_text(record.outcome),
        all(each.outcome.failed for each in group),
        any(each.outcome.ended == STOPPED for each in group),
    )


def _score(group: Sequence[Record], goal: Goal, examples: int) -> tuple[float, float | None]:
    """The score and its standard error: over the seeds, or of measuring."""
    if len(group) > 1:
        mean = Mean.of([record.score for record in group])
        return mean.mean, mean.error
    error = noise.score_error(group[0].outcome, goal, examples) if examples else None
    return group[0].score, error if group[0].outcome.ended in SCORED else None


def _value(group: Sequence[Record], goal: Goal, examples: int) -> tuple[float | None, float | None]:
    """The value held, or the seconds to the target, and its standard error."""
    values = [_one_value(record, goal) for record in group]
    known = [value for value in values if value is not None]
    if len(known) > 1:
        mean = Mean.of(known)
        return mean.mean, mean.error
    if not known or not examples:
        return (known[0] if known else None), None
    if goal.target is None:
        return known[0], noise.value_error(known[0], goal.metric, examples)
    return known[0], _seconds_error(group[0], known[0], goal, examples)


def _one_value(record: Record, goal: Goal) -> float | None:
    if goal.target is None:
        return record.outcome.value
    return scoring.seconds_to(record.outcome.curve, goal.target, goal.direction)


def _seconds_error(record: Record, seconds: float, goal: Goal, examples: int) -> float | None:
    """The standard error of the seconds to a target, from that of the score."""
    score_error = noise.score_error(record.outcome, goal, examples)
    if not (seconds and score_error and record.score):
        return None
    # With a target the score is proportional to one over the seconds: the relative errors agree.
    return seconds * score_error / record.score


def _optimizer_words(name: str, own_optimizer: str) -> str:
    if name != "compiled":
        return name
    return f"compiled ({own_optimizer})" if own_optimizer else name


def _kind(record: Record) -> str:
    recipe = record.recipe
    words = [recipe.policy]
    if recipe.jit_compile:
        words.append("XLA")
    if recipe.recompute != "none":
        words.append(f"recompute {recipe.recompute}")
    if recipe.training != "plain":
        words.append(recipe.training)
    return ", ".join(words)
