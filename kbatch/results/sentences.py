"""Sentences: what a search found, in words."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence

from kbatch.outcome import SCORED, STOPPED, Goal
from kbatch.records.store import Record
from kbatch.results.claim import Claim, Mean, Side
from kbatch.results.interval import FEWEST_SEEDS, value_error
from kbatch.results.ranking import best_of, trainings_of
from kbatch.results.words import counted, score_text, whose, words_of
from kbatch.text_table import TextTable

# One recipe, 400 validation examples, a spread of 2 points: three seeds find a gain of 10 points in
# 75 % of cases, five in 99 %.
GOOD_SEEDS = 5
NOTHING = (
    "Nothing was confirmed with fresh seeds, so nothing is claimed: "
    "the highest of many noisy scores flatters."
)
VERDICTS = {
    "few seeds": "Too few seeds to claim anything: "
    f"confirm with at least {FEWEST_SEEDS}, better {GOOD_SEEDS}.",
    "better": "Trial {trial}'s recipe is better than the baseline: the interval is above 0. "
    "This may be claimed.",
    "worse": "The baseline is better than what the search found: keep it, "
    "or give the search more trials or seconds.",
    "noise": "This is within noise: do not claim that either is better. "
    "Give the search more trials, seconds or seeds.",
    "unsound": "So nothing may be claimed, whatever the numbers.",
    "contradicted": "So the evidence is divided: do not claim that either is better. "
    "Confirm with more seeds.",
}
TOGETHER = (
    "Trial {trial}'s recipe and your own values together are better than the baseline: the "
    "interval is above 0. This may be claimed of both together."
)
ALONE = "the recipe alone is within noise"
CORNER = (
    "It holds against a baseline at its lowest values ({values}), which may not be what you have "
    "today: give values= and search again to claim that."
)
Number = Callable[[float, float], str]  # a number as text, with the digits of the second number


def claim_sentences(claim: Claim | None, goal: Goal) -> list[str]:
    """Return what may be claimed of the best confirmed recipe, in words."""
    if claim is None:
        return [NOTHING]
    base, best, metric = claim.baseline, claim.best, goal.metric
    few = claim.verdict == "few seeds"
    seeds = counted(min(base.seeds, best.seeds), "fresh seed")
    scores = _pair(base.score, best.score, few, score_text)
    values = _pair(base.value, best.value, few, _three)
    sentences = [
        f"baseline -> trial {best.trial}, over {seeds} each: {base.words} -> {best.words}",
        f"score per second: {scores}{_interval(claim)}",
        f"{metric} held within {goal.seconds:.4g} training seconds: {values}",
    ]
    if base.own or best.own:
        sentences.append(_parts(claim))
    if len(claim.race.looks) > 1:
        sentences.append(_race(claim))
    compiled = [side for side in (base, best) if "jit" in side.recipe.split(", ")]
    if len(compiled) == 1:
        only = "the baseline" if compiled[0] is base else f"trial {best.trial}"
        sentences.append(f"XLA compiled only {only}: part of the difference is due to that")
    if claim.verdict == "better" or goal.target is not None:
        sentences.append(_sooner(claim, goal))
    if base.test and best.test:
        tests = _pair(base.test, best.test, few, _three)
        sentences.append(f"{metric.removeprefix('val_')} on test data nobody chose by: {tests}")
    if claim.contradicted and claim.own_run is not None:
        sentences.append(_contradiction(claim, claim.own_run))
    sentences += claim.obstacles
    return [*sentences, verdict_words(claim)]


def verdict_words(claim: Claim) -> str:
    """Return the verdict of a claim in words: on what, and against which baseline."""
    words = VERDICTS[claim.verdict].format(trial=claim.best.trial)
    if claim.verdict != "better":
        return words
    if claim.baseline.own or claim.best.own:
        words = TOGETHER.format(trial=claim.best.trial)
        if claim.part is not None:
            sure = "so may the recipe's part" if claim.part.is_sure else ALONE
            words = f"{words.removesuffix('.')}; {sure}."
    if not claim.lowest:
        return words
    return f"{words} {CORNER.format(values=words_of(claim.lowest))}"


def confirmed_table(claim: Claim, goal: Goal) -> TextTable:
    """Return one row per confirmed recipe, the baseline first."""
    seconds = "s to baseline's final" if goal.target is None else f"s to {goal.target:.4g}"
    headings = ("trial", "recipe", "seeds", "score/s", goal.metric, "test", seconds)
    rows = [_row(side) for side in (claim.baseline, claim.best, *claim.others)]
    if claim.part is not None:
        row = _row(claim.part.side)
        row[1] += ", the baseline's own values"
        rows.append(row)
    return TextTable(headings, rows)


def goal_words(goal: Goal) -> str:
    """Return the goal of a search in words."""
    target = f", target {goal.target:.4g}" if goal.target is not None else ""
    seconds = f"{goal.seconds:.4g} training seconds a trial"
    return f"{goal.metric} held, {seconds}, chance {goal.chance:.4g}{target}"


def _parts(claim: Claim) -> str:
    """How much of the difference is due to the recipe, and how much to the user's own values."""
    part, trial = claim.part, claim.best.trial
    if part is None:
        return (
            "both the recipe and your own values differ, and nobody knows which of them makes the "
            f"difference: trial {trial}'s recipe was not trained with the baseline's own values"
        )
    few = part.side.seeds < FEWEST_SEEDS
    scored = (_values if few else mean_text)(part.side.score, score_text)
    own = claim.difference - part.difference
    told = f"trial {trial}'s recipe with the baseline's own values scored {scored}"
    words = f"{told}: {_signed(part.difference, claim.difference)} is due to the recipe"
    if not math.isnan(part.half_width):
        ends = (part.difference - part.half_width, part.difference + part.half_width)
        low, high = (_signed(end, max(map(abs, ends))) for end in ends)
        words += f" (95 % interval {low} to {high})"
    return f"{words}, {_signed(own, claim.difference)} to your own values"


