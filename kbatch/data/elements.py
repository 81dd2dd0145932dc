"""Elements: whether those of a dataset are single examples or batches, told by their shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from kbatch.errors import DataError

Shape = tuple[int | None, ...]
Inputs = Callable[[], Any]


def unknown_inputs() -> Any:
    """The inputs of a model that does not tell them."""
    return None


def inputs_of(model: Any) -> dict[str, Shape] | None:
    """Names and shapes of a model's inputs, without the batch; `None` if it does not tell them before it is called."""
    inputs = getattr(model, "inputs", None)
    return {one.name: tuple(one.shape[1:]) for one in inputs} if inputs else None


def check_pairs(dataset: tf.data.Dataset) -> None:
    """Refuse a dataset whose elements are not pairs of inputs and labels in tensors of a known number of dimensions."""
    spec = dataset.element_spec
    if not isinstance(spec, tuple) or len(spec) not in (2, 3):
        raise DataError(
            "A dataset's elements must be (x, y) or (x, y, sample_weight)",
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
    """Whether elements are batches, which the labels tell or else the model's inputs.

    Args:
        spec: Spec of an element, `(x, y)` or `(x, y, sample_weight)`.
        inputs: Function that gives the names and shapes of the model's inputs, or `None`; called
            only if it matters.

    Raises:
        DataError: If neither tells.
    """
    shapes = [tuple(part.shape) for part in tf.nest.flatten(spec)]
    if not all(shapes) or len({shape[0] for shape in shapes} - {None}) > 1:
        return False  # a batch has one length for all its parts
    wanted = inputs()
    found = None if wanted is None else _told(spec[0], wanted)
    if found is None and len({shape[0] for shape in shapes}) == 1:
        raise DataError(
            "It must be clear whether a dataset holds batches or single examples",
            f"elements of {_words(shapes)}, and a model whose inputs do not tell",
            "Pass batched=True or batched=False",
        )
    return bool(found)


def agree_on_batches(spec: Any, example_spec: Any) -> bool:
    """Whether elements are batches of examples like those.

    Args:
        spec: Spec of an element.
        example_spec: Spec of a single example.
    """
    if any(part.shape.rank == 0 for part in tf.nest.flatten(spec)):
        return False
    votes = [
        _agreed(part, example) for part, example in zip(spec[:2], example_spec[:2], strict=True)
    ]
    return next((vote for vote in votes if vote is not None), False)


def _agreed(part: Any, example: Any) -> bool | None:
    pairs = zip(tf.nest.flatten(part), tf.nest.flatten(example), strict=False)
    votes = {_is_batch(tuple(given.shape), tuple(wanted.shape)) for given, wanted in pairs} - {None}
    return votes.pop() if len(votes) == 1 else None


def fits_inputs(model: Any, x: Any) -> bool:
    """Whether a single example's inputs have the shapes that a model says; also if it does not say them, or others in number.

    Args:
        model: `keras.Model`.
        x: Spec of the inputs of one example.
    """
    wanted = inputs_of(model)
    if wanted is None:
        return True
    by_name = isinstance(x, dict) and wanted.keys() <= x.keys()
    given = [x[name] for name in wanted] if by_name else tf.nest.flatten(x)
    if len(given) != len(wanted):
        return True
    pairs = [(tuple(part.shape), shape) for part, shape in zip(given, wanted.values(), strict=True)]
    return all(_same(shape, own, True) or _but_for_one(shape, own, True) for shape, own in pairs)


def _told(x: Any, wanted: dict[str, Shape]) -> bool | None:
    by_name = isinstance(x, dict) and wanted.keys() <= x.keys()
    given = [x[name] for name in wanted] if by_name else tf.nest.flatten(x)
    if len(given) != len(wanted):
        return None
    votes = {
        _is_batch(tuple(part.shape), shape)
        for part, shape in zip(given, wanted.values(), strict=True)
    } - {None}
    return votes.pop() if len(votes) == 1 else None


def _is_batch(shape: Shape, wanted: Shape) -> bool | None:
    """Whether a shape is that of a batch of examples of the wanted shape; `None` if it may be both or is neither.

    Keras takes an example with one dimension of size 1 too many or too few at its end, but only if
    no other reading is nearer; and a size that is not known says less than one that is.
    """
    for loose in (False, True):
        for near in (_same, _but_for_one):
            example, batch = near(shape, wanted, loose), near(shape, (None, *wanted), loose)
            if example != batch:
                return batch
    return None


def _same(shape: Shape, wanted: Shape, loose: bool) -> bool:
    pairs = zip(shape, wanted, strict=False)
    return len(shape) == len(wanted) and all(
        want is None or size == want or (loose and size is None) for size, want in pairs
    )


def _but_for_one(shape: Shape, wanted: Shape, loose: bool) -> bool:
    squeezed = shape[-1:] == (1,) and _same(shape[:-1], wanted, loose)
    return squeezed or (wanted[-1:] == (1,) and _same(shape, wanted[:-1], loose))


def _words(shapes: Sequence[Shape]) -> str:
    return " and ".join(str(shape).replace("None", "?") for shape in shapes)
