"""Each private name of this library that kbatch uses is still there and does what kbatch needs."""

import inspect

import keras
import keras_tuner
import pytest

from kbatch.errors import SpaceError
from kbatch.models.maker import GuardedHyperParameters
from kbatch.runtime import keras_private


@pytest.mark.parametrize(("default", "left"), [(16, 16), (64, 32)])
def test_a_choice_is_narrowed(default, left):
    hp = keras_tuner.HyperParameters()
    hp.Choice("size", [16, 32, 64], default=default)
    (choice,) = hp.space
    keras_private.narrow_choice(choice, [16, 32])
    assert choice.values == [16, 32]
    assert choice.default == left
    assert choice.prob_to_value(0.999) == 32


def test_a_hyperparameter_is_left_one_value():
    hp = keras_tuner.HyperParameters()
    hp.Boolean("jit", default=True)
    hp.Choice("size", [16, 32])
    keras_private.fix_hyperparameter(hp, "jit", False)
    read = keras_tuner.HyperParameters.from_config(hp.get_config())
    for each in (hp, read):
        assert [axis.name for axis in each.space] == ["jit", "size"]
        assert each.get("jit") is False
    assert hp.space[0].random_sample() is False


@pytest.mark.parametrize(
    "declare",
    [
        lambda hp: hp.Int("taken", 1, 2),
        lambda hp: hp.Float("taken", 1.0, 2.0),
        lambda hp: hp.Boolean("taken"),
        lambda hp: hp.Choice("taken", [1, 2]),
        lambda hp: hp.Fixed("taken", 1),
    ],
)
def test_every_declaration_goes_through_retrieve(declare):
    guarded = GuardedHyperParameters(keras_tuner.HyperParameters(), frozenset({"taken"}))
    with pytest.raises(SpaceError, match="taken"):
        declare(guarded)


def test_the_callbacks_of_a_trial_are_callbacks_of_keras():
    for kind in (keras_private.save_best_epoch(), keras_private.tuner_callback()):
        assert issubclass(kind, keras.callbacks.Callback)


def test_the_callback_that_saves_weights_has_a_path():
    assert "filepath" in inspect.signature(keras_private.save_best_epoch()).parameters


def test_the_callback_that_reports_has_tuner_and_trial():
    parameters = inspect.signature(keras_private.tuner_callback()).parameters
    assert {"tuner", "trial"} <= parameters.keys()
