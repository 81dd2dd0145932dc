"""Remarks: sentences on a training that the user should read."""

from __future__ import annotations

import math

from kbatch.outcome import Goal, Outcome
from kbatch.recipe import Recipe

# A remark is made if the input pipeline, without training, takes more than this share of an update.
# Chosen by hand, not tuned.
WAITS_FOR_INPUT = 0.5
FIRST_STEP = "the first step took"  # told once a search
FEWEST_MEASUREMENTS = 3  # for a value to be held


def remarks_of(
    outcome: Outcome,
    goal: Goal,
    recipe: Recipe,
    input_seconds: float | None,
    remedy: str,
    rate_share: float = 1.0,
) -> tuple[str, ...]:
    """Return the remarks on one training."""
    remarks = (
        _too_slow(outcome, goal),
        _slow_first_step(outcome, goal),
        _waits_for_input(outcome, recipe, input_seconds or 0.0, remedy),
        _unfinished_warmup(outcome, recipe),
        _changed_rate(outcome, recipe, rate_share),
        _skipped_updates(outcome),
        _stopped(outcome),
    )
    return tuple(remark for remark in remarks if remark)


def _too_slow(outcome: Outcome, goal: Goal) -> str:
    if len(outcome.curve) >= FEWEST_MEASUREMENTS or outcome.ended != "horizon":
        return ""
    # A training of a number of epochs has no horizon in seconds.
    seconds = goal.seconds if math.isfinite(goal.seconds) else outcome.train_seconds
    made = f"{outcome.updates} updates and {len(outcome.curve)} measurements"
    return f"too slow for this horizon: {made} in {seconds:.3g} s"


def _slow_first_step(outcome: Outcome, goal: Goal) -> str:
    seconds = outcome.seconds["first_step"]
    if seconds <= goal.seconds:
        return ""
    return (
        f"{FIRST_STEP} {seconds:.1f} s, more than the horizon of {goal.seconds:.3g} s: it is not "
        "on the clock, but every trial waits for it; more seconds a trial spend less time on it"
    )


def _waits_for_input(outcome: Outcome, recipe: Recipe, seconds_per_step: float, remedy: str) -> str:
    update = outcome.median_update_seconds
    input_seconds = seconds_per_step * recipe.steps_per_update
    if update and recipe.growth.factor > 1:
        # the input was timed at the last size, while most updates are of smaller ones
        input_seconds *= outcome.examples / (outcome.updates * recipe.batch_size)
        update = outcome.train_seconds / outcome.updates
    if not update or input_seconds <= WAITS_FOR_INPUT * update:
        return ""
    times = f"{1e3 * input_seconds:.1f} ms of the {1e3 * update:.1f} ms of an update"
    return f"waits for input: the pipeline alone takes {times}; {remedy}"


def _unfinished_warmup(outcome: Outcome, recipe: Recipe) -> str:
    if not outcome.updates or outcome.updates > recipe.warmup_updates:
        return ""
    made = f"{outcome.updates} of {recipe.warmup_updates} updates were made"
    return f"warm-up was not over: {made}, below the recipe's learning rate"


def _changed_rate(outcome: Outcome, recipe: Recipe, share: float) -> str:
    # the rate of a compiled optimizer stands in the outcome only
    first, final = recipe.learning_rate or outcome.learning_rate, outcome.final_learning_rate
    if not first or final is None or math.isclose(first * share, final, rel_tol=1e-5):
        return ""
    rates = f"ended at {final:.3g}, not at the recipe's {first * share:.3g}"
    return f"the learning rate {rates}: a callback set it"


def _skipped_updates(outcome: Outcome) -> str:
    if not outcome.skipped_updates:
        return ""
    skipped = f"{outcome.skipped_updates} of {outcome.updates} updates"
    return f"loss scaling skipped {skipped}, whose gradients were not finite"


def _stopped(outcome: Outcome) -> str:
    seconds = outcome.seconds.get("stopped", 0.0)
    if not seconds:
        return ""
    return f"the process was stopped for {seconds:.1f} s, which the clock leaves out"
