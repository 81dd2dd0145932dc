"""Checking: refuses models that do in their forward pass what cannot be done twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.random.seed_generator import global_seed_generator
from tensorflow.python.framework import op_def_registry

from kbatch.errors import RecomputeError
from kbatch.recompute.chain import Chain
from kbatch.recompute.segments import Context, Scope, read

# Operations that TensorFlow calls stateful although they give the same again for the same inputs and variables.
HARMLESS = frozenset(
    (
        *("VarHandleOp", "ReadVariableOp", "VariableShape", "ResourceGather", "ResourceGatherNd", "Placeholder"),
        *("StatefulPartitionedCall", "While", "If", "Case", "Assert", "CudnnRNNV3", "XlaOptimizationBarrier"),
    )
)


class _Watching(Scope):
    """A scope that remembers which variables were read."""

    def __init__(self) -> None:
        super().__init__((), {})
        self.seen: dict[int, Any] = {}

    def get_current_value(self, variable: Any) -> tf.Tensor:
        self.seen[id(variable)] = variable
        return super().get_current_value(variable)


def check(chain: Chain) -> None:
    """Trace a chain once in training, without running it, and refuse what recompute cannot vouch for.

    Raises:
        RecomputeError: With the name of the layer, as far as it is known.
    """
    layers = list({id(inner): inner for layer in _layers(chain) for inner in layer._flatten_layers()}.values())
    for layer in layers:
        if getattr(layer, "stateful", False) is True:
            raise _refused("a recurrent layer with stateful=True, whose state goes from batch to batch", layer.name, "Make it stateless")
    for tensor in chain.functional.inputs:
        if getattr(tensor._keras_history.operation, "optional", False):
            raise _refused("an optional input", tensor.name, "Make it a required one")
    variables = {id(variable): variable for layer in layers for variable in layer.variables}
    graph, scope = _traced(chain, list(variables.values()))
    holder = {id(variable): layer for layer in layers for variable in layer._trainable_variables}
    for key, variable in scope.updated.items():
        if variable.trainable:
            owner = holder[key].name if key in holder else variable.path
            raise _refused("a layer that assigns a trainable weight in `call`, as SpectralNormalization does", owner, "Train without recompute")
    for key, variable in scope.seen.items():
        if variable.trainable and key not in variables:
            raise _refused("a trainable weight that no layer tracks", variable.path, "Make it an attribute of its layer")
    keras_own = {id(own) for variable in {**variables, **scope.seen}.values() for own in _tensorflow_variables(variable)}
    for plain in graph.variables:
        if id(plain) not in keras_own:
            raise _refused("a tf.Variable that Keras does not know", plain.name, "Make it with add_weight")
    for name, kind in _operations(graph):
        definition = op_def_registry.get(kind)
        if kind not in HARMLESS and (definition is None or definition.is_stateful):
            raise _refused(f"an operation {kind} that may give something else when run again", name, "Use keras.random and keras.ops instead")


def _layers(chain: Chain) -> list[keras.layers.Layer]:
    return [node.operation for node in chain.nodes if isinstance(node.operation, keras.layers.Layer)]


def _traced(chain: Chain, variables: Sequence[Any]) -> tuple[Any, _Watching]:
    """The graph of the forward pass in training, and the scope in which it was traced."""
    scope, context = _Watching(), Context(chain.functional.dtype_policy)
    global_seed_generator()  # must not be made inside of a trace; drawing from it would change what the user draws next

    def forward(*tensors: tf.Tensor) -> list[tf.Tensor]:
        values = dict(zip(chain.inputs, tensors, strict=True))
        scope.entry.update((id(variable), read(variable, None)) for variable in variables)  # not first inside of a branch
        with scope:
            context(lambda: chain.run(values), training=True)
        return [values[number] for number in chain.outputs]

    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in chain.functional.inputs]
    return tf.function(forward).get_concrete_function(*specs).graph, scope


def _tensorflow_variables(variable: Any) -> list[Any]:
    """The variables of TensorFlow that hold one of Keras: itself, and under a distribution strategy one per replica."""
    return [variable._value, *getattr(variable._value, "values", ())]


def _operations(graph: Any) -> Iterator[tuple[str, str]]:
    """Name and kind of every operation, those of functions that the graph calls among them."""
    definition = graph.as_graph_def()
    for function in [definition, *(each for each in definition.library.function)]:
        for node in function.node if hasattr(function, "node") else function.node_def:
            yield node.name, node.op


def _refused(what: str, where: str, do: str) -> RecomputeError:
    return RecomputeError("Recompute must be able to run every layer twice with the same result", f"{what} ({where})", do)
