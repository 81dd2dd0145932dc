"""What trials are judged by: direction, chance and target, inferred where that is certain."""

import keras
import numpy as np
import pytest

from kbatch.data.validation import prepare
from kbatch.errors import SearchError
from kbatch.models.compilation import CompileArguments
from kbatch.training import metrics
from kbatch.training.goal import goal_of, horizon_of, judged_by, most_frequent_share

CLASSES = [0, 0, 0, 1]


def model_of(loss="mse", outputs=(1,), names=None, **compiled):
    """A compiled model of two numbers in."""
    x = keras.Input((2,))
    heads = [
        keras.layers.Dense(size, name=names[place] if names else None)(x)
        for place, size in enumerate(outputs)
    ]
    model = keras.Model(x, heads if len(heads) > 1 else heads[0])
    model.compile("sgd", loss, **compiled)
    return model


def data_of(labels, training=None, weights=None):
    """Validation on these labels, training on others or the same."""
    training = labels if training is None else training
    number, trained = (
        len(next(iter(each.values())) if isinstance(each, dict) else each)
        for each in (labels, training)
    )
    validation = (
        (np.zeros((number, 2), "float32"), labels)
        if weights is None
        else (np.zeros((number, 2), "float32"), labels, np.asarray(weights))
    )
    return prepare(np.zeros((trained, 2), "float32"), training, validation_data=validation)


def goal(
    metric="val_accuracy",
    direction=None,
    chance=None,
    target=None,
    labels=CLASSES,
    model=None,
    **data,
):
    labels = (
        {name: np.asarray(part) for name, part in labels.items()}
        if isinstance(labels, dict)
        else np.asarray(labels)
    )
    asked = judged_by(metric, direction, chance, target)
    return goal_of(
        10.0,
        data=data_of(labels, **data),
        measured=metrics.ModelMetrics(model or model_of(metrics=["accuracy"]), CompileArguments()),
        **asked,
    )


@pytest.mark.parametrize(
    "metric", ["val_accuracy", "val_acc", "val_binary_accuracy", "val_sparse_categorical_accuracy"]
)
def test_chance_of_an_accuracy_is_the_most_frequent_class(metric):
    model = model_of(metrics=[metric.removeprefix("val_")])
    assert (goal(metric, model=model).chance, goal(metric, model=model).direction) == (0.75, "max")


@pytest.mark.parametrize("metric", ["val_auc", "val_auc_1", "val_weighted_auc"])
def test_chance_of_auc_is_a_half(metric):
    curves = [keras.metrics.AUC(name=name) for name in ("auc", "auc_1")]
    assert goal(metric, model=model_of(metrics=curves)).chance == 0.5


def test_the_area_under_another_curve_has_another_chance():
    found = goal("val_auc", model=model_of(metrics=[keras.metrics.AUC(curve="PR", name="auc")]))
    assert found.chance == pytest.approx(0.25, abs=1e-5)


@pytest.mark.parametrize(
    "labels",
    [
        np.array([[0], [1], [1]]),
        np.array([[1, 0, 0], [0, 1, 0], [0, 1, 0]]),
        np.array([1.0, 2.0, 2.0]),
    ],
)
def test_labels_may_be_numbers_columns_or_one_hot(labels):
    assert most_frequent_share(labels) == pytest.approx(2 / 3)


def test_labels_that_are_text_have_no_share():
    with pytest.raises(SearchError, match="classes that are numbers"):
        most_frequent_share(np.array(["cat", "dog"]))


def test_weighted_accuracy_has_a_weighted_chance():
    weights = [1.0, 1.0, 1.0, 7.0]
    assert goal(model=model_of(metrics=["accuracy"]), weights=weights).chance == 0.75
    assert goal(model=model_of(weighted_metrics=["accuracy"]), weights=weights).chance == 0.7
    both = model_of(metrics=["accuracy"], weighted_metrics=["accuracy"])
    assert goal(model=both, weights=weights).chance == 0.75
    assert goal("val_weighted_accuracy", model=both, weights=weights).chance == 0.7


def test_an_accuracy_of_one_output_has_its_labels_chance():
    model = model_of(outputs=(1, 1), names=("left", "right"), metrics=[["accuracy"], ["accuracy"]])
    labels = {"left": CLASSES, "right": [0, 1, 0, 1]}
    assert [goal(f"val_{name}_accuracy", labels=labels, model=model).chance for name in labels] == [
        0.75,
        0.5,
    ]
    with pytest.raises(
        SearchError,
        match=r"\(val_left_accuracy, val_right_accuracy, val_loss, .*val_middle_accuracy",
    ):
        goal("val_middle_accuracy", labels=labels, model=model)


@pytest.mark.parametrize(
    ("metric", "labels", "text"),
    [
        # ends like an accuracy, but is not one of Keras' own
        ("val_top5_accuracy", CLASSES, "top5_accuracy"),
        ("val_accuracy", np.array([[0.2, 0.9]]).T, "one class per example"),
        ("val_accuracy", np.zeros((2, 3, 4)), "measurable for a constant answer"),
    ],
)
def test_chance_that_is_not_certain_is_asked_for(metric, labels, text):
    with pytest.raises(SearchError, match=text) as refused:
        goal(
            metric,
            labels=labels,
            model=model_of("binary_crossentropy", metrics=["accuracy", "binary_accuracy"]),
        )
    assert "chance=" in str(refused.value)
    assert goal(metric, labels=labels, chance=0.3, direction="max").chance == 0.3


