"""The arguments that a search passes on to `fit`, each known by name or refused by name."""

import keras
import numpy as np
import pytest

import kbatch
from kbatch.errors import DataError, KbatchError, RecordError, SearchError
from kbatch.training.arguments import FitArguments

X, Y = np.zeros((8, 3), "float32"), np.zeros(8, "int32")


def test_x_and_y_come_by_place_or_by_name():
    by_place = FitArguments.parse((X, Y), {"verbose": 0})
    by_name = FitArguments.parse((), {"x": X, "y": Y, "verbose": 0, "shuffle": True})
    assert by_place.x is by_name.x is X
    assert by_place.y is by_name.y is Y
    assert by_place.verbose == 0
    assert FitArguments.parse((X,), {"callbacks": None}).callbacks == ()


def test_whole_numbers_of_numpy_are_those_of_python():
    epochs = FitArguments.parse((X, Y), {"epochs": np.int64(3)}).epochs
    assert (epochs, type(epochs)) == (3, int)


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((X, Y, 32), {}, "all but x and y by name. Received: 3 positional"),
        ((), {"y": Y}, "must get training data"),
        ((X, Y), {"shuffle": False}, "`shuffle` must be True"),
        ((X, Y), {"batch_size": 32}, "It is an axis of the search"),
        ((X, Y), {"validation_steps": 3}, "All validation data are measured"),
        ((X, Y), {"wrokers": 3}, "Received: wrokers=3. Pass only x, y, batched, callbacks"),
    ],
)
def test_what_fit_must_not_get_is_refused(args, kwargs, says):
    with pytest.raises(SearchError, match=says):
        FitArguments.parse(args, kwargs)


def test_examples_are_weighed_once():
    arguments = {"x": X, "y": Y, "validation_data": (X, Y), "class_weight": {0: 2.0}}
    assert FitArguments(**arguments).data().training.examples == 8
    with pytest.raises(DataError, match="must be weighed once"):
        FitArguments(**arguments, sample_weight=np.ones(8)).data()


ODD = {
    "callbacks": ({"callbacks": 5}, "`callbacks` must be a list"),
    "one callback": ({"callbacks": keras.callbacks.EarlyStopping()}, "`callbacks` must be a list"),
    "a class": ({"callbacks": [keras.callbacks.EarlyStopping]}, "Received: EarlyStopping. Pass ob"),
    "a function": ({"callbacks": [print]}, "must be Keras callbacks"),
    "verbose": ({"verbose": "x"}, "`verbose` must be 0, 1, 2"),
    "batched": ({"batched": "no"}, "`batched` must be True, False or None"),
    "validation weights": (
        {"validation_data": (X, Y, np.full(8, np.nan))},
        "weights of examples must be finite",
    ),
    "complex": ({"x": np.ones((8, 2), "complex64")}, "must hold real numbers"),
    "weights": ({"sample_weight": np.array([1.0, np.nan] * 4)}, "the first at position 1"),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_arguments_are_refused_in_a_sentence(kind):
    given, said = ODD[kind]
    arrays = {"x": np.ones((8, 2)), "y": np.zeros(8, "int32"), "validation_split": 0.5, **given}
    with pytest.raises(KbatchError, match=said):
        FitArguments.parse((), arrays).data()


def test_odd_settings_of_a_search_are_refused_in_a_sentence():
    for settings, said in (
        ({"seconds_per_trial": 10**400}, "training seconds of a trial must be a number above 0"),
        ({"isolated": "yes"}, "`isolated` must be True or False"),
    ):
        with pytest.raises(KbatchError, match=said):
            kbatch.HyperModel(lambda hp: None, **settings)


def test_a_model_with_nothing_to_train_is_refused():
    def frozen(hp=None):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.trainable = False
        model.compile("sgd", "mse", metrics=["mae"])
        return model

    x, y = np.ones((32, 2), "float32"), np.zeros(32, "float32")
    with pytest.raises(KbatchError, match="must have weights to train"):
        kbatch.train(kbatch.Recipe(8), frozen, x, y, (x, y), updates=1, metric="val_mae")


def test_validation_examples_that_are_nan_are_told():
    x = np.ones((8, 3), "float32")
    x[2, 1] = np.nan
    remarks = FitArguments(x=X, y=Y, validation_data=(x, Y)).data().remarks
    assert "1 of 8 validation examples hold values that are NaN" in remarks[0]
    assert "position 2" in remarks[0]
    assert FitArguments(x=X, y=Y, validation_data=(X, Y)).data().remarks == ()


ODD_TUNERS = {
    "directory": (5, "must be the path of a folder"),
    "project_name": (5, "must be a string"),
    "overwrite": ("no", "must be True or False"),
    "tuner_seed": ("x", "must be a whole number"),
    "warm_start": (5, "must be the path of a project, or a list"),
    "declare": (5, r"must be a function declare\(hp\)"),
}


@pytest.mark.parametrize("name", ODD_TUNERS)
def test_odd_arguments_of_a_tuner_are_refused(name, tmp_path):
    value, said = ODD_TUNERS[name]
    given = {"directory": tmp_path, "seconds_per_trial": 1, name: value}
    with pytest.raises(KbatchError, match=f"`{name}` {said}"):
        kbatch.Tuner(lambda hp: None, **given)


def test_a_folder_that_cannot_be_made_is_named():
    with pytest.raises(RecordError, match="Not a directory: /dev/null/x/untitled_project"):
        kbatch.Tuner(lambda hp: None, seconds_per_trial=1, directory="/dev/null/x")
