"""A stop of the whole process is told from all else that makes a thread late."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from kbatch.callbacks.clock import MOST_FAULTS, Heartbeat, Pulse
from kbatch.testing import FakeTime

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


def child(work, niceness=0):
    """A process that works under a heartbeat, and says for how long it was stopped."""
    program = f"""
    import os, sys, time
    from kbatch.callbacks.clock import Heartbeat
    os.nice({niceness})
    with Heartbeat() as heartbeat:
        print("begun", flush=True)
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
    with child(work) as process:
        process.stdout.readline()
        time.sleep(0.3)
        began = time.perf_counter()
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        least = time.perf_counter() - began
        process.send_signal(signal.SIGCONT)
        stopped = float(process.stdout.read())
    assert 0.8 * least < stopped
