"""Workload: model, recipe and sample that travel to a worker, without an import of TensorFlow.

The sample is a few examples of the user's data, of the longest shape and strings that they have:
these need the most memory.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from kbatch.errors import DataError, MemoryLimitError
from kbatch.model_spec import ModelSpec
from kbatch.recipe import Recipe
from kbatch.recipe_words import whole_number
from kbatch.runtime import tensorflow_private


@dataclass(frozen=True)
class Workload:
    """A model, how it is trained, and a few examples."""

    spec: ModelSpec
    # Nested arrays of the same few examples: `(x,)`, `(x, y)` or `(x, y, sample_weight)`. With
    # `(x,)` the worker makes labels that fit the model's loss; with `()` it makes the inputs too.
    sample: tuple[Any, ...]
    # Its `batch_size` is what is searched for; the number of its accumulation steps is kept.
    recipe: Recipe = Recipe()
    reserved: frozenset[str] = frozenset()  # names of hyperparameters that `build` must not declare
    pipelines: Mapping[str, Any] = field(default_factory=dict)  # for the worker to register
    at: str = ""  # such as "the longest shape (512,)", where examples differ

    def of(self, recipe: Recipe) -> Workload:
        """The same workload with another recipe."""
        return dataclasses.replace(self, recipe=recipe)

    @property
    def shapes(self) -> Any:
        """Shapes and types of one example, in JSON's own types."""
        return [nested(part, _shape_and_type) for part in self.sample]


def workload_of(
    spec: ModelSpec, x: Any, y: Any, recipe: Recipe, shape: Any = None
) -> tuple[Workload, int | None]:
    """The workload of one recipe, and how many examples the data have, if they tell."""
    sample, examples, at = surveyed(x, y, shape)
    own = pipelines((recipe.augmentation,))
    return Workload(spec, sample, recipe, pipelines=own, at=at), examples


def check_size(name: str, size: int | None) -> int | None:
    """Return a batch size, or `None` if there is none."""
    if size is None:
        return None
    whole = whole_number(size)
    if whole is None:
        raise MemoryLimitError(
            f"`{name}` must be a whole number of at least 1",
            size,
            "Pass a batch size, or leave it out",
        )
    return whole


def surveyed(x: Any, y: Any, shape: Any) -> tuple[tuple[Any, ...], int | None, str]:
    """A few examples of the longest shape and strings, how many there are, and both in words."""
    if shape is not None and x is None:
        x = shape
    sample, examples = sample_of(x, y)
    longest = longest_of(x, sample, shape)
    strings = longest_strings(x, y, sample)
    if strings is not None:
        sample = strings.of(sample)
    if longest is not None:
        sample = longest.of(sample)
    told = [each.words for each in (longest, strings) if each is not None]
    return sample, examples, " and ".join(told)


def pipelines(names: tuple[str, ...]) -> dict[str, Any]:
    """The user's own augmentation pipelines among these names, which a worker does not know."""
    augmentation = sys.modules.get("kbatch.data.augmentation")
    return {} if augmentation is None else augmentation.registered(names)


def _shape_and_type(array: Any) -> list[Any]:
    lengths = string_lengths(array) if is_text(array) else {}
    return [*array.shape[1:], str(array.dtype), *(int(each.max()) for each in lengths.values())]


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
    if is_dataset(x) or is_py_dataset(x):
        if y is not None:
            raise DataError(
                "A dataset must hold its labels itself",
                "a dataset as `x`, and `y`",
                "Zip them into the dataset",
            )
        return _dataset_sample(x) if is_dataset(x) else _py_dataset_sample(x)
    parts = tuple(nested(part, _first_rows) for part in (x, y) if part is not None)
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


