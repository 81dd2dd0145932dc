"""Speeds over batch sizes, from steps that were timed elsewhere."""

import pytest

from kbatch.memory._estimate import _throughput
from kbatch.memory._max_batch import Probe


def probes(seconds):
    """One for each batch size, whose first step traces."""
    return [
        Probe(size, "passed", 10**6, 1.0, (9.9, step, step, step)) for size, step in seconds.items()
    ]


def test_the_smallest_fast_batch_is_between_measured_sizes():
    speeds = _throughput(probes({size: 0.01 + 0.001 * size for size in (16, 64, 256, 1024)}), None)
    assert speeds.smallest_fast == 159  # of 992.2 examples per second at 1024, 95 % is 942.6


def test_a_batch_that_is_as_fast_as_any_is_never_too_small():
    # of a real run, from batch 2 on
    milliseconds = [0.84, 0.90, 1.04, 1.03, 0.95, 0.82, 1.16, 0.95, 1.38, 2.50, 4.30, 9.28]
    seconds = {2 ** (power + 1): step / 1e3 for power, step in enumerate(milliseconds)}
    speeds = _throughput(probes(seconds), None)
    assert speeds.line.smallest() > 2048
    assert speeds.smallest_fast == 2048
    assert "from batch 2048" in str(speeds)


def test_one_size_is_the_smallest_fast_one():
    speeds = _throughput(probes({32: 0.01}), 64)
    assert (speeds.smallest_fast, speeds.line, speeds.first_failing) == (32, None, 64)
    assert speeds.rows[0].examples_per_second == pytest.approx(3200)
