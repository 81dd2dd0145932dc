import numpy as np
import pytest

from kbatch.data.examples import Examples
from kbatch.data.sources import BINARY, CATEGORICAL, SPARSE, Wanted, fitted
from kbatch.errors import DataError

NAMES = ("ant", "bee", "cow")


def of(labels, classes=()):
    labels = np.asarray(labels)
    part = (np.zeros((len(labels), 2)), labels)
    return Examples("data", part, part, None, classes)


def labels_of(labels, wanted, classes=()):
    found, _ = fitted(of(labels, classes), wanted)
    assert np.array_equal(found.train[1], found.validation[1])
    return found.train[1]


THREE = [0, 1, 2, 1]
ONE_HOT = np.eye(3)[THREE]


@pytest.mark.parametrize("classes", [NAMES, ()])
def test_class_numbers_become_what_the_loss_takes(classes):
    assert labels_of(THREE, Wanted(SPARSE, 3), classes).tolist() == THREE
    for loss in CATEGORICAL:
        assert np.array_equal(labels_of(THREE, Wanted(loss, 3), classes), ONE_HOT)


def test_one_hot_labels_become_numbers_and_stay_one_hot():
    assert labels_of(ONE_HOT, Wanted(SPARSE, 3)).tolist() == THREE
    assert np.array_equal(labels_of(ONE_HOT, Wanted("categorical_crossentropy", 3)), ONE_HOT)


@pytest.mark.parametrize("loss", BINARY)
def test_two_classes_have_one_output_or_two(loss):
    two = ("no", "yes")
    assert labels_of([0, 1], Wanted(loss, 1), two).tolist() == [0, 1]
    assert np.array_equal(labels_of([0, 1], Wanted(loss, 2), two), np.eye(2))
    assert labels_of([0, 1], Wanted(SPARSE, 2), two).tolist() == [0, 1]


def test_soft_labels_and_several_classes_an_example_stay():
    soft = [0.25, 0.75, 1.0]
    assert labels_of(soft, Wanted("binary_crossentropy", 1)).tolist() == soft
    several = np.array([[1, 1, 0], [0, 0, 0]])
    assert np.array_equal(labels_of(several, Wanted("binary_crossentropy", 3)), several)


@pytest.mark.parametrize("labels", [[1, 1, 1], np.eye(3)[[1, 1, 1]]], ids=["numbers", "one-hot"])
def test_examples_of_one_class_are_refused(labels):
    with pytest.raises(DataError, match="all with the label"):
        labels_of(labels, Wanted(SPARSE, 3))


def test_numbers_stay_as_they_are():
    numbers = [1.5, -2.0, 7.25]
    assert labels_of(numbers, Wanted("mean_squared_error", 1)).tolist() == numbers
    for outputs in (None, 1, 3):
        assert labels_of(numbers, Wanted(None, outputs)).tolist() == numbers
    masks = np.zeros((2, 4, 4), "int32")
    assert labels_of(masks, Wanted(SPARSE, None)).shape == (2, 4, 4)


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (Wanted(SPARSE, 2), "2 outputs and sparse_categorical_crossentropy, for 3 classes"),
        (Wanted(SPARSE, 5), "Build it with 3 outputs"),
        (Wanted("categorical_crossentropy", 2), "ant, bee, cow"),
        (Wanted("binary_crossentropy", 1), "1 output and binary_crossentropy"),
        (Wanted("mean_squared_error", 1), "1 output and mean_squared_error"),
        (Wanted(None, 3), "--labels numbers"),
        (Wanted(None, 2, "one-hot"), "2 outputs and a loss of its own"),
    ],
)
def test_outputs_that_are_not_the_classes_are_refused(wanted, text):
    with pytest.raises(DataError, match=text):
        fitted(of(THREE, NAMES), wanted)


def test_one_output_of_softmax_is_refused_for_two_classes():
    for loss in (SPARSE, "categorical_crossentropy"):
        with pytest.raises(DataError, match="1 output and"):
            fitted(of([0, 1], ("no", "yes")), Wanted(loss, 1))


@pytest.mark.parametrize(
    ("labels", "wanted", "text"),
    [
        ([1, 2, 3], Wanted(SPARSE, 3), "from 0 to 2.*labels from 1 to 3"),
        ([0, 4], Wanted(SPARSE, 2), "from 0 to 1.*2 outputs"),
        ([-1, 1], Wanted("binary_crossentropy", 1), "labels from -1 to 1"),
        ([0.5, 1.5], Wanted(SPARSE, 3), "whole numbers"),
        ([-1, 1], Wanted("categorical_crossentropy", None), "labels from -1 to 1"),
        ([0, 1], Wanted(SPARSE, 1), "1 output"),
        ([0, 3], Wanted("categorical_crossentropy", 3), "labels from 0 to 3"),
        (ONE_HOT, Wanted("categorical_crossentropy", 2), "3 columns, and 2 outputs"),
        ([[1, 1, 0]], Wanted(SPARSE, 3), "one class an example"),
        (np.zeros((3, 2)), Wanted("mean_squared_error", 1), "2 columns, and 1 output"),
        ([0, 1], Wanted("mean_squared_error", 3), "1 column, and 3 outputs"),
    ],
)
def test_labels_that_outputs_cannot_tell_are_refused(labels, wanted, text):
    with pytest.raises(DataError, match=text):
        fitted(of(labels), wanted)


def test_the_form_that_the_user_says_counts():
    assert np.array_equal(labels_of(THREE, Wanted(None, 3, "one-hot"), NAMES), ONE_HOT)
    assert labels_of(THREE, Wanted(None, 3, "numbers"), NAMES).tolist() == THREE


def test_whole_floats_are_class_numbers():
    found = labels_of([0.0, 1.0, 2.0], Wanted(SPARSE, 3))
    assert (found.dtype, found.tolist()) == (np.dtype("int32"), [0, 1, 2])
