"""Labels: zeros that fit a model's loss where only shapes are given, and inputs that fit it."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from kbatch.errors import DataError
from kbatch.runtime import keras_private
from kbatch.runtime.keras_private import compiled_by_user

SAY_SHAPE = "Pass a shape such as (224, 224, 3), or --shape 224,224,3"
TEXT = "S1"  # NumPy's type for one byte of text


def completed(model: keras.Model, sample: tuple[Any, ...]) -> tuple[Any, ...]:
    """The sample, with labels of the model's outputs added if it has none."""
    if len(sample) > 1:
        return sample
    if not getattr(model, "outputs", None):
        raise DataError(
            "Labels must come with a model whose outputs are not known before it is called",
            "no `y`",
            "Pass `y`",
        )
    rows = len(keras.tree.flatten(sample[0])[0])
    losses = compiled_by_user(model).get("loss")
    names = list(getattr(model, "output_names", [""]))
    made = [
        _zeros(output, _of(losses, index, name), rows)
        for index, (output, name) in enumerate(zip(_outputs(model, sample[0]), names, strict=True))
    ]
    structure = keras_private.output_structure(model)
    return (*sample, made[0] if structure is None else keras.tree.pack_sequence_as(structure, made))


def _outputs(model: keras.Model, inputs: Any) -> list[Any]:
    """The outputs of a model, as long as its inputs make them."""
    if not any(size is None for output in model.outputs for size in output.shape[1:]):
        return list(model.outputs)
    symbols = keras.tree.map_structure(
        lambda array: keras.KerasTensor((None, *array.shape[1:]), array.dtype.name), inputs
    )
    return keras.tree.flatten(model.compute_output_spec(symbols))


def checked(model: keras.Model, sample: tuple[Any, ...]) -> tuple[Any, ...]:
    """The sample, checked against the model's inputs; without one, an example of their shapes.

    Raises:
        DataError: If the shapes differ, or there is no sample and the model does not tell the
            shape of its inputs.
    """
    if not sample:
        return (_own_inputs(model),)
    inputs, given = getattr(model, "inputs", None) or [], keras.tree.flatten(sample[0])
    if not inputs:
        return sample
    is_by_name = isinstance(keras_private.input_structure(model), dict)
    if isinstance(sample[0], dict) and not is_by_name:
        # Keras finds the inputs of a functional model by name.
        given = [sample[0][one.name] for one in inputs if one.name in sample[0]]
    shapes = [tuple(array.shape[1:]) for array in given]
    expected = [tuple(one.shape[1:]) for one in inputs]
    fits = len(inputs) == len(given) and all(map(_fits, expected, shapes))
    if not fits:
        raise DataError(
            f"Examples must have the shape of the model's input, {_words(expected)}",
            _words(shapes),
            "Pass data or a shape that fits",
        )
    return sample


def _own_inputs(model: keras.Model) -> Any:
    """An example of zeros of the shape and type of a model's `keras.Input`."""
    inputs = getattr(model, "inputs", None) or []
    if not inputs:
        raise DataError(
            "A model without a keras.Input must be given the shape of one example",
            model.name,
            f"{SAY_SHAPE}, or add a keras.Input",
        )
    shapes = [tuple(one.shape[1:]) for one in inputs]
    if any(size is None for shape in shapes for size in shape):
        raise DataError(
            "A model whose keras.Input leaves sizes open must be given the shape of one example",
            _words(shapes),
            SAY_SHAPE,
        )
    zeros = [
        np.zeros((1, *shape), TEXT if one.dtype == "string" else one.dtype)
        for one, shape in zip(inputs, shapes, strict=True)
    ]
    structure = keras_private.input_structure(model)
    return zeros[0] if structure is None else keras.tree.pack_sequence_as(structure, zeros)


def _fits(expected: Any, given: tuple[int, ...]) -> bool:
    # A model may take (n, 1) for (n,) and the other way round, as Keras' own input check lets it.
    one, other = ([size for size in shape if size != 1] for shape in (expected, given))
    return len(one) == len(other) and all(
        size in (None, found) for size, found in zip(one, other, strict=True)
    )


def _words(shapes: list[Any]) -> str:
    return str(shapes[0]) if len(shapes) == 1 else ", ".join(map(str, shapes))


def _of(losses: Any, index: int, name: str) -> str:
    """The loss of an output, by name."""
    if isinstance(losses, dict):
        if "class_name" in losses and "config" in losses:
            return str(losses["config"].get("name", ""))
        return _of(losses.get(name), index, name)
    if isinstance(losses, (list, tuple)):
        return _of(losses[index], index, name)
    if isinstance(losses, str):
        return losses
    return str(getattr(losses, "name", getattr(losses, "__name__", "")))


def _zeros(output: Any, loss: str, rows: int) -> np.ndarray:
    """Labels of an output: class numbers for a sparse loss, else of the output's own shape."""
    shape = [size or 1 for size in output.shape[1:]]
    if loss.lower().replace("_", "").startswith("sparse"):
        return np.zeros((rows, *shape[:-1]), "int32")
    return np.zeros((rows, *shape), "float32")
