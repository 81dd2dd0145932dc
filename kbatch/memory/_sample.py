"""Sample: a few examples of the user's data, which travel to a worker, and how many there are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from kbatch.errors import DataError
from kbatch.runtime import tensorflow_private

# These datasets take batches apart: a batch size before them does not count.
UNBATCHING = ("UnbatchDataset", "FlatMapDataset", "InterleaveDataset")
# Examples that travel. A batch repeats them, since their values do not change the memory.
ROWS = 8


def sample_of(x: Any = None, y: Any = None) -> tuple[tuple[Any, ...], int | None]:
    """Take a few examples of the user's data, and tell how many there are."""
    if x is None:
        if y is not None:
            raise DataError("Labels must come with examples", "`y` without `x`", "Pass `x` too")
        return (), None
    if is_dataset(x):
        return _of_dataset(_with_labels(x, y))
    if is_py_dataset(x):
        return _of_py_dataset(_with_labels(x, y))
    parts = tuple(nested(part, _rows) for part in (x, y) if part is not None)
    lengths = {length for part in (x, y) if part is not None for length in _lengths(part)}
    if len(lengths) > 1 or lengths == {0}:
        raise DataError(
            "All arrays must hold the same number of examples, at least 1",
            sorted(lengths),
            "Cut them to the same length",
        )
    return parts, lengths.pop() if lengths else None


def is_dataset(x: Any) -> bool:
    """Whether data are a `tf.data.Dataset`; TensorFlow is not imported for that."""
    return "tensorflow" in sys.modules and isinstance(x, sys.modules["tensorflow"].data.Dataset)


def is_py_dataset(x: Any) -> bool:
    """Whether data are a `keras.utils.PyDataset`; Keras is not imported for that."""
    return any(kind.__name__ == "PyDataset" for kind in type(x).__mro__)


def _with_labels(x: Any, y: Any) -> Any:
    if y is not None:
        raise DataError(
            "A dataset must hold its labels itself",
            "a dataset as `x`, and `y`",
            "Zip them into the dataset",
        )
    return x


def _of_dataset(x: Any) -> tuple[tuple[Any, ...], int | None]:
    tensorflow = sys.modules["tensorflow"]
    parts = tensorflow.nest.flatten(x.element_spec)
    if not isinstance(x.element_spec, tuple) or len(x.element_spec) not in (2, 3):
        raise DataError(
            "A dataset's elements must be (x, y) or (x, y, sample_weight)",
            x.element_spec,
            "Map it to such pairs",
        )
    if not all(isinstance(spec, tensorflow.TensorSpec) for spec in parts):
        raise DataError(
            "A dataset must hold dense tensors",
            x.element_spec,
            "Map them with to_tensor(), or tf.sparse.to_dense",
        )
    batching = batching_of(x)
    rows = list(x.take(1 if batching else ROWS).as_numpy_iterator())
    if not rows:
        raise DataError(
            "A training dataset must hold examples", "0 examples", "Pass one that is not empty"
        )
    if batching is not None:
        before, batches = int(batching.cardinality()), int(x.cardinality())
        if batching is x or before <= 0:
            return _first(rows[0]), _at_least(batches, rows[0])
        if batches > 0:
            before = min(before, batches * _lengths(rows[0][0])[0])
        return _first(rows[0]), before
    try:
        stacked = tensorflow.nest.map_structure(
            lambda *parts: np.stack([np.asarray(part) for part in parts]), *rows
        )
    except ValueError as error:
        raise DataError(
            "All examples must have the same shape",
            x.element_spec,
            "Pad or crop them, or pass a shape",
        ) from error
    count = int(x.cardinality())
    return tuple(stacked), count if count > 0 else None


