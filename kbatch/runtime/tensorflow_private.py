"""Private names of TensorFlow: the only module that uses them."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

SEED_ATTRIBUTES = ("_seed", "_rng")  # tensorflow/python/eager/context.py, TensorFlow 2.21.0


def add_control_input(operation: Any, before: Any) -> None:
    """Let an operation of a graph run only after another one.

    `Operation._add_control_input`, tensorflow/python/framework/ops.py, TensorFlow 2.21.0.
    """
    operation._add_control_input(before)


def custom_gradients() -> frozenset[str]:
    """Return the names of all gradient functions that TensorFlow holds, for ops and closures.

    `gradient_registry`, tensorflow/python/framework/ops.py, TensorFlow 2.21.0.
    """
    from tensorflow.python.framework import ops

    return frozenset(ops.gradient_registry.list())


def dataset_inputs(dataset: Any) -> list[Any]:
    """Return the datasets that a `tf.data.Dataset` reads from.

    `DatasetV2._inputs`, tensorflow/python/data/ops/dataset_ops.py, TensorFlow 2.21.0.
    """
    return list(getattr(dataset, "_inputs", list)())


def reshuffles(dataset: Any) -> bool:
    """Tell whether a dataset of `Dataset.shuffle` has another order in each pass.

    `_ShuffleDataset._reshuffle_each_iteration`, tensorflow/python/data/ops/shuffle_op.py,
    TensorFlow 2.21.0.
    """
    return bool(getattr(dataset, "_reshuffle_each_iteration", False))


def forget_custom_gradients(names: Iterable[str]) -> None:
    """Remove gradient functions from TensorFlow's registry.

    `Registry._registry`, tensorflow/python/framework/registry.py, TensorFlow 2.21.0.
    """
    from tensorflow.python.framework import ops

    for name in names:
        ops.gradient_registry._registry.pop(name)


def function_graph(operation: Any, attribute: str) -> Any:
    """The graph of the function that an attribute of an operation names, such as a loop's "body".

    `Graph._functions`, tensorflow/python/framework/ops.py, TensorFlow 2.21.0: a dict of the
    functions that were added to a graph, each with its `graph`. A function may belong to an outer
    graph.
    """
    graph, name = operation.graph, operation.get_attr(attribute).name
    while graph is not None:
        function = graph._functions.get(name)
        if function is not None:
            return function.graph
        graph = getattr(graph, "outer_graph", None)
    raise KeyError(name)


def graph_def_of_function(function_def: Any) -> tuple[Any, dict[str, str]]:
    """A function's definition as that of a graph, and the graph's name of each of its tensors.

    `function_def_to_graph_def`, tensorflow/python/framework/function_def_to_graph.py,
    TensorFlow 2.21.0.
    """
    from tensorflow.python.framework import function_def_to_graph

    return function_def_to_graph.function_def_to_graph_def(function_def)


def has_started() -> bool:
    """Tell whether TensorFlow in this process has set up its devices.

    `Context._context_handle`, tensorflow/python/eager/context.py, TensorFlow 2.21.0.
    """
    from tensorflow.python.eager import context

    return context.context()._context_handle is not None


def is_compiled_by_xla() -> bool:
    """Whether XLA compiles the function that is being traced, or one around it.

    `GraphOrParentsInXlaContext`, tensorflow/python/ops/control_flow_util.py, TensorFlow 2.21.0.
    """
    import tensorflow as tf
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

    return GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def is_stateful(op_type: str) -> bool:
    """Whether TensorFlow calls operations of a type stateful; `True` for an unknown type.

    `op_def_registry.get`, tensorflow/python/framework/op_def_registry.py, TensorFlow 2.21.0.
    """
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(op_type)
    return definition is None or definition.is_stateful


def uses_onednn() -> bool:
    """Whether TensorFlow's CPU kernels are oneDNN's: `_pywrap_util_port`, TensorFlow 2.21.0."""
    from tensorflow.python.util import _pywrap_util_port

    return bool(_pywrap_util_port.IsMklEnabled())


def is_unordered(dataset: Any) -> bool:
    """Tell whether a step of a dataset was made with `deterministic=False`.

    `_deterministic` of `_ParallelMapDataset` and `_ParallelBatchDataset`,
    tensorflow/python/data/ops/map_op.py and batch_op.py, TensorFlow 2.21.0.
    """
    return getattr(dataset, "_deterministic", None) == "false"


def memory_limits(kind: str) -> list[int]:
    """Return the bytes that TensorFlow may use of each device of a kind such as `"GPU"`.

    `list_local_devices`, tensorflow/python/client/device_lib.py, TensorFlow 2.21.0.
    """
    from tensorflow.python.client import device_lib

    devices = device_lib.list_local_devices()
    return [int(device.memory_limit) for device in devices if device.device_type == kind]


def padding_values(dataset: Any) -> Any:
    """Return the values that a `padded_batch` pads with, in the structure of an element.

    `_PaddedBatchDataset._padding_values`, tensorflow/python/data/ops/padded_batch_op.py, TensorFlow
    2.21.0.
    """
    return getattr(dataset, "_padding_values", None)


def seed_state() -> dict[str, Any]:
    """Return TensorFlow's global seed and the generator of its op seeds, as far as they are set.

    `Context._seed` and `Context._rng`, tensorflow/python/eager/context.py, TensorFlow 2.21.0.
    """
    from tensorflow.python.eager import context

    attributes = vars(context.context())
    return {name: attributes[name] for name in SEED_ATTRIBUTES if name in attributes}


def set_seed_state(state: Mapping[str, Any]) -> None:
    """Put back what `seed_state` returned. See there for the file."""
    from tensorflow.python.eager import context

    attributes = vars(context.context())
    for name in SEED_ATTRIBUTES:
        attributes.pop(name, None)
    attributes.update(state)


def update_input(operation: Any, index: int, tensor: Any) -> None:
    """Let an operation of a graph read another tensor as its input number `index`.

    `Operation._update_input`, tensorflow/python/framework/ops.py, TensorFlow 2.21.0.
    """
    operation._update_input(index, tensor)


def reads_alone(functions: Iterable[Any], variables: Iterable[Any]) -> bool:
    """Tell whether the traces of `tf.function`s read no tensor from outside but these variables.

    `Function._list_all_concrete_functions`, tensorflow/python/eager/polymorphic_function/
    polymorphic_function.py, TensorFlow 2.21.
    """
    known = {id(variable.handle) for variable in variables}
    return all(
        id(tensor) in known
        for function in functions
        for trace in function._list_all_concrete_functions()
        for tensor in trace.captured_inputs
    )


PREFIX = "CustomGradient-"


def registered_gradients() -> frozenset[str]:
    """Return the names of all custom gradients that TensorFlow holds now."""
    names = custom_gradients()
    return frozenset(name for name in names if name.startswith(PREFIX))


def purge_gradients(before: frozenset[str]) -> int:
    """Remove the custom gradients that were registered since, and free the models they held."""
    since = registered_gradients() - before
    forget_custom_gradients(since)
    gc.collect()
    return len(since)


class _Filter(logging.Filter):
    """Leaves out TensorFlow's warning of retracing."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "triggered tf.function retracing" not in record.getMessage()


@contextmanager
def expected_retraces() -> Iterator[None]:
    """Leave out TensorFlow's warning of retracing inside of this context: each model is new."""
    import tensorflow as tf

    without = _Filter()
    tf.get_logger().addFilter(without)
    try:
        yield
    finally:
        tf.get_logger().removeFilter(without)