def _dataset_sample(x: Any) -> tuple[tuple[Any, ...], int | None]:
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
    """The dataset whose examples a dataset of batches joins; itself if it does not tell.

    `None` for a dataset of single examples.
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


def _py_dataset_sample(x: Any) -> tuple[tuple[Any, ...], int | None]:
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


def _first_rows(value: Any) -> np.ndarray:
    if is_shape(value):
        return np.zeros((1, *_positive(value)), "float32")
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise DataError(
            "Data must be arrays, a tf.data.Dataset of examples, or the shape of one example",
            type(value).__name__,
            "Pass x and y, or a shape such as (224, 224, 3)",
        )
    if getattr(value, "__array__", None) is None or _is_symbolic(value):
        dtype = str(getattr(value.dtype, "name", value.dtype))
        return np.zeros((1, *_positive(tuple(value.shape))), dtype)
    if not len(value.shape):
        raise DataError(
            "Arrays must hold examples along their first dimension",
            "a single number",
            "Pass an array",
        )
    return np.asarray(value[:ROWS])


def _is_symbolic(value: Any) -> bool:
    return type(value).__name__ in ("KerasTensor", "TensorSpec")


def _positive(shape: tuple[Any, ...] | list[Any]) -> tuple[int, ...]:
    # a `KerasTensor`'s begins with the `None` of a batch
    sizes = tuple(shape)[1:] if len(shape) and shape[0] is None else tuple(shape)
    if any(size is None or int(size) < 1 for size in sizes):
        raise DataError(
            "The shape of one example must have whole numbers of at least 1",
            tuple(shape),
            "Pass a shape such as (224, 224, 3)",
        )
    return tuple(map(int, sizes))


def _lengths(value: Any) -> list[int]:
    """How many examples each array of a nested structure holds; shapes hold none."""
    lengths: list[int] = []

    def note(part: Any) -> None:
        is_array = hasattr(part, "__array__") and not is_shape(part) and not _is_symbolic(part)
        if is_array and len(part.shape):
            lengths.append(int(part.shape[0]))

    nested(value, note)
    return lengths


# A survey ends here, and the answer says so. Both chosen by hand, not tuned.
SECONDS = 20.0
ELEMENTS = 200_000


@dataclass(frozen=True)
class Longest:
    """The shape of one example that an answer holds for."""

    parts: tuple[Any, ...]  # nested arrays of sizes, as the data's elements are nested
    words: str  # such as "the longest shape (512,)"

    def of(self, sample: tuple[Any, ...]) -> tuple[Any, ...]:
        """A sample whose examples are padded with zeros, or cut, to this shape."""
        return paired(sample, self.parts, widened)


def longest_of(
    x: Any, sample: tuple[Any, ...], shape: Any = None, clock: Callable[[], float] = time.monotonic
) -> Longest | None:
    """The longest shape of data whose examples may differ, or the one that is named.

    A dataset that leaves sizes open, and a `PyDataset`, are read once, for the shapes only: for
    `SECONDS` and `ELEMENTS` at most. Of several sizes that differ, the largest of each is taken.
    `None` if all examples have the shape of the sample.
    """
    elements = None
    if is_dataset(x):
        elements = _dataset_shapes(x)
    elif is_py_dataset(x):
        elements = _py_dataset_shapes(x)
    seen = None if elements is None else _Seen(elements, clock)
    if shape is not None:
        return _named_shape(shape, sample, None if seen is None else seen.highest)
    if seen is None or not any(len(sizes) for sizes in leaves(seen.highest)):
        return None
    if seen.differs and is_dataset(x) and batching_of(x) is None:
        raise DataError(
            "All examples must have the same shape",
            f"examples of up to {_shown(seen.highest[0])}",
            "Pad or crop them, make padded batches, or pass shape=",
        )
    return Longest(seen.highest, seen.words())


class _Seen:
    """What a pass over the shapes of data saw: the largest sizes, and whether they differ."""

    def __init__(
        self, elements: Iterable[tuple[int, tuple[Any, ...]]], clock: Callable[[], float]
    ) -> None:
        began, self._examples, self._is_whole = clock(), 0, True
        self.highest: tuple[Any, ...] = ()
        lowest: tuple[Any, ...] = ()
        for count, (examples, shapes) in enumerate(elements, 1):
            self.highest = paired(self.highest, shapes, np.maximum) if self.highest else shapes
            lowest = paired(lowest, shapes, np.minimum) if lowest else shapes
            self._examples += examples
            if count >= ELEMENTS or clock() - began > SECONDS:
                self._is_whole = False
                break
        ends = zip(leaves(lowest), leaves(self.highest), strict=True)
        self.differs = any((low != high).any() for low, high in ends)
        inputs = zip(leaves(lowest[:1]), leaves(self.highest[:1]), strict=True)
        self._open_sizes = sum(int((low != high).sum()) for low, high in inputs)

    def words(self) -> str:
        """The words that name the shape in an answer."""
        kind = "the longest shape"
        if self._open_sizes > 1:
            kind = "the largest of each size,"
        seen = "" if self._is_whole else f" of the first {self._examples:,} examples"
        return f"{kind} {_shown(self.highest[0])}{seen}"


def _dataset_shapes(x: Any) -> Iterator[tuple[int, tuple[Any, ...]]] | None:
    """The number of examples and the shapes of each element; `None` if all have one shape."""
    tf = sys.modules["tensorflow"]
    specs = tf.nest.flatten(x.element_spec)
    if any(not isinstance(spec, tf.TensorSpec) for spec in specs):
        return None
    skipped = int(batching_of(x) is not None)
    if all(spec.shape.rank is not None for spec in specs) and all(
        size is not None for spec in specs for size in spec.shape[skipped:]
    ):
        return None
    shapes = x.map(lambda *element: tf.nest.map_structure(tf.shape, element))
    return (
        (int(next(leaves(each))[0]) if skipped else 1, nested(each, lambda sizes: sizes[skipped:]))
        for each in shapes.as_numpy_iterator()
    )


def _py_dataset_shapes(x: Any) -> Iterator[tuple[int, tuple[Any, ...]]]:
    for batch in _py_batches(x):
        shapes = nested(batch, lambda part: np.array(np.shape(part), int))
        yield int(next(leaves(shapes))[0]), nested(shapes, lambda sizes: sizes[1:])


def _py_batches(x: Any) -> Iterator[tuple[Any, ...]]:
    """The batches of a `PyDataset`; of one without a length, without end."""
    numbers = itertools.count() if x.num_batches is None else range(x.num_batches)
    return (tuple(x[number]) for number in numbers)


def _named_shape(shape: Any, sample: tuple[Any, ...], highest: tuple[Any, ...] | None) -> Longest:
    """The shape that the user names, which labels that are as long as the inputs follow."""
    sizes = nested(sample, lambda part: np.array(part.shape[1:], int))
    before = sizes if highest is None else highest
    try:
        named = paired(before[0], nested(shape, _checked_shape), _same_rank)
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(
            f"`shape` must be the shape of one example, nested as `x` is: {_shown(before[0])}",
            shape,
            "Pass such a shape, without the batch",
        ) from error
    pairs = zip(leaves(before[0]), leaves(named), strict=True)
    follow = {
        int(old): int(new)
        for olds, news in pairs
        for old, new in zip(olds, news, strict=True)
        if old != new
    }

    def followed(part: np.ndarray) -> np.ndarray:
        return np.array([follow.get(int(size), size) for size in part], int)

    others = tuple(nested(part, followed) for part in before[1:])
    return Longest((named, *others), f"shape {_shown(named)}")


def _checked_shape(shape: Any) -> np.ndarray:
    shape = tuple(shape)
    if not is_shape(shape) or any(size < 1 for size in shape):
        raise ValueError(shape)
    return np.array(shape, int)


def _same_rank(one: np.ndarray, other: Any) -> np.ndarray:
    if not isinstance(other, np.ndarray) or len(one) != len(other):
        raise ValueError(other)
    return other


def widened(array: np.ndarray, shape: Any) -> np.ndarray:
    """An array of examples, padded with zeros or cut to the shape of each."""
    empty: Any = b"" if array.dtype == object else np.zeros((), array.dtype)[()]
    wide = np.full((len(array), *map(int, shape)), empty, array.dtype)
    common = tuple(map(slice, (len(array), *map(min, array.shape[1:], shape))))
    wide[common] = array[common]
    return wide


def paired(one: Any, other: Any, function: Callable[[Any, Any], Any]) -> Any:
    """A function of the parts of two structures that are nested alike."""
    if isinstance(one, Mapping):
        if set(one) != set(other):
            raise ValueError(other)
        return {name: paired(part, other[name], function) for name, part in one.items()}
    if isinstance(one, tuple):
        pairs = zip(one, other, strict=True)
        return tuple(paired(part, its, function) for part, its in pairs)
    return function(one, other)


def _shown(shapes: Any) -> str:
    """Shapes in words: `(512,)`, or `question (64,), answer (16,)`."""
    if isinstance(shapes, Mapping):
        return ", ".join(f"{name} {_shown(part)}" for name, part in shapes.items())
    if isinstance(shapes, tuple):
        return ", ".join(map(_shown, shapes))
    return str(tuple(int(size) for size in shapes))


CHUNK = 1024  # examples of arrays that are looked at between two looks at the clock


@dataclass
class Strings:
    """The examples with the longest strings, of those that were looked at."""

    examples: int = 0  # looked at
    is_whole: bool = True  # whether these are all
    # by what is longest, and in which input: that example, as a batch of one
    rows: dict[tuple[str, int], tuple[Any, ...]] = field(default_factory=dict)
    _most: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The words that name the strings in an answer."""
        seen = "" if self.is_whole else f" of the first {self.examples:,} examples"
        most = {
            kind: max(most for (each, _), most in self._most.items() if each == kind)
            for kind, _ in self._most
        }
        lengths = ", ".join(f"{most[kind]:,} {kind}" for kind in sorted(most, reverse=True))
        return f"the longest strings ({lengths}){seen}"

    def of(self, sample: tuple[Any, ...]) -> tuple[Any, ...]:
        """A sample that begins with the examples of the longest strings."""
        for row in reversed(self.rows.values()):
            sample = _before(row, sample)
        return sample

    def look(self, batch: tuple[Any, ...]) -> None:
        """Take the longest strings of a batch, and their examples, if they are longer."""
        parts = list(leaves(batch[0]))
        self.examples += len(parts[0])
        for number, part in enumerate(parts):
            if not is_text(part):
                continue
            for kind, lengths in string_lengths(part).items():
                row, most = int(np.argmax(lengths)), int(lengths.max())
                if most > self._most.get((kind, number), -1):
                    self._most[kind, number] = most
                    self.rows[kind, number] = tuple(
                        nested(each, partial(_cut, rows=slice(row, row + 1))) for each in batch
                    )


