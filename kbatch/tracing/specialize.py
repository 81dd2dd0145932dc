"""Specialization: a step traced for any batch size, given the shapes of one size without another trace."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph

from kbatch.tracing.liveness import BRANCHES, CALLS, LOOPS


class Reshaped:
    """A graph with operations and outputs, as liveness asks for.

    Args:
        graph: `tf.Graph` of the step.
        outputs: Its outputs.
    """

    def __init__(self, graph: tf.Graph, outputs: list[tf.Tensor]) -> None:
        self.outputs = outputs
        self.get_operations = graph.get_operations


def reshaped(concrete: Any, batch_size: int) -> Reshaped | None:
    """The graph of a concrete function with `batch_size` wherever an input's shape says `None`.

    TensorFlow infers all shapes from those of the inputs and variables, in a tenth of the time of a
    trace.

    Args:
        concrete: Concrete function of one step.
        batch_size: Integer, examples.

    Returns:
        The graph; `None` if it calls functions or has loops, whose insides would keep their unknown
        shapes.
    """
    operations = concrete.graph.get_operations()
    if any(operation.type in CALLS | LOOPS | BRANCHES for operation in operations):
        return None
    shapes = [
        tf.TensorShape([batch_size if size is None else size for size in tensor.shape])
        for tensor in concrete.graph.inputs
    ]
    inputs = dict(
        zip(
            (argument.name for argument in concrete.function_def.signature.input_arg),
            shapes,
            strict=True,
        )
    )
    definition, names = function_def_to_graph.function_def_to_graph_def(concrete.function_def)
    known = {
        operation.name: [tensor.shape for tensor in operation.outputs] for operation in operations
    }
    for node in definition.node:
        node.attr.pop("_output_shapes", None)  # those of any batch size
        # What a handle points to is not in the definition: the shapes of variables are told, all
        # others inferred.
        if node.name in inputs:
            node.attr["shape"].shape.CopyFrom(inputs[node.name].as_proto())
        if node.op == "ReadVariableOp" and node.name in known:
            node.attr["_output_shapes"].list.shape.extend(
                shape.as_proto() for shape in known[node.name]
            )
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(definition, name="")
    ends = [
        names[concrete.function_def.ret[result.name]]
        for result in concrete.function_def.signature.output_arg
    ]
    return Reshaped(graph, [graph.get_tensor_by_name(end) for end in ends])
