"""KerasTuner projects as they are: a hypermodel with a fit of its own, several executions."""

import statistics

import keras
import keras_tuner
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import kbatch
from kbatch.errors import SearchError
from kbatch.standin.own_fit import OwnFit

rng = np.random.default_rng(0)
X = rng.normal(size=(320, 8)).astype("float32")
Y = (X[:, 0] > 0).astype("int32")


class Built(keras_tuner.HyperModel):
    def build(self, hp):
        units = hp.Int("units", 4, 8, step=4)
        model = keras.Sequential([layers.Input((8,)), layers.Dense(units), layers.Dense(2)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
        return model


class Guide(Built):
    """As KerasTuner's guide says."""

    def fit(self, hp, model, *args, **kwargs):
        size = hp.Choice("batch_size", [16, 32, 64], default=32)
        return model.fit(*args, batch_size=size, shuffle=hp.Boolean("shuffle"), **kwargs)


class Rebatching(Built):
    def fit(self, hp, model, x, y, callbacks=(), **kwargs):
        data = tf.data.Dataset.from_tensor_slices((x, 1 - y)).batch(hp.Choice("size", [20, 40]))
        return super().fit(
            hp, model, data, callbacks=[*callbacks, keras.callbacks.TerminateOnNaN()], **kwargs
        )


class Never(Built):
    def fit(self, hp, model, *args, **kwargs):
        return {"score": 1.0}


def searched(tmp_path, hypermodel, **arguments):
    own = kbatch.HyperModel(hypermodel, seconds_per_trial=0.2)
    given = {"max_trials": 1, "directory": tmp_path, "project_name": "p", "seed": 1, **arguments}
    tuner = keras_tuner.RandomSearch(own, objective=kbatch.objective(), **given)
    tuner.search(X[:240], Y[:240], validation_data=(X[240:], Y[240:]), verbose=0)
    return tuner


def test_the_batch_size_that_fit_draws_is_found():
    batch = OwnFit.of(Guide()).batch({})
    assert (batch.name, batch.sizes, batch.today) == ("batch_size", (16, 32, 64), 32)
    assert batch.others == ("shuffle",)


def test_a_batch_size_inside_of_data_is_found():
    batch = OwnFit.of(Rebatching()).batch({}, (X, Y))
    assert (batch.name, batch.sizes, batch.today) == ("size", (20, 40), 20)


def test_values_of_today_count():
    assert OwnFit.of(Guide()).batch({"batch_size": 64}).today == 64


def test_a_hypermodel_without_a_fit_of_its_own_has_none():
    assert OwnFit.of(Built()) is None
    assert OwnFit.of(Built().build) is None


def test_a_fit_that_trains_nothing_is_refused(tmp_path):
    with pytest.raises(SearchError, match="must call model.fit"):
        searched(tmp_path, Never())


def test_the_guides_hypermodel_is_searched_as_it_is(tmp_path):
    with pytest.warns(UserWarning, match="shuffle of fit"):
        tuner = searched(tmp_path, Guide())
    axes = {axis.name: axis.values for axis in tuner.oracle.get_space().space}
    assert axes["batch_size"] == [16, 32, 64]
    baseline = next(each for each in kbatch.report(tuner).records if each.baseline)
    assert baseline.recipe.batch_size == 32
    assert tuner.get_best_models()[0].count_params() > 0


def test_what_fit_does_around_is_kept(tmp_path):
    tuner = searched(tmp_path, Rebatching())
    arguments = tuner.hypermodel.remembered.arguments
    assert [type(each).__name__ for each in arguments.callbacks] == ["TerminateOnNaN"]
    assert np.array_equal(next(iter(arguments.x.unbatch().batch(240)))[1], 1 - Y[:240])
    axes = {axis.name: axis.values for axis in tuner.oracle.get_space().space}
    assert axes["batch_size"] == [20, 40]
    sizes = {each.recipe.batch_size for each in kbatch.report(tuner).records}
    assert sizes <= {20, 40}
    baseline = next(each for each in kbatch.report(tuner).records if each.baseline)
    assert baseline.recipe.batch_size == 20
    again = searched(tmp_path, Rebatching())
    assert len(kbatch.report(again).records) == 2


def test_executions_are_seeds_whose_mean_is_the_score(tmp_path):
    tuner = searched(tmp_path, Built(), executions_per_trial=3)
    trials = [each for each in kbatch.report(tuner).records if each.purpose == "search"]
    assert len({each.seed for each in trials}) == 3
    assert {each.trial for each in trials} == {0}
    mean = statistics.fmean(each.score for each in trials)
    assert tuner.oracle.get_best_trials()[0].score == pytest.approx(mean)
    again = searched(tmp_path, Built(), executions_per_trial=3)
    assert len(kbatch.report(again).records) == 4
