"""Sentences: what may be claimed, in words."""

from __future__ import annotations

import math
from typing import Any

from kbatch.results.claim import FEWEST_SEEDS, Claim, Mean, Side
from kbatch.results.words import score_text

# one recipe, 400 validation examples, a spread of 2 points: three find a gain of 10 points in 75 %
# of cases, five in 99 %
GOOD_SEEDS = 5
NOTHING = "Nothing was confirmed with fresh seeds, so nothing is claimed: the highest of many noisy scores flatters."


def claim_sentences(claim: Claim | None, goal: dict[str, Any]) -> list[str]:
    """What may be claimed, in words: baseline -> the best confirmed recipe, with the spread over seeds.

    Args:
        claim: The claim, or `None` if nothing was confirmed.
        goal: The goal of the search.
    """
    if claim is None:
        return [NOTHING]
    base, best, metric = claim.baseline, claim.best, goal["metric"]
    few = claim.verdict == "few seeds"
    fewest = min(base.seeds, best.seeds)
    seeds = "1 fresh seed" if fewest == 1 else f"{fewest} fresh seeds"
    sentences = [
        f"baseline -> trial {best.trial}, over {seeds} each: {base.recipe} -> {best.recipe}",
        f"score per second: {_pair(base.score, best.score, few, score_text)}{_interval(claim)}",
        f"{metric} held within {goal['seconds']:.4g} training seconds: {_pair(base.value, best.value, few, _three)}",
    ]
    if claim.verdict == "better" or goal.get("target") is not None:
        sentences.append(_sooner(claim, goal))
    if base.test and best.test:
        sentences.append(
            f"{metric.removeprefix('val_')} on test data nobody chose by: {_pair(base.test, best.test, few, _three)}"
        )
    if claim.contradicted and claim.own_run is not None:
        own, mean = score_text(claim.own_run), score_text(best.score.mean)
        side = "no less" if claim.difference > 0 else "no more"
        other = f"the {mean} of trial {best.trial}'s recipe here, which points the other way"
        sentences.append(f"in the search, the baseline had scored {own}: {side} than {other}")
    return [*sentences, VERDICTS[claim.verdict].format(trial=best.trial)]


VERDICTS = {
    "few seeds": f"Too few seeds to claim anything: confirm with at least {FEWEST_SEEDS}, better {GOOD_SEEDS}.",
    "better": "Trial {trial}'s recipe is better than the baseline: the interval is above 0. This may be claimed.",
    "worse": "The baseline is better than what the search found: keep it, or give the search more trials or seconds.",
    "noise": "This is within noise: do not claim that either is better. Give the search more trials, seconds or seeds.",
    "contradicted": "So the evidence is divided: do not claim that either is better. Confirm with more seeds.",
}


def confirmed_table(claim: Claim) -> list[list[str]]:
    """One row per confirmed recipe, the baseline first."""
    return [_row(side) for side in (claim.baseline, claim.best, *claim.others)]


def seconds_heading(goal: dict[str, Any]) -> str:
    """What the last column of that table is."""
    return "s to baseline's final" if goal.get("target") is None else f"s to {goal['target']:.4g}"


def goal_words(goal: dict[str, Any]) -> str:
    """The goal of a search in words."""
    target = f", target {goal['target']:.4g}" if goal.get("target") is not None else ""
    return f"{goal['metric']} held, {goal['seconds']:.4g} training seconds a trial, chance {goal['chance']:.4g}{target}"


def _sooner(claim: Claim, goal: dict[str, Any]) -> str:
    """When the recipe got where it had to; how many times sooner only if it may be claimed."""
    base, best = claim.baseline, claim.best
    target = goal.get("target")
    where = (
        f"the baseline's final {goal['metric']} ({base.value.mean:.3f})"
        if target is None
        else f"{goal['metric']} {target:.4g}"
    )
    words = f"trial {best.trial}'s recipe holds {where} after {_seconds(best)}; the baseline after {_seconds(base)}"
    return words + (
        f": {claim.speed_up:.1f} times sooner"
        if claim.verdict == "better" and claim.speed_up
        else ""
    )


def _seconds(side: Side) -> str:
    if side.missed == side.seeds:
        return f"more than {side.seconds_to_goal:.2f} s"
    return f"{side.seconds_to_goal:.2f} s" + (
        f" ({side.missed} of {side.seeds} runs did not)" if side.missed else ""
    )


def _interval(claim: Claim) -> str:
    if math.isnan(claim.half_width):
        return ""
    middle, half = claim.difference, claim.half_width
    chosen = 1 + len(claim.others)
    among = "" if chosen == 1 else f", for the best of {chosen} recipes"
    low, high = (
        f"{'+' if end > 0 else ''}{score_text(end, max(abs(middle), half))}"
        for end in (middle - half, middle + half)
    )
    return f"; difference {'+' if middle > 0 else ''}{score_text(middle)} (95 % interval {low} to {high}{among})"


def _row(side: Side) -> list[str]:
    name = "baseline" if side.trial < 0 else str(side.trial)
    test = _both(side.test, _three) if side.test else "-"
    return [
        name,
        side.recipe,
        str(side.seeds),
        _both(side.score, score_text),
        _both(side.value, _three),
        test,
        _seconds(side),
    ]


def _pair(first: Mean, second: Mean, single: bool, text: Any) -> str:
    show = _single if single else _spread
    return f"{show(first, text)} -> {show(second, text)}"


def _both(mean: Mean, text: Any) -> str:
    return (
        _single(mean, text)
        if len(mean.values) < FEWEST_SEEDS
        else f"{_spread(mean, text)} ({_single(mean, text)})"
    )


def _single(mean: Mean, text: Any) -> str:
    largest = max(map(abs, mean.values))
    return ", ".join(text(value, largest) for value in mean.values)


def _spread(mean: Mean, text: Any) -> str:
    return text(mean.mean, mean.mean) + (
        "" if math.isnan(mean.error) else f" ± {text(mean.error, mean.mean)}"
    )


def _three(value: float, like: float | None = None) -> str:
    return f"{value:.3f}"
