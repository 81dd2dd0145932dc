"""Repeatability: refuses models that do in their forward pass what cannot be done twice."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.random.seed_generator import global_seed_generator
from tensorflow.python.framework import op_def_registry

from kbatch.errors import RecomputeError
from kbatch.recompute._op_graph import Chain
from kbatch.recompute._segment import Context, Scope, read
from kbatch.recompute._signature import signature

# Operations that TensorFlow calls stateful although they give the same again for the same inputs
# and variables.
HARMLESS = frozenset(
    (
        *(
            "VarHandleOp",
            "ReadVariableOp",
            "VariableShape",
            "ResourceGather",
            "ResourceGatherNd",
            "Placeholder",
        ),
        *(
            "StatefulPartitionedCall",
            "While",
            "If",
            "Case",
            "Assert",
            "CudnnRNNV3",
            "XlaOptimizationBarrier",
        ),
    )
)


# What the trace of a chain told: positions of the nodes that add losses. By signature; no model is
# held by them.
_losing: dict[Hashable, frozenset[int]] = {}
_traced_steps: set[Hashable] = set()  # signatures with the stretches of a plan


class _Watching(Scope):
    """A scope that remembers which variables were read, and which were written in a loop's or a branch's own graph."""

    def __init__(self) -> None:
        super().__init__({})
        self.seen: dict[int, Any] = {}
        self.inner: dict[int, Any] = {}
        self.graph: Any = None

    def get_current_value(self, variable: Any) -> tf.Tensor:
        self.seen[id(variable)] = variable
        return super().get_current_value(variable)

    def add_update(self, update: tuple[Any, tf.Tensor]) -> None:
        if tf.compat.v1.get_default_graph() is not self.graph:
            self.inner[id(update[0])] = update[0]
        super().add_update(update)


def check(chain: Chain) -> frozenset[int]:
    """Trace a chain once in training, without running it, and refuse what recompute cannot vouch for; one alike is not traced again.

    Returns:
        Positions of the nodes that add losses of their own.

    Raises:
        RecomputeError: With the name of the layer, as far as it is known.
    """
    key = signature(chain)
    if key is None or key not in _losing:
        found = _checked(chain)
        if key is None:
            return found
        _losing[key] = found
    return _losing[key]


def check_step(chain: Chain, call: Callable[..., Any], stretches: Hashable) -> None:
    """Trace a step forward and backward as a plan has it, without running it; one of a chain alike is not traced again.

    Args:
        chain: The chain.
        call: What stands for the model's `call`; its `context` tells which segment was run last.
        stretches: Those of the plan.

    Raises:
        RecomputeError: If it cannot be traced, with the segment.
    """
    key = (signature(chain), stretches)
    if key[0] is not None and key in _traced_steps:
        return
    inputs = chain.functional.inputs
    weights = [variable for variable, _ in chain.users().values()]

    def step(*tensors: tf.Tensor) -> list[Any]:
        values = [read(variable, None) for variable in weights]
        with tf.GradientTape() as tape, Scope({}) as scope:
            tape.watch(values)
            scope.give(zip(weights, values, strict=True))
            packed = keras.tree.pack_sequence_as(chain.functional._inputs_struct, list(tensors))
            outputs = call.context(lambda: call(packed, training=True), training=True)  # type: ignore[attr-defined]
            targets = [
                each
                for each in (*keras.tree.flatten(outputs), *scope.losses)
                if each.dtype.is_floating
            ]
        return [each for each in tape.gradient(targets, values) if each is not None]

    global_seed_generator()
    try:
        tf.function(step, autograph=False).get_concrete_function(
            *(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs)
        )
    except RecomputeError:
        raise
    except Exception as error:
        # what comes before is the user's code, line by line
        said = f"{type(error).__name__}: {str(error).strip().splitlines()[-1].strip()}"
        raise RecomputeError(
            "A step must be traced forward and backward in the segments of its plan",
            f"{said}, in the segment {call.context.where}",  # type: ignore[attr-defined]
            "Let no recomputed segment hold these layers, with cuts before and after them, or train without recompute",
        ) from error
    _traced_steps.add(key)


def _checked(chain: Chain) -> frozenset[int]:
    layers = list(
        {id(inner): inner for layer in _layers(chain) for inner in layer._flatten_layers()}.values()
    )
    for layer in layers:
        if getattr(layer, "stateful", False) is True:
            raise _refused(
                "a recurrent layer with stateful=True, whose state goes from batch to batch",
                layer.name,
                "Make it stateless",
            )
    for tensor in chain.functional.inputs:
        if getattr(tensor._keras_history.operation, "optional", False):
            raise _refused("an optional input", tensor.name, "Make it a required one")
    variables = {id(variable): variable for layer in layers for variable in layer.variables}
    graph, scope, losing = _traced(chain, list(variables.values()))
    holder = {id(variable): layer for layer in layers for variable in layer._trainable_variables}
    for key, variable in scope.updated.items():
        if variable.trainable:
            owner = holder[key].name if key in holder else variable.path
            raise _refused(
                "a layer that assigns a trainable weight in `call`, as SpectralNormalization does",
                owner,
                "Train without recompute",
            )
    for key, variable in scope.inner.items():
        owners = [layer for layer in layers if any(id(own) == key for own in layer.variables)]
        innermost = min(owners, key=lambda layer: len(layer.variables), default=None)
        raise _refused(
            "a layer that draws random numbers or updates its state in each turn of a loop",
            variable.path if innermost is None else innermost.name,
            "Draw them before the loop, as `dropout` of keras.layers.LSTM and GRU does",
        )
    for key, variable in scope.seen.items():
        if variable.trainable and key not in variables:
            raise _refused(
                "a trainable weight that no layer tracks",
                variable.path,
                "Make it an attribute of its layer",
            )
    keras_own = {
        id(own)
        for variable in {**variables, **scope.seen}.values()
        for own in _tensorflow_variables(variable)
    }
    for plain in graph.variables:
        if id(plain) not in keras_own:
            raise _refused(
                "a tf.Variable that Keras does not know", plain.name, "Make it with add_weight"
            )
    for name, kind in _operations(graph):
        definition = op_def_registry.get(kind)
        if kind not in HARMLESS and (definition is None or definition.is_stateful):
            raise _refused(
                f"an operation {kind} that may give something else when run again",
                name,
                "Use keras.random and keras.ops instead",
            )
    return losing


def _layers(chain: Chain) -> list[keras.layers.Layer]:
    return [
        node.operation for node in chain.nodes if isinstance(node.operation, keras.layers.Layer)
    ]


def _traced(chain: Chain, variables: Sequence[Any]) -> tuple[Any, _Watching, frozenset[int]]:
    """The graph of the forward pass in training, the scope in which it was traced, and the positions of the nodes that add losses."""
    scope, context = _Watching(), Context(chain.functional.dtype_policy)
    losing: set[int] = set()
    # must not be made inside of a trace; drawing from it would change what the user draws next
    global_seed_generator()

    def forward(*tensors: tf.Tensor) -> list[tf.Tensor]:
        values = dict(zip(chain.inputs, tensors, strict=True))
        # not first inside of a branch
        scope.entry.update((id(variable), read(variable, None)) for variable in variables)
        scope.graph = tf.compat.v1.get_default_graph()
        with scope:
            for position, node in enumerate(chain.nodes):
                before = len(scope.losses)
                context(lambda node=node: node.run(values), training=True)
                if len(scope.losses) > before:
                    losing.add(position)
        return [values[number] for number in chain.outputs]

    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in chain.functional.inputs]
    return tf.function(forward).get_concrete_function(*specs).graph, scope, frozenset(losing)


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
    return RecomputeError(
        "Recompute must be able to run every layer twice with the same result",
        f"{what} ({where})",
        do,
    )
