"""The arguments that a search passes on to `fit`, each known by name or refused by name."""

import numpy as np
import pytest

from kbatch.errors import DataError, SearchError
from kbatch.training.fit_arguments import FitArguments

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
