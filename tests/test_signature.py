"""Results of a trace serve models built alike, for a bounded number of kinds; no class is held."""

import gc
import weakref

import keras
import pytest
from keras import layers

from kbatch import recompute
from kbatch.recompute import _planner, _repeatable, _traceable
from kbatch.recompute._op_graph import OpGraph
from kbatch.recompute._signature import SignatureCache, signature


def build(units=4, layer=layers.Dense):
    return keras.Sequential(
        [keras.Input((8,)), layer(units), layers.Dense(3), layers.Dense(3), layers.Dense(1)]
    )


def test_a_plan_and_its_application_trace_a_kind_of_model_once(monkeypatch):
    checked, costed = [], []
    monkeypatch.setattr(_repeatable, "_loss_positions", SignatureCache())
    monkeypatch.setattr(_planner, "_costs_by_kind", SignatureCache())
    check, costs_of = _repeatable._checked, _planner.costs_of
    monkeypatch.setattr(_repeatable, "_checked", lambda graph: checked.append(1) or check(graph))
    monkeypatch.setattr(_planner, "costs_of", lambda graph: costed.append(1) or costs_of(graph))
    for _ in range(2):
        model = build()
        recompute.apply(model, recompute.plan(model, batch_size=4, strategy="sqrt"))
    assert (len(checked), len(costed)) == (1, 1)
    recompute.apply(build(5), recompute.plan(build(5), batch_size=4, strategy="sqrt"))
    assert (len(checked), len(costed)) == (2, 2)


def test_a_step_is_traced_once_for_each_plan(monkeypatch):
    traced = []
    monkeypatch.setattr(_traceable, "_traced", SignatureCache())
    check = _traceable._checked
    monkeypatch.setattr(
        _traceable, "_checked", lambda *arguments: traced.append(1) or check(*arguments)
    )
    for cut, times in ((0, 1), (0, 1), (2, 2)):
        model = build()
        plan = recompute.plan(model, 4, "manual", layers=[model.layers[cut].name])
        recompute.apply(model, plan)
        assert len(traced) == times


def test_the_kinds_that_were_asked_for_last_are_kept():
    cache, made = SignatureCache(limit=2), []
    graphs = [OpGraph(build(units)) for units in (2, 3, 4)]
    for index in (0, 1, 0, 2, 0, 1):
        cache.get(graphs[index], lambda index=index: made.append(index))
        assert len(cache) <= 2
    assert made == [0, 1, 2, 1]


def test_nothing_is_kept_of_what_fails_or_has_no_signature(monkeypatch):
    class Secretive(layers.Dense):
        def get_config(self):
            raise NotImplementedError

    cache = SignatureCache()
    graph = OpGraph(build(layer=Secretive))
    assert signature(graph) is None
    assert [cache.get(graph, lambda: 5), len(cache)] == [5, 0]
    with pytest.raises(ZeroDivisionError):
        cache.get(OpGraph(build()), lambda: 1 / 0)
    assert len(cache) == 0


def test_a_class_defined_again_is_another_and_the_old_is_freed():
    def define():
        class Own(layers.Dense):
            pass

        return Own

    first, second = define(), define()
    cache = SignatureCache()
    assert cache.get(OpGraph(build(layer=first)), lambda: "first") == "first"
    assert cache.get(OpGraph(build(layer=second)), lambda: "second") == "second"
    alive = weakref.ref(first)
    del first
    keras.utils.clear_session()
    gc.collect()
    assert alive() is None
    assert cache.get(OpGraph(build(layer=second)), lambda: "again") == "second"
