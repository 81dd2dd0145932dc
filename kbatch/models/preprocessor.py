"""Preprocessing: what a model does to its data in `fit`, done before training instead.

The tasks of keras-hub hold a preprocessor, such as a tokenizer, which their `fit` and `evaluate`
call. Models that kbatch trains have it taken off, and get data that it has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.errors import DataError

Preprocess = Callable[..., Any]  # of x, and y and sample_weight where they are
TAKEN_OFF = "_kbatch_preprocessor"  # where a model keeps the preprocessor that was taken off
HIDDEN = "_kbatch_hidden_preprocessor"  # the same, of one whose data were preprocessed before
BATCH = 256  # examples that are preprocessed at once; chosen by hand
MOST_BYTES = 1 << 30  # of preprocessed arrays that are kept; chosen by hand


def take_off(model: Any) -> None:
    """Take the preprocessor off a model, if it has one."""
    preprocessor = getattr(model, "preprocessor", None)
    if preprocessor is None or not hasattr(model, "preprocess_samples"):
        return
    # Written past `setattr`, so that neither Keras nor TensorFlow tracks it.
    vars(model)[TAKEN_OFF] = preprocessor
    model.preprocessor = None


def put_back(model: Any) -> None:
    """Give a model the preprocessor again that was taken off."""
    preprocessor = vars(model).pop(TAKEN_OFF, None)
    if preprocessor is not None:
        model.preprocessor = preprocessor


def show(model: Any) -> None:
    """Give a model the preprocessor again that was hidden."""
    put_back(model)
    preprocessor = vars(model).pop(HIDDEN, None)
    if preprocessor is not None:
        model.preprocessor = preprocessor


def hide(model: Any) -> None:
    """Let a model count as one without a preprocessor until `show`: its data have seen it."""
    take_off(model)
    preprocessor = vars(model).pop(TAKEN_OFF, None)
    if preprocessor is not None:
        vars(model)[HIDDEN] = preprocessor


def preprocess_of(model: Any) -> Preprocess | None:
    """Return what a model does to its data before it trains; `None` if it does nothing.

    Returns a function of `x`, and of `y` and `sample_weight` where they are, that returns the same.
    """
    if not hasattr(model, "preprocess_samples"):
        return None
    preprocessor = vars(model).get(TAKEN_OFF, getattr(model, "preprocessor", None))
    if preprocessor is None:
        return None

    def preprocess(x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        return preprocessor(x, y=y, sample_weight=sample_weight)

    return preprocess


def preprocessed(preprocess: Preprocess, *parts: Any) -> Any:
    """Return examples as a model trains on them.

    Args:
        preprocess: What `preprocess_of` returns.
        *parts: A `tf.data.Dataset` of batches; or arrays of inputs, and of labels and weights where
            they are.

    Returns:
        A dataset that is preprocessed in each pass; or for arrays a tuple of arrays. Arrays become
        a dataset of single examples if their preprocessing draws at random, such as masked words,
        or takes more than `MOST_BYTES`.

    Raises:
        DataError: If examples differ in shape once they are preprocessed.
    """
    if isinstance(parts[0], tf.data.Dataset):
        return parts[0].map(preprocess, num_parallel_calls=tf.data.AUTOTUNE)
    if draws(preprocess, parts) or _bytes(preprocess, parts) > MOST_BYTES:
        return _batches(preprocess, parts).unbatch()
    return arrays_of(preprocess, parts)


def arrays_of(preprocess: Preprocess, parts: Sequence[Any]) -> tuple[Any, ...]:
    """Return arrays as a model trains on them, preprocessed once."""
    found = list(_batches(preprocess, parts).as_numpy_iterator())
    shapes = {tuple(leaf.shape[1:] for leaf in keras.tree.flatten(batch)) for batch in found}
    if len(shapes) > 1:
        raise DataError(
            "A preprocessor must give all examples one shape",
            f"{len(shapes)} shapes, such as {' and '.join(map(str, sorted(shapes)[:2]))}",
            "Give it a sequence_length, say, or pass a dataset that it has preprocessed",
        )
    arrays = keras.tree.map_structure(lambda *leaves: np.concatenate(leaves), *found)
    return arrays if isinstance(arrays, tuple) else (arrays,)


def draws(preprocess: Preprocess, parts: Sequence[Any]) -> bool:
    """Tell whether preprocessing draws at random: an example then depends on its place in a batch.

    Under a global seed, the same batch would get the same draws each time.
    """
    some = keras.tree.map_structure(lambda part: part[:BATCH], tuple(parts))
    moved = keras.tree.map_structure(lambda part: np.roll(part, 1, axis=0), some)
    first, second = (keras.tree.flatten(arrays_of(preprocess, each)) for each in (some, moved))
    pairs = zip(first, second, strict=True)
    return not all(np.array_equal(np.roll(one, 1, axis=0), other) for one, other in pairs)


def _batches(preprocess: Preprocess, parts: Sequence[Any]) -> tf.data.Dataset:
    whole = tf.data.Dataset.from_tensor_slices(tuple(parts)).batch(BATCH)
    return whole.map(preprocess, num_parallel_calls=tf.data.AUTOTUNE)


def _bytes(preprocess: Preprocess, parts: Sequence[Any]) -> float:
    """The bytes of all examples, by those of the first."""
    one = arrays_of(preprocess, keras.tree.map_structure(lambda part: part[:1], tuple(parts)))
    examples = len(keras.tree.flatten(parts[0])[0])
    return float(examples * sum(leaf.nbytes for leaf in keras.tree.flatten(one)))
