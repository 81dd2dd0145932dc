"""Exactness: where a model may be cut, and which models may be recomputed, to train the same.

A tape sums the gradients that the readers of a value send back in the order in which they come. Of
two readers of which one feeds the other, that order is the same with any cut. Of two readers in
branches, it is the same if no cut lies between the first of them and the place where the branches
join: a tape takes one operation of each branch in turn, and a recomputed segment counts as one.

A weight is read like a value. Where its order is certain (`OpGraph.summed`), segments keep it with
any cuts; elsewhere its readers are not cut apart. The loss that a layer adds is one more reader.
That of an activity regularizer sends its gradient back before all others; after any other loss
there is no cut. Where all this leaves no cut that saves anything, the planner may still cut between
the readers of a weight, or of a loss, and says so in the plan (`Plan.reordered`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf

from kbatch.errors import RecomputeError
from kbatch.recompute._op_graph import ORDERED, Node, OpGraph, SignatureCache
from kbatch.recompute._segment import Context, Scope, forks, read
from kbatch.runtime.keras_private import (
    create_global_seed_generator,
    flatten_layers,
    is_optional_input,
    own_trainable_variables,
    tensorflow_variable,
)
from kbatch.runtime.tensorflow_private import is_stateful

# Layers whose `call` reads each input once, and so sends back one gradient (keras/src/layers,
# Keras 3.15.1). Any other operation counts `SEVERAL`: a layer that is missing here costs cut
# points, never exactness.
ONCE = frozenset(
    {
        "Add",
        "AveragePooling1D",
        "AveragePooling2D",
        "Concatenate",
        "Conv1D",
        "Conv2D",
        "Conv2DTranspose",
        "Conv3D",
        "Cropping2D",
        "Dense",
        "DepthwiseConv1D",
        "DepthwiseConv2D",
        "Dropout",
        "Flatten",
        "GlobalAveragePooling1D",
        "GlobalAveragePooling2D",
        "MaxPooling1D",
        "MaxPooling2D",
        "Multiply",
        "Permute",
        "Reshape",
        "SeparableConv1D",
        "SeparableConv2D",
        "Subtract",
        "ZeroPadding2D",
    }
)
SEVERAL = 2


@dataclass(frozen=True)
class Uncut:
    """Neighbouring positions at which a cut would change the order of a sum."""

    first: int
    stop: int  # the position after the last
    reason: str  # what the branches between them share


class CutPoints:
    """The positions where a model may be cut."""

    def __init__(
        self,
        graph: OpGraph,
        loss_positions: Collection[int] = (),
        forks: Collection[tuple[int, int]] = (),
    ) -> None:
        self.graph, self.loss_positions, self._forks = graph, loss_positions, forks
        self._writer = {
            number: position for position, node in enumerate(graph.nodes) for number in node.writes
        }

    @cached_property
    def uncut(self) -> list[Uncut]:
        """All ranges of positions that must not be cut."""
        return [*self.of_values, *self._of_weights(), *self._of_losses()]

    @cached_property
    def of_values(self) -> list[Uncut]:
        """Those between branches that read one value; a deep model amplifies how its sum rounds."""
        ranges: list[Uncut] = []
        for number in self.graph.readers:
            if self.graph.is_float(number):
                ranges += self._of_value(number)
        return ranges

    @cached_property
    def positions(self) -> list[int]:
        """The positions that keep the order of each sum, the model's begin and end included."""
        return self.outside(self.uncut)

    def outside(self, uncut: Iterable[Uncut]) -> list[int]:
        """The positions outside of some ranges."""
        forbidden: set[int] = set()
        for each in uncut:
            forbidden.update(range(each.first, each.stop))
        count = len(self.graph.nodes) + 1
        return [position for position in range(count) if position not in forbidden]

    def check(self, cuts: Sequence[int], uncut: Iterable[Uncut]) -> None:
        """Refuse cuts in some ranges."""
        for each in crossed(cuts, uncut):
            raise self._refusal(next(cut for cut in cuts if each.first <= cut < each.stop), each)

    def _refusal(self, cut: int, uncut: Uncut) -> RecomputeError:
        nodes = self.graph.nodes
        instead = next(position for position in self.positions if position >= uncut.stop)
        do = "Do not cut after them"
        if instead < len(nodes):
            do = f"Cut after {nodes[instead - 1].name!r}"
        return RecomputeError(
            f"A cut must not lie between branches that {uncut.reason}, or its gradient would be "
            "summed in another order",
            f"one after {nodes[cut - 1].name!r}, where they have not joined",
            do,
        )

    def _of_value(self, number: int) -> list[Uncut]:
        """Ranges between branches that read one value."""
        nodes, readers = self.graph.nodes, self.graph.readers[number]
        if sum(_terms(nodes[reader], number) for reader in readers) < ORDERED:
            return []
        name = nodes[self._writer[number]].name if number in self._writer else "an input"
        pairs = itertools.combinations_with_replacement(readers, 2)
        return [
            Uncut(one + 1, self._join(one, other), f"read the value of {name!r}")
            for one, other in pairs
            if self._are_branches(number, one, other)
        ]

    def _of_weights(self) -> Iterator[Uncut]:
        """Ranges between branches that use one weight.

        A regularizer adds one more gradient to those of the nodes that use the weight.
        """
        in_order = self.graph.summed()
        for key, (variable, users) in self.graph.users().items():
            is_regularized = getattr(variable, "regularizer", None) is not None
            if key in in_order or len(users) + is_regularized < ORDERED:
                continue
            stop = len(self.graph.nodes)
            if not is_regularized:
                pairs = itertools.combinations(users, 2)
                stop = max(self._join(one, other) for one, other in pairs)
            yield Uncut(users[0] + 1, stop, f"use the weight {variable.path!r}")

    def _of_losses(self) -> Iterator[Uncut]:
        """Ranges from an operation with a loss of its own to where no gradient can overtake it."""
        for position in self.loss_positions:
            node = self.graph.nodes[position]
            own = _terms_of_loss(node)
            readers = [each for number in node.writes for each in self._readers(number)]
            reason = f"lead from {node.name!r} to a loss of its own and to others"
            if own is None:
                yield Uncut(position + 1, len(self.graph.nodes), reason)
            elif own + sum(terms for _, terms in readers) >= ORDERED:
                stop = max((reader + 1 for reader, _ in readers), default=position)
                yield Uncut(position + 1, stop, reason)

    def _readers(self, number: int) -> Iterator[tuple[int, int]]:
        """The readers of a value, and how many gradients each sends back.

        Readers inside of nested models count; an output of the model is read at its end.
        """
        for position in self.graph.readers.get(number, ()):
            node = self.graph.nodes[position]
            if isinstance(node.operation, keras.Operation):
                yield position, _terms(node, number)
            else:
                for written in node.writes:
                    yield from self._readers(written)
        if number in self.graph.outputs:
            yield len(self.graph.nodes) - 1, SEVERAL

    def _are_branches(self, number: int, one: int, other: int) -> bool:
        """Whether neither of two operations that read a value feeds the other.

        An operation of which several results depend on the value has branches of its own.
        """
        if one == other:
            return (one, number) in self._forks
        return not self.graph.feed_in_turn([one, other])

    def _join(self, one: int, other: int) -> int:
        """The first position after two operations where at most one live value comes from them."""
        either = self.graph.fed[one] | self.graph.fed[other]
        for position in range(other + 1, len(self.graph.nodes)):
            live = self.graph.live(position)
            writers = [self._writer[number] for number in live if number in self._writer]
            if sum(either >> writer & 1 for writer in writers) <= 1:
                return position
        return len(self.graph.nodes)


