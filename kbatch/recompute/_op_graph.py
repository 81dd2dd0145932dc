"""Graph: a model's operations in their order, nested models unfolded."""

from __future__ import annotations

import itertools
import json
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

import keras

from kbatch.errors import RecomputeError
from kbatch.recompute._composite import inside_of
from kbatch.runtime.keras_private import (
    call_function,
    flatten_layers,
    functional_class,
    functional_of_sequential,
    is_optional_input,
    mask_of,
    nodes_by_depth,
    standardized_inputs,
)


@dataclass(frozen=True, eq=False)
class Node:
    """One call of an operation.

    Values, that is tensors between operations, are known by numbers.
    """

    operation: Any  # the layer or operation
    name: str  # the operation's name after those of the nested models that hold it
    # The call's arguments with symbolic tensors, as Keras keeps them (`SymbolicArguments`,
    # keras/src/ops/symbolic_arguments.py, Keras 3.15.1).
    arguments: Any
    # Number of the value that stands for a symbolic tensor, by the tensor's `id`.
    symbols: Mapping[int, int]
    writes: tuple[int, ...]  # numbers of the values that the call returns
    # Name of the TimeDistributed layer that repeats the call, and the integer step of time. `None`
    # outside of such layers.
    time_step: tuple[str, int] | None = None

    @property
    def reads(self) -> tuple[int, ...]:
        """Numbers of the values that the call needs."""
        return tuple(dict.fromkeys(self.symbols.values()))

    @property
    def weights(self) -> tuple[Any, ...]:
        """The weights of the operation that train, as layers are frozen now.

        A frozen layer may hold layers that train, as LoRA does: then its own `trainable_variables`
        is empty, and the model's is not.
        """
        held = {id(each): each for each in getattr(self.operation, "variables", ())}
        return tuple(variable for variable in held.values() if variable.trainable)

    def run(self, values: dict[int, Any]) -> None:
        """Call the operation in training mode."""
        tensors = {symbol: values[number] for symbol, number in self.symbols.items()}
        args, kwargs = self.arguments.fill_in(tensors)
        outputs = call_function(self.operation, training=True)(*args, **kwargs)
        values.update(zip(self.writes, keras.tree.flatten(outputs), strict=True))


@dataclass(frozen=True)
class ListArgument:
    """Arguments of a call that takes one list of tensors, in the form of Keras' own class."""

    keys: tuple[object, ...]  # each of which stands for a tensor of the list
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # always empty

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments, with keys in place of tensors."""
        return (list(self.keys),)

    def fill_in(self, tensors: Mapping[int, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments with tensors, given by the `id` of their keys."""
        return ([tensors[id(key)] for key in self.keys],), {}


TimeStep = tuple[str, int]
# a Functional model, and a function that prepares its inputs from those of the call
Inside = tuple[Any, Callable[..., Any]]


def functional_of(model: Any) -> Any:
    """The Functional model behind a Functional or Sequential model."""
    functional = functional_class()
    graph = functional_of_sequential(model) if isinstance(model, keras.Sequential) else model
    is_plain = (
        isinstance(graph, functional)
        and type(graph).call is functional.call
        and type(model).call in (functional.call, keras.Sequential.call)
    )
    if not is_plain:
        raise RecomputeError(
            "A model must be Functional or Sequential, and built, to be cut into segments: other "
            "models hide the order of their layers",
            f"{getattr(model, 'name', model)!r} ({type(model).__name__})",
            "Build it with keras.Model(inputs, outputs), or give a Sequential model a keras.Input",
        )
    return graph