def longest_strings(
    x: Any, y: Any, sample: tuple[Any, ...], clock: Callable[[], float] = time.monotonic
) -> Strings | None:
    """Find the examples with the longest strings; `None` if no input is a string."""
    if not sample or not any(map(is_text, leaves(sample[0]))):
        return None
    began, strings = clock(), Strings()
    for batch in _batches(x, y):
        if strings.examples and clock() - began > SECONDS:
            strings.is_whole = False
            break
        strings.look(batch)
    return strings if strings.rows else None


def is_text(part: Any) -> bool:
    """Whether an array holds strings."""
    if not isinstance(part, np.ndarray) or part.dtype.kind not in "OSU":
        return False
    return any(isinstance(each, (str, bytes)) for each in part.reshape(-1)[:CHUNK])


def _batches(x: Any, y: Any) -> Iterator[tuple[Any, ...]]:
    if is_dataset(x):
        single = batching_of(x) is None
        for element in x.as_numpy_iterator():
            yield nested(element, lambda part: np.asarray(part)[None]) if single else element
        return
    if is_py_dataset(x):
        yield from (nested(batch, np.asarray) for batch in _py_batches(x))
        return
    parts = nested(tuple(part for part in (x, y) if part is not None), lambda part: part)
    if any(not hasattr(part, "__array__") for part in leaves(parts)):
        return  # a shape beside arrays
    for start in range(0, len(next(leaves(parts))), CHUNK):
        rows = slice(start, start + CHUNK)
        yield nested(parts, partial(_cut, rows=rows))


def string_lengths(part: np.ndarray) -> dict[str, np.ndarray]:
    """The most words, and the most characters, of the strings of each example."""
    rows = [
        [each if isinstance(each, (str, bytes)) else "" for each in row]  # such as None
        for row in part.reshape(len(part), -1).tolist()
    ]
    return {
        "words": np.array([max(len(each.split()) for each in row) for row in rows]),
        "characters": np.array([max(map(len, row)) for row in rows]),
    }


def _cut(part: Any, rows: slice) -> np.ndarray:
    return np.asarray(part[rows])


def _before(row: tuple[Any, ...], sample: tuple[Any, ...]) -> tuple[Any, ...]:
    """A sample with one example before it, padded with zeros or cut to the shape of the others."""
    shapes = nested(sample, lambda part: np.array(part.shape[1:], int))
    wide = paired(row, shapes, widened)
    return tuple(paired(wide, sample, lambda *parts: np.concatenate(parts)))
