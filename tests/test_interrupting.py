"""A Ctrl-C that comes while an object is cleared away ends the command all the same."""

import signal
import sys
import time

import pytest

from kbatch.device.interrupting import never_lost


class Interrupted:
    """Raises as TensorFlow's own `__del__` does when a Ctrl-C comes then."""

    def __init__(self, kind):
        self.kind = kind

    def __del__(self):
        raise self.kind


@pytest.fixture
def default_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_in_a_del_is_raised_again(default_handler, capsys):
    hook = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), never_lost():
        Interrupted(KeyboardInterrupt)
        for _ in range(100):
            time.sleep(0.05)
    assert sys.unraisablehook is hook
    assert capsys.readouterr().err == ""


def test_what_else_goes_wrong_there_is_said_as_before(monkeypatch):
    said = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    with never_lost():
        Interrupted(ZeroDivisionError)
    assert [each.exc_type for each in said] == [ZeroDivisionError]
