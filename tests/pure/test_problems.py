"""Problems of a user's arguments, collected and raised at once."""

import pytest

from kbatch.errors import DataError, Problems, SearchError


def refuse(error):
    raise error


def test_one_problem_is_raised_as_it_is():
    problems, error = Problems(), DataError("Data must be arrays", "a list", "Pass arrays")
    assert problems.of(lambda: 7) == 7
    assert problems.of(lambda: refuse(error)) is None
    with pytest.raises(DataError) as raised:
        problems.raise_all()
    assert raised.value is error


def test_several_problems_are_one_error_that_numbers_them():
    problems = Problems()
    for name in ("x", "y"):
        problems.of(lambda name=name: refuse(DataError(f"`{name}` must be there", None, "Pass it")))
    with pytest.raises(SearchError, match=r"(?s)2 problems.*1\. `x` must be.*2\. `y` must be"):
        problems.raise_all()


def test_no_problem_raises_nothing_and_bugs_are_raised_at_once():
    problems = Problems()
    problems.raise_all()
    with pytest.raises(ZeroDivisionError):
        problems.of(lambda: 1 / 0)
