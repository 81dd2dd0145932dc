"""Remarks on a training: each is made where its cause is measured, and nowhere else."""

from types import SimpleNamespace

import pytest

from kbatch import Outcome, Recipe
from kbatch.training import run

GOAL = SimpleNamespace(seconds=10.0)
FINE = {
    "ended": "horizon",
    "curve": ((1.0, 0.5), (2.0, 0.6), (3.0, 0.7)),
    "median_update_seconds": 0.1,
    "updates": 90,
    "train_seconds": 10.0,
    "seconds": {"first_step": 1.0},
    "final_learning_rate": 0.1,
}
RECIPE = {"optimizer": "sgd", "learning_rate": 0.1, "warmup_updates": 5}


def made(input_seconds=None, recipe=None, **changes):
    outcome = Outcome(**{**FINE, **changes})
    return run.remarks_of(
        outcome, GOAL, Recipe(**{**RECIPE, **(recipe or {})}), input_seconds, "Do."
    )


def test_an_ordinary_training_needs_no_remark():
    assert made() == ()
    assert made(input_seconds=0.05) == ()  # half of an update
    assert made(seconds={"first_step": 1.0, "validation": 4.0}) == ()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"curve": FINE["curve"][:2]}, "too slow for this horizon: 90 updates and 2 measurements"),
        ({"seconds": {"first_step": 11.0}}, "the first step took 11.0 s, more than the horizon"),
        (
            {"seconds": {"first_step": 1.0, "validation": 6.0}},
            "validation took 6.0 s beside 10.0 s of training",
        ),
        ({"input_seconds": 0.06}, "alone takes 60.0 ms of the 100.0 ms of an update; Do."),
        ({"updates": 5}, "warm-up was not over: 5 of 5 updates"),
        ({"final_learning_rate": 0.01}, "the learning rate ended at 0.01, not at the recipe's 0.1"),
        ({"skipped_updates": 3}, "loss scaling skipped 3 of 90 updates"),
    ],
)
def test_each_cause_has_one_remark(changes, says):
    (remark,) = made(**changes)
    assert says in remark


def test_an_accumulating_recipe_waits_for_all_its_passes():
    passes = {"batch_size": 64, "micro_batch_size": 16}
    (remark,) = made(input_seconds=0.02, recipe=passes)
    assert "takes 80.0 ms of the 100.0 ms" in remark
