"""The check of class weights: each is of a class that the labels may have."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from kbatch.checks.finding import Check, Finding
from kbatch.checks.subject import EXAMPLES, Subject
from kbatch.data.streams import Source
from kbatch.errors import DataError

DO = "Pass a weight for each class by its number: class_weight={0: 1.0, 1: 3.0}"


def look(subject: Subject) -> Finding | None:
    """Refuse class weights that no example would have, and labels that are no classes.

    Args:
        subject: What is about to train.

    Raises:
        DataError: If a key is no class, a weight is no number of at least 0, or labels are no
            classes.
    """
    if subject.class_weight is None or subject.data is None:
        return None
    source = subject.data.training
    classes = check(subject.class_weight, source, subject.model, subject.loss)
    return Finding(holds=True, facts={"classes": classes})


def check(weights: Any, source: Source, model: keras.Model, loss: Any) -> int:
    """Return the number of classes, or refuse class weights; see `look`.

    Args:
        weights: Mapping from class to weight.
        source: Training examples.
        model: `keras.Model` that is about to train.
        loss: Its loss.
    """
    _check_weights(weights)
    output = (getattr(model, "outputs", None) or [None])[0]
    shape = None if output is None else tuple(output.shape)
    classes = _classes(_labels(source), shape, getattr(loss, "ignore_class", None))
    unknown = sorted(int(key) for key in weights if not 0 <= int(key) < classes)
    if unknown:
        raise DataError(
            f"`class_weight` must name classes from 0 to {classes - 1}",
            f"class {', '.join(map(str, unknown))}",
            DO,
        )
    return classes


def _check_weights(weights: Any) -> None:
    if not isinstance(weights, Mapping):
        raise DataError("`class_weight` must be a mapping from class to weight", weights, DO)
    for key, weight in weights.items():
        if not isinstance(key, numbers.Real) or not float(key).is_integer():
            raise DataError("`class_weight` must name classes by whole numbers", repr(key), DO)
        is_number = isinstance(weight, numbers.Real)
        if not is_number or not math.isfinite(weight) or weight < 0:
            raise DataError(
                "A class must weigh a finite number of at least 0", f"{key}: {weight}", DO
            )


def _labels(source: Source) -> np.ndarray:
    """All labels of arrays, the first ones of a dataset."""
    parts = keras.tree.flatten(source.element_spec[1])
    if len(parts) != 1:
        raise DataError(
            "`class_weight` must come with one output: it weighs whole examples",
            f"labels of {len(parts)} outputs",
            "Pass sample_weight, or a dataset of (x, y, sample_weight), with weights of each",
        )
    own = source.labels()
    if own is not None:
        return own
    _, labels = next(iter(source.stream(min(EXAMPLES, source.examples), 0)))
    return np.asarray(keras.tree.flatten(labels)[0])


def _classes(labels: np.ndarray, output: tuple[Any, ...] | None, ignored: Any) -> int:
    """The number of classes, by the columns of one-hot labels, the model's, or the labels."""
    if labels.ndim > 1 and labels.shape[-1] != 1:
        _check_one_hot(labels, output)
        return int(labels.shape[-1])
    columns = None if output is None else output[-1]
    known = labels if ignored is None else labels[labels != ignored]
    classes = max(columns or 1, 2)
    if output is None:
        classes = max(int(known.max(initial=0)) + 1, 2)
    is_whole = np.array_equal(known, np.round(known))
    if not is_whole or known.min(initial=0) < 0 or known.max(initial=0) >= classes:
        raise DataError(
            f"With `class_weight` labels must be numbers of classes from 0 to {classes - 1}",
            f"labels from {known.min()} to {known.max()}",
            "Number the classes from 0, or pass sample_weight",
        )
    return classes


def _check_one_hot(labels: np.ndarray, output: tuple[Any, ...] | None) -> None:
    """Refuse a row of labels of which none, or several, are the class."""
    several = (labels == labels.max(axis=-1, keepdims=True)).sum(axis=-1).max(initial=1) > 1
    if several or (output is not None and len(output) != labels.ndim):
        raise DataError(
            "With `class_weight` each example must have one class",
            f"labels of shape {labels.shape[1:]} that name none or several",
            "Pass sample_weight instead",
        )


CLASS_WEIGHTS = Check(
    "class weights",
    "Class weights are of classes that the labels have; classes that are not named weigh 1",
    "Other weights, and labels that are no classes, are refused",
    look,
)
