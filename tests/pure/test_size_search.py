"""The search against brute force over made-up needs, and where and how it confirms."""

import dataclasses
import random

import numpy as np
import pytest

from kbatch.memory._margins import MARGINS
from kbatch.memory._max_batch import Probe, SearchResult
from kbatch.memory._prober import TOO_LARGE, ModelFacts
from kbatch.memory._search import (
    Jump,
    Need,
    any_size,
    compiled_size,
    first_confirmed,
    multiple_of_8,
    power_of_two,
    settling,
    stepping_down,
    tried,
)
from kbatch.runtime.device_memory import MIB

LIMIT = 1e9


def curve_of(rng):
    """A convex piecewise linear need, and a prediction that is off by as much as was measured."""
    static = rng.uniform(0.01, 0.4) * LIMIT
    top = int(10 ** rng.uniform(0.7, 3.7))
    slope = (LIMIT - static) / top
    lines = [(static, slope), (static * rng.uniform(1, 1.3), slope * rng.uniform(0.3, 0.9))]
    need = Need(tuple(lines))
    off = rng.uniform(0.75, 1.25)
    return need, Need(
        tuple((static + (fixed - static) * off, slope * off) for fixed, slope in lines)
    )


def prober(need, rng=None, noise=0.0, slack=0.0, fails=0.0, log=None):
    def probe(size):
        if log is not None:
            log.append(size)
        wanted = need.at(size) * (1 + (rng.uniform(-noise, noise) if noise else 0))
        ok = wanted <= LIMIT and not (fails and rng.random() < fails)
        # The nearer to the limit, the more the allocator's slack makes the peak look like the
        # limit.
        peak = min(LIMIT, wanted * (1 + slack))
        return Probe(
            size, "passed" if ok else "out_of_memory", int(peak) if ok else 0, 1.0, (0.1, 0.1)
        )

    return probe


def searched(probe, sizes):
    return SearchResult.of(tried(sizes, lambda size: [probe(size)]))


def jump(probe, *arguments):
    return searched(probe, Jump(*arguments).sizes())


def settle(probe, *arguments):
    return searched(probe, settling(*arguments))


@pytest.mark.parametrize("seed", range(300))
def test_jump_equals_brute_force_within_its_tolerance(seed):
    rng = random.Random(seed)
    need, predicted = curve_of(rng)
    truth = need.largest(LIMIT)
    found = jump(prober(need), predicted, LIMIT, 1 << 24, any_size)
    assert found.batch_size <= truth
    assert found.batch_size >= min(truth - 1, 0.9 * truth)
    assert len(found.probes) <= 7


def test_jump_takes_few_probes_and_fails_seldom():
    probes, failures = [], []
    for seed in range(300):
        rng = random.Random(seed)
        need, predicted = curve_of(rng)
        found = jump(prober(need), predicted, LIMIT, 1 << 24, any_size)
        probes.append(len(found.probes))
        failures.append(sum(not probe.passed for probe in found.probes))
    assert sorted(probes)[150] <= 3
    assert sorted(failures)[150] <= 1


@pytest.mark.parametrize("seed", range(100))
def test_jump_holds_with_noise_and_slack(seed):
    rng = random.Random(seed)
    need, predicted = curve_of(rng)
    truth = need.largest(LIMIT)
    found = jump(prober(need, rng, noise=0.03, slack=0.08), predicted, LIMIT, 1 << 24, any_size)
    assert found.batch_size <= need.largest(LIMIT * 1.031)
    # 8 % of slack, 3 % of noise twice, 3 % kept free, 5 % tolerance
    assert found.batch_size >= min(truth - 2, 0.78 * truth)
    assert any(probe.batch_size == found.batch_size and probe.passed for probe in found.probes)


@pytest.mark.parametrize("seed", range(50))
def test_jump_ends_under_random_failures_and_answers_no_failure(seed):
    rng = random.Random(seed)
    need, predicted = curve_of(rng)
    found = jump(prober(need, rng, fails=0.3), predicted, LIMIT, 1 << 24, any_size)
    assert len(found.probes) < 40
    failed = {probe.batch_size for probe in found.probes if not probe.passed}
    assert found.batch_size not in failed
    assert found.first_failing == min(failed, default=None)


@pytest.mark.parametrize("factor", [0.05, 0.2, 5.0, 50.0])
def test_a_wrong_prediction_costs_probes_not_the_answer(factor):
    need = Need(((1e8, 1e6),))
    found = jump(prober(need), Need(((1e8, 1e6 * factor),)), LIMIT, 1 << 24, any_size)
    truth = need.largest(LIMIT)
    assert 0.9 * truth <= found.batch_size <= truth
    assert len(found.probes) <= 14


