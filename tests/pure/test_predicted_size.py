"""The predicted size is confirmed before any other where the prediction counts all."""

import random

import pytest
from fake_prober import LIMIT, FakeProber, line

from kbatch.errors import MemoryLimitError
from kbatch.memory._estimate import SIZES
from kbatch.memory._find import find
from kbatch.memory._margins import MARGINS
from kbatch.memory._search import SizeOptions
from kbatch.memory._workload import Workload
from kbatch.model_spec import ModelSpec
from kbatch.recipe import Recipe

FIXED, SLOPE = 100 << 20, 5 << 20
USABLE = MARGINS.usable(LIMIT)
WORKLOAD = Workload(ModelSpec(lambda: None), (), Recipe())


def found(need, predicted, uncounted=False, seconds=10.0, **options):
    """The answer, and what was trained for it."""
    log = []
    prober = FakeProber(WORKLOAD, lambda _: need, lambda _: predicted, log, USABLE)
    prober.uncounted, prober.seconds = uncounted, seconds
    return find(prober, SizeOptions(**options)), log


def test_an_exact_prediction_takes_one_training():
    need = line(FIXED, SLOPE)
    answer, log = found(need, need)
    assert [what for what, _ in log] == ["steps", "confirm_at_once"]
    assert 0.93 * need.largest(USABLE) <= answer.batch_size <= need.largest(USABLE)
    assert (len(answer.probes), answer.first_failing) == (1, None)
    assert answer.probes[0].batch_size == need.largest(LIMIT) // 8
    assert answer.confirmed_steps == MARGINS.confirmed_steps


def test_where_steps_are_quick_sizes_are_probed():
    need = line(FIXED, SLOPE)
    _, log = found(need, need, seconds=0.0)
    assert [what for what, _ in log] == ["steps", "probe", "probe", "confirm"]


def test_what_the_prediction_may_miss_is_probed_first():
    need = line(FIXED, SLOPE)
    _, log = found(need, need, uncounted=True)
    assert [what for what, _ in log] == ["probe", "confirm"]


@pytest.mark.parametrize("sizes", ["any", "powers_of_two", "multiples_of_8"])
@pytest.mark.parametrize("seed", range(40))
def test_a_wrong_prediction_is_found_out(seed, sizes):
    rng = random.Random(seed)
    need = line(FIXED * rng.uniform(0.5, 2), SLOPE * rng.uniform(0.2, 4))
    (fixed, slope), factor = need.lines[0], rng.uniform(0.6, 1.7)
    answer, log = found(need, line(fixed, slope * factor), sizes=sizes)
    truth = SizeOptions(sizes=sizes).allowed(need.largest(USABLE))
    assert min(0.85 * truth, truth - 8) <= answer.batch_size <= truth
    assert [what for what, _ in log[:2]] == ["steps", "confirm_at_once"]
    assert any(probe.passed for probe in answer.confirmations)


def test_the_ceiling_is_confirmed_at_once():
    need = line(FIXED, SLOPE)
    answer, log = found(need, need, ceiling=10)
    assert (answer.batch_size, log) == (10, [("steps", 1), ("confirm_at_once", 10)])


def test_sizes_at_which_speed_is_flat_are_measured_first():
    need = line(FIXED, 1000)
    assert need.largest(LIMIT) > SIZES[-1]
    _, log = found(need, need)
    assert log[: len(SIZES)] == [("steps", size) for size in SIZES]


def test_one_example_that_does_not_fit_is_said():
    with pytest.raises(MemoryLimitError, match="One example must fit"):
        found(line(FIXED, LIMIT), line(FIXED, LIMIT / 2))


def test_without_a_confirmation_sizes_are_probed():
    need = line(FIXED, SLOPE)
    _, log = found(need, need, confirmed_steps=0)
    assert {what for what, _ in log} == {"probe"}
