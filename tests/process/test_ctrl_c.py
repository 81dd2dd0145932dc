"""A Ctrl-C, a SIGTERM or a hang-up ends the command once and cleanly, whenever it comes."""

import os
import signal
import subprocess
import sys
import time

import pytest

from kbatch.runtime.signals import NAMES, Stopped, stopping, undisturbed

SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]


class Interrupted:
    """Raises as TensorFlow's own `__del__` does when a Ctrl-C comes then."""

    def __init__(self, kind):
        self.kind = kind

    def __del__(self):
        raise self.kind


@pytest.fixture(autouse=True)
def default_handlers():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:  # a shell in the background, or nohup, ignores some
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("lost", [KeyboardInterrupt(), Stopped(signal.SIGTERM)])
def test_an_interrupt_in_a_del_is_sent_again(lost, capsys):
    hook = sys.unraisablehook
    with pytest.raises(Stopped) as caught, stopping():
        Interrupted(lost)
        for _ in range(100):
            time.sleep(0.05)
    assert caught.value.signal_number == getattr(lost, "signal_number", signal.SIGINT)
    assert sys.unraisablehook is hook
    assert capsys.readouterr().err == ""


def test_what_else_goes_wrong_there_is_said_as_before(monkeypatch):
    said = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    with stopping():
        Interrupted(ZeroDivisionError)
    assert [each.exc_type for each in said] == [ZeroDivisionError]


@pytest.mark.parametrize("number", SIGNALS)
def test_each_signal_interrupts_with_the_exit_code_of_shells(number):
    with pytest.raises(KeyboardInterrupt) as caught, stopping():
        signal.raise_signal(number)
    assert caught.value.exit_code == 128 + number


def test_a_second_signal_at_once_does_not_stop_the_cleanup():
    now, cleaned = [0.0], []
    with pytest.raises(Stopped), stopping(clock=lambda: now[0]):
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            now[0] = 0.9
            signal.raise_signal(signal.SIGTERM)
            cleaned.append("up")
    assert cleaned == ["up"]
    with pytest.raises(Stopped) as caught, stopping(clock=lambda: now[0]):
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            now[0] = 2.5
            signal.raise_signal(signal.SIGTERM)
    assert caught.value.signal_number == signal.SIGTERM


def test_what_was_ignored_stays_ignored_as_under_nohup():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stopping():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_signal_waits_for_what_must_not_be_disturbed():
    done = []
    with pytest.raises(Stopped), stopping(), undisturbed():
        signal.raise_signal(signal.SIGTERM)
        done.append("written")
    assert done == ["written"]


def test_a_signal_during_imports_ends_without_a_traceback():
    code = (
        "import os, time; from kbatch.runtime import signals\n"
        "with signals.at_once(): os.kill(os.getpid(), {number}); "
        "time.sleep(60)"
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        ended = subprocess.run(
            [sys.executable, "-c", code.format(number=int(number))],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (ended.returncode, ended.stderr) == (128 + number, "\nStopped.\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_stops_in_its_first_moments_in_silence(number, tmp_path):
    """A stand-in for the first imported library sends the signal, so that it comes exactly then."""
    (tmp_path / "typer.py").write_text(
        f"import os\nos.kill(os.getpid(), {int(number)})\nraise "
        f"ImportError('the signal was not handled')"
    )
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "kbatch", "--help"]
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert (ended.returncode, ended.stderr) == (128 + number, "\nStopped.\n")


@pytest.mark.parametrize("begun", [False, True])
def test_trials_are_promised_only_where_there_is_a_folder(begun, tmp_path):
    folder = tmp_path / "out"
    if begun:
        folder.mkdir()
    code = (
        "from kbatch.cli import command\n"
        f"with command.told_plainly({str(folder)!r}): raise KeyboardInterrupt\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert "Stopped." in ended.stderr
    assert ("are kept" in ended.stderr) == begun
