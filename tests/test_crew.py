"""Threads that search together: one at a time has the turn, and all end together."""

import threading
import time

import pytest

from kbatch.runtime.turns import Ended, Turns
from kbatch.training.crew import Crew


def waited(turns, seconds=0.01):
    """Wait as for a worker: hand the turn over, and look now and then whether to go on."""
    with turns.given():
        time.sleep(seconds)
        with turns.taken():
            turns.check()


def test_one_thread_at_a_time_runs():
    turns, inside, most, done = Turns(), [], [], []

    def work(number):
        for _ in range(20):
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.0005)
            inside.remove(number)
            waited(turns)

    with Crew(turns, work, 3, lambda: done.append(1)):
        work(0)
    assert max(most) == 1
    assert len(most) == 80
    assert len(done) == 4


def test_threads_wait_at_the_same_time():
    turns, barrier = Turns(), threading.Barrier(3, timeout=30)

    def work(number):
        with turns.given():
            barrier.wait()

    with Crew(turns, work, 2):
        work(0)


def test_an_error_of_a_thread_ends_all_and_is_raised():
    turns, ended = Turns(), []

    def work(number):
        if number == 2:
            waited(turns)
            raise ValueError("of thread 2")
        try:
            while True:
                waited(turns)
        except Ended:
            ended.append(number)
            raise

    with pytest.raises(ValueError, match="of thread 2"), Crew(turns, work, 2):
        work(0)
    assert sorted(ended) == [0, 1]


def test_an_error_of_the_block_ends_the_threads():
    turns, ended = Turns(), []

    def work(number):
        try:
            while True:
                waited(turns)
        except Ended:
            ended.append(number)
            raise

    with pytest.raises(KeyboardInterrupt), Crew(turns, work, 2):
        waited(turns)
        raise KeyboardInterrupt
    assert sorted(ended) == [1, 2]


def test_a_thread_without_the_turn_has_none_to_give():
    turns = Turns()
    with turns.given(), turns.taken():
        pass
    with turns.taken(), turns.given(), turns.taken():
        pass