def _race(claim: Claim) -> str:
    """Where a race compared its recipes, and how far it went."""
    looks, dropped = claim.race.looks, claim.race.dropped
    left = ", ".join(map(str, sorted(dropped)))
    trials = "trials" if len(dropped) > 1 else "trial"
    behind = f"; {trials} {left} dropped out, behind the others" if dropped else ""
    places = f"{', '.join(map(str, looks[:-1]))} and {looks[-1]} seeds"
    return (
        f"a race: recipes could be compared after {places}, which the interval allows for; it "
        f"ended after {claim.best.seeds}{behind}"
    )


def _contradiction(claim: Claim, own_run: float) -> str:
    """That the search's own run of the baseline points the other way."""
    own, mean = score_text(own_run), score_text(claim.best.score.mean)
    recipe = f"trial {claim.best.trial}'s recipe"
    speaks, side = (
        (f"against {recipe}", "no less") if claim.difference > 0 else (f"for {recipe}", "no more")
    )
    return (
        f"one more run speaks {speaks}: in the search, the baseline scored {own}, {side} than "
        f"the mean of {recipe} with fresh seeds, {mean}"
    )


def _sooner(claim: Claim, goal: Goal) -> str:
    """When both reached the aim, and how much sooner or later if that may be claimed."""
    base, best = claim.baseline, claim.best
    target = goal.target
    if target is None:
        where = f"the baseline's final {goal.metric} ({base.value.mean:.3f})"
    else:
        where = f"{goal.metric} {target:.4g}"
    times = f"after {_seconds(best)}; the baseline after {_seconds(base)}"
    words = f"trial {best.trial}'s recipe holds {where} {times}"
    if claim.verdict == "better" and claim.pace:
        return f"{words}: {claim.pace}"
    return words


def _seconds(side: Side) -> str:
    if side.missed == side.seeds:
        return f"more than {side.seconds_to_goal:.2f} s"
    missed = f" ({side.missed} of {side.seeds} runs did not)" if side.missed else ""
    return f"{side.seconds_to_goal:.2f} s{missed}"


def _interval(claim: Claim) -> str:
    """The difference of the scores and its interval; empty if there are too few seeds."""
    if math.isnan(claim.half_width):
        return ""
    middle, half = claim.difference, claim.half_width
    digits_of = max(abs(middle), half)
    low, high = _signed(middle - half, digits_of), _signed(middle + half, digits_of)
    recipes = 1 + len(claim.others)
    among = "" if recipes == 1 else f", for the best of {recipes} recipes"
    return f"; difference {_signed(middle, middle)} (95 % interval {low} to {high}{among})"


def _signed(score: float, digits_of: float) -> str:
    sign = "+" if score > 0 else ""
    return f"{sign}{score_text(score, digits_of)}"


def _row(side: Side) -> list[str]:
    return [
        "baseline" if side.trial < 0 else str(side.trial),
        side.recipe,
        str(side.seeds),
        _mean_and_values(side.score, score_text),
        _mean_and_values(side.value, _three),
        _mean_and_values(side.test, _three) if side.test else "-",
        _seconds(side),
    ]


