"""Ranking: the recipes of a search in the order of their scores, and the best."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kbatch import outcome
from kbatch.errors import RecordError, in_one_frame
from kbatch.outcome import SCORED, STOPPED, Goal
from kbatch.recipe import Recipe
from kbatch.records.store import Record
from kbatch.results.claim import confirmed, confirmed_best
from kbatch.results.interval import score_error, value_error
from kbatch.results.loading import load_race, load_records, root_of
from kbatch.results.words import SCORE, ended_text, own_words, score_text
from kbatch.runtime import users_code
from kbatch.text_table import TextTable

BEST, BEST_OF_SEARCH, BELOW_BASELINE, NEAR = (
    "best",
    "best of the search",
    "best of the search; the baseline did better",
    "within noise of the best",
)
NOT_RANKED, TOO_SLOW = "one seed, not ranked", "too slow for this horizon"


@dataclass(frozen=True)
class Rank:
    """One row of the ranking."""

    record: Record
    standard_error: float | None  # of a value that is a share of the validation examples
    verdict: str  # such as `"best"` or `"within noise of the best"`; may be empty


def trainings_of(records: Sequence[Record], first: Record) -> list[Record]:
    """Return the trainings that a search made of a recipe, one more if it led for a while."""
    trials = [record for record in records if record.purpose == "search"]
    return [record for record in trials if record.first_trial == first.first_trial]


def mean_score(records: Sequence[Record], first: Record) -> float:
    """Return the mean score of the trainings that a search made of a recipe."""
    return statistics.fmean(record.score for record in trainings_of(records, first))


def leaders(records: Sequence[Record], top: int) -> list[Record]:
    """Return the first trainings of the best-scored recipes of a search, best first.

    A recipe that was trained several times has the mean of its scores. Trials that failed are left
    out: they would fail again.
    """
    first = {
        record.key: record
        for record in reversed(records)
        if record.purpose == "search" and record.repeats is None and record.outcome.ended in SCORED
    }
    scores: dict[int, list[float]] = defaultdict(list)
    for record in records:
        if record.purpose == "search":
            scores[record.first_trial].append(record.score)
    means = {trial: statistics.fmean(each) for trial, each in scores.items()}
    in_order = [record for record in records if first.get(record.key) is record]
    return sorted(in_order, key=lambda record: -means[record.first_trial])[:top]


def all_were_stopped(records: Sequence[Record]) -> bool:
    """Tell whether the rung stopped trials of a search, and none has a score."""
    stopped = any(record.outcome.ended == STOPPED for record in records)
    return stopped and not leaders(records, 1)


def unranked(records: Sequence[Record]) -> tuple[str, str]:
    """Say how the trials of a search ended that has no leader, and what to do."""
    trials = [record for record in records if record.purpose == "search"]
    stopped = sum(record.outcome.ended == STOPPED for record in trials)
    words = {"were stopped at a rung": stopped, "failed": len(trials) - stopped}
    parts = [f"{count} that {ended}" for ended, count in words.items() if count]
    if not parts:
        return "no trial", "Call tuner.search(…) first"
    return f"of {len(trials)} trials {' and '.join(parts)}", "Keep the baseline, or search on"


def ranking(
    records: Sequence[Record], goal: Goal, examples: int, dropped: Sequence[int] = ()
) -> list[Rank]:
    """Return the baseline, then the trials, highest score first.

    The baseline has no rank. It is one draw that nobody chose, and the highest of many trials is
    not.
    """
    baselines = [record for record in records if record.purpose == "baseline"]
    trials = [record for record in records if record.purpose == "search"]
    trials.sort(key=lambda record: -record.score)
    best = next((record for record in leaders(records, 1) if record.score > 0), None)
    mean = 0.0 if best is None else mean_score(records, best)

    def rank(record: Record, verdict: str) -> Rank:
        error = value_error(record.outcome.value, goal.metric, examples)
        return Rank(record, error, verdict)

    def verdict(record: Record) -> str:
        if record is best:
            return _best(records, record, baselines, dropped)
        if record.repeats is not None:
            return f"trial {record.repeats} again"
        if len(record.outcome.curve) < outcome.WINDOW and record.outcome.ended == "horizon":
            return TOO_SLOW
        near = best is not None and _within_noise(record, best, mean, goal, examples)
        return NEAR if near else ""

    ranks = [rank(record, NOT_RANKED) for record in baselines]
    return ranks + [rank(record, verdict(record)) for record in trials]


def _best(
    records: Sequence[Record],
    best: Record,
    baselines: Sequence[Record],
    dropped: Sequence[int],
) -> str:
    """The remark on the best recipe, which says if its score is a mean."""
    trainings, mean = len(trainings_of(records, best)), mean_score(records, best)
    beaten = any(baseline.score > mean for baseline in baselines)
    verdict = BELOW_BASELINE if beaten else BEST
    if not beaten and any(each.trial != best.trial for each in confirmed_best(records, dropped)):
        verdict = BEST_OF_SEARCH  # with fresh seeds another one is
    if trainings == 1:
        return verdict
    return f"{verdict} ({score_text(mean)}, mean of {trainings} trainings)"


def _within_noise(record: Record, best: Record, mean: float, goal: Goal, examples: int) -> bool:
    """Whether a score is within two standard errors of the best recipe's mean score."""
    if record.outcome.ended not in SCORED:
        return False
    errors = []
    for each in (record, best):
        error = score_error(each.outcome, goal, examples)
        if error is None:
            return False
        errors.append(error)
    return mean - record.score <= 2 * math.hypot(*errors)


