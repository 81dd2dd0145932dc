"""Speed over batch sizes: its line through seconds of steps, and where larger batches gain none."""

import random

import pytest

from kbatch.memory._estimate import (
    GAIN,
    SIZES,
    SpeedBound,
    SpeedLine,
    _throughput,
    fitted_line,
    line_of_probes,
    speed_bound,
)
from kbatch.memory._max_batch import Probe
from kbatch.memory._prober import confirmation_is_done, slow_probe_is_done, waited


@pytest.mark.parametrize(("overhead", "slope"), [(0.01, 0.001), (0.0, 0.002), (0.5, 1e-5)])
def test_fit_is_exact_without_noise(overhead, slope):
    line = fitted_line({size: [overhead + slope * size] * 3 for size in (2, 8, 32, 128)})
    assert line.overhead_seconds == pytest.approx(overhead, abs=1e-9)
    assert line.seconds_per_example == pytest.approx(slope)


def test_smallest_is_the_smallest():
    line = SpeedLine(0.013, 0.0007, largest=4000)
    best = line.examples_per_second(4000)
    brute = next(size for size in range(1, 4001) if line.examples_per_second(size) >= 0.95 * best)
    assert line.smallest() == brute
    assert SpeedLine(0.013, 0.0007, largest=10**9).smallest() == pytest.approx(
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
    assert SpeedLine(0.0, 0.001, 64).smallest() == 1


def test_flat_from_is_where_twice_as_many_gain_no_more_than_that():
    line = SpeedLine(0.013, 0.0007, largest=64)
    size = line.flat_from(0.02)
    assert line.examples_per_second(2 * size) / line.examples_per_second(size) <= 1.02
    assert line.examples_per_second(2 * size - 2) / line.examples_per_second(size - 1) > 1.02
    assert SpeedLine(0.0, 0.001, 64).flat_from(0.02) == 1


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


def steps_of(fixed, per_example, asked):
    def steps(batch_size, count):
        asked.append(batch_size)
        seconds = fixed + per_example * batch_size
        return Probe(batch_size, "passed", 1, 1.0, (9.9, *[seconds] * (count - 1)))

    return steps


@pytest.mark.parametrize(("fixed", "per_example"), [(0.1, 1e-5), (0.02, 1e-6), (1.0, 2e-4)])
def test_from_there_on_twice_the_batch_gains_less_than_the_gain(fixed, per_example):
    def speed(batch_size):
        return batch_size / (fixed + per_example * batch_size)

    asked = []
    flat = speed_bound(steps_of(fixed, per_example, asked), 10**9).flat
    assert tuple(asked) == SIZES
    assert speed(2 * flat) / speed(flat) - 1 == pytest.approx(GAIN, rel=0.02)


def test_sizes_up_to_the_measured_ones_are_worth_trying():
    assert speed_bound(steps_of(0.0, 1e-3, []), 10**9).flat == SIZES[-1]


def test_where_memory_bounds_the_batch_nothing_is_measured():
    asked = []
    assert speed_bound(steps_of(0.1, 1e-5, asked), SIZES[-1]) == SpeedBound()
    assert asked == []


def test_the_lower_of_both_bounds_holds():
    assert SpeedBound(flat=100).lowered(64) == 64
    assert SpeedBound(flat=100).lowered(200) == 100
    assert SpeedBound().lowered(200) == 200


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


ALIKE = [700, 900, 910, 905, 908, 903]


@pytest.mark.parametrize(
    ("seconds", "peaks", "ends"),
    [
        ([9.0] * 6, ALIKE, True),
        ([9.0] * 5, ALIKE[:5], False),  # too few
        ([0.1] * 6, ALIKE, False),  # not slow
        ([9.0] * 6, [700, 900, 950, 905, 860, 903], False),  # the next may need more
        ([9.0] * 6, [700, 960, 970, 965, 968, 963], False),  # too near the limit of 1000
    ],
)
def test_a_slow_confirmation_ends_where_its_steps_are_alike(seconds, peaks, ends):
    assert confirmation_is_done(seconds, peaks, 1000) is ends


@pytest.mark.parametrize(
    ("seconds", "ends"), [([9.0], False), ([9.0, 0.1], False), ([9.0, 2.5], True)]
)
def test_a_slow_probe_ends_with_a_step_after_the_first(seconds, ends):
    assert slow_probe_is_done(seconds, [1] * len(seconds), 10) is ends
