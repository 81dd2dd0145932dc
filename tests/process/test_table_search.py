"""A table and the finder share one search: with one row their answers are the same."""

import dataclasses
import json
import random
import re

import numpy as np
import pytest
from fake_prober import LIMIT, FakeProber, line, plain

import kbatch
from kbatch import Recipe
from kbatch.data import VALIDATION_BATCH_SIZE
from kbatch.errors import DataError, MemoryLimitError, ModelError
from kbatch.memory._estimate import SIZES
from kbatch.memory._find import find
from kbatch.memory._margins import MARGINS
from kbatch.memory._max_batch import Table, recipe_of
from kbatch.memory._micro_batch import MOST_STEPS
from kbatch.memory._search import Need, SizeOptions
from kbatch.memory._table import TableSearch
from kbatch.memory._workload import Workload
from kbatch.model_spec import ModelSpec

USABLE = MARGINS.usable(LIMIT)
OPTIONS = SizeOptions(validation_batch_size=VALIDATION_BATCH_SIZE)


def curves(seed):
    """A convex need, and a prediction of it that is off by up to 30 %."""
    rng = random.Random(seed)
    static = rng.uniform(0.01, 0.4) * LIMIT
    slope = (LIMIT - static) / int(10 ** rng.uniform(0.7, 3.5))
    lines = [(static, slope), (static * rng.uniform(1, 1.3), slope * rng.uniform(0.3, 0.9))]
    off = rng.uniform(0.7, 1.3)
    return Need(tuple(lines)), Need(
        tuple((static + (fixed - static) * off, slope * off) for fixed, slope in lines)
    )


def workload_of(combination):
    return Workload(ModelSpec(lambda: None), (), recipe_of(combination, "none"))


def table_of(combinations, needs, predicted, log, ceiling=None, kind=FakeProber):
    def make_prober(workload):
        return kind(workload, needs, predicted, log, USABLE)

    workload = workload_of(combinations[0])
    workloads = {0: workload}
    return TableSearch(workloads, "none", make_prober, LIMIT, ceiling).table(combinations)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("ceiling", [None, 40])
@pytest.mark.parametrize("seed", range(60))
def test_a_table_of_one_row_is_the_finder(seed, ceiling, jit_compile):
    need, prediction = curves(seed)
    combination, of_table, of_finder = plain(jit_compile=jit_compile), [], []
    table = table_of([combination], lambda _: need, lambda _: prediction, of_table, ceiling)
    prober = FakeProber(
        workload_of(combination), lambda _: need, lambda _: prediction, of_finder, USABLE
    )
    options = SizeOptions(ceiling, validation_batch_size=VALIDATION_BATCH_SIZE)
    single = find(prober, options)
    (row,) = table
    assert of_table == of_finder
    assert (row.batch_size, row.first_failing) == (single.batch_size, single.first_failing)
    assert row.peak_bytes == single.peak_bytes
    assert row.confirmed_steps == single.confirmed_steps
    assert need.at(row.batch_size) <= (LIMIT if row.batch_size == ceiling else USABLE)


