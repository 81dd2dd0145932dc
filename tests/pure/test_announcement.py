"""The announcement of a search: the minutes that its workers leave of its trainings."""

import io
import re

import fuzz_project
import pytest
from rich.console import Console

from kbatch.cli.live import announce, announce_horizon
from kbatch.cli.search_options import CaseOptions


def said(tmp_path, **given):
    """What is announced of eleven trainings of 60 s."""
    chosen = CaseOptions(
        axes={"policy": "float32"},
        **{"trials": 6, "confirm": "2", "confirm_top": 1, "seconds_per_trial": 60.0, **given},
    )
    console = Console(file=io.StringIO(), width=200)
    announce(chosen, chosen.space(), tmp_path, console)
    return console.file.getvalue()


def minutes(text):
    return float(re.search(r"at least ([0-9.]+) minutes", text)[1])


def test_the_parts_are_told(tmp_path):
    told = said(tmp_path)
    assert "11 trainings of 60 s each (baseline, 6 trials, 4 to confirm): at least" in told
    assert "told better once the baseline has ended." in told


@pytest.mark.parametrize(("workers", "turns"), [(1, 11), (2, 6), (4, 4), (6, 3), (50, 3)])
def test_workers_train_each_part_in_turns(tmp_path, workers, turns):
    """The baseline goes alone, then six trials, then four confirmations."""
    assert minutes(said(tmp_path, workers=workers, tuner="random")) == turns


@pytest.mark.parametrize(("tuner", "stops"), [("kbatch", True), ("random", False)])
def test_it_says_what_shortens_a_search(tmp_path, tuner, stops):
    assert ("Poor trials are stopped." in said(tmp_path, tuner=tuner)) == stops
    chosen = CaseOptions(axes={"policy": "float32"}, trials=6, epochs=2, tuner=tuner)
    console = Console(file=io.StringIO(), width=200)
    announce_horizon(chosen, chosen.space(), 3.5, [], console)
    told = console.file.getvalue()
    assert told.startswith("Every training gets 3.50 s: at least")
    assert ("Poor trials are stopped." in told) == stops


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A search of three trials, with three confirmations each of the leader and the baseline."""
    with fuzz_project.nothing_trained():
        return fuzz_project.drawn(tmp_path_factory.mktemp("ended") / "out")


@pytest.mark.parametrize(
    ("trials", "confirm", "words"),
    [
        (3, "3", "10 trainings of 60 s each (baseline, 3 trials, 6 to confirm), 10 of them kept"),
        (3, "1", "6 trainings of 60 s each (baseline, 3 trials, 2 to confirm), 6 of them kept"),
        # two trials to come may change the leader: only the baseline's confirmations are certain
        (5, "3", "12 trainings of 60 s each (baseline, 5 trials, 6 to confirm), 7 of them kept"),
    ],
)
def test_what_is_kept_of_an_earlier_run(ended, trials, confirm, words):
    """Reliability 11: "9 of them kept: 0.0 minutes" while two were trained."""
    assert words in said(ended, trials=trials, confirm=confirm)
