import numpy as np
import pytest

from kbatch.errors import SearchError
from kbatch.training.goal import goal_of, most_frequent_share


def goal(metric="val_accuracy", direction=None, chance=None, target=None, seconds=10.0, labels=(0, 0, 0, 1)):
    return goal_of(seconds, metric, direction, chance, target, lambda: np.array(labels))


@pytest.mark.parametrize("metric", ["val_accuracy", "val_binary_accuracy", "val_sparse_categorical_accuracy", "val_head_accuracy"])
def test_chance_of_an_accuracy_is_the_most_frequent_class(metric):
    assert (goal(metric).chance, goal(metric).direction) == (0.75, "max")


def test_chance_of_auc_is_a_half():
    assert goal("val_auc").chance == goal("val_auc_1").chance == 0.5


@pytest.mark.parametrize("labels", [np.array([[0], [1], [1]]), np.array([[1, 0, 0], [0, 1, 0], [0, 1, 0]]), np.array([1.0, 2.0, 2.0])])
def test_labels_may_be_numbers_columns_or_one_hot(labels):
    assert most_frequent_share(labels) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"metric": "val_loss"}, "direction= and chance="),
        ({"metric": "val_top_k_categorical_accuracy"}, "direction= and chance="),
        ({"metric": "accuracy"}, "validation data"),
        ({"metric": "val_mse", "direction": "down", "chance": 1.0}, '"max" or "min"'),
        ({"seconds": 0}, "above 0"),
        ({"seconds": "60"}, "above 0"),
        ({"target": 0.6}, "better than chance"),
        ({"labels": np.array([[0.2, 0.9]]).T}, "one class per example"),
        ({"labels": np.zeros((2, 3, 4))}, "one class per example"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, text):
    with pytest.raises(SearchError, match=text):
        goal(**arguments)


def test_a_minimized_metric_takes_its_own_chance():
    falling = goal("val_loss", "min", 0.69, target=0.3)
    assert (falling.direction, falling.chance, falling.target) == ("min", 0.69, 0.3)
