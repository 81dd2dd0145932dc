"""Repeatability: refuses models whose forward pass cannot be run twice with the same result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from kbatch.errors import RecomputeError
from kbatch.recompute._op_graph import OpGraph, SignatureCache
from kbatch.recompute._segment import Context, Scope, read
from kbatch.runtime.keras_private import (
    create_global_seed_generator,
    flatten_layers,
    is_optional_input,
    own_trainable_variables,
    tensorflow_variable,
)
from kbatch.runtime.tensorflow_private import is_stateful

# Operations that TensorFlow 2.21.0 registers as stateful (`SetIsStateful` in tensorflow/core/ops),
# but that return the same for the same inputs and variables.
HARMLESS = frozenset(
    {
        "Assert",
        "Case",
        "CudnnRNNV3",
        "If",
        "Placeholder",
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "StatefulPartitionedCall",
        "VarHandleOp",
        "VariableShape",
        "While",
        "XlaOptimizationBarrier",
    }
)

_loss_positions: SignatureCache[frozenset[int]] = SignatureCache()


def check(graph: OpGraph) -> frozenset[int]:
    """Refuse a model that recomputation could train differently.

    The model is traced once in training mode, without being run. One that is built like a model
    that has passed is not traced again.
    """
    return _loss_positions.get(graph, lambda: _checked(graph))


def _checked(graph: OpGraph) -> frozenset[int]:
    layers = _all_layers(graph)
    _refuse_stateful(layers)
    _refuse_optional_inputs(graph)
    variables = {id(variable): variable for layer in layers for variable in layer.variables}
    trace = _Trace(graph, list(variables.values()))
    _refuse_assigned_weights(layers, trace.scope)
    _refuse_updates_in_loops(layers, trace.scope)
    _refuse_untracked_weights(variables, trace.scope)
    _refuse_foreign_variables([*variables.values(), *trace.scope.seen.values()], trace.graph)
    _refuse_stateful_operations(trace.graph)
    return frozenset(trace.loss_positions)


class _WatchingScope(Scope):
    """A scope that notes which variables are read, and which are assigned in a loop or a branch.

    Attributes:
        graph: The graph that is traced; loops and branches have graphs of their own.
        seen: Variables that were read, by their `id`.
        inner: Variables that were assigned in a loop or a branch, by their `id`.
    """

    graph: Any

    def __init__(self) -> None:
        super().__init__({})
        self.seen: dict[int, Any] = {}
        self.inner: dict[int, Any] = {}

    def get_current_value(self, variable: Any) -> tf.Tensor:
        self.seen[id(variable)] = variable
        return super().get_current_value(variable)

    def add_update(self, update: tuple[Any, tf.Tensor]) -> None:
        if tf.compat.v1.get_default_graph() is not self.graph:
            self.inner[id(update[0])] = update[0]
        super().add_update(update)


class _Trace:
    """A trace of a model's forward pass in training mode.

    Attributes:
        graph: The `FuncGraph`.
        scope: The scope that it was traced in.
        loss_positions: Positions of the operations that add losses of their own.
    """

    def __init__(self, graph: OpGraph, variables: Sequence[Any]) -> None:
        self.scope = _WatchingScope()
        self.loss_positions: set[int] = set()
        self._op_graph, self._variables = graph, variables
        self._context = Context(graph.functional.dtype_policy)
        # Drawing from it inside of the trace would change what the user draws next.
        create_global_seed_generator()
        inputs = graph.functional.inputs
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
        self.graph = tf.function(self._forward).get_concrete_function(*specs).graph

    def _forward(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        """The forward pass; called by `tf.function`."""
        graph, scope = self._op_graph, self.scope
        values = dict(zip(graph.inputs, tensors, strict=True))
        # A variable must not be read for the first time inside of a branch.
        scope.entry.update((id(variable), read(variable, None)) for variable in self._variables)
        scope.graph = tf.compat.v1.get_default_graph()
        with scope:
            for position, node in enumerate(graph.nodes):
                before = len(scope.losses)
                self._context(lambda node=node: node.run(values), training=True)
                if len(scope.losses) > before:
                    self.loss_positions.add(position)
        return [values[number] for number in graph.outputs]


def _all_layers(graph: OpGraph) -> list[keras.layers.Layer]:
    """All layers of a model and the layers inside of them."""
    operations = [node.operation for node in graph.nodes]
    layers: dict[int, keras.layers.Layer] = {}
    for operation in operations:
        if isinstance(operation, keras.layers.Layer):
            layers.update((id(inner), inner) for inner in flatten_layers(operation))
    return list(layers.values())


def _refuse_stateful(layers: Sequence[keras.layers.Layer]) -> None:
    for layer in layers:
        if getattr(layer, "stateful", False) is True:
            raise _refusal(
                "a recurrent layer with stateful=True, whose state goes from batch to batch",
                layer.name,
                "Make it stateless",
            )


def _refuse_optional_inputs(graph: OpGraph) -> None:
    for tensor in graph.functional.inputs:
        if is_optional_input(tensor):
            raise _refusal("an optional input", tensor.name, "Make it a required one")


def _refuse_assigned_weights(layers: Sequence[keras.layers.Layer], scope: Scope) -> None:
    owners = {
        id(variable): layer for layer in layers for variable in own_trainable_variables(layer)
    }
    for key, variable in scope.updated.items():
        if variable.trainable:
            raise _refusal(
                "a layer that assigns a trainable weight in `call`, as SpectralNormalization does",
                owners[key].name if key in owners else variable.path,
                "Train without recompute",
            )


def _refuse_updates_in_loops(layers: Sequence[keras.layers.Layer], scope: _WatchingScope) -> None:
    for key, variable in scope.inner.items():
        owners = [layer for layer in layers if any(id(own) == key for own in layer.variables)]
        innermost = min(owners, key=lambda layer: len(layer.variables), default=None)
        raise _refusal(
            "a layer that draws random numbers or updates its state in each turn of a loop",
            variable.path if innermost is None else innermost.name,
            "Draw them before the loop, as `dropout` of keras.layers.LSTM and GRU does",
        )


def _refuse_untracked_weights(tracked: dict[int, Any], scope: _WatchingScope) -> None:
    for key, variable in scope.seen.items():
        if variable.trainable and key not in tracked:
            raise _refusal(
                "a trainable weight that no layer tracks",
                variable.path,
                "Make it an attribute of its layer",
            )


def _refuse_foreign_variables(variables: Sequence[Any], graph: Any) -> None:
    known: set[int] = set()
    for variable in variables:
        value = tensorflow_variable(variable)
        # Under a distribution strategy, `values` holds a variable for each replica.
        known.update((id(value), *map(id, getattr(value, "values", ()))))
    for plain in graph.variables:
        if id(plain) not in known:
            raise _refusal(
                "a tf.Variable that Keras does not know", plain.name, "Make it with add_weight"
            )


def _refuse_stateful_operations(graph: Any) -> None:
    for name, op_type in _operations(graph):
        if op_type not in HARMLESS and is_stateful(op_type):
            raise _refusal(
                f"an operation {op_type} that may return something else when it is run again",
                name,
                "Use keras.random and keras.ops instead",
            )


def _operations(graph: Any) -> Iterator[tuple[str, str]]:
    """Name and type of every operation, those of functions that the graph calls included."""
    definition = graph.as_graph_def()
    for node in definition.node:
        yield node.name, node.op
    for function in definition.library.function:
        for node in function.node_def:
            yield node.name, node.op


def _refusal(what: str, where: str, do: str) -> RecomputeError:
    return RecomputeError(
        "Recompute must be able to run every layer twice with the same result",
        f"{what} ({where})",
        do,
    )
