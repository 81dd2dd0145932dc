"""The user's model: made once, its loss, its outputs and the metric that it is scored by."""

import keras
import pytest
from keras import layers

from kbatch.cli import task
from kbatch.data.sources import Wanted
from kbatch.errors import KbatchError
from kbatch.model_spec import ModelSpec


def model(*metrics, outputs=3, loss="sparse_categorical_crossentropy"):
    made = keras.Sequential([keras.Input((4,)), layers.Dense(outputs, "softmax")])
    if loss is not None:
        made.compile("adam", loss, metrics=list(metrics))
    return made


def measured(made, **arguments):
    return task.measured(made, ModelSpec(lambda: made, **arguments))


def failing(hp):
    raise KeyError("no such layer")


def leaving():
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (failing, "KeyError: 'no such layer'"),
        (leaving, "SystemExit: 0"),
        (lambda: None, "Received: NoneType"),
        (lambda hp: [1], "Received: list"),
        (lambda hp: hp.Int("units", 1, 2), "Received: int"),
    ],
)
def test_a_function_that_makes_no_model_is_refused(build, text):
    with pytest.raises(KbatchError, match=text):
        task.made(ModelSpec(build))


def test_a_function_may_take_hyperparameters_or_nothing():
    assert task.made(ModelSpec(lambda: model())).count_params() == 15
    assert task.made(ModelSpec(lambda hp: model(outputs=hp.Int("n", 2, 5)))).count_params() == 10


@pytest.mark.parametrize(
    ("made", "loss", "text"),
    [
        (model(loss=None), None, "a model that is not compiled"),
        (model(loss=None), "nonsense", "--loss must be a loss of Keras'"),
        (model(), "mse", "--loss mse, and a compiled model"),
    ],
)
def test_there_must_be_one_loss_that_keras_knows(made, loss, text):
    task.check_loss(model(), None)
    task.check_loss(model(loss=None), "mse")
    with pytest.raises(KbatchError, match=text):
        task.check_loss(made, loss)


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (("accuracy",), "val_accuracy"),
        (("mae", "acc"), "val_acc"),
        (("sparse_categorical_accuracy", "mae"), "val_sparse_categorical_accuracy"),
        (("mae", "mse"), "val_mae"),
        ((), "val_loss"),
        ((keras.metrics.AUC(name="area"),), "val_area"),
    ],
)
def test_an_accuracy_is_scored_first_then_what_there_is(metrics, expected):
    assert task.scored(measured(model(*metrics)), None) == expected


def test_a_metric_is_known_by_all_of_its_names():
    of = measured(model("mae", "accuracy"))
    for name in ("mae", "val_mae", "mean_absolute_error"):
        assert task.scored(of, name) == "val_mae"
    assert task.scored(of, "loss") == "val_loss"
    with pytest.raises(KbatchError, match="Pass one of mae, accuracy, loss"):
        task.scored(of, "auc")


@pytest.mark.parametrize(
    ("loss", "metric", "expected"),
    [
        ("sparse_categorical_crossentropy", None, ["accuracy"]),
        ("mean_squared_error", None, None),
        ("mean_squared_error", "val_mae", ["mae"]),
        ("mean_squared_error", "loss", None),
    ],
)
def test_a_model_that_is_not_compiled_gets_the_metric(loss, metric, expected):
    spec = task.with_metric(ModelSpec(lambda: None, loss=loss), metric, loss)
    assert spec.metrics == expected


def test_outputs_are_counted_where_there_is_one_row_an_example():
    sparse = "sparse_categorical_crossentropy"
    assert task.wanted(measured(model()), None) == Wanted(sparse, 3)
    pixels = keras.Sequential([keras.Input((4, 4, 1)), layers.Conv2D(2, 1)])
    pixels.compile("adam", sparse)
    assert task.wanted(measured(pixels), "numbers") == Wanted(sparse, None, "numbers")
    inputs = keras.Input((4,))
    both = keras.Model(inputs, [layers.Dense(1)(inputs), layers.Dense(2)(inputs)])
    both.compile("adam", ["mse", "mse"])
    assert task.wanted(measured(both), None) == Wanted(None, None)


def test_a_loss_of_the_users_own_is_not_known():
    def sparse_categorical_crossentropy_of_mine(labels, outputs):
        return 0.0

    of = measured(model(loss=sparse_categorical_crossentropy_of_mine))
    assert task.wanted(of, None) == Wanted(None, 3)