class Unfolded:
    """The operations of a Functional model, those of nested models in the place of their calls.

    Attributes:
        inputs: Tuple of integers, numbers of the model's inputs.
        nodes: Tuple of `Node` in call order.
        outputs: Tuple of integers, numbers of the model's outputs.
        floats: Set of integers, numbers of the floating values.
    """

    def __init__(self, functional: Any) -> None:
        self.floats: set[int] = set()
        self._count = 0
        self.inputs = tuple(self._number(tensor) for tensor in functional.inputs)
        symbols = _numbered(functional.inputs, self.inputs)
        self.nodes = tuple(self._nodes(functional, symbols, "", None))
        self.outputs = tuple(symbols[id(tensor)] for tensor in functional.outputs)

    def _number(self, tensor: Any) -> int:
        """A new number for a symbolic tensor."""
        if keras.backend.is_float_dtype(tensor.dtype):
            self.floats.add(self._count)
        self._count += 1
        return self._count - 1

    def _nodes(
        self, functional: Any, symbols: dict[int, int], path: str, time_step: TimeStep | None
    ) -> Iterator[Node]:
        """The nodes of one model."""
        by_depth = nodes_by_depth(functional)
        for depth in sorted(by_depth, reverse=True):
            for node in by_depth[depth]:
                if node.is_input:
                    continue
                name = f"{path}{node.operation.name}"
                reads = {id(tensor): symbols[id(tensor)] for tensor in node.input_tensors}
                if _is_time_distributed_model(node):
                    yield from self._time_distributed(node, reads, symbols, name)
                elif (inside := _inside_of(node)) is not None:
                    yield from self._inside(inside, node, reads, symbols, name, time_step)
                else:
                    writes = tuple(self._number(tensor) for tensor in node.outputs)
                    symbols.update(_numbered(node.outputs, writes))
                    yield Node(node.operation, name, node.arguments, reads, writes, time_step)

    def _inside(
        self,
        inside: Inside,
        node: Any,
        reads: dict[int, int],
        symbols: dict[int, int],
        name: str,
        time_step: TimeStep | None,
    ) -> Iterator[Node]:
        """A node that prepares the inputs, and those of the graph in the place of a call."""
        inner, enter = inside
        entry = tuple(self._number(tensor) for tensor in inner.inputs)
        yield Node(enter, f"{name}/input", node.arguments, reads, entry)
        own = _numbered(inner.inputs, entry)
        yield from self._nodes(inner, own, f"{name}/", time_step)
        writes = [own[id(tensor)] for tensor in inner.outputs]
        symbols.update(_numbered(node.outputs, writes))

    def _time_distributed(
        self, node: Any, reads: dict[int, int], symbols: dict[int, int], name: str
    ) -> Iterator[Node]:
        """The nodes of a TimeDistributed model, repeated for each step of time.

        The layer itself does the same in a loop (keras/src/layers/rnn/time_distributed.py,
        Keras 3.15.1).
        """
        layer, inner = node.operation, functional_of(node.operation.layer)

        def enter(inputs: Any, **_: Any) -> Any:
            inputs = _swap_time(
                layer.dtype_policy.convert_input(inputs, layer.autocast, layer.input_dtype)
            )
            return [standardized_inputs(inner, inputs[step])[0] for step in range(inputs.shape[0])]

        def leave(outputs: Any) -> Any:
            return _swap_time(keras.ops.stack(outputs))

        entry = tuple(self._number(inner.inputs[0]) for _ in range(node.input_tensors[0].shape[1]))
        yield Node(enter, f"{name}/input", node.arguments, reads, entry)
        results = []
        for step, number in enumerate(entry):
            own = {id(inner.inputs[0]): number}
            yield from self._nodes(inner, own, f"{name}/{step}/", (name, step))
            results.append(own[id(inner.outputs[0])])
        argument = ListArgument(tuple(object() for _ in results))
        number = self._number(node.outputs[0])
        symbols[id(node.outputs[0])] = number
        yield Node(leave, f"{name}/output", argument, _numbered(argument.keys, results), (number,))


def _numbered(tensors: Any, numbers: Any) -> dict[int, int]:
    """Numbers by the `id` of the tensors that they stand for."""
    return {id(tensor): number for tensor, number in zip(tensors, numbers, strict=True)}


def _inside_of(node: Any) -> Inside | None:
    """The graph that can take the place of a call; `None` for a call that is one operation."""
    if isinstance(node.operation, keras.Model):
        if not _is_called_plainly(node) or not _is_nested_model(node):
            return None
        inner = functional_of(node.operation)
        return inner, lambda inputs, **_: standardized_inputs(inner, inputs)
    return inside_of(node)


def _is_nested_model(node: Any) -> bool:
    """Whether a node calls a model whose operations can take the place of the call."""
    model = node.operation
    return (
        isinstance(model, (functional_class(), keras.Sequential))
        and _can_be_unfolded(model)
        and model.activity_regularizer is None
    )


def _is_time_distributed_model(node: Any) -> bool:
    """Whether a node calls a TimeDistributed model that can be repeated for known steps of time."""
    layer = node.operation
    if type(layer) is not keras.layers.TimeDistributed or not _can_be_unfolded(layer.layer):
        return False
    inner = functional_of(layer.layer)
    ends = (node.input_tensors, node.outputs, inner.inputs, inner.outputs)
    return (
        all(len(tensors) == 1 for tensors in ends)
        and _is_called_plainly(node)
        and node.input_tensors[0].shape[1] is not None
        and layer.activity_regularizer is None
    )


