"""Private names of TensorFlow that kbatch needs, one small function for each.

Each function says which file of which release the name was read in;
`tests/test_tensorflow_private.py` fails when a release takes one away.
"""

from __future__ import annotations

from typing import Any


def add_control_input(operation: Any, before: Any) -> None:
    """Let an operation of a graph run only after another one.

    `Operation._add_control_input`, tensorflow/python/framework/ops.py, TensorFlow 2.21.0.
    """
    operation._add_control_input(before)


def function_graph(operation: Any, attribute: str) -> Any:
    """The graph of the function that an attribute of an operation names, such as a loop's "body".

    `Graph._functions`, tensorflow/python/framework/ops.py, TensorFlow 2.21.0: a dict of the
    functions that were added to a graph, each with its `graph`. A function may belong to an outer
    graph.

    Raises:
        KeyError: If no graph holds the function.
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


def update_input(operation: Any, index: int, tensor: Any) -> None:
    """Let an operation of a graph read another tensor as its input number `index`.

    `Operation._update_input`, tensorflow/python/framework/ops.py, TensorFlow 2.21.0.
    """
    operation._update_input(index, tensor)
