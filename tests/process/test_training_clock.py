"""The clock of a training, on a time that only tests move: pauses, input and stops."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from kbatch.callbacks.clock import (
    MOST_FAULTS,
    MOST_READY,
    STEADY,
    CountingClock,
    GrowingClock,
    Heartbeat,
    InputCharge,
    Pulse,
    TrainingClock,
)
from kbatch.testing import FakeTime


def ticked(updates, now, clock, between=0.0):
    for seconds in updates:
        clock.on_train_batch_begin(0)
        now.sleep(seconds)
        clock.on_train_batch_end(0)
        now.sleep(between)


@pytest.fixture
def now():
    return FakeTime(100.0)


@pytest.fixture
def clock(now):
    return TrainingClock(now=now, wait=lambda: None)


def test_the_first_update_is_charged_the_median_of_later_ones(clock, now):
    ticked([9.0, 1.0, 2.0, 3.0], now, clock)
    assert clock.seconds == pytest.approx(6.0 + 2.0)
    assert clock.median_update_seconds == 2.0
    assert clock.first_step_seconds == pytest.approx(7.0)


def test_before_the_second_update_nothing_is_known(clock, now):
    ticked([9.0], now, clock)
    assert clock.seconds == 0.0
    assert clock.median_update_seconds is None


def test_the_clock_never_runs_backwards(clock, now):
    readings = []
    for seconds in (5.0, 10.0, 0.1, 0.1, 0.1, 8.0, 0.1):
        ticked([seconds], now, clock)
        readings.append(clock.seconds)
    assert readings == sorted(readings)


def test_it_stands_still_while_paused_and_between_epochs(clock, now):
    ticked([1.0, 1.0], now, clock)
    with clock.paused():
        now.sleep(50.0)
        with clock.paused():
            now.sleep(50.0)
    clock.on_epoch_end(0)
    now.sleep(1000.0)
    clock.on_epoch_begin(1)
    ticked([1.0], now, clock)
    assert clock.seconds == pytest.approx(3.0)


def test_time_between_batches_is_charged(clock, now):
    ticked([1.0, 1.0, 1.0], now, clock, between=0.5)
    assert clock.seconds == pytest.approx(2 * 1.5 + 1.5)


def test_only_whole_updates_count(now):
    clock = TrainingClock(accumulation_steps=4, now=now, wait=lambda: None)
    ticked([1.0] * 11, now, clock)
    assert clock.updates == 2
    assert clock.update_seconds == pytest.approx([4.0, 4.0])


def test_the_device_is_waited_for_before_the_clock_is_read(now):
    clock = TrainingClock(now=now, wait=lambda: now.sleep(0.25))
    ticked([1.0] * 5, now, clock)
    assert clock.median_update_seconds == pytest.approx(1.25)


def test_the_median_is_the_median(clock, now):
    updates = np.random.default_rng(0).uniform(0.1, 1.0, 40)
    ticked(updates, now, clock)
    assert clock.median_update_seconds == pytest.approx(np.median(updates[1:]))


def test_input_made_while_the_clock_stood_still_is_charged(now):
    """As many updates as fit into the pause cost what the pipeline alone takes, and no more."""
    clock = TrainingClock(now=now, wait=lambda: None, input_seconds=1.0)
    ticked([1.0] * 20, now, clock)
    before = clock.seconds
    with clock.paused():
        now.sleep(10.0)
    ticked([0.1] * 10, now, clock)
    assert clock.seconds - before == pytest.approx(10.0)
    ticked([0.1] * 10, now, clock)
    assert clock.seconds - before == pytest.approx(11.0)


def test_input_that_is_no_bottleneck_is_not_charged(now):
    clock = TrainingClock(now=now, wait=lambda: None, input_seconds=0.25)
    plain = TrainingClock(now=now, wait=lambda: None)
    for one in (clock, plain):
        ticked([1.0] * 5, now, one)
        with one.paused():
            now.sleep(100.0)
        ticked([1.0] * 5, now, one)
    assert clock.seconds == plain.seconds


def test_a_pipeline_that_became_faster_is_charged_less(now):
    clock = TrainingClock(now=now, wait=lambda: None, input_seconds=1.0)
    ticked([0.1] * 200, now, clock)  # cached by the operating system since it was timed
    before = clock.seconds
    with clock.paused():
        now.sleep(50.0)
    ticked([0.1] * 20, now, clock)
    assert clock.seconds - before == pytest.approx(2.0)


def test_the_cost_of_the_median_does_not_grow_with_updates(clock, now):
    """The clock's own work is charged to training, so it must not grow with the updates.

    Comparisons are counted, not seconds.
    """
    from kbatch.callbacks.clock import RunningMedian

    class Counted(float):
        comparisons = 0

        def __lt__(self, other):
            Counted.comparisons += 1
            return float(self) < float(other)

        def __neg__(self):
            return Counted(-float(self))

    median, counts = RunningMedian(), []
    numbers = np.random.default_rng(0).uniform(size=64_000)
    for count, number in enumerate(numbers, 1):
        median.add(Counted(number))
        if count in (1_000, 32_000, 64_000):
            counts.append(Counted.comparisons)
    assert median.value == pytest.approx(np.median(numbers))
    assert (counts[2] - counts[1]) / 32_000 < 3 * counts[0] / 1_000


@pytest.fixture
def stops():
    return FakeTime()


@pytest.fixture
def stopped_clock(now, stops):
    return TrainingClock(now=now, wait=lambda: None, stopped=stops)


def stop(seconds, now, stops):
    """The process is stopped for so long: time goes on without it."""
    now.sleep(seconds)
    stops.sleep(seconds)


@pytest.mark.parametrize("before", [0, 1, 5])
def test_a_stop_within_an_update_is_left_out(stopped_clock, clock, now, stops, before):
    ticked([1.0] * before, now, stopped_clock)
    stopped_clock.on_train_batch_begin(0)
    now.sleep(0.4)
    stop(60.0, now, stops)
    now.sleep(0.6)
    stopped_clock.on_train_batch_end(0)
    ticked([1.0] * 5, now, stopped_clock)
    ticked([1.0] * (before + 6), now, clock)
    assert stopped_clock.update_seconds == pytest.approx(clock.update_seconds)
    assert stopped_clock.seconds == pytest.approx(clock.seconds)
    assert stopped_clock.stopped_seconds == 60.0


def test_stops_outside_of_updates_are_no_stops_of_the_clock(stopped_clock, now, stops):
    stop(7.0, now, stops)  # before the first batch
    ticked([1.0] * 3, now, stopped_clock)
    with stopped_clock.paused():
        stop(60.0, now, stops)
    ticked([1.0] * 3, now, stopped_clock)
    assert stopped_clock.update_seconds == pytest.approx([1.0] * 6)
    assert stopped_clock.stopped_seconds == 0.0


def test_no_input_is_prepared_while_all_is_stopped(now, stops):
    clock = TrainingClock(now=now, wait=lambda: None, input_seconds=1.0, stopped=stops)
    ticked([1.0] * 20, now, clock)
    before = clock.seconds
    with clock.paused():
        now.sleep(2.0)
        stop(100.0, now, stops)
    ticked([0.1] * 10, now, clock)
    assert clock.seconds - before == pytest.approx(2 * 1.0 + 8 * 0.1)


def test_growing_and_counting_clocks_leave_stops_out(stopped_clock, now, stops):
    growing = GrowingClock(stopped_clock, lambda update: 32 * 2**update)
    counting = CountingClock(stopped_clock, lambda: 32 * stopped_clock.updates)
    stopped_clock.on_train_batch_begin(0)
    for size in (1.0, 2.0, 4.0):
        stop(50.0, now, stops)
        now.sleep(size)
        stopped_clock.on_train_batch_end(0)
    assert growing.median_update_seconds == pytest.approx(8.0)
    assert counting.in_seconds([(counting.seconds, 0.5)]) == ((pytest.approx(9.0), 0.5),)
    assert stopped_clock.stopped_seconds == 150.0


def test_examples_are_the_seconds_of_a_horizon():
    clock = SimpleNamespace(updates=0, seconds=0.0, examples=7)
    counting = CountingClock(clock, lambda: 8 * clock.updates)
    assert (counting.seconds, counting.median_update_seconds) == (0.0, None)
    curve = []
    for updates, seconds in ((3, 0.5), (6, 0.75)):
        clock.updates, clock.seconds = updates, seconds
        curve.append((counting.seconds, updates / 10))
    assert curve == [(24.0, 0.3), (48.0, 0.6)]
    assert counting.median_update_seconds == 1.0
    assert counting.in_seconds(curve) == ((0.5, 0.3), (0.75, 0.6))
    assert counting.examples == 7  # all else is the clock's


CORES = os.cpu_count() or 1


def pulse_of(seconds, busy=0.0, process=0.0, faults=0):
    return Pulse(seconds, {1: busy, 2: 0.0}, process, faults)


@pytest.mark.parametrize(
    ("later", "stopped"),
    [
        (pulse_of(0.1), False),  # a late beat
        (pulse_of(4.0), True),
        (pulse_of(4.0, busy=0.05, process=0.05 * CORES), True),  # it ran before it was stopped
        (pulse_of(4.0, busy=3.9), False),  # a thread kept the others waiting, or was starved
        (pulse_of(4.0, process=4.0 + CORES), False),  # threads that Python does not know of ran
        (pulse_of(4.0, faults=MOST_FAULTS + 1), False),  # pages were read from disk
    ],
)
def test_only_a_process_that_did_nothing_was_stopped(later, stopped):
    assert bool(pulse_of(0.0).stopped(later)) == stopped


def test_a_stop_is_known_before_the_thread_beats():
    now = FakeTime()
    heartbeat = Heartbeat(now, lambda: pulse_of(now()))
    with heartbeat:
        now.sleep(3.0)
        assert heartbeat.stopped_seconds() == pytest.approx(3.0, abs=0.1)
        now.sleep(0.2)
        assert heartbeat.stopped_seconds() == pytest.approx(3.0, abs=0.1)
    now.sleep(9.0)
    assert heartbeat.stopped_seconds() == pytest.approx(3.0, abs=0.1)


def test_its_thread_ends_with_it():
    before = set(threading.enumerate())
    heartbeat = Heartbeat()
    for _ in range(2):
        with heartbeat:
            assert len(set(threading.enumerate()) - before) == 1
        for thread in set(threading.enumerate()) - before:
            thread.join()
    dropped = Heartbeat().__enter__()
    (thread,) = set(threading.enumerate()) - before
    del dropped
    thread.join()


def child(work, niceness=0, times=1):
    """A process that works under a heartbeat, and says each time how long it was stopped."""
    program = f"""
    import os, sys, time
    from kbatch.callbacks.clock import Heartbeat
    os.nice({niceness})
    with Heartbeat() as heartbeat:
        print("begun", flush=True)
        for _ in range({times}):
            {work}
            print(heartbeat.stopped_seconds(), flush=True)
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    )


