"""An axis: the values that it may have, and how a tuner learns of them."""

import keras_tuner
import numpy as np
import pytest

from kbatch.axis import Axis, Range, among, batch_size_of, is_fixed, passes_of, plain, rates_of
from kbatch.errors import SpaceError

SIZE = Axis("size", batch_size_of, preferred=32)


@pytest.mark.parametrize(
    ("given", "values"),
    [(16, (16,)), ([16, 32], (16, 32)), (range(1, 4), (1, 2, 3)), (np.int64(8), (8,))],
)
def test_one_value_or_several_are_a_tuple(given, values):
    assert SIZE.values(given) == values


@pytest.mark.parametrize("given", [(), (16, 16), ([1],), (0, 16), (1.5,), True, "16"])
def test_values_that_cannot_be_searched_are_refused(given):
    with pytest.raises(SpaceError):
        SIZE.values(given)


@pytest.mark.parametrize(
    ("axis", "values", "kind", "default"),
    [
        (SIZE, (16, 32), "Choice", 32),
        (SIZE, (64, 16), "Choice", 64),
        (Axis("jit", among("jit", (False, True))), (True, False), "Boolean", True),
        (Axis("rate", float), Range(0.01, 1.0), "Float", 0.1),
    ],
)
def test_a_tuner_begins_with_the_preferred_value(axis, values, kind, default):
    hp = keras_tuner.HyperParameters()
    axis.declare(hp, values)
    (declared,) = hp.space
    assert (type(declared).__name__, declared.name) == (kind, axis.name)
    assert hp.get(axis.name) == pytest.approx(default)


def test_allowed_values_are_given_as_they_stand_in_the_list():
    allowed = among("jit_compile", (False, True))
    assert [allowed(0), allowed(1)] == [False, True]
    assert isinstance(allowed(0), bool)
    with pytest.raises(SpaceError, match="`jit_compile` must be among False, True"):
        allowed("on")


def test_only_one_value_is_fixed():
    assert is_fixed((32,))
    assert not is_fixed((32, 64))
    assert not is_fixed(Range(0.1, 0.2))


def test_numpy_is_replaced_by_numbers_of_python():
    found = plain((np.int32(1), [np.float64(0.5), "a"], np.array([1, 2])))
    assert found == (1, [0.5, "a"], [1, 2])
    assert [type(found[0]), type(found[1][0]), type(found[2])] == [int, float, list]


@pytest.mark.parametrize(
    ("given", "rates"),
    [((0.01, 0.1), Range(0.01, 0.1)), ([0.1, 0.01], (0.1, 0.01)), (1, (1.0,))],
)
def test_rates_are_a_range_a_choice_or_fixed(given, rates):
    assert rates_of("sgd", given) == rates


@pytest.mark.parametrize(
    "given", [(0.1, 0.01), (0.1,), (1, 2, 3), [], [0], -1, "0.1", float("inf")]
)
def test_other_rates_are_refused_with_their_optimizer(given):
    with pytest.raises(SpaceError, match='`learning_rate\\["sgd"\\]` must be a range'):
        rates_of("sgd", given)


@pytest.mark.parametrize("given", [-0.5, float("nan"), float("inf"), True, "1"])
def test_passes_of_warm_up_are_numbers_from_0(given):
    assert passes_of(0.5) == 0.5
    with pytest.raises(SpaceError, match="at least 0"):
        passes_of(given)
