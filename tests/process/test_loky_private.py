"""Each private name of this library that kbatch uses is still there and does what kbatch needs."""

import os
import signal

import pytest
from loky import ProcessPoolExecutor, process_executor
from loky.process_executor import BrokenProcessPool

from kbatch.runtime import loky_private


@pytest.mark.parametrize(
    ("end", "argument", "code"), [(os._exit, 3, 3), (signal.raise_signal, signal.SIGKILL, -9)]
)
def test_the_exit_code_of_a_dead_worker(end, argument, code):
    with ProcessPoolExecutor(max_workers=1) as executor:
        with pytest.raises(BrokenProcessPool) as died:
            executor.submit(end, argument).result()
    assert loky_private.exit_code(died.value) == code


def test_an_exit_code_that_is_not_told():
    assert loky_private.exit_code(BrokenProcessPool("gone")) == loky_private.UNKNOWN_EXIT_CODE


def test_workers_may_grow(monkeypatch):
    monkeypatch.setattr(
        process_executor, "_MAX_MEMORY_LEAK_SIZE", process_executor._MAX_MEMORY_LEAK_SIZE
    )
    assert float("inf") > process_executor._MAX_MEMORY_LEAK_SIZE
    loky_private.let_workers_grow()
    assert process_executor._MAX_MEMORY_LEAK_SIZE > 1e300
