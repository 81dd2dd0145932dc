"""The driver's progress: trial numbers, time left after a resume, and the best so far."""

import io
import threading
from dataclasses import replace

import pytest
from result_records import confirmation, record
from rich.console import Console

from kbatch import Recipe
from kbatch.cli.live import Live
from kbatch.results.words import Ahead

SECONDS = 10.0


def live(earlier=(), trials=3, trainings=6):
    return watching(trials, trials, trainings - trials, earlier)


def watching(trials, left, whole, earlier=(), workers=1):
    ahead = Ahead(SECONDS, trials=left, whole=whole, workers=workers)
    return Live(Console(file=io.StringIO(), width=300), trials, ahead, earlier)


def shown(watcher):
    return watcher._console.file.getvalue().splitlines()


def train(watcher, one):
    watcher.started(one.purpose, one.trial, one.recipe, SECONDS)
    watcher.ended(one)


def test_trials_are_counted_on_after_a_resume():
    """Newcomer A7: the resumed run said "trial 1 (1 of 3)" and "trial 2 (2 of 3)"."""
    watcher = live([record(-1, 0.3, "baseline"), record(0, 0.2)])
    watcher.answered(record(-1, 0.3, "baseline"))
    for number in (1, 2):
        watcher.answered(record(-1, 0.3, "baseline"))
        watcher.started("search", number, Recipe(), SECONDS)
        assert f"trial {number} ({number + 1} of 3)" in watcher._progress.tasks[-1].description
        watcher.ended(record(number, 0.2))
    lines = shown(watcher)
    assert [line.split(":")[0] for line in lines] == [
        "baseline",
        "trial 1 (2 of 3)",
        "trial 2 (3 of 3)",
    ]
    assert "not trained again" in lines[0]


def test_the_time_left_counts_no_training_twice():
    earlier = [record(-1, 0.3, "baseline"), record(0, 0.2), *confirmation({-1: 0.3}, 1)]
    watcher = watching(3, 2, 1, earlier)
    assert watcher.forecast.done == 3
    assert watcher.forecast.seconds_left == pytest.approx(3 * 12.0, abs=0.5)  # what those took
    for one in earlier:
        watcher.answered(one)
    assert watcher.forecast.done == 3
    watcher.ended(record(1, 0.2))
    assert watcher.forecast.done == 4
    assert live().forecast.seconds_left is None


def test_a_trial_that_is_answered_from_anothers_record_counts():
    watcher = live()
    train(watcher, record(0, 0.2))
    watcher.answered(record(1, 0.2))
    assert watcher.forecast.done == 2
    assert shown(watcher)[-1].startswith("trial 1 (2 of 3)")


def test_trainings_at_once_have_their_own_bars():
    watcher = watching(4, 4, 1, workers=2)
    watcher.answered(record(-1, 0.3, "baseline"))
    ended = [threading.Event(), threading.Event()]

    def training(number):
        watcher.started("search", number, Recipe(), SECONDS)
        ended[number].wait(10)
        watcher.progress(2.0 + number, None)

    threads = [threading.Thread(target=training, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for number in (1, 0):
        ended[number].set()
        threads[number].join()
    assert sorted(bar.completed for bar in watcher._progress.tasks) == [2.0, 3.0]


def test_a_trial_that_still_runs_is_not_done():
    watcher = live()
    watcher.started("search", 0, Recipe(), SECONDS)
    other = threading.Thread(target=train, args=(watcher, record(1, 0.2)))
    other.start()
    other.join()
    assert watcher.forecast.done == 1
    watcher.ended(record(0, 0.2))
    assert watcher.forecast.done == 2


def test_best_so_far_may_be_the_baseline():
    watcher = live([record(-1, 0.36, "baseline"), record(0, 0.31)])
    assert (
        watcher._best_words()
        == f"best so far {record(-1, 0.36).outcome.value:.3f} (the baseline), "
    )
    train(watcher, record(1, 0.4))
    train(watcher, confirmation({0: 0.45}, 1)[0])  # of a confirmation there are several, and a mean
    assert watcher._best_words() == f"best so far {record(1, 0.4).outcome.value:.3f}, "


def test_a_line_says_how_it_ended_and_the_score_per_second():
    watcher = live()
    train(
        watcher,
        record(
            0, 0.3, ended="callback", changes={"stopped_by": "EarlyStopping", "train_seconds": 2.3}
        ),
    )
    ended = (
        f"score {record(0, 0.3).score:.4f} per second, ended by EarlyStopping after 2.3 s; about "
    )
    assert ended in shown(watcher)[0]


def test_a_repeat_names_the_trial_that_it_repeats():
    watcher = live([record(0, 0.3, batch_size=64)], trials=4)
    train(watcher, record(1, 0.2, batch_size=128))
    train(watcher, replace(record(2, 0.25, batch_size=64, seed=100_000), repeats=0))
    assert [line.split(":")[0] for line in shown(watcher)] == [
        "trial 1 (2 of 4)",
        "trial 2 (3 of 4), trial 0 again",
    ]
