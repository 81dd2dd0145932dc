"""Measured plans: the model stays as it was, and budgets are kept as measured."""

import dataclasses

import keras
import memory_models
import numpy as np
import pytest
import tensorflow as tf

from kbatch import recompute
from kbatch.errors import RecomputeError
from kbatch.recompute import _measure
from kbatch.recompute._measure import candidates

BATCH = 16


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return rng.random((BATCH, 32, 32, 3)).astype("float32"), rng.integers(0, 10, BATCH)


@pytest.fixture(scope="module")
def model():
    return memory_models.deep()


@dataclasses.dataclass(frozen=True)
class Search:
    """A search for the smallest plan: what it measured and returned, and what it left behind."""

    own: recompute.Plan
    measured: list[recompute.Plan]
    best: recompute.Plan
    applied_after: recompute.Plan | None
    before: list[np.ndarray]
    after: list[np.ndarray]
    plain: recompute.Plan


@pytest.fixture(scope="module")
def search(model, data):
    before = [np.array(variable) for variable in model.variables]
    own = recompute.plan(model, BATCH, "stages")
    recompute.apply(model, own)
    measured = []
    best = recompute.best_plan(model, *data, on_measured=measured.append)
    after = [np.array(variable) for variable in model.variables]
    applied_after = recompute.applied(model)
    recompute.remove(model)
    plain = recompute.measure(model, recompute.plan(model, BATCH, "none"), *data)
    return Search(own, measured, best, applied_after, before, after, plain)


@pytest.fixture
def measured_once(search, monkeypatch):
    """Plans that were measured already are not measured again."""
    known = {tuple(plan.stretches()): plan for plan in [*search.measured, search.plain]}

    def measure(model, plan, *batch):
        cuts = tuple(plan.stretches())
        if cuts not in known:
            known[cuts] = recompute.measure(model, plan, *batch)
        names = ("measured_peak_bytes", "measured_seconds")
        return dataclasses.replace(plan, **{name: getattr(known[cuts], name) for name in names})

    monkeypatch.setattr(_measure, "measure", measure)


def test_a_batch_in_the_place_of_the_plan_is_refused_in_a_word():
    with pytest.raises(
        RecomputeError,
        match=r"`plan` must be a Plan. Received: ndarray. Pass measure\(model, plan, x, y\)",
    ):
        recompute.measure(None, np.zeros((1000, 8)), np.zeros(1000))


def test_the_smallest_is_measured_and_the_model_left_as_it_was(search):
    assert search.applied_after is search.own
    for now, value in zip(search.after, search.before, strict=True):
        np.testing.assert_array_equal(now, value)
    measured, best = search.measured, search.best
    assert 2 <= len(measured) <= 3
    assert best in measured
    assert best.measured_peak_bytes == min(one.measured_peak_bytes for one in measured)
    # 0.55 on an idle machine; on a busy one operations of two segments run at once
    assert best.measured_peak_bytes < 0.8 * search.plain.measured_peak_bytes
    assert best.measured_seconds > 0
    assert "measured: peak" in str(best)
    assert recompute.Plan.from_json(best.to_json()) == best


@pytest.mark.slow
@pytest.mark.usefixtures("measured_once")
def test_a_budget_is_kept_as_measured(model, data, search):
    budget = 0.6 * search.plain.measured_peak_bytes
    best = recompute.best_plan(model, *data, peak_bytes=budget)
    assert best.measured_peak_bytes <= budget
    with pytest.raises(RecomputeError, match=r"Some plan must need at most 0 MB.*as measured"):
        recompute.best_plan(model, *data, peak_bytes=1000)


def test_candidates_are_few_and_different(model):
    for budget in (None, 1e5, 5e6, 1e9):
        found = candidates(model, BATCH, budget)
        assert 1 <= len(found) <= 4
        assert len({tuple(one.stretches()) for one in found}) == len(found)


def test_a_model_that_is_not_compiled_is_refused():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    with pytest.raises(RecomputeError, match="must be compiled"):
        recompute.best_plan(model, np.zeros((2, 4)), np.zeros((2, 1)))


def test_a_plan_that_runs_out_of_memory_is_left_out(model, data, monkeypatch):
    def measured(model, plan, *batch):
        if plan.strategy == "minimal" or everything:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        return dataclasses.replace(plan, measured_peak_bytes=plan.peak_bytes, measured_seconds=1.0)

    monkeypatch.setattr(_measure, "measure", measured)
    everything = False
    assert recompute.best_plan(model, *data).strategy in ("sqrt", "stages", "blocks")
    everything = True
    with pytest.raises(RecomputeError, match="Some plan must fit into memory"):
        recompute.best_plan(model, *data)