def _can_be_unfolded(model: Any) -> bool:
    """Whether a model has a graph, and no `call` set on the instance, as `apply` does."""
    if "call" in vars(model):
        return False
    try:
        functional_of(model)
    except RecomputeError:
        return False
    return True


def _is_called_plainly(node: Any) -> bool:
    """Whether a node has one argument besides `training`, and no mask."""
    masked = any(mask_of(tensor) is not None for tensor in node.input_tensors)
    passed = {
        name
        for name, value in node.arguments.kwargs.items()
        if any(leaf is not None for leaf in keras.tree.flatten(value))  # masks of several inputs
    }
    return not masked and len(node.arguments.args) == 1 and passed <= {"training"}


def _swap_time(tensor: Any) -> Any:
    """A tensor with its first two dimensions, examples and steps of time, exchanged."""
    return keras.ops.transpose(tensor, [1, 0, *range(2, len(tensor.shape))])


def _shapes(functional: Any, x: Any) -> tuple[tuple[int | None, ...], ...]:
    """The shapes of a model's inputs, with the lengths of some inputs where it has none."""
    own = [tuple(tensor.shape) for tensor in functional.inputs]
    if x is None or all(None not in shape[1:] for shape in own):
        return tuple(own)
    given = [tuple(each.shape) for each in standardized_inputs(functional, x)]
    return tuple(
        (
            shape[0],
            *(mine or other for mine, other in zip(shape[1:], seen[1:], strict=True)),
        )
        for shape, seen in zip(own, given, strict=True)
    )


# Two terms give the same sum in either order; three or more may not.
ORDERED = 3


def class_names(operation: Any) -> list[str]:
    """The names of the classes of a layer and of all layers inside of it; none for a function."""
    if not isinstance(operation, keras.layers.Layer):
        return []
    return [kind.__name__ for layer in flatten_layers(operation) for kind in type(layer).__mro__]


class OpGraph:
    """The operations of a Functional or Sequential model in call order, nested models unfolded.

    Values, that is tensors between operations, are known by numbers; operations by positions.

    Attributes:
        functional: The Functional model behind it.
        inputs: Tuple of integers, numbers of the model's inputs.
        nodes: Tuple of `Node` in call order.
        outputs: Tuple of integers, numbers of the model's outputs.
        shapes: Tuple of the shapes of the inputs. A length that the model leaves open is that of
            the inputs `x`, or `None` without any.
    """

    def __init__(self, model: keras.Model, x: Any = None) -> None:
        self.functional = functional_of(model)
        self.shapes = _shapes(self.functional, x)
        unfolded = Unfolded(self.functional)
        self.inputs, self.nodes = unfolded.inputs, unfolded.nodes
        self.outputs = unfolded.outputs
        self._floats = unfolded.floats

    def is_float(self, number: int) -> bool:
        """Whether a value is floating, so that gradients can flow through it."""
        return number in self._floats

    def live(self, position: int) -> tuple[int, ...]:
        """Numbers of the values that exist before a position and are read at it or later."""
        return self._live[position]

    @cached_property
    def _live(self) -> list[tuple[int, ...]]:
        needed = set(self.outputs)
        live = [tuple(sorted(needed))]
        for node in reversed(self.nodes):
            needed = (needed - set(node.writes)) | set(node.reads)
            live.append(tuple(sorted(needed)))
        return live[::-1]

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """Positions of the nodes that read a value, by its number."""
        readers: dict[int, list[int]] = {}
        for position, node in enumerate(self.nodes):
            for number in node.reads:
                readers.setdefault(number, []).append(position)
        return readers

    @cached_property
    def fed(self) -> list[int]:
        """For each node the set of nodes that it feeds, and itself, as the bits of an integer."""
        fed = [1 << position for position in range(len(self.nodes))]
        for position in reversed(range(len(fed))):
            for number in self.nodes[position].writes:
                for reader in self.readers.get(number, ()):
                    fed[position] |= fed[reader]
        return fed

    def feed_in_turn(self, positions: Sequence[int]) -> bool:
        """Whether each of these nodes feeds the next."""
        return all(self.fed[one] >> other & 1 for one, other in itertools.pairwise(positions))

    def users(self) -> dict[int, tuple[Any, list[int]]]:
        """The trained weights and the positions of the nodes that use them, by the weight's `id`.

        Weights that are frozen now are left out.
        """
        users: dict[int, tuple[Any, list[int]]] = {}
        for position, node in enumerate(self.nodes):
            for variable in node.weights:
                users.setdefault(id(variable), (variable, []))[1].append(position)
        return users

    def summed(self) -> dict[int, tuple[Any, list[int]]]:
        """The weights that three nodes or more use, where the order of summation is certain.

        Each comes with the positions of its nodes in the order in which a plain tape sums their
        gradients, by the weight's `id`. Where each node feeds the next, the last comes first. The
        steps of a TimeDistributed model are summed from the first to the last. Elsewhere the order
        depends on the lengths of branches.
        """
        summed = {}
        for key, (variable, positions) in self.users().items():
            if len(positions) < ORDERED or getattr(variable, "regularizer", None) is not None:
                continue
            if self.feed_in_turn(positions):
                summed[key] = variable, positions[::-1]
            elif self._are_time_steps(positions):
                summed[key] = variable, positions
        return summed

    def _are_time_steps(self, positions: Sequence[int]) -> bool:
        """Whether nodes are different steps of time of one TimeDistributed layer."""
        time_steps = [self.nodes[position].time_step for position in positions]
        layers = {time_step[0] for time_step in time_steps if time_step}
        is_distinct = len(set(time_steps)) == len(time_steps)
        return None not in time_steps and len(layers) == 1 and is_distinct

    def differentiable(self) -> frozenset[int]:
        """Numbers of the values that a gradient comes to, as layers are frozen now.

        These are the floating values that something trainable lies before.
        """
        differentiable: set[int] = set()
        for node in self.nodes:
            if node.weights or not differentiable.isdisjoint(node.reads):
                differentiable.update(number for number in node.writes if self.is_float(number))
        return frozenset(differentiable)