def batching_of(x: Any) -> Any:
    """The dataset whose examples a dataset of batches joins.

    Returns the dataset of batches itself if it does not tell, and `None` for a dataset of single
    examples.
    """
    stage = x
    while not type(stage).__name__.endswith(UNBATCHING):
        if type(stage).__name__.endswith("BatchDataset"):
            return tensorflow_private.dataset_inputs(stage)[0]
        inputs = tensorflow_private.dataset_inputs(stage)
        if len(inputs) != 1:
            break
        stage = inputs[0]
    firsts = [
        spec.shape[0] if spec.shape.rank else 0
        for spec in sys.modules["tensorflow"].nest.flatten(x.element_spec)
    ]
    return x if all(first is None for first in firsts) else None


def _of_py_dataset(x: Any) -> tuple[tuple[Any, ...], int | None]:
    batch = x[0]
    if not isinstance(batch, tuple) or len(batch) not in (2, 3):
        raise DataError(
            "A dataset's elements must be (x, y) or (x, y, sample_weight)",
            type(batch).__name__,
            "Return such a tuple",
        )
    return _first(batch), _at_least(x.num_batches or 0, batch)


def _first(batch: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(nested(part, lambda array: np.asarray(array)[:ROWS]) for part in batch)


def _at_least(batches: int, batch: tuple[Any, ...]) -> int | None:
    """The fewest examples that so many batches can hold: the last one may be partial."""
    size = _lengths(batch[0])[0]
    if batches < 1:
        return None
    return size if batches == 1 else (batches - 1) * size + 1


def nested(value: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to every array or shape of a nested structure."""
    if isinstance(value, Mapping):
        return {name: nested(part, function) for name, part in value.items()}
    if isinstance(value, list) and value and all(isinstance(part, (int, float)) for part in value):
        return function(np.asarray(value))
    if isinstance(value, (tuple, list)) and not is_shape(value):
        # tf.data takes a list for one tensor
        return tuple(nested(part, function) for part in value)
    return function(value)


def leaves(value: Any) -> Iterator[Any]:
    """Yield the arrays or shapes of a nested structure."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if not isinstance(value, tuple):
        yield value
        return
    for part in value:
        yield from leaves(part)


def is_shape(value: Any) -> bool:
    """Whether a value is a tuple of whole numbers."""
    return isinstance(value, tuple) and all(
        isinstance(part, (int, np.integer)) and not isinstance(part, bool) for part in value
    )


def _rows(value: Any) -> np.ndarray:
    if is_shape(value):
        return np.zeros((1, *_positive(value)), "float32")
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise DataError(
            "Data must be arrays, a tf.data.Dataset of examples, or the shape of one example",
            type(value).__name__,
            "Pass x and y, or a shape such as (224, 224, 3)",
        )
    if (
        not hasattr(value, "__array__")
        or getattr(value, "__array__", None) is None
        or _is_symbolic(value)
    ):
        return np.zeros((1, *_positive(tuple(value.shape))), _name(value.dtype))
    if not len(value.shape):
        raise DataError(
            "Arrays must hold examples along their first dimension",
            "a single number",
            "Pass an array",
        )
    return np.asarray(value[:ROWS])


def _is_symbolic(value: Any) -> bool:
    return type(value).__name__ in ("KerasTensor", "TensorSpec")


def _name(dtype: Any) -> str:
    return str(getattr(dtype, "name", dtype))


def _positive(shape: tuple[Any, ...] | list[Any]) -> tuple[int, ...]:
    sizes = tuple(shape)[1:] if _begins_with_batch(shape) else tuple(shape)
    if any(size is None or int(size) < 1 for size in sizes):
        raise DataError(
            "The shape of one example must have whole numbers of at least 1",
            tuple(shape),
            "Pass a shape such as (224, 224, 3)",
        )
    return tuple(map(int, sizes))


def _begins_with_batch(shape: tuple[Any, ...] | list[Any]) -> bool:
    """Whether a shape begins with the `None` of a batch, as a `KerasTensor`'s does."""
    return len(shape) > 0 and shape[0] is None


def _lengths(value: Any) -> list[int]:
    lengths: list[int] = []

    def note(part: Any) -> None:
        if (
            not is_shape(part)
            and not _is_symbolic(part)
            and hasattr(part, "__array__")
            and len(part.shape)
        ):
            lengths.append(int(part.shape[0]))

    nested(value, note)
    return lengths
