"""What a search with several workers prints."""

import dataclasses
import threading

from kbatch.outcome import Outcome
from kbatch.recipe import Recipe
from kbatch.records.at_most_once import Job
from kbatch.training.progress import ProgressBar, SeveralBars, bars_of


def record_of(trial):
    job = Job("search", trial, 0, Recipe(batch_size=16 * (trial + 1)), {}, 0.001)
    curve = ((0.5, 0.75),)
    outcome = dataclasses.replace(Outcome("horizon"), curve=curve, value=0.75, remarks=("noted",))
    return job.record(outcome, 0.25)


def test_each_training_prints_its_name_and_its_end_together(capsys):
    bars = bars_of(2)
    first, second = record_of(0), record_of(1)
    bars.started("search", 0, first.recipe, 1.0)

    def other():
        bars.started("search", 1, second.recipe, 1.0)
        bars.progress(0.5, None)
        bars.ended(second)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    bars.progress(0.5, 0.7)
    bars.ended(first)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines if not line.startswith(" ")] == [
        "trial 1: batch 32",
        "trial 0: batch 16",
    ]
    assert lines.count("    noted") == 2
    assert sum("0.750 held" in line for line in lines) == 2


def test_one_worker_has_one_bar():
    assert isinstance(bars_of(1), ProgressBar)
    assert isinstance(bars_of(2), SeveralBars)
