"""Each private name of this library that kbatch uses is still there and does what kbatch needs."""

import inspect

import keras

from kbatch.runtime import keras_tuner_private


def test_the_callbacks_of_a_trial_are_callbacks_of_keras():
    for kind in (keras_tuner_private.save_best_epoch(), keras_tuner_private.tuner_callback()):
        assert issubclass(kind, keras.callbacks.Callback)


def test_the_callback_that_saves_weights_has_a_path():
    assert "filepath" in inspect.signature(keras_tuner_private.save_best_epoch()).parameters


def test_the_callback_that_reports_has_tuner_and_trial():
    parameters = inspect.signature(keras_tuner_private.tuner_callback()).parameters
    assert {"tuner", "trial"} <= parameters.keys()