TRAINING, VALIDATION = [0.0, 0.0, 1.0, 9.0, 0.0], [0.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("metric", "compiled", "chance"),
    [
        # both the mean and the median of the validation labels are 2; training has others
        ("val_mae", {"metrics": ["mae"]}, 4 / 3),
        ("val_mse", {"metrics": ["mse"]}, 8 / 3),
        (
            "val_root_mean_squared_error",
            {"metrics": [keras.metrics.RootMeanSquaredError()]},
            (8 / 3) ** 0.5,
        ),
        ("val_loss", {"loss": "mae"}, 4 / 3),
        ("val_loss", {"loss": keras.losses.MeanSquaredError()}, 8 / 3),
        ("val_loss", {"loss": keras.losses.Huber(0.5)}, 7 / 12),
    ],
)
def test_chance_of_an_error_is_the_best_constant_answer(metric, compiled, chance):
    found = goal(metric, labels=VALIDATION, training=np.array(TRAINING), model=model_of(**compiled))
    assert found.chance == pytest.approx(chance)
    assert found.direction == "min"
    assert (
        f"chance is {found.chance:.4g}: what always answering the mean of 3 validation labels"
        in found.note
    )


def test_the_constant_is_measured_with_the_weights_and_by_column():
    labels = np.array([[0.0, 10.0], [2.0, 10.0], [4.0, 40.0]])
    by_column = goal("val_mae", labels=labels, model=model_of(outputs=(2,), metrics=["mae"]))
    assert by_column.chance == pytest.approx((4 / 3 + 10) / 2)
    assert "the median of 3" in by_column.note
    weighted = goal(
        "val_mae",
        labels=VALIDATION,
        weights=[1.0, 1.0, 4.0],
        model=model_of(weighted_metrics=["mae"]),
    )
    assert weighted.chance == pytest.approx(1.0)  # of 4, the weighted median


@pytest.mark.parametrize(
    ("asked", "compiled", "measured"),
    [
        ("mae", "mean_absolute_error", "mean_absolute_error"),
        ("mean_absolute_error", "mae", "mae"),
        ("mae", keras.metrics.MeanAbsoluteError(), "mean_absolute_error"),
        ("mse", keras.metrics.MeanSquaredError(name="mse"), "mse"),
        ("accuracy", "acc", "acc"),
        ("mae", keras.metrics.MeanAbsoluteError(name="distance"), "mae"),
    ],
)
def test_a_metric_of_two_names_is_the_one_measured(asked, compiled, measured):
    assert (
        goal(f"val_{asked}", chance=0.5, model=model_of(metrics=[compiled])).metric
        == f"val_{measured}"
    )


def test_directions_are_those_of_keras_tuner():
    """Apart from metrics that KerasTuner's table of rising ones leaves out, and so lets fall."""
    from keras_tuner.src.engine.metrics_tracking import infer_metric_direction

    def inferred(name):
        try:
            return infer_metric_direction(f"val_{name}")
        except TypeError:  # it cannot make a metric that has arguments of its own
            return None

    left_out = ("f1_score", "fbeta_score", "r2_score")
    for name in (*metrics.RISING, *metrics.FALLING):
        if not name.endswith("io_u") and name not in left_out:
            assert inferred(name) in (metrics.direction_of(name), None), name
    assert [
        metrics.direction_of(name) for name in ("acc", "mae", "loss", "head_mse", "points")
    ] == ["max", "min", "min", "min", None]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"metric": "val_points", "chance": 0.1}, "come with direction="),
        ({"metric": "accuracy"}, "validation data"),
        ({"metric": "val_mse", "direction": "down", "chance": 1.0}, '"max" or "min"'),
        ({"target": 75}, r"from 0 to 1. Received: 75. Pass a share, such as 0.75"),
        ({"metric": "val_auc", "target": 1.01}, "from 0 to 1"),
        ({"metric": "val_mae", "target": -0.1}, "at least 0"),
        ({"metric": "val_head_accuracy", "target": 1.5}, "from 0 to 1"),
        ({"chance": -0.5}, "from 0 to 1"),
        ({"target": float("nan")}, "finite"),
        (
            {"metric": "val_points", "direction": "max", "chance": 0.0, "target": float("inf")},
            "finite",
        ),
        ({"target": "0.9"}, "finite number"),
        ({"target": 0.6, "chance": 0.7}, "better than chance"),
        ({"metric": "val_mae", "target": 0.9, "chance": 0.7}, "better than chance"),
    ],
)
def test_what_makes_no_sense_is_refused_before_there_are_data(arguments, text):
    with pytest.raises(SearchError, match=text):
        judged_by(
            **{
                "metric": "val_accuracy",
                "direction": None,
                "chance": None,
                "target": None,
                **arguments,
            }
        )


def test_a_target_below_the_inferred_chance_is_refused():
    with pytest.raises(SearchError, match=r"better than chance \(0.75\)"):
        goal(target=0.6)


@pytest.mark.parametrize("seconds", [0, -1, "60", float("nan"), float("inf"), True, None])
def test_seconds_must_be_a_number_above_0(seconds):
    with pytest.raises(SearchError, match="above 0"):
        horizon_of(seconds)


def test_numbers_of_numpy_are_numbers():
    asked = judged_by("val_loss", "min", np.float32(0.5), np.float64(0.25))
    assert {type(asked[name]) for name in ("chance", "target")} == {float}
    assert [type(horizon_of(seconds)) for seconds in (np.float32(0.5), np.int64(3), 2)] == [
        float
    ] * 3


def test_a_minimized_metric_takes_its_own_chance():
    falling = goal("val_loss", "min", 0.69, target=0.3)
    assert (falling.direction, falling.chance, falling.target, falling.note) == (
        "min",
        0.69,
        0.3,
        "",
    )