@pytest.mark.parametrize("seed", range(60))
def test_computed_rows_are_confirmed_and_near_brute_force(seed):
    need, prediction = curves(seed)
    extra = 0.1 * LIMIT

    def with_slots(curve):
        return Need(tuple((fixed + extra, slope) for fixed, slope in curve.lines))

    def needs(recipe):
        return with_slots(need) if recipe.optimizer == "adam" else need

    def predicted(recipe):
        return with_slots(prediction) if recipe.optimizer == "adam" else prediction

    log = []
    sgd, adam = table_of([plain("sgd"), plain("adam")], needs, predicted, log)
    truth = with_slots(need).largest(USABLE)
    assert adam.batch_size <= truth
    assert adam.batch_size >= 0.85 * truth - 2
    assert 0 <= adam.accumulated_batch_size <= adam.batch_size <= sgd.batch_size
    assert [what for what, _ in log].count("probe") <= 7  # the second row is not probed


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("jit_compile", [False, True])
def test_the_rows_of_lengths_are_near_brute_force(jit_compile, seed):
    """An example needs bytes that grow with the square of its length."""
    need, prediction = curves(seed)

    def at(curve, workload):
        longer = (len(workload.sample[0][0]) / 512) ** 2
        return Need(tuple((fixed, slope * longer) for fixed, slope in curve.lines))

    class AtLength(FakeProber):
        def __init__(self, workload, *rest):
            needs = [
                lambda _, curve=curve: at(curve, self.workload) for curve in (need, prediction)
            ]
            super().__init__(workload, *needs, *rest)

    workloads = {
        length: dataclasses.replace(workload_of(plain()), sample=(np.zeros((1, length)),))
        for length in (128, 512)
    }
    log = []
    search = TableSearch(
        workloads, "none", lambda workload: AtLength(workload, log, USABLE), LIMIT, None
    )
    table = search.table([plain(jit_compile=jit_compile)])
    short, long = table
    assert (short.length, long.length) == (128, 512)
    for row in table:
        truth = at(need, workloads[row.length]).largest(USABLE)
        assert 0.85 * min(truth, SIZES[-1]) - 2 <= row.batch_size <= truth
    assert table.row(short.combination) is long  # what a search must keep to
    assert table.buckets() == {
        "bucket_boundaries": [129],
        "bucket_batch_sizes": [short.batch_size, long.batch_size],
    }
    assert Table.from_dict(json.loads(json.dumps(table.to_dict()))) == table
    assert re.search(rf"none +512 +{long.batch_size} ", str(table))


