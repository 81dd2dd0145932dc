"""Agreement: whether model, training data and validation data go together, told before anything is trained."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.data.batches import Data
from kbatch.data.elements import fits_inputs
from kbatch.errors import DataError

SPARSE = "sparse_categorical_crossentropy"


def check(model: keras.Model, loss: Any, data: Data) -> None:
    """Refuse examples that the model cannot take, and labels that its loss cannot.

    Args:
        model: `keras.Model`, as `build` returned it.
        loss: What it is compiled with.
        data: Examples to train on and to measure on.

    Raises:
        DataError: If they do not go together; the message says which.
    """
    training, validation = (
        data.training.element_spec,
        keras.tree.map_structure(_one, data.validation.element_spec),
    )
    _check_inputs(model, training[0], "to train on")
    _check_inputs(model, validation[0], "to validate on")
    _check_ranks(training[1], validation[1])
    classes = _classes(model, loss)
    if classes is not None:
        for labels, where in (
            (data.training.labels(), "to train on"),
            (data.labels(), "to validate on"),
        ):
            _check_range(labels, classes, getattr(loss, "ignore_class", None), where)


def _one(batch: Any) -> Any:
    """The spec of one example of a batch."""
    return tf.TensorSpec(batch.shape[1:], batch.dtype)


def _check_inputs(model: keras.Model, spec: Any, where: str) -> None:
    if fits_inputs(model, spec):
        return
    shapes = [tuple(part.shape) for part in keras.tree.flatten(spec)]
    batch = keras.tree.map_structure(
        lambda part: tf.TensorSpec((None, *part.shape), part.dtype), spec
    )
    try:  # a model may take other sizes than its keras.Input says
        tf.function(lambda inputs: model(inputs, training=False)).get_concrete_function(batch)
    except Exception as error:
        wanted = ", ".join(str(tuple(one.shape[1:])) for one in model.inputs)
        received = f"examples {where} of {', '.join(map(str, shapes))}"
        raise DataError(
            f"Examples must have the shape of the model's input, {wanted}",
            received,
            "Cut, resize or reshape them before they are passed",
        ) from error


def _check_ranks(training: Any, validation: Any) -> None:
    pairs = zip(keras.tree.flatten(training), keras.tree.flatten(validation), strict=False)
    for own, other in pairs:
        shapes = [tuple(part.shape) for part in (own, other)]
        ranks = {len(shape[:-1] if shape[-1:] == (1,) else shape) for shape in shapes}
        if len(ranks) > 1:
            raise DataError(
                "Labels to validate on must be of the same kind as those to train on",
                f"labels of shape {shapes[1]} per example, where those to train on have {shapes[0]}",
                "Give both as numbers of classes, or both one-hot",
            )


def _classes(model: keras.Model, loss: Any) -> int | None:
    """The number of classes whose numbers the labels must be; `None` if the loss asks for none, or it is not known."""
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    if (
        name not in (SPARSE, "SparseCategoricalCrossentropy")
        or len(getattr(model, "outputs", None) or []) != 1
    ):
        return None
    axis = getattr(loss, "axis", -1)
    return model.outputs[0].shape[axis] if isinstance(axis, int) else None  # type: ignore[no-any-return]


def _check_range(labels: np.ndarray | None, classes: int, ignored: int | None, where: str) -> None:
    if labels is None:
        return
    counted = labels if ignored is None else labels[labels != ignored]
    if not counted.size or (counted.min() >= 0 and counted.max() < classes):
        return
    raise DataError(
        f"Labels must be numbers of classes from 0 to {classes - 1}: the model has {classes} outputs",
        f"labels {where} from {counted.min()} to {counted.max()}",
        "Number the classes from 0, or give the model as many outputs as there are classes",
    )