# Results that one cache keeps. A search meets a new kind of model with each combination of its
# hyperparameters of architecture. Chosen by hand.
LIMIT = 64

T = TypeVar("T")


class SignatureCache(Generic[T]):
    """Results of traces, for the kinds of model that were asked for last.

    It holds neither models nor their classes: a signature refers to classes weakly.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._results: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, graph: OpGraph, make: Callable[[], T], also: Hashable = None) -> T:
        """The result for a model; `make` is called if no model of its kind is known.

        Nothing is kept for a model without a signature, nor if `make` raises.
        """
        kind = signature(graph)
        if kind is None:
            return make()
        key = (kind, also)
        with self._lock:
            if key in self._results:
                self._results.move_to_end(key)
                return self._results[key]
        result = make()
        with self._lock:
            self._results[key] = result
            self._results.move_to_end(key)
            while len(self._results) > self._limit:
                self._results.popitem(last=False)
        return result

    def __len__(self) -> int:
        return len(self._results)


def signature(graph: OpGraph) -> Hashable | None:
    """A key of the model's kind; `None` if an operation cannot tell its settings."""
    inputs = tuple(
        (shape, str(tensor.dtype), is_optional_input(tensor))
        for shape, tensor in zip(graph.shapes, graph.functional.inputs, strict=True)
    )
    policy = graph.functional.dtype_policy.name
    try:
        return inputs, policy, keras.config.floatx(), tuple(map(_of_node, graph.nodes))
    except Exception:  # a layer's own get_config may raise any kind
        return None


def stem(name: str) -> str:
    """A name without the numbers that Keras adds to tell layers apart: `conv2d` of `conv2d_3`."""
    return "/".join(re.sub(r"_\d+$", "", part) for part in name.split("/"))


def _of_node(node: Node) -> Hashable:
    operation = node.operation
    settings: Any = None
    if isinstance(operation, keras.Operation):
        config = {**operation.get_config(), "name": ""}
        settings = json.dumps(config, sort_keys=True, default=_config)
    arguments = (node.arguments.args, node.arguments.kwargs)
    called = keras.tree.map_structure(lambda part: node.symbols.get(id(part), part), arguments)
    # Each weight can be frozen by itself, and layers add some after they are made, as LoRA does.
    weights = tuple(
        (tuple(weight.shape), weight.trainable) for weight in getattr(operation, "variables", ())
    )
    return (
        weakref.ref(type(operation)),  # the class itself: a notebook may define it again
        getattr(operation, "__qualname__", ""),
        settings,
        weights,
        repr(called),
        node.reads,
        node.writes,
    )


def _config(part: Any) -> Any:
    """A part of a config that JSON does not know, as its own config or its text."""
    return part.get_config() if hasattr(part, "get_config") else repr(part)