def _pair(first: Mean, second: Mean, few: bool, text: Number) -> str:
    """The baseline's and the best recipe's numbers: means, or all values if these are few."""
    show = _values if few else mean_text
    return f"{show(first, text)} -> {show(second, text)}"


def _mean_and_values(mean: Mean, text: Number) -> str:
    if len(mean.values) < FEWEST_SEEDS:
        return _values(mean, text)
    return f"{mean_text(mean, text)} ({_values(mean, text)})"


def _values(mean: Mean, text: Number) -> str:
    largest = max(map(abs, mean.values))
    return ", ".join(text(value, largest) for value in mean.values)


def mean_text(mean: Mean, text: Number) -> str:
    """Return a mean with its standard error, if it has one."""
    error = "" if math.isnan(mean.error) else f" ± {text(mean.error, mean.mean)}"
    return f"{text(mean.mean, mean.mean)}{error}"


def _three(value: float, digits_of: float) -> str:
    """A value with three digits after the point, whatever the other number."""
    return f"{value:.3f}"


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
    """Return what a search found, in one sentence."""
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
    """Return what may be claimed of a search in a few words, as a heading."""
    if claim is not None:
        base, best = claim.baseline.value.mean, claim.best.value.mean
        return f"{goal.metric} {base:.3f} → {best:.3f}: {TAILS[claim.verdict]}"
    best_record = best_of(records)
    if best_record is None or best_record.outcome.value is None:
        return headline(records, claim, goal)
    return f"Trial {best_record.trial} leads, but nothing is confirmed"


def _confirmed(claim: Claim, goal: Goal) -> str:
    base, best = claim.baseline, claim.best
    seeds = counted(min(base.seeds, best.seeds), "fresh seed")
    values = [mean_text(side.value, _three) for side in (base, best)]
    sooner = ""
    if claim.verdict == "better" and claim.pace:
        sooner = f", and {claim.pace} at {_aim(goal)}"
    return (
        f"From the baseline ({base.words}) to trial {best.trial} ({best.words}), {goal.metric} "
        f"held within {goal.seconds:.4g} s of training went from {values[0]} to {values[1]} over "
        f"{seeds} each{sooner}: {_tail(claim)}."
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
        those = f"All {len(trials)} trials were" if len(trials) > 1 else "The only trial was"
        return f"{those} stopped at a rung"
    if len(trials) > 1:
        return f"None of {len(trials)} trials ended well"
    return "The only trial failed" if trials else "No trial has ended yet"


def _aim(goal: Goal) -> str:
    return "the baseline's final value" if goal.target is None else f"{goal.target:.4g}"


ROOM = 3  # horizons in which a rise in the middle of one can be held; chosen by hand


def learned(records: Sequence[Record], goal: Goal, examples: int) -> list[str]:
    """Return sentences for a search whose trainings are all at chance; none for any other."""
    shown = [each for each in records if each.outcome.ended in (*SCORED, STOPPED)]
    trials = [each for each in shown if each.purpose == "search"]
    if not trials or any(each.score > 0 for each in shown):
        return []
    first = min(_risen(shown, goal, examples), default=None)
    if first is None:
        count = counted(len(trials), "trial")
        return [
            f"Nothing was learned in any of {count}, nor by the baseline: {goal.metric} "
            f"stayed at chance ({goal.chance:.4g}) for {goal.seconds:.4g} training seconds. Give "
            "more seconds_per_trial, or another metric, and check the labels."
        ]
    seconds, owner = first
    return [
        f"No training held more than chance ({goal.chance:.4g}). Something was learned first after "
        f"{seconds:.3g} of {goal.seconds:.4g} training seconds, by {owner}: give "
        f"seconds_per_trial={_more(seconds, goal.seconds):g}, say."
    ]


def _risen(records: Sequence[Record], goal: Goal, examples: int) -> Iterator[tuple[float, str]]:
    """When each training rose above chance by more than noise, and whose it is."""
    sign = 1 if goal.direction == "max" else -1
    noise = 2 * (value_error(goal.chance, goal.metric, examples) or 0.0)
    for record in records:
        for seconds, value in record.outcome.curve:
            if sign * (value - goal.chance) > noise:
                yield seconds, whose(record.trial)
                break


def _more(seconds: float, horizon: float) -> float:
    """Seconds in which what rose can be held: two digits, above the horizon."""
    wanted = ROOM * max(seconds, horizon / 2)
    digits = max(math.floor(math.log10(wanted)) - 1, 0)
    return float(math.ceil(wanted / 10**digits) * 10**digits)