WORDS = ("trial", "recipe", "own hyperparameters", "ended", "")  # headings of columns of words


def table(ranks: Sequence[Rank], metric: str) -> TextTable:
    """Return the ranking, with a column for the user's own hyperparameters if there are any."""
    highest = max((rank.record.score for rank in ranks), default=0.0)
    own = ["own hyperparameters"] if any(own_words(rank.record) for rank in ranks) else []
    headings = ["trial", "recipe", *own, SCORE, metric, "examples/s", "peak MB", "ended", ""]
    return TextTable(headings, [_cells(rank, highest, bool(own)) for rank in ranks], WORDS)


def _cells(rank: Rank, highest: float, own: bool) -> list[str]:
    record, outcome = rank.record, rank.record.outcome
    value = "-" if outcome.value is None else f"{outcome.value:.3f}"
    if rank.standard_error is not None:
        value += f" ± {rank.standard_error:.3f}"
    at_least = "≥ " if outcome.ended == STOPPED else ""
    return [
        "baseline" if record.baseline else str(record.trial),
        str(record.recipe),
        *([own_words(record) or "defaults"] if own else []),
        at_least + score_text(record.score, highest),
        value,
        f"{outcome.examples_per_second:,.0f}",
        "-" if outcome.peak_bytes is None else f"{outcome.peak_bytes / 1e6:,.0f}",
        ended_text(outcome),
        rank.verdict,
    ]


@in_one_frame
def best_recipe(tuner_or_directory: Any) -> Recipe:
    """Return the best recipe of a search: of its confirmation if there is one, else of its trials.

    Use it to train the recipe for longer, or on more data. After `kbatch.confirm` it is the
    confirmed recipe with the highest mean score over fresh seeds. Before, it is the one with the
    highest mean score of the search. It is never the baseline's, which you have already. If the
    baseline scored higher, a warning says so.

    Args:
        tuner_or_directory: The tuner after `search`, or the folder of the search.

    Returns:
        A `Recipe`. The trial's hyperparameters, your own among them, are in
        `kbatch.report(tuner_or_directory).best.values`.

    Raises:
        RecordError: If there are no records, or no trial has ended well.

    Example:
    ```python
    recipe = kbatch.best_recipe(tuner)
    values = kbatch.report(tuner).best.values
    model, outcome = kbatch.train(recipe, build, x, y, (x_val, y_val), epochs=50, values=values)
    ```
    """
    records = load_records(tuner_or_directory)
    best = best_of(records, load_race(tuner_or_directory).dropped)
    if best is None:
        raise RecordError(
            f"{root_of(tuner_or_directory)} must hold a trial that did not fail or stop at a rung",
            *unranked(records),
        )
    if best.score <= 0:
        users_code.warn(
            "No trial held more than chance: this recipe is one of many that score 0. "
            "Give trials more seconds."
        )
    own = _mean_score(records, _same_recipe(records, best))
    baseline = _mean_score(records, [record for record in records if record.baseline])
    if baseline > own:
        scores = f"{score_text(baseline)} against {score_text(own)} per second"
        users_code.warn(f"The baseline did better: {scores}. Keep it, or search on.")
    return best.recipe


def best_of(records: Sequence[Record], dropped: Sequence[int] = ()) -> Record | None:
    """Return the trial of the best recipe, or `None` if no trial ended well."""
    best = confirmed_best(records, dropped)
    if not best:
        return next(iter(leaders(records, 1)), None)
    own = trainings_of(records, best[0])
    # The search's own training, if there is one: the luckiest of the fresh seeds would flatter it.
    return (own or best)[0]


def _same_recipe(records: Sequence[Record], best: Record) -> list[Record]:
    """All trainings of a trial's recipe."""
    return [record for record in records if record.first_trial == best.trial]


def _mean_score(records: Sequence[Record], own: Sequence[Record]) -> float:
    """The mean score of a recipe's fresh seeds after a confirmation, else of the search."""
    purposes = {"confirmation"} if confirmed(records) else {"search", "baseline"}
    return statistics.fmean([record.score for record in own if record.purpose in purposes] or [0.0])


def best_training(source: Any) -> Record:
    """Return the training of the best recipe, the one that `kbatch.best_recipe` gives."""
    records = load_records(source)
    best = best_of(records, load_race(source).dropped)
    if best is None:
        raise _missing(source, "a trial that did not fail or stop at a rung", records)
    return best


def baseline_training(source: Any) -> Record:
    """Return the search's own training of the baseline, or else a confirmation's."""
    records = load_records(source)
    own = [record for record in records if record.baseline]
    own.sort(key=lambda record: record.purpose != "baseline")
    if not own:
        raise _missing(source, "a training of the baseline", records)
    return own[0]


def trial_training(source: Any, number: int) -> Record:
    """Return the training of a trial."""
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
