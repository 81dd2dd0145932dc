"""Specialization of a step traced for any batch size to one size, without a second trace."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kbatch.runtime.tensorflow_private import graph_def_of_function
from kbatch.tracing.op_types import BRANCHES, CALLS, LOOPS


class Reshaped:
    """A graph's operations and outputs, as far as `liveness` asks for them.

    Args:
        graph: `tf.Graph` of the step.
        outputs: Its output tensors.
    """

    def __init__(self, graph: tf.Graph, outputs: list[tf.Tensor]) -> None:
        self.outputs = outputs
        self.get_operations = graph.get_operations


def reshaped(concrete: Any, batch_size: int) -> Reshaped | None:
    """The graph of a concrete function with `batch_size` for each `None` in its inputs' shapes.

    TensorFlow infers all other shapes from those of the inputs and variables, in a tenth of the
    time of a trace.

    Args:
        concrete: Concrete function of one step.
        batch_size: Integer, examples.

    Returns:
        The graph. `None` if the step calls functions or has loops: their insides would keep their
        unknown shapes.
    """
    operations = concrete.graph.get_operations()
    if any(operation.type in CALLS | LOOPS | BRANCHES for operation in operations):
        return None
    definition, names = graph_def_of_function(concrete.function_def)
    _set_shapes(definition, _input_shapes(concrete, batch_size), operations)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(definition, name="")
    results = concrete.function_def.signature.output_arg
    outputs = [names[concrete.function_def.ret[result.name]] for result in results]
    return Reshaped(graph, [graph.get_tensor_by_name(name) for name in outputs])


def _input_shapes(concrete: Any, batch_size: int) -> dict[str, tf.TensorShape]:
    """The shape of each input by its name, with `batch_size` for each `None`."""
    arguments = concrete.function_def.signature.input_arg
    return {
        argument.name: tf.TensorShape(
            [batch_size if length is None else length for length in tensor.shape]
        )
        for argument, tensor in zip(arguments, concrete.graph.inputs, strict=True)
    }


def _set_shapes(definition: Any, inputs: dict[str, tf.TensorShape], operations: list[Any]) -> None:
    """Write the shapes of inputs and variables into a graph definition, and remove all others.

    A variable's shape must be written too: the definition has no shape behind a resource handle.
    """
    shapes = {
        operation.name: [tensor.shape for tensor in operation.outputs] for operation in operations
    }
    for node in definition.node:
        node.attr.pop("_output_shapes", None)  # those of any batch size
        if node.name in inputs:
            node.attr["shape"].shape.CopyFrom(inputs[node.name].as_proto())
        if node.op == "ReadVariableOp" and node.name in shapes:
            node.attr["_output_shapes"].list.shape.extend(
                shape.as_proto() for shape in shapes[node.name]
            )
