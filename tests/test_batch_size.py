"""Batch-size rules as equations."""

import itertools

import pytest

from kbatch.rules import batch_schedule, scaling

KINDS = ("linear", "exponential", "steps")
CASES = list(itertools.product(KINDS, (32, 96, 1000, 7), (1.5, 4, 100), (1, 2, 4)))


def sizes(kind, last, factor, multiple):
    last *= multiple
    return last, [batch_schedule.at(kind, k / 200, last, factor, multiple) for k in range(201)]


@pytest.mark.parametrize(("kind", "last", "factor", "multiple"), CASES)
def test_a_batch_grows_from_its_first_size_to_its_last(kind, last, factor, multiple):
    last, found = sizes(kind, last, factor, multiple)
    assert (found[0], found[-1]) == (batch_schedule.first(last, factor, multiple), last)
    assert found == sorted(found)
    assert all(size % multiple == 0 and size >= multiple for size in found)
    assert len(set(found)) <= batch_schedule.LEVELS
    assert batch_schedule.at(kind, -1.0, last, factor, multiple) == found[0]
    assert batch_schedule.at(kind, 9.0, last, factor, multiple) == last


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("examples", [10, 1000, 15360])
@pytest.mark.parametrize(("last", "factor", "multiple"), [(256, 8, 1), (96, 3, 4), (7, 100, 1)])
def test_updates_are_counted_batch_by_batch(kind, examples, last, factor, multiple):
    done, count = 0, 0
    while done < examples:
        done += batch_schedule.at(kind, done / examples, last, factor, multiple)
        count += 1
    assert batch_schedule.updates(kind, examples, last, factor, multiple) == count


def test_the_first_pass_is_a_share_of_the_first_batch():
    assert batch_schedule.first_pass(64, 8, 2) == 4
    assert batch_schedule.first_pass(64, 100, 4) == 1
    assert batch_schedule.first_pass(64, 1, 4) == 16


def test_linear_has_equal_differences_exponential_equal_ratios():
    levels = [level / 8 for level in range(8)]
    linear = [batch_schedule.at("linear", share, 8000, 8) for share in levels]
    assert {b - a for a, b in itertools.pairwise(linear)} == {1000}
    growing = [batch_schedule.at("exponential", share, 1280, 128) for share in levels]
    assert growing == [10 * 2**level for level in range(8)]


def test_steps_grow_where_the_learning_rate_would_fall():
    for share in (k / 1000 for k in range(1001)):
        tenths = round(1 / scaling.decay_factor("steps", share))
        assert batch_schedule.at("steps", share, 10_000, 1000) == 10 * tenths


def test_the_first_size_is_the_share_of_the_factor():
    assert batch_schedule.first(256, 8) == 32
    assert batch_schedule.first(256, 1000) == 1
    assert batch_schedule.first(256, 1000, multiple=4) == 4  # an example for each pass


@pytest.mark.parametrize("direction", ["max", "min"])
def test_plateaus_are_measurements_without_a_better_one(direction):
    sign = 1 if direction == "max" else -1
    values = [sign * value for value in (1, 2, 2, 1, 2, 2, 3, 3, 4, 1, 1, 1, 1)]
    wanted = [0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 3, 3, 4]
    found = [batch_schedule.plateaus(values[: n + 1], direction) for n in range(len(values))]
    assert found == wanted
    assert batch_schedule.plateaus([]) == 0


def test_doublings_end_at_the_last_size():
    assert [batch_schedule.doubled(n, 100, 5, multiple=2) for n in range(4)] == [20, 40, 80, 100]


@pytest.mark.parametrize("multiple", [1, 8])
def test_a_size_is_within_the_noise_scale_between_first_and_last(multiple):
    found = [batch_schedule.within(scale, 256, 8, multiple) for scale in range(400)]
    assert (found[0], found[-1]) == (32, 256)
    assert all(size <= max(scale, 32) for scale, size in enumerate(found))
    assert found == sorted(found)
    assert len(set(found)) == batch_schedule.LEVELS
