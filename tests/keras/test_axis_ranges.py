"""Hyperparameters of every kind: to Optuna and back, their defaults and distances."""

import keras_tuner
import optuna
import pytest

from kbatch.search import proposals


@pytest.fixture
def space():
    hp = keras_tuner.HyperParameters()
    hp.Choice("batch_size", [16, 32, 64, 128])
    hp.Choice("optimizer", ["sgd", "adam"])
    with hp.conditional_scope("optimizer", ["sgd"]):
        hp.Float("rate_sgd", 1e-3, 1e-1, sampling="log")
    with hp.conditional_scope("optimizer", ["adam"]):
        hp.Float("rate_adam", 1e-5, 1e-2, sampling="log")
    hp.Boolean("jit")
    hp.Int("layers", 1, 9, step=2)
    hp.Float("dropout", 0.0, 0.5, step=0.1)
    hp.Fixed("version", 3)
    hp.Choice("only", ["one"])
    hp.Float("steep", 1e-3, 1e-1, sampling="reverse_log")
    return hp.space


def values_of(space, seed):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed))
    trial = study.ask()
    return proposals.drawn(space, lambda axis: proposals.suggested(trial, axis)), trial


@pytest.mark.parametrize("seed", range(20))
def test_drawn_values_are_of_active_axes_and_travel_both_ways(space, seed):
    values, trial = values_of(space, seed)
    other = {"sgd": "rate_adam", "adam": "rate_sgd"}[values["optimizer"]]
    assert values.keys() == {axis.name for axis in space} - {other}
    for axis in space:
        if axis.name in values and not proposals.is_fixed(axis):
            place, distribution = proposals.parameter(axis, values[axis.name])
            assert distribution == trial.distributions[axis.name]
            assert distribution._contains(distribution.to_internal_repr(place))
            if distribution != optuna.distributions.FloatDistribution(0, proposals.HIGHEST):
                assert place == trial.params[axis.name]
    hp = keras_tuner.HyperParameters()
    hp.merge(space)
    hp.values = dict(values)
    assert all(hp.get(name) == value for name, value in values.items())


def test_fixed_axes_are_those_of_one_value(space):
    fixed = [axis.name for axis in space if proposals.is_fixed(axis)]
    assert fixed == ["version", "only"]


def test_variations_differ_in_one_axis_without_an_order(space):
    start = proposals.completed(space, {"optimizer": "adam", "rate_adam": 0.005, "layers": 5})
    found = proposals.variations(space, start)
    by_optimizer = {**start, "optimizer": "sgd", "rate_sgd": 1e-3}
    del by_optimizer["rate_adam"]
    assert found == [by_optimizer, {**start, "jit": True}]


def test_an_axis_of_two_numbers_has_variations():
    hp = keras_tuner.HyperParameters()
    hp.Choice("label_smoothing", [0.0, 0.1])
    hp.Choice("batch_size", [16, 32, 64])
    found = proposals.variations(hp.space, {})
    assert found == [{"label_smoothing": 0.1, "batch_size": 16}]


def test_given_values_are_completed_by_defaults(space):
    values = proposals.completed(space, {"batch_size": 32, "rate_sgd": 0.05, "rate_adam": 0.005})
    assert values["batch_size"] == 32
    assert values["rate_sgd"] == 0.05
    assert "rate_adam" not in values  # inactive
    assert values["layers"] == 1


def test_distance_is_of_the_scale_that_is_drawn_on(space):
    one = proposals.completed(space, {"optimizer": "sgd", "rate_sgd": 1e-3})
    middle = {**one, "rate_sgd": 1e-2}
    assert proposals.distance(space, one, one) == 0
    assert proposals.distance(space, one, middle) == pytest.approx(0.5, abs=0.01)
    assert proposals.distance(space, middle, one) == proposals.distance(space, one, middle)
    both = {**middle, "batch_size": 128}
    assert proposals.distance(space, one, both) == pytest.approx((0.25 + 1) ** 0.5, abs=0.01)