def crossed(cuts: Sequence[int], uncut: Iterable[Uncut]) -> list[Uncut]:
    """The ranges that some cuts lie in."""
    return [each for each in uncut if any(each.first <= cut < each.stop for cut in cuts)]


def _terms(node: Node, number: int) -> int:
    """How many gradients an operation sends back to a value that it reads."""
    arguments = keras.tree.flatten((node.arguments.args, node.arguments.kwargs))
    times = sum(node.symbols.get(id(argument)) == number for argument in arguments)
    reads_once = type(node.operation).__name__ in ONCE and _is_of_keras(node.operation)
    return times * (1 if reads_once else SEVERAL)


def _terms_of_loss(node: Node) -> int | None:
    """How many gradients an activity regularizer sends back to an operation's result.

    `None` for any other loss, which may depend on anything else.
    """
    layer = node.operation
    if not _is_of_keras(layer) or len(flatten_layers(layer)) > 1:
        return None
    regularizer = getattr(layer, "activity_regularizer", None)
    if regularizer is None:
        return None
    if isinstance(regularizer, (keras.regularizers.L1, keras.regularizers.L2)):
        return 1
    if isinstance(regularizer, keras.regularizers.L1L2):
        return SEVERAL if regularizer.l1 and regularizer.l2 else 1
    return SEVERAL


def _is_of_keras(operation: object) -> bool:
    return type(operation).__module__.startswith("keras.")


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

# positions of the operations that add losses, and forks as `ModelCosts` has them
_Found = tuple[frozenset[int], frozenset[tuple[int, int]]]
_found: SignatureCache[_Found] = SignatureCache()


def check_repeatable(graph: OpGraph) -> _Found:
    """Refuse a model that recomputation could train differently.

    The model is traced once in training mode, without being run. One that is built like a model
    that has passed is not traced again.
    """
    return _found.get(graph, lambda: _checked(graph))


def _checked(graph: OpGraph) -> _Found:
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
    return frozenset(trace.loss_positions), frozenset(trace.forks)


class _WatchingScope(Scope):
    """A scope that notes which variables are read, and which are assigned in a loop or a branch."""

    graph: Any  # that is traced; loops and branches have graphs of their own

    def __init__(self) -> None:
        super().__init__({})
        self.seen: dict[int, Any] = {}  # variables by their `id`
        self.inner: dict[int, Any] = {}  # those that a loop or a branch assigned

    def get_current_value(self, variable: Any) -> tf.Tensor:
        self.seen[id(variable)] = variable
        return super().get_current_value(variable)

    def add_update(self, update: tuple[Any, tf.Tensor]) -> None:
        if tf.compat.v1.get_default_graph() is not self.graph:
            self.inner[id(update[0])] = update[0]
        super().add_update(update)


class _Trace:
    """A trace of a model's forward pass in training mode, and the scope that it was traced in."""

    def __init__(self, graph: OpGraph, variables: Sequence[Any]) -> None:
        self.scope = _WatchingScope()
        self.loss_positions: set[int] = set()  # of the operations that add losses of their own
        self.forks: set[tuple[int, int]] = set()
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
                self.forks |= {(position, number) for number in forks(node, values)}
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
