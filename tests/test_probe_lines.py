"""A line for every probe, where somebody watches and has not said what else to do."""

import io

from rich.console import Console

from kbatch.memory._max_batch import Probe
from kbatch.memory._prober import printing_lines, shown_lines

PROBE = Probe(64, "out_of_memory", 10**8, 12.0, (0.5, 0.5))


def test_an_own_function_is_called_instead():
    said = []
    shown_lines(said.append)(PROBE)
    assert said == [PROBE]


def test_a_probe_is_a_line():
    text = io.StringIO()
    printing_lines(Console(file=text, force_terminal=False, width=100))(PROBE)
    assert text.getvalue().splitlines()[0].split() == [
        "batch",
        "64",
        "out",
        "of",
        "memory",
        "100",
        "MB",
        "2",
        "steps",
        "12.0",
        "s",
    ]


def test_the_bytes_of_a_size_that_failed_are_explained_once():
    text = io.StringIO()
    lines = printing_lines(Console(file=text, force_terminal=False, width=100))
    for _ in range(2):
        lines(PROBE)
    assert text.getvalue().count("those in use when it failed") == 1


def test_nobody_watches():
    assert shown_lines(None) is None  # standard error is a file in tests
    assert printing_lines(None) is None


def test_a_training_that_takes_long_is_announced():
    text = io.StringIO()
    lines = printing_lines(Console(file=text, force_terminal=False, width=120))
    lines.expect(64, 20, 3.0)
    assert text.getvalue() == ""
    lines.expect(7825, 20, 242.0)
    assert (
        "batch 7825   is confirmed by 20 steps in a fresh process, about 242 s" in text.getvalue()
    )
