"""The headline of a search: from the baseline to the best recipe, in one sentence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from kbatch.goal import Goal
from kbatch.outcome import STOPPED
from kbatch.records.store import Record
from kbatch.results.claim import Claim, Mean, Side
from kbatch.results.ranking import trainings_of
from kbatch.results.winner import best_of

TAILS = {
    "better": "this may be claimed",
    "worse": "the baseline is better",
    "noise": "within noise, so neither may be called better",
    "contradicted": "the evidence is divided, so nothing is claimed",
    "unsound": "an assumption does not hold, so nothing is claimed",
    "few seeds": "too few seeds to claim anything",
}
UNCONFIRMED = "nothing is claimed before fresh seeds confirm it"


def headline(records: Sequence[Record], claim: Claim | None, goal: Goal) -> str:
    """Return what a search found, in one sentence.

    Args:
        records: All records of the search.
        claim: Baseline against best, or `None` without a confirmation.
        goal: The goal of the search.
    """
    if claim is not None:
        return _confirmed(claim, goal)
    trials = [record for record in records if record.purpose == "search"]
    best = best_of(records)
    if best is None or best.outcome.value is None:
        return f"{_nothing(trials)}, so there is no best recipe."
    told = f"Of {len(trials)} trials, " if len(trials) > 1 else "The only trial, "
    own = f"trial {best.trial} ({best.recipe}) scored highest" if len(trials) > 1 else ""
    values = [each.outcome.value for each in trainings_of(records, best)]
    if len(values) > 1:
        own += f" as the mean of {len(values)} trainings"
    words = f"{told}{own}" if own else f"{told}trial {best.trial} ({best.recipe}),"
    baseline = next((record for record in records if record.purpose == "baseline"), None)
    against = ""
    if baseline is not None and baseline.outcome.value is not None:
        against = f" where the baseline ({baseline.recipe}) held {baseline.outcome.value:.3f}"
    mean = statistics.fmean(goal.chance if value is None else value for value in values)
    held = f"{goal.metric} {mean:.3f}"
    joint = " and" if own else ""
    return f"{words}{joint} held {held}{against}: {UNCONFIRMED}."


def title(records: Sequence[Record], claim: Claim | None, goal: Goal) -> str:
    """Return what may be claimed of a search in a few words, as a heading.

    Args:
        records: All records of the search.
        claim: Baseline against best, or `None` without a confirmation.
        goal: The goal of the search.
    """
    if claim is not None:
        base, best = claim.baseline.value.mean, claim.best.value.mean
        return f"{goal.metric} {base:.3f} → {best:.3f}: {TAILS[claim.verdict]}"
    best_record = best_of(records)
    if best_record is None or best_record.outcome.value is None:
        return headline(records, claim, goal)
    return f"Trial {best_record.trial} leads, but nothing is confirmed"


def _confirmed(claim: Claim, goal: Goal) -> str:
    base, best = claim.baseline, claim.best
    sooner = ""
    if claim.verdict == "better" and claim.pace:
        sooner = f", and {claim.pace} at {_aim(goal)}"
    return (
        f"From the baseline ({base.words}) to trial {best.trial} ({best.words}), {goal.metric} "
        f"held within {goal.seconds:.4g} s of training went from {_mean(base.value)} to "
        f"{_mean(best.value)} over {_seeds(base, best)} each{sooner}: {_tail(claim)}."
    )


def _tail(claim: Claim) -> str:
    """What may be claimed, and against which baseline."""
    words = TAILS[claim.verdict]
    if claim.verdict == "better" and claim.lowest:
        return f"{words} against that baseline, whose own values are the lowest"
    return words


def _nothing(trials: Sequence[Record]) -> str:
    stopped = [trial for trial in trials if trial.outcome.ended == STOPPED]
    if trials and len(stopped) == len(trials):
        whose = f"All {len(trials)} trials were" if len(trials) > 1 else "The only trial was"
        return f"{whose} stopped at a rung"
    if len(trials) > 1:
        return f"None of {len(trials)} trials ended well"
    return "The only trial failed" if trials else "No trial has ended yet"


def _aim(goal: Goal) -> str:
    return "the baseline's final value" if goal.target is None else f"{goal.target:.4g}"


def _mean(mean: Mean) -> str:
    return f"{mean.mean:.3f}" + ("" if math.isnan(mean.error) else f" ± {mean.error:.3f}")


def _seeds(base: Side, best: Side) -> str:
    fewest = min(base.seeds, best.seeds)
    return "1 fresh seed" if fewest == 1 else f"{fewest} fresh seeds"
