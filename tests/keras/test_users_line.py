"""A warning points to the user's line, however deep in kbatch it arises."""

import warnings

import pytest
from short_searches import build, tuner_of

import kbatch
from kbatch.runtime import users_code


def test_a_warning_points_to_the_caller():
    with pytest.warns(UserWarning, match="words") as found:
        users_code.warn("words")
    assert found[0].filename == __file__


def lines_of(call):
    """The files that warnings on own values point to."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [each.filename for each in found if "lowest values" in str(each.message)]


def test_warnings_of_searches_and_trainings_do_so(points, tmp_path):
    (x, y), validation = points
    arguments = {"validation_data": validation, "verbose": 0}
    own = kbatch.Tuner(build, seconds_per_trial=0.1, directory=tmp_path)
    assert lines_of(lambda: own.search(x, y, max_trials=1, **arguments)) == [__file__]
    stock = tuner_of(tmp_path, max_trials=1)
    assert lines_of(lambda: stock.search(x, y, **arguments)) == [__file__]
    recipe = kbatch.Recipe(32, "sgd", 0.1)
    trained = lines_of(lambda: kbatch.train(recipe, build, x, y, validation, updates=1))
    assert trained == [__file__]