def test_buckets_need_lengths():
    need = line(LIMIT // 10, LIMIT // 100)
    table = table_of([plain()], lambda _: need, lambda _: need, [])
    with pytest.raises(MemoryLimitError, match="Pass lengths= to kbatch.max_batches"):
        table.buckets()


@pytest.mark.parametrize("lengths", ["128", (0,), (12.5,), (True,)])
def test_lengths_are_whole_numbers(lengths):
    with pytest.raises(MemoryLimitError, match="`lengths` must be whole numbers"):
        kbatch.max_batches(lambda: None, (8,), lengths=lengths)


@pytest.mark.parametrize("x", [None, {"a": (8,), "b": (4,)}, ()])
def test_lengths_need_inputs_of_one_length(x):
    with pytest.raises(DataError, match="inputs of one length"):
        kbatch.max_batches(lambda: None, x, lengths=(128,))


def test_with_xla_only_the_answer_is_trained():
    log = []
    need = line(LIMIT // 10, LIMIT // 100)
    (row,) = table_of([plain(jit_compile=True)], lambda _: need, lambda _: need, log)
    assert log == [("confirm", row.batch_size)]
    assert row.batch_size == need.largest(USABLE)


def test_a_recipe_that_does_not_fit_leaves_the_others_their_rows():
    def needs(recipe):
        return line(2 * LIMIT if recipe.optimizer == "adam" else LIMIT // 10, LIMIT // 100)

    sgd, adam = table_of([plain("sgd"), plain("adam")], needs, needs, [])
    assert sgd.batch_size
    assert adam.batch_size == 0


def test_nothing_fits_is_one_sentence():
    with pytest.raises(MemoryLimitError, match="some recipe of the space"):
        table_of([plain()], lambda _: line(2 * LIMIT, 1), lambda _: line(2 * LIMIT, 1), [])


def test_a_validation_batch_that_does_not_fit_is_named():
    class WithoutValidation(FakeProber):
        def confirm(self, batch_size, steps, validation_batch_size=None):
            import dataclasses

            probe = super().confirm(batch_size, steps)
            if validation_batch_size == 16:
                return dataclasses.replace(probe, ended="out_of_memory", phase="validation")
            return probe

    def prober():
        need = line(LIMIT // 10, LIMIT // 100)
        return WithoutValidation(workload_of(plain()), lambda _: need, lambda _: need, [], USABLE)

    with pytest.raises(MemoryLimitError, match="A validation batch of 16 examples"):
        find(prober(), SizeOptions(validation_batch_size=16))
    assert find(prober(), SizeOptions()).batch_size


def test_a_row_that_leaves_memory_is_confirmed_once_more():
    def needs(recipe):
        return line(LIMIT // 10, LIMIT // 1000)

    def predicted(recipe):
        return line(LIMIT // 10, LIMIT // (770 if recipe.optimizer == "adam" else 1000))

    log = []
    sgd, adam = table_of([plain("sgd"), plain("adam")], needs, predicted, log)
    assert 0.95 * sgd.batch_size <= adam.batch_size <= needs(None).largest(USABLE)
    last = [size for what, size in log if what == "confirm"][-2:]
    assert last[0] < 0.85 * last[1] == 0.85 * adam.batch_size


class OnGpu(FakeProber):
    """Says that it measures a GPU, whose kernels count 2**31 elements."""

    device, elements = "FAKE GPU", 1e7


def test_on_a_gpu_a_size_has_tensors_that_kernels_can_count():
    need = line(LIMIT // 10, LIMIT // 1000)
    (row,) = table_of([plain()], lambda _: need, lambda _: need, [], kind=OnGpu)
    assert row.batch_size == (2**31 - 1) // 10**7 == 214
    single = find(OnGpu(workload_of(plain()), lambda _: need, lambda _: need, [], USABLE), OPTIONS)
    assert (single.batch_size, single.most_examples) == (214, 214)
    assert "more elements than the GPU's kernels count" in str(single)
    lower = find(
        OnGpu(workload_of(plain()), lambda _: need, lambda _: need, [], USABLE),
        SizeOptions(100, validation_batch_size=VALIDATION_BATCH_SIZE),
    )
    assert (lower.batch_size, lower.most_examples) == (100, None)


def test_on_a_gpu_xlas_answer_is_confirmed_three_times():
    log = []
    need = line(LIMIT // 10, LIMIT // 100)
    (row,) = table_of([plain(jit_compile=True)], lambda _: need, lambda _: need, log, kind=OnGpu)
    assert log == 3 * [("confirm", row.batch_size)]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_the_passes_of_a_method_are_predicted_by_their_own_trace(jit_compile):
    """One step of SAM takes all passes' examples: here each pass adds to what one example needs."""

    def needs(recipe):
        passes = recipe.accumulation_steps if recipe.training != "plain" else 1
        return line(LIMIT // 10, (1 + 0.1 * (passes - 1)) * LIMIT / 1000)

    plain_row, sam = table_of(
        [plain(jit_compile=jit_compile), plain(jit_compile=jit_compile)._replace(training="sam:1")],
        needs,
        needs,
        [],
    )
    assert sam.batch_size >= 0.9 * plain_row.batch_size
    truth = needs(Recipe(MOST_STEPS, training="sam:1", micro_batch_size=1)).largest(USABLE)
    assert 0.85 * truth <= sam.accumulated_batch_size <= truth


def test_a_method_whose_passes_are_refused_has_no_micro_batch():
    class Refusing(FakeProber):
        def another(self, workload):
            super().another(workload)
            self._refuses = workload.recipe.accumulation_steps > 1

        def facts(self):
            if getattr(self, "_refuses", False):
                raise ModelError("A loss that accumulates must be a mean", "a sum", "Leave it out")
            return super().facts()

    need = line(LIMIT // 10, LIMIT // 1000)
    (sam,) = table_of(
        [plain()._replace(training="sam:1")], lambda _: need, lambda _: need, [], kind=Refusing
    )
    assert sam.batch_size > 0
    assert sam.accumulated_batch_size == 0
