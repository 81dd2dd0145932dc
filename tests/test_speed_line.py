"""A line through step times: exact without noise, robust with it."""

import random

import pytest

from kbatch.memory._estimate import Line, fitted_line, line_of_probes
from kbatch.memory._max_batch import Probe
from kbatch.memory._prober import waited


@pytest.mark.parametrize(("overhead", "slope"), [(0.01, 0.001), (0.0, 0.002), (0.5, 1e-5)])
def test_fit_is_exact_without_noise(overhead, slope):
    line = fitted_line({size: [overhead + slope * size] * 3 for size in (2, 8, 32, 128)})
    assert line.overhead_seconds == pytest.approx(overhead, abs=1e-9)
    assert line.seconds_per_example == pytest.approx(slope)


def test_smallest_is_the_smallest():
    line = Line(0.013, 0.0007, largest=4000)
    best = line.examples_per_second(4000)
    brute = next(size for size in range(1, 4001) if line.examples_per_second(size) >= 0.95 * best)
    assert line.smallest() == brute
    assert Line(0.013, 0.0007, largest=10**9).smallest() == pytest.approx(
        19 * 0.013 / 0.0007, abs=1
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_disturbed_step_and_a_disturbed_size_change_little(seed):
    rng = random.Random(seed)
    seconds = {
        size: [(0.02 + 0.001 * size) * rng.uniform(0.97, 1.03) for _ in range(9)]
        for size in (4, 8, 16, 32, 64, 128)
    }
    for steps in seconds.values():
        steps[rng.randrange(9)] *= 10
    seconds[rng.choice([8, 16, 32])] = [1.0] * 9
    line = fitted_line(seconds)
    assert line.seconds_per_example == pytest.approx(0.001, rel=0.25)


def test_a_line_needs_two_sizes_and_ignores_first_steps():
    assert fitted_line({}) is None
    assert fitted_line({8: [1.0]}) is None
    probes = [
        Probe(8, "passed", 1, 1.0, (9.0, 0.08, 0.08)),
        Probe(16, "passed", 1, 1.0, (9.0, 0.16)),
        Probe(32, "out_of_memory", 0, 10.0),
    ]
    assert line_of_probes(probes).largest == 16
    assert line_of_probes(probes).seconds_per_example == pytest.approx(0.01)


def test_smallest_of_a_line_without_overhead_is_1():
    assert Line(0.0, 0.001, 64).smallest() == 1


def test_flat_from_is_where_twice_as_many_gain_no_more_than_that():
    line = Line(0.013, 0.0007, largest=64)
    size = line.flat_from(0.02)
    assert line.examples_per_second(2 * size) / line.examples_per_second(size) <= 1.02
    assert line.examples_per_second(2 * size - 2) / line.examples_per_second(size - 1) > 1.02
    assert Line(0.0, 0.001, 64).flat_from(0.02) == 1


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([9.0], False),
        ([9.0, 0.3], False),
        ([9.0, 0.3, 9.0], True),
        ([9.0, 2.0, 6.0], False),
        ([0.1, 0.02, 0.9], False),
    ],
)
def test_a_step_that_waited_for_memory_is_told_from_a_slow_one(seconds, expected):
    assert waited(seconds) is expected
