"""Labels for a model's loss where only shapes are given, and examples for its `keras.Input`; used in the worker."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from kbatch.errors import DataError

SAY_SHAPE = "Pass a shape such as (224, 224, 3), or --shape 224,224,3"
TEXT = "S1"  # what NumPy has for it


def completed(model: keras.Model, sample: tuple[Any, ...]) -> tuple[Any, ...]:
    """The sample with labels of the model's outputs, if it has none."""
    if len(sample) > 1:
        return sample
    if not getattr(model, "outputs", None):
        raise DataError(
            "Labels must come with a model whose outputs are not known before it is called",
            "no `y`",
            "Pass `y`",
        )
    rows = len(keras.tree.flatten(sample[0])[0])
    losses = model._compile_config.config.get("loss")
    names = list(getattr(model, "output_names", [""]))
    made = [
        _zeros(output, _of(losses, index, name), rows)
        for index, (output, name) in enumerate(zip(model.outputs, names, strict=True))
    ]
    structure = getattr(model, "_outputs_struct", None)
    return (*sample, made[0] if structure is None else keras.tree.pack_sequence_as(structure, made))


def checked(model: keras.Model, sample: tuple[Any, ...]) -> tuple[Any, ...]:
    """The sample, refused if the model's inputs do not fit it; without one, an example of the shape of its inputs.

    Raises:
        DataError: If the shapes differ, or there is no sample and the model does not tell its
            shape.
    """
    if not sample:
        return (_own_inputs(model),)
    wanted, given = getattr(model, "inputs", None) or [], keras.tree.flatten(sample[0])
    if not wanted:
        return sample
    if isinstance(sample[0], dict) and not isinstance(getattr(model, "_inputs_struct", None), dict):
        # Keras finds them by name
        given = [sample[0][one.name] for one in wanted if one.name in sample[0]]
    shapes = [tuple(array.shape[1:]) for array in given]
    fits = len(wanted) == len(given) and all(
        _fits(one.shape[1:], shape) for one, shape in zip(wanted, shapes, strict=True)
    )
    if not fits:
        raise DataError(
            f"Examples must have the shape of the model's input, {_words([tuple(one.shape[1:]) for one in wanted])}",
            _words(shapes),
            "Pass data or a shape that fits",
        )
    return sample


def _own_inputs(model: keras.Model) -> Any:
    """An example of zeros of the shape and type of a model's `keras.Input`."""
    wanted = getattr(model, "inputs", None) or []
    if not wanted:
        raise DataError(
            "A model without a keras.Input must be given the shape of one example",
            model.name,
            f"{SAY_SHAPE}, or add a keras.Input",
        )
    shapes = [tuple(one.shape[1:]) for one in wanted]
    if any(size is None for shape in shapes for size in shape):
        raise DataError(
            "A model whose keras.Input leaves sizes open must be given the shape of one example",
            _words(shapes),
            SAY_SHAPE,
        )
    zeros = [
        np.zeros((1, *shape), TEXT if one.dtype == "string" else one.dtype)
        for one, shape in zip(wanted, shapes, strict=True)
    ]
    structure = getattr(model, "_inputs_struct", None)
    return zeros[0] if structure is None else keras.tree.pack_sequence_as(structure, zeros)


def _fits(wanted: Any, given: tuple[int, ...]) -> bool:
    # A model may take (n, 1) for (n,) and the other way round, as Keras' own input check lets it.
    one, other = ([size for size in shape if size != 1] for shape in (wanted, given))
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
    return str(
        getattr(
            losses, "name", losses if isinstance(losses, str) else getattr(losses, "__name__", "")
        )
    )


def _zeros(output: Any, loss: str, rows: int) -> np.ndarray:
    shape = [size or 1 for size in output.shape[1:]]
    if loss.lower().replace("_", "").startswith("sparse"):
        return np.zeros((rows, *shape[:-1]), "int32")
    return np.zeros((rows, *shape), "float32")