def slow(size, need):
    ok = need.at(size) <= LIMIT
    return Probe(
        size, "passed" if ok else "out_of_memory", int(need.at(size)) if ok else 0, 1.0, (9.0, 9.0)
    )


@pytest.mark.parametrize(("off", "probes"), [(0.97, 1), (1.0, 1), (1.03, 1), (0.8, 2), (1.2, 2)])
def test_one_slow_probe_as_predicted_is_enough(off, probes):
    need, predicted = Need(((1e7, 9e6),)), Need(((1e7 * off, 9e6 * off),))
    jumping = Jump(predicted, LIMIT, 1000, any_size, slow_seconds=2.0)
    tries = tried(jumping.sizes(), lambda size: [slow(size, need)])
    assert min(len(tries), 2) == probes
    assert 0.9 * need.largest(LIMIT) <= jumping.result(tries).batch_size <= need.largest(LIMIT)


def test_nothing_fits():
    found = jump(prober(Need(((2e9, 1.0),))), Need(((2e9, 1.0),)), LIMIT, 1 << 24, any_size)
    assert (found.batch_size, found.first_failing) == (0, 1)


@pytest.mark.parametrize("ceiling", [1, 2, 7, 100])
def test_a_ceiling_is_never_exceeded_and_reached_where_it_fits(ceiling):
    log = []
    found = jump(
        prober(Need(((0.0, 1e6),)), log=log), Need(((0.0, 1e6),)), LIMIT, ceiling, any_size
    )
    assert max(log) <= max(ceiling, 1)
    assert found.batch_size == ceiling


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("allowed", [power_of_two, multiple_of_8])
def test_only_allowed_sizes_are_tried(seed, allowed):
    rng, log = random.Random(seed), []
    need, predicted = curve_of(rng)
    found = jump(prober(need, log=log), predicted, LIMIT, 1 << 24, allowed)
    assert all(size == allowed(size) for size in log)
    truth = allowed(need.largest(LIMIT))
    assert found.batch_size <= truth
    assert found.batch_size >= min(allowed(int(0.9 * need.largest(LIMIT))), truth - 8)


def test_settle_probes_the_prediction_and_then_steps_down():
    need, log = Need(((0.0, LIMIT / 97.5),)), []
    assert settle(prober(need, log=log), 97, 1 << 24, any_size).batch_size == 97
    assert log == [97]
    assert settle(prober(need), 100, 1 << 24, any_size).batch_size in (96, 97)
    assert settle(prober(Need(((2e9, 1.0),))), 3, 1 << 24, any_size).batch_size == 0


def confirmer(most, log=None, phase="training"):
    def confirm(size):
        if log is not None:
            log.append(size)
        return Probe(
            size,
            "passed" if size <= most else "out_of_memory",
            10 * size,
            1.0,
            (0.1,) * 20,
            phase=phase,
        )

    return confirm


def confirmed(confirm, size, step, allowed):
    return SearchResult.of((), tried(stepping_down(size, step, allowed), confirm))


def alone(*arguments, **named):
    """A size is confirmed in one process."""
    confirm = confirmer(*arguments, **named)
    return lambda size: [confirm(size)]


@pytest.mark.parametrize("most", [1, 2, 7, 30, 44, 99, 100])
@pytest.mark.parametrize("step", [0.01, 0.05])
def test_it_ends_on_a_size_that_passed(most, step):
    found = confirmed(alone(most), 100, step, any_size)
    assert found.batch_size <= most
    assert found.batch_size in [probe.batch_size for probe in found.confirmations if probe.passed]
    assert not found.first_failing or found.first_failing - found.batch_size <= max(
        1, np.ceil(step * found.first_failing)
    )
    assert found.first_failing == min(
        (probe.batch_size for probe in found.confirmations if not probe.passed), default=None
    )
    assert len(found.confirmations) <= 20


def test_the_first_two_steps_are_equal_and_later_ones_double():
    log = []
    confirmed(alone(50, log), 100, 0.05, any_size)
    assert log[:6] == [100, 95, 90, 81, 64, 38]


def test_after_long_steps_down_the_middle_is_tried():
    log = []
    found = confirmed(alone(50, log), 100, 0.05, any_size)
    assert log[6:] == [51, 44, 47, 49]
    assert (found.batch_size, found.first_failing) == (49, 51)


