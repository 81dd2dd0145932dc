"""Remarks: what is worth saying of a training that was measured."""

from __future__ import annotations

import math

from kbatch.outcome import Outcome
from kbatch.recipe import Recipe
from kbatch.training.goal import Goal

# share of an update above which the input pipeline, timed alone, is worth a remark
WAITS_FOR_INPUT = 0.5


def of(
    outcome: Outcome, goal: Goal, recipe: Recipe, input_seconds: float | None, remedy: str
) -> tuple[str, ...]:
    """The remarks on one training.

    Args:
        outcome: What was measured.
        goal: Seconds and metric.
        recipe: `Recipe` that it followed.
        input_seconds: Float, what a batch of the input pipeline takes alone, or `None`.
        remedy: What a user can do if training waits for the input.
    """
    remarks = []
    update = outcome.median_update_seconds
    # a training of so many epochs has no horizon
    seconds = goal.seconds if math.isfinite(goal.seconds) else outcome.train_seconds
    if len(outcome.curve) < 3 and outcome.ended == "horizon":
        remarks.append(
            f"too slow for this horizon: {outcome.updates} updates and {len(outcome.curve)} measurements in {seconds:.3g} s"
        )
    if outcome.seconds["first_step"] > goal.seconds:
        remarks.append(
            f"the first step took {outcome.seconds['first_step']:.1f} s, more than the horizon of {goal.seconds:.3g} s"
        )
    if (
        update
        and input_seconds
        and input_seconds * recipe.accumulation_steps > WAITS_FOR_INPUT * update
    ):
        alone = input_seconds * recipe.accumulation_steps
        remarks.append(
            f"waits for input: the pipeline alone takes {1e3 * alone:.1f} ms of the {1e3 * update:.1f} ms of an update; {remedy}"
        )
    if outcome.updates <= recipe.warmup_updates and outcome.updates:
        remarks.append(
            f"warm-up was not over: {outcome.updates} of {recipe.warmup_updates} updates were made, below the recipe's learning rate"
        )
    first, final = recipe.learning_rate, outcome.final_learning_rate
    if first and final is not None and not math.isclose(first, final, rel_tol=1e-5):
        remarks.append(
            f"the learning rate ended at {final:.3g}, not at the recipe's {first:.3g}: a callback set it"
        )
    if outcome.skipped_updates:
        remarks.append(
            f"loss scaling skipped {outcome.skipped_updates} of {outcome.updates} updates, whose gradients were not finite"
        )
    return tuple(remarks)
