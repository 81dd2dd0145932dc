"""A model that is trained some steps and is then as it was."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kbatch import recompute
from kbatch.errors import RecomputeError
from kbatch.recompute._apply import batch_size_of, restored

X, Y = np.ones((5, 3), "float32"), np.ones((5, 1), "float32")


@pytest.fixture
def model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), "mse", jit_compile=False)
    return model


def values(model):
    return [np.array(each) for each in [*model.variables, *model.optimizer.variables]]


def test_weights_optimizer_and_plan_are_put_back(model):
    model.train_on_batch(X, Y)
    plan = recompute.plan(model, 5, "manual", layers=[model.layers[0].name])
    recompute.apply(model, plan)
    before, filters = values(model), list(tf.get_logger().filters)
    with restored(model) as restore:
        assert recompute.applied(model) is None
        for _ in range(2):
            model.train_on_batch(X, Y)
            changed = zip(before, values(model), strict=True)
            assert not all(np.array_equal(one, other) for one, other in changed)
            restore()
            assert all(map(np.array_equal, before, values(model)))
        model.train_on_batch(X, Y)
    assert all(map(np.array_equal, before, values(model)))
    assert recompute.applied(model) == plan
    assert list(tf.get_logger().filters) == filters


def test_an_error_inside_restores_too(model):
    before = values(model)[:4]
    with pytest.raises(ZeroDivisionError), restored(model):
        model.train_on_batch(X, Y)
        raise ZeroDivisionError
    assert all(map(np.array_equal, before, values(model)[:4]))


def test_a_model_that_is_not_compiled_is_refused():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    with pytest.raises(RecomputeError, match="must be compiled"), restored(model):
        pytest.fail("must not begin")


@pytest.mark.parametrize("x", [X, {"a": X, "b": X[:, 0]}, [None, X]], ids=["one", "dict", "list"])
def test_a_batch_has_as_many_examples_as_its_first_axis(x):
    assert batch_size_of(x) == 5


@pytest.mark.parametrize(
    "x", [[], X[:0], np.float32(1.0), {"a": X, "b": X[:0]}], ids=["none", "empty", "one", "part"]
)
def test_a_batch_without_examples_is_refused(x):
    with pytest.raises(RecomputeError, match="at least one example"):
        batch_size_of(x)
