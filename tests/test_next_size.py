"""The search against brute force over made-up memory curves: convex, noisy, failing at random."""

import random

import pytest

from kbatch.memory._max_batch import Probe, SearchResult
from kbatch.memory._search import (
    Jump,
    Need,
    any_size,
    multiple_of_8,
    power_of_two,
    settling,
    tried,
)

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
