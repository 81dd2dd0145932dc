"""Travel: data that reach another process without being copied twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.data.datasets import DatasetSource
from kbatch.data.streams import ArraySource, Source
from kbatch.data.validation import Data
from kbatch.errors import DataError

MAPPED_BYTES = 1 << 20  # arrays of fewer bytes travel with the rest; chosen by hand
PYTHON = {"EagerPyFunc", "PyFunc", "PyFuncStateless"}
_MUST = "The data of an isolated trial must be able to travel to another process"
DO = (
    "Use TensorFlow's own operations instead of Python's (no from_generator, py_function or "
    "PyDataset), or leave out isolated=True and executor"
)


@dataclass(frozen=True)
class Graph:
    """A `tf.data.Dataset` as the graph of its steps: they run again elsewhere, random ones too."""

    definition: bytes  # bytes of a `GraphDef`
    element_spec: Any  # `tf.TensorSpec` structure of an element

    @classmethod
    def of(cls, dataset: tf.data.Dataset, words: str) -> Graph:
        """Return the graph of a dataset."""
        try:
            definition = tf.raw_ops.DatasetToGraphV2(
                input_dataset=tf.data.experimental.to_variant(dataset), strip_device_assignment=True
            ).numpy()
        except (tf.errors.OpError, ValueError) as error:
            received = f"{words} that cannot: {str(error).splitlines()[0]}"
            do = f"Let it read files instead of holding 2 GB or more itself. {DO}"
            raise DataError(_MUST, received, do) from error
        python = sorted(PYTHON & set(_operations(definition)))
        if python:
            raise DataError(_MUST, f"{words} with a step that calls Python ({python[0]})", DO)
        return cls(definition, dataset.element_spec)

    def dataset(self) -> tf.data.Dataset:
        """Return the dataset."""
        variant = tf.raw_ops.DatasetFromGraph(graph_def=self.definition)
        return tf.data.experimental.from_variant(variant, self.element_spec)


def _operations(definition: bytes) -> Iterator[str]:
    graph = tf.compat.v1.GraphDef.FromString(definition)
    yield from (node.op for node in graph.node)
    for function in graph.library.function:
        yield from (node.op for node in function.node_def)


@dataclass(frozen=True)
class Mapped:
    """An array in a file, which each process maps into its memory instead of copying it."""

    path: str

    def array(self) -> np.ndarray:
        """Return the array."""
        return np.load(self.path, mmap_mode="r")  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Parcel:
    """Training and validation data that can be pickled."""

    training: Any  # arrays, or `Mapped` in their place; or a `DatasetSource` without its dataset
    graph: Graph | None  # of the training examples of a dataset; `None` for arrays
    validation: Graph
    remarks: tuple[str, ...]  # sentences for the user about the data
    kept: bool  # whether the validation examples are kept in memory

    def data(self) -> Data:
        """Return the data, ready to be streamed and measured on."""
        if self.graph is None:
            source: Source = ArraySource(keras.tree.map_structure(_brought, self.training))
        else:
            source = self.training.with_examples(self.graph.dataset())
        validation = self.validation.dataset()
        return Data(source, validation, _no_labels, {}, remarks=self.remarks, kept=self.kept)


def parcel(data: Data, folder: Path) -> Parcel:
    """Return data as a parcel, with large arrays in files of a folder."""
    validation = Graph.of(data.validation, "validation data")
    source = data.training
    if isinstance(source, DatasetSource):
        examples = Graph.of(source.one_by_one, "training data")
        return Parcel(source.with_examples(None), examples, validation, data.remarks, data.kept)
    names = iter(range(len(keras.tree.flatten(source.arrays))))  # type: ignore[attr-defined]

    def stored(array: Any) -> Any:
        array, path = np.asarray(array), folder / f"{next(names)}.npy"
        # NumPy's files keep no types of other libraries, such as bfloat16
        if array.dtype.hasobject or array.dtype.kind == "V" or array.nbytes < MAPPED_BYTES:
            return array
        np.save(path, array)
        return Mapped(str(path))

    arrays = keras.tree.map_structure(stored, source.arrays)  # type: ignore[attr-defined]
    return Parcel(arrays, None, validation, data.remarks, data.kept)


def _brought(part: Any) -> Any:
    return part.array() if isinstance(part, Mapped) else part


def _no_labels() -> np.ndarray:
    raise NotImplementedError("labels stay in the process that prepared the data")