def test_nothing_passes_or_nothing_is_left():
    assert confirmed(alone(0), 3, 0.05, any_size).batch_size == 0
    assert confirmed(alone(0), 0, 0.05, any_size).confirmations == ()


def test_only_allowed_sizes_are_confirmed():
    log = []
    assert confirmed(alone(20, log), 64, 0.05, power_of_two).batch_size == 16
    assert log == [64, 32, 16]


def test_what_trains_but_cannot_be_validated_does_not_pass():
    assert confirmed(alone(4, phase="validation"), 8, 0.05, any_size).batch_size == 4


def test_all_processes_must_pass_and_all_are_kept():
    passes = confirmer(100)

    def third_fails_at_60(size):
        fails = dataclasses.replace(passes(size), ended="out_of_memory")
        return [passes(size), passes(size), fails if size == 60 else passes(size)]

    found = confirmed(third_fails_at_60, 60, 0.05, any_size)
    assert found.batch_size < 60 == found.first_failing
    assert len(found.confirmations) % 3 == 0
    assert found.confirmed_steps == 60


USABLE = 950


@pytest.mark.parametrize(
    ("passed", "peak", "failing", "allowed", "first"),
    [
        (100, 900, None, any_size, 100),  # far enough from everything
        (100, 900, 104, any_size, 93),  # a tenth below what failed
        (100, 900, 200, any_size, 100),
        (100, 960, None, any_size, 95),  # it took more than a confirmation has
        (100, 960, 102, any_size, 91),
        (64, 900, 128, power_of_two, 64),
        (64, 960, None, power_of_two, 64),  # half of it would be too far down
        (1, 960, 2, any_size, 1),
    ],
)
def test_what_is_too_near_is_not_tried(passed, peak, failing, allowed, first):
    probes = [Probe(passed, "passed", peak, 1.0)] + (
        [] if failing is None else [Probe(failing, "out_of_memory", 0, 1.0)]
    )
    assert first_confirmed(SearchResult(passed, failing, tuple(probes)), USABLE, allowed) == first


GB = 10**9


@pytest.mark.parametrize("seed", range(200))
def test_it_equals_brute_force_on_aligned_convex_needs(seed):
    rng = random.Random(seed)
    static, slope = rng.randrange(10**6, GB // 2), int(10 ** rng.uniform(5.2, 8))
    bend, steeper = rng.randrange(1, 2000), rng.uniform(1, 1.5)
    calls = []

    def compiled_bytes(size):
        calls.append(size)
        need = static + max(slope * size, slope * steeper * size - slope * (steeper - 1) * bend)
        return -(-int(need) // 64) * 64

    facts = ModelFacts(4 * GB, "", static, 0, 0, 4 * GB - static)
    found = compiled_size(compiled_bytes, facts, 10**6)
    assert len(calls) <= 6
    assert compiled_bytes(found.batch_size + 2) > 4 * GB
    assert found.batch_size <= 1 or compiled_bytes(found.batch_size - 1) <= 4 * GB


def test_a_ceiling_is_kept():
    facts = ModelFacts(4 * GB, "", 0, 0, 0, 4 * GB)
    assert compiled_size(lambda size: 1000 * size, facts, 50).batch_size == 50
    assert compiled_size(lambda size: 1000 * size, facts, 1).batch_size == 1


@pytest.mark.parametrize("most", [3, 7, 15])
def test_what_cannot_even_be_compiled_is_halved(most):
    facts = ModelFacts(4 * GB, "", 0, 0, 0, 4 * GB)
    found = compiled_size(lambda size: TOO_LARGE if size > most else size * GB // 10, facts, 1000)
    assert found.batch_size == most


def test_nothing_fits_when_compiled():
    found = compiled_size(lambda size: 5 * GB + size, ModelFacts(4 * GB, "", 0, 0, 0, 4 * GB), 1000)
    assert found.batch_size == 2  # the probes after it go down to 1


@pytest.mark.parametrize("mebibytes", [4, 10, 33, 34, 400, 80_000])
def test_what_is_kept_free_is_a_share_and_at_least_a_mebibyte(mebibytes):
    usable = MARGINS.usable(mebibytes << 20)
    assert usable % MIB == 0
    assert (mebibytes << 20) - usable >= MIB
    share = (1 - MARGINS.kept_free) * (mebibytes << 20)
    assert share - MIB < usable <= share or usable == (mebibytes - 1) << 20
