"""Threads that search together: one at a time has the turn, and all end together."""

import signal
import threading
import time

import pytest

from kbatch.runtime.signals import Ended, Turns
from kbatch.training.workers import crew


def waited(turns, seconds=0.01):
    """Wait as for a worker: hand the turn over, and look now and then whether to go on."""
    with turns.given():
        time.sleep(seconds)
        with turns.taken():
            turns.check()


def until_ended(turns, number, ended):
    """Wait again and again, and note that another thread has ended the search."""
    try:
        while True:
            waited(turns)
    except Ended:
        ended.append(number)
        raise


def test_one_thread_at_a_time_runs():
    turns, inside, most, done = Turns(), [], [], []

    def work(number):
        for _ in range(20):
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.0005)
            inside.remove(number)
            waited(turns)

    with crew(turns, work, 3, lambda: done.append(1)):
        work(0)
    assert max(most) == 1
    assert len(most) == 80
    assert len(done) == 4


def test_threads_wait_at_the_same_time():
    turns, barrier = Turns(), threading.Barrier(3, timeout=30)

    def work(number):
        with turns.given():
            barrier.wait()

    with crew(turns, work, 2):
        work(0)


def test_an_error_of_a_thread_ends_all_and_is_raised():
    turns, ended = Turns(), []

    def work(number):
        if number == 2:
            waited(turns)
            raise ValueError("of thread 2")
        until_ended(turns, number, ended)

    with pytest.raises(ValueError, match="of thread 2"), crew(turns, work, 2):
        work(0)
    assert sorted(ended) == [0, 1]


def test_an_error_of_the_block_ends_the_threads():
    turns, ended = Turns(), []

    def work(number):
        until_ended(turns, number, ended)

    with pytest.raises(KeyboardInterrupt), crew(turns, work, 2):
        waited(turns)
        raise KeyboardInterrupt
    assert sorted(ended) == [1, 2]


def test_a_thread_without_the_turn_has_none_to_give():
    turns = Turns()
    with turns.given(), turns.taken():
        pass
    with turns.taken(), turns.given(), turns.taken():
        pass


def test_ctrl_c_waits_for_the_turn_and_ends_all():
    turns, ended = Turns(), []

    def work(number):
        try:
            while True:
                time.sleep(0.05)  # with the turn, which the block waits for
                waited(turns, 0.001)
        except Ended:
            ended.append(number)
            raise

    for delay in (0.1, 0.13, 0.16):
        ended.clear()
        threading.Timer(delay, signal.raise_signal, [signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt), crew(turns, work, 2):
            while True:
                waited(turns, 0.001)
        assert sorted(ended) == [1, 2]


def test_an_error_of_the_end_of_the_block_ends_the_threads():
    turns = Turns()

    def done():
        raise OSError("full")

    with pytest.raises(OSError, match="full"), crew(turns, lambda number: None, 2, done):
        pass
    with crew(turns, lambda number: None, 2):
        waited(turns)
