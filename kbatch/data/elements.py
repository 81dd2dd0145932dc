"""The elements of a dataset: single examples or batches, judged by their shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from kbatch.errors import DataError

Shape = tuple[int | None, ...]
Inputs = Callable[[], Any]


def unknown_inputs() -> Any:
    """Return `None`, the inputs of a model that does not tell them."""
    return None


def inputs_of(model: Any) -> dict[str, Shape] | None:
    """Return the shape of each input of a model by name, without the batch dimension.

    `None` for a model that has no inputs before it is called.
    """
    inputs = getattr(model, "inputs", None)
    return {one.name: tuple(one.shape[1:]) for one in inputs} if inputs else None


def check_pairs(dataset: tf.data.Dataset) -> None:
    """Refuse a dataset whose elements are not inputs and labels in dense tensors of known rank."""
    spec = dataset.element_spec
    if not isinstance(spec, tuple) or len(spec) not in (2, 3):
        raise DataError(
            "The elements of a dataset must be (x, y) or (x, y, sample_weight)",
            spec,
            "Map it to such pairs",
        )
    for part in tf.nest.flatten(spec):
        if not isinstance(part, tf.TensorSpec):
            raise DataError(
                "A dataset must hold dense tensors",
                type(part).__name__,
                "Map them with to_tensor(), or tf.sparse.to_dense",
            )
        if part.shape.rank is None:
            raise DataError(
                "A dataset must know how many dimensions its tensors have",
                "an unknown shape",
                "Map them with tf.ensure_shape",
            )


def are_batches(spec: Any, inputs: Inputs = unknown_inputs) -> bool:
    """Tell whether elements are batches, by the shape of the labels or of the model's inputs.

    Args:
        spec: `tf.TensorSpec` structure of an element, `(x, y)` or `(x, y, sample_weight)`.
        inputs: Function that returns the names and shapes of the model's inputs, or `None`; called
            only if the labels do not tell.

    Raises:
        DataError: If neither labels nor inputs tell.
    """
    shapes = [tuple(part.shape) for part in tf.nest.flatten(spec)]
    if not all(shapes) or len({shape[0] for shape in shapes} - {None}) > 1:
        return False  # all parts of a batch have the same length
    own = inputs()
    found = None if own is None else _told(spec[0], own)
    if found is None and len({shape[0] for shape in shapes}) == 1:
        raise DataError(
            "It must be clear whether a dataset holds batches or single examples",
            f"elements of {_words(shapes)}, and a model whose inputs do not tell",
            "Pass batched=True or batched=False",
        )
    return bool(found)


def agree_on_batches(spec: Any, example_spec: Any) -> bool:
    """Tell whether elements are batches of examples like the training examples.

    Args:
        spec: `tf.TensorSpec` structure of an element.
        example_spec: `tf.TensorSpec` structure of a single training example.
    """
    if any(part.shape.rank == 0 for part in tf.nest.flatten(spec)):
        return False
    votes = [
        _agreed(part, example) for part, example in zip(spec[:2], example_spec[:2], strict=True)
    ]
    return next((vote for vote in votes if vote is not None), False)


def _agreed(part: Any, example: Any) -> bool | None:
    pairs = zip(tf.nest.flatten(part), tf.nest.flatten(example), strict=False)
    votes = {_is_batch(tuple(given.shape), tuple(own.shape)) for given, own in pairs} - {None}
    return votes.pop() if len(votes) == 1 else None


def fits_inputs(model: Any, x: Any) -> bool:
    """Tell whether the inputs of an example have the shapes of a model's inputs.

    True also for a model that does not tell its inputs, or has another number of them.

    Args:
        model: `keras.Model`.
        x: `tf.TensorSpec` structure of the inputs of one example.
    """
    own = inputs_of(model)
    pairs = None if own is None else _pairs(x, own)
    if pairs is None:
        return True
    return all(_same(*pair, True) or _but_for_one(*pair, True) for pair in pairs)


def _pairs(x: Any, own: dict[str, Shape]) -> list[tuple[Shape, Shape]] | None:
    """Pair the shapes of the given inputs with the model's own; `None` if their numbers differ."""
    by_name = isinstance(x, dict) and own.keys() <= x.keys()
    given = [x[name] for name in own] if by_name else tf.nest.flatten(x)
    if len(given) != len(own):
        return None
    return [(tuple(part.shape), shape) for part, shape in zip(given, own.values(), strict=True)]


def _told(x: Any, own: dict[str, Shape]) -> bool | None:
    """Tell by the model's inputs whether inputs are batches; `None` if they do not tell."""
    votes = {_is_batch(shape, example) for shape, example in _pairs(x, own) or []} - {None}
    return votes.pop() if len(votes) == 1 else None


def _is_batch(shape: Shape, example: Shape) -> bool | None:
    """Tell whether a shape is a batch of examples of a shape; `None` if both or neither fits.

    Keras accepts an example with one dimension of size 1 too many or too few at its end, so that
    is tried after an exact match. A size that is not known is tried last.
    """
    for loose in (False, True):
        for near in (_same, _but_for_one):
            single, batch = near(shape, example, loose), near(shape, (None, *example), loose)
            if single != batch:
                return batch
    return None


def _same(shape: Shape, other: Shape, loose: bool) -> bool:
    """Tell whether two shapes are the same; `None` in the second fits any size."""
    pairs = zip(shape, other, strict=False)
    return len(shape) == len(other) and all(
        own is None or size == own or (loose and size is None) for size, own in pairs
    )


def _but_for_one(shape: Shape, other: Shape, loose: bool) -> bool:
    """Tell whether two shapes are the same but for a last dimension of size 1."""
    squeezed = shape[-1:] == (1,) and _same(shape[:-1], other, loose)
    return squeezed or (other[-1:] == (1,) and _same(shape, other[:-1], loose))


def _words(shapes: Sequence[Shape]) -> str:
    return " and ".join(str(shape).replace("None", "?") for shape in shapes)