WORKS = {
    "computes": "sum(i * i for i in range(15_000_000))",
    "keeps the others waiting": "sorted(range(12_000_000), key=lambda i: -i)",
    "waits": "time.sleep(1.5)",
}


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_what_was_not_stopped_has_no_stop(work):
    with child(work) as process:
        assert process.stdout.read().splitlines() == ["begun", "0.0"]


def test_a_starved_process_was_not_stopped():
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * CORES)]
    try:
        with child("sum(i * i for i in range(200_000))", niceness=19) as process:
            assert process.stdout.read().splitlines() == ["begun", "0.0"]
    finally:
        for each in busy:
            each.kill()
            each.wait()


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="Windows stops no process")
@pytest.mark.parametrize("work", [WORKS["computes"], WORKS["waits"]])
def test_sigstop_is_noticed_whatever_the_process_does(work):
    with child(work, times=2) as process:
        assert [process.stdout.readline() for _ in range(2)] == ["begun\n", "0.0\n"]
        time.sleep(0.3)
        began = time.perf_counter()
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        least = time.perf_counter() - began
        process.send_signal(signal.SIGCONT)
        stopped = float(process.stdout.read())
    assert 0.8 * least < stopped


def test_updates_after_a_pause_cost_at_least_the_pipeline():
    charge = InputCharge(0.1)
    assert charge.of(0.01) == 0.01  # nothing was made ready
    charge.paused(0.25)  # in which two batches can be made
    assert [charge.of(0.01), charge.of(0.3), charge.of(0.01)] == [0.1, 0.3, 0.01]


def test_pauses_add_up_to_what_a_pipeline_holds_at_most():
    charge = InputCharge(0.1)
    charge.paused(0.06)
    charge.paused(0.06)
    assert [charge.of(0.0), charge.of(0.0)] == [0.1, 0.0]
    charge.paused(1e6)
    assert [charge.of(0.0) for _ in range(MOST_READY + 1)].count(0.1) == MOST_READY


def test_steady_updates_show_what_the_pipeline_takes_now():
    charge = InputCharge(0.1)
    for _ in range(STEADY):
        assert charge.of(0.02) == 0.02
    charge.paused(0.02)
    assert charge.of(0.0) == pytest.approx(0.02)


def test_a_pipeline_without_a_time_charges_nothing():
    charge = InputCharge()
    charge.paused(10.0)
    assert [charge.of(0.01) for _ in range(3)] == [0.01] * 3
