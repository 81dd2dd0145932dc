"""The duration of trainings: what is left by the wall clock, from made-up records and clocks."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest
from result_records import record

from kbatch.results.words import (
    USUAL_SHARE,
    USUAL_TRIALS,
    Ahead,
    Taken,
    alike_seconds,
    finder_seconds,
    race_trainings,
    spent_words,
    taken_of,
    time_words,
    wall_seconds,
)
from kbatch.training.progress import Forecast, ProgressBar

HORIZON, FIXED, MEASURED = 8.0, 3.0, 0.5  # seconds; MEASURED by training second
WHOLE = FIXED + HORIZON * (1 + MEASURED)


def took(trained=HORIZON, of_trial=False, fixed=FIXED):
    return Taken(trained, trained * MEASURED, fixed + trained * (1 + MEASURED), of_trial)


def stopped(trained=0.1 * HORIZON):
    return dataclasses.replace(took(trained, of_trial=True), stopped=True)


def timed(one, trained=HORIZON, wall=WHOLE, finished_at=""):
    """A record that trained for so long, and took so long by the wall clock."""
    seconds = {"total": wall, "validation": trained * MEASURED}
    outcome = dataclasses.replace(one.outcome, train_seconds=trained, seconds=seconds)
    return dataclasses.replace(one, outcome=outcome, finished_at=finished_at)


@pytest.mark.parametrize(
    ("ahead", "taken", "seconds"),
    [
        (Ahead(HORIZON, trials=10, whole=6), [], None),
        (Ahead(HORIZON, trials=None, baseline=1), [took()], None),
        (Ahead(HORIZON, trials=10, whole=6), [took()], 16 * WHOLE),
        (Ahead(HORIZON, trials=10, whole=6, workers=4), [took()], (3 + 2) * WHOLE),
        # the baseline trains before the others begin
        (Ahead(HORIZON, trials=4, whole=4, baseline=1, workers=4), [took()], 3 * WHOLE),
        # overhead is measured, not a share of the horizon
        (Ahead(HORIZON, trials=2), [took(fixed=20.0)], 2 * (WHOLE + 17.0)),
        # the first training of a process warms TensorFlow up
        (Ahead(HORIZON, trials=2), [took(fixed=20.0), took(), took(), took()], 2 * WHOLE),
        # a target ends trainings early
        (Ahead(HORIZON, whole=4), [took(4.0), took(4.0)], 4 * (FIXED + 4 * (1 + MEASURED))),
        # a trial that a rung stopped says nothing on one that none stops
        (Ahead(HORIZON, whole=2), [took(), stopped()], 2 * WHOLE),
        (Ahead(HORIZON), [took()], 0.0),
    ],
)
def test_seconds_are_those_of_the_trainings_so_far(ahead, taken, seconds):
    assert ahead.seconds(taken) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("shares", [[], [1.0], [1.0, 1 / 3, 1 / 3]])
def test_stopped_trials_shorten_those_that_are_ahead(shares):
    ahead = Ahead(HORIZON, trials=5, whole=2, stops=True)
    trials = [took(share * HORIZON, of_trial=True) for share in shares]
    trials = [dataclasses.replace(each, stopped=each.train_seconds < HORIZON) for each in trials]
    taken = [took(), *trials]
    share = (sum(shares) + USUAL_TRIALS * USUAL_SHARE) / (len(shares) + USUAL_TRIALS)
    trial = FIXED + share * HORIZON * (1 + MEASURED)
    assert ahead.seconds(taken) == pytest.approx(5 * trial + 2 * WHOLE)
    assert ahead.least_seconds == pytest.approx(5 * HORIZON / 3 + 2 * HORIZON)


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self):
        return self.now


def test_a_forecast_is_told_better_after_each_training():
    clock, baseline = Clock(), timed(record(-1, 0.3, "baseline"))
    forecast = Forecast(Ahead(HORIZON, trials=3, baseline=1), clock=clock)
    assert forecast.beginning("parts") == (
        "parts: at least 32 s, and told better once the baseline has ended."
    )
    assert forecast.words() == ""
    clock.now = 20.0
    forecast.ended(baseline)
    # 20 s by the wall clock, of which 12 s are training and validation, come again three times
    assert forecast.seconds_left == pytest.approx(3 * 20.0)
    told = "8 training seconds took 20 s by the wall clock: about 60 s left"
    assert forecast.after(baseline) == told
    clock.now = 35.0
    assert forecast.seconds_left == pytest.approx(3 * 20.0 - 15.0)
    forecast.ended(timed(record(0, 0.2)))
    assert forecast.seconds_left == pytest.approx(2 * (20.0 + 15.0) / 2)
    for number in (1, 2):
        forecast.answered(record(number, 0.2))
    assert (forecast.seconds_left, forecast.words()) == (0.0, "")


def test_a_forecast_counts_no_training_twice():
    clock, earlier = Clock(), [timed(record(-1, 0.3, "baseline")), timed(record(0, 0.2))]
    forecast = Forecast(Ahead(HORIZON, trials=2), earlier, clock=clock)
    assert forecast.beginning("2 trials") == f"2 trials: about {2 * WHOLE:.0f} s."
    for one in earlier:
        forecast.answered(one)
    assert forecast.seconds_left == pytest.approx(2 * WHOLE)
    assert forecast.done == 2


def test_a_budget_bounds_a_forecast():
    clock = Clock()
    forecast = Forecast(Ahead(HORIZON, trials=None, baseline=1), ends_in=100.0, clock=clock)
    assert forecast.beginning("trials") == "trials: at most 1.7 minutes."
    clock.now = 20.0
    forecast.ended(timed(record(-1, 0.3, "baseline")))
    assert forecast.words() == "about 80 s left"


def test_each_worker_has_its_own_time_between_trainings():
    clock = Clock()
    forecast = Forecast(Ahead(HORIZON, trials=4, workers=2), clock=clock)

    def end(number, now):
        clock.now = now
        forecast.ended(timed(record(number, 0.2)))

    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        first.submit(end, 0, 20.0).result()
        second.submit(end, 1, 21.0).result()
    assert forecast.seconds_left == pytest.approx((20.0 + 21.0) / 2)


def test_a_search_in_python_announces_its_time(capsys):
    bars, clock = ProgressBar(), Clock()
    ahead = Ahead(HORIZON, trials=2, baseline=1)
    bars.begins(Forecast(ahead, clock=clock), ahead.parts)
    for number, one in enumerate((record(-1, 0.3, "baseline"), record(0, 0.2), record(1, 0.2))):
        bars.started(one.purpose, one.trial, one.recipe, HORIZON)
        clock.now = 20.0 * (number + 1)
        bars.ended(timed(one))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "the baseline, 2 trials of 8 training seconds each: at least 24 s, and told better once "
        "the baseline has ended."
    )
    assert "    8 training seconds took 20 s by the wall clock: about 40 s left" in lines
    assert [line.split("; ")[-1] for line in lines if "left" in line][-1] == "about 20 s left"
    assert lines[-1].endswith("per second")


def at(one, second, wall):
    return timed(
        one, wall=wall, finished_at=f"2026-11-25T15:{second // 60:02d}:{second % 60:02d}+00:00"
    )


@pytest.mark.parametrize(
    ("ends", "seconds"),
    [
        ([(100, 10.0)], 10.0),
        ([(100, 10.0), (115, 10.0)], 25.0),  # with the 5 s between them
        ([(100, 10.0), (102, 10.0)], 12.0),  # two workers
        ([(100, 10.0), (3000, 10.0)], 20.0),  # stopped, and gone on later
    ],
)
def test_wall_seconds_are_those_of_the_runs(ends, seconds):
    records = [at(record(number, 0.2), *end) for number, end in enumerate(ends)]
    assert wall_seconds(records) == pytest.approx(seconds)
    trained = f"{HORIZON * len(ends):,.0f} training seconds"
    assert spent_words(records).startswith(f"{trained}, {time_words(seconds)} by the wall clock")


def test_what_is_not_training_is_told_in_parts():
    parts = {"first_step": 3.0, "validation": 4.0}
    made = timed(record(0, 0.2), wall=20.0, finished_at="2026-11-25T15:00:00+00:00")
    own = dataclasses.replace(made.outcome, seconds={**made.outcome.seconds, **parts})
    told = spent_words([dataclasses.replace(made, outcome=own)])
    assert told.endswith("20 s by the wall clock (first steps 3 s, validation 4 s, all else 5 s)")
    at_once = [at(record(number, 0.2), 100 + number, 10.0) for number in range(3)]
    assert spent_words(at_once).endswith("by the wall clock")


@pytest.mark.parametrize(
    ("ends", "walls"),
    [
        ([(100, 10.0), (115, 10.0)], [10.0, 15.0]),
        ([(100, 10.0), (102, 10.0)], [10.0, 10.0]),  # two workers
        ([(100, 10.0), (3000, 10.0)], [10.0, 10.0]),  # stopped, and gone on later
    ],
)
def test_what_lies_between_two_trainings_counts(ends, walls):
    records = [at(record(number, 0.2), *end) for number, end in enumerate(ends)]
    assert [taken.wall_seconds for taken in taken_of(records)] == pytest.approx(walls)


def test_old_records_tell_training_seconds_only():
    old = dataclasses.replace(record(0, 0.2), finished_at="")
    assert wall_seconds([old]) is None
    assert spent_words([old]).endswith(" training seconds")


@pytest.mark.parametrize(
    ("looks", "parts"), [((3,), [15]), ((3, 5), [15, 6]), ((3, 5, 8), [15, 6, 6]), ((), [])]
)
def test_a_race_trains_what_its_looks_ask_for(looks, parts):
    """Four recipes and the baseline, then two, then one."""
    assert race_trainings(looks, 4) == parts


def test_cells_take_as_long_as_those_alike():
    assert alike_seconds([], ["a"]) is None
    assert alike_seconds([("a", 2.0), ("a", 4.0), ("b", 9.0)], ["a", "b", "c"]) == 3 + 9 + 5


def test_a_finder_takes_two_more_probes_and_a_confirmation():
    assert finder_seconds(8.0, 5.0, [3.0, 1.0, 1.2], 20) == pytest.approx(10 + 8 + 3 + 20 * 1.1)
    assert finder_seconds(8.0, 5.0, [3.0, 1.0, 1.2], 0) == 10.0
