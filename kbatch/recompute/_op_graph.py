"""Operation graph: a model as its operations in call order, nested models unfolded; it may be cut between any two."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import keras
from keras.src.models.functional import Functional, operation_fn

from kbatch.errors import RecomputeError

ORDERED = 3  # terms of a sum from which on their order matters


@dataclass(frozen=True, eq=False)
class Node:
    """One call of an operation.

    Attributes:
        operation: The layer or operation.
        name: String, the operation's name after those of the nested models that hold it.
        arguments: What it is called with, as Keras keeps it, with symbolic tensors.
        symbols: Numbers of the values that stand for these tensors, by their `id`.
        writes: Tuple of integers, numbers of the values that it makes.
        turn: Name of the TimeDistributed layer that runs it again for each step of time, and the
            number of the step. Optional.
    """

    operation: Any
    name: str
    arguments: Any
    symbols: Mapping[int, int]
    writes: tuple[int, ...]
    turn: tuple[str, int] | None = None

    @property
    def reads(self) -> tuple[int, ...]:
        """Numbers of the values that it needs."""
        return tuple(dict.fromkeys(self.symbols.values()))

    def run(self, values: dict[int, Any]) -> None:
        """Call the operation, in training, on the values it reads and note those it makes."""
        args, kwargs = self.arguments.fill_in(
            {symbol: values[number] for symbol, number in self.symbols.items()}
        )
        outputs = operation_fn(self.operation, training=True)(*args, **kwargs)
        values.update(zip(self.writes, keras.tree.flatten(outputs), strict=True))


@dataclass(frozen=True)
class _Listed:
    """Arguments as Keras keeps them: one list of tensors, for which keys stand."""

    keys: tuple[object, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def args(self) -> tuple[Any, ...]:
        """The list with the keys."""
        return (list(self.keys),)

    def fill_in(self, tensors: Mapping[int, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with tensors, given by the `id` of their keys."""
        return ([tensors[id(key)] for key in self.keys],), {}


class Chain:
    """The operations of a Functional or Sequential model in order.

    Args:
        model: The model; what it holds is shared, not copied.

    Raises:
        RecomputeError: If the model hides its graph.
    """

    def __init__(self, model: keras.Model) -> None:
        self.functional = functional_of(model)
        self._count = 0
        self._floats: set[int] = set()
        self.inputs = tuple(map(self._number, self.functional.inputs))
        symbols = {
            id(tensor): number
            for tensor, number in zip(self.functional.inputs, self.inputs, strict=True)
        }
        self.nodes = tuple(self._unfold(self.functional, symbols, ""))
        self.outputs = tuple(symbols[id(tensor)] for tensor in self.functional.outputs)

    def live(self, position: int) -> tuple[int, ...]:
        """Numbers of the values that exist before the node at a position and are needed by it or later."""
        return self._live[position]

    def run(self, values: dict[int, Any]) -> None:
        """Run every operation for training, plainly."""
        for node in self.nodes:
            node.run(values)

    @cached_property
    def _live(self) -> list[tuple[int, ...]]:
        needed = set(self.outputs)
        live = [tuple(sorted(needed))]
        for node in reversed(self.nodes):
            needed = (needed - set(node.writes)) | set(node.reads)
            live.append(tuple(sorted(needed)))
        return live[::-1]

    def users(self) -> dict[int, tuple[Any, list[int]]]:
        """Each weight that is trained, as layers are frozen now, and the positions of the nodes that use it, by its `id`."""
        found: dict[int, tuple[Any, list[int]]] = {}
        for position, node in enumerate(self.nodes):
            for key, variable in {
                id(each): each for each in getattr(node.operation, "trainable_variables", ())
            }.items():
                found.setdefault(key, (variable, []))[1].append(position)
        return found

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """Positions of the nodes that read a value, by its number."""
        found: dict[int, list[int]] = {}
        for position, node in enumerate(self.nodes):
            for number in node.reads:
                found.setdefault(number, []).append(position)
        return found

    @cached_property
    def fed(self) -> list[int]:
        """For each node the ones that it feeds, and itself, as the bits of an integer."""
        fed = [1 << position for position in range(len(self.nodes))]
        for position in reversed(range(len(fed))):
            for number in self.nodes[position].writes:
                for reader in self.readers.get(number, ()):
                    fed[position] |= fed[reader]
        return fed

    def summed(self) -> dict[int, tuple[Any, list[int]]]:
        """Weights that three nodes or more use, and these nodes in the order in which a plain tape sums their gradients, if that is certain.

        It is where each node feeds the next: the last comes first. Of branches the tape takes an
        operation each in turn.
        """
        found = {}
        for key, (variable, positions) in self.users().items():
            turns = [self.nodes[position].turn for position in positions]
            if len(positions) < ORDERED or getattr(variable, "regularizer", None) is not None:
                continue
            if self.are_in_turn(positions):
                found[key] = variable, positions[::-1]
            elif (
                None not in turns
                and len({turn[0] for turn in turns if turn}) == 1
                and len(set(turns)) == len(turns)
            ):
                found[key] = variable, positions
        return found

    def are_in_turn(self, positions: Sequence[int]) -> bool:
        """Whether each of these nodes feeds the next."""
        return all(self.fed[one] >> other & 1 for one, other in itertools.pairwise(positions))

    def flowing(self) -> frozenset[int]:
        """Numbers of the values that a gradient comes to, as layers are frozen now: those that something trainable lies before."""
        found: set[int] = set()
        for node in self.nodes:
            if getattr(node.operation, "trainable_variables", ()) or not found.isdisjoint(
                node.reads
            ):
                found.update(filter(self.is_float, node.writes))
        return frozenset(found)

    def is_float(self, number: int) -> bool:
        """Whether a value is one that gradients flow through, not a mask or a token."""
        return number in self._floats

    def _number(self, tensor: Any) -> int:
        if keras.backend.is_float_dtype(tensor.dtype):
            self._floats.add(self._count)
        self._count += 1
        return self._count - 1

    def _unfold(
        self,
        functional: Functional,
        symbols: dict[int, int],
        path: str,
        turn: tuple[str, int] | None = None,
    ) -> Iterator[Node]:
        """The nodes of a graph; `symbols` comes with its inputs and is filled with everything else."""
        for depth in sorted(functional._nodes_by_depth, reverse=True):
            for node in functional._nodes_by_depth[depth]:
                if node.is_input:
                    continue
                operation, name = node.operation, f"{path}{node.operation.name}"
                reads = {id(tensor): symbols[id(tensor)] for tensor in node.input_tensors}
                if _is_repeated(node):
                    yield from self._repeated(node, reads, symbols, name)
                    continue
                if _can_be_unfolded(node):
                    yield from self._nested(
                        functional_of(operation), node, reads, symbols, f"{name}/", turn
                    )
                    continue
                writes = tuple(map(self._number, node.outputs))
                symbols.update(
                    (id(tensor), number)
                    for tensor, number in zip(node.outputs, writes, strict=True)
                )
                yield Node(operation, name, node.arguments, reads, writes, turn)

    def _nested(
        self,
        inner: Functional,
        node: Any,
        reads: dict[int, int],
        symbols: dict[int, int],
        path: str,
        turn: tuple[str, int] | None,
    ) -> Iterator[Node]:
        def enter(inputs: Any, **_: Any) -> Any:
            return inner._standardize_inputs(inputs)

        entry = tuple(map(self._number, inner.inputs))
        yield Node(enter, f"{path}input", node.arguments, reads, entry)
        own = {id(tensor): number for tensor, number in zip(inner.inputs, entry, strict=True)}
        yield from self._unfold(inner, own, path, turn)
        symbols.update(
            (id(outer), own[id(tensor)])
            for outer, tensor in zip(node.outputs, inner.outputs, strict=True)
        )

    def _repeated(
        self, node: Any, reads: dict[int, int], symbols: dict[int, int], path: str
    ) -> Iterator[Node]:
        """The nodes of a TimeDistributed model, as that runs it for one step of time after the other."""
        layer, inner = node.operation, functional_of(node.operation.layer)

        def enter(inputs: Any, **_: Any) -> Any:
            inputs = _with_time_first(
                layer.dtype_policy.convert_input(inputs, layer.autocast, layer.input_dtype)
            )
            return [inner._standardize_inputs(inputs[step])[0] for step in range(inputs.shape[0])]

        def leave(outputs: Any) -> Any:
            return _with_time_first(keras.ops.stack(outputs))

        entry = tuple(self._number(inner.inputs[0]) for _ in range(node.input_tensors[0].shape[1]))
        yield Node(enter, f"{path}/input", node.arguments, reads, entry)
        made = []
        for step, number in enumerate(entry):
            own = {id(inner.inputs[0]): number}
            yield from self._unfold(inner, own, f"{path}/{step}/", (path, step))
            made.append(own[id(inner.outputs[0])])
        leaving = _Listed(tuple(object() for _ in made))
        number = self._number(node.outputs[0])
        symbols[id(node.outputs[0])] = number
        yield Node(
            leave,
            f"{path}/output",
            leaving,
            {id(key): one for key, one in zip(leaving.keys, made, strict=True)},
            (number,),
        )


def functional_of(model: Any) -> Functional:
    """The graph of a Functional or Sequential model.

    Raises:
        RecomputeError: If there is none.
    """
    graph = model._functional if isinstance(model, keras.Sequential) else model
    if (
        not isinstance(graph, Functional)
        or type(graph).call is not Functional.call
        or type(model).call not in (Functional.call, keras.Sequential.call)
    ):
        raise RecomputeError(
            "Only Functional and Sequential models, built, can be cut: others hide the order of their layers",
            f"{getattr(model, 'name', model)!r} ({type(model).__name__})",
            "Build it with keras.Model(inputs, outputs), or give a Sequential model a keras.Input",
        )
    return graph


def _can_be_unfolded(node: Any) -> bool:
    """Whether a node is a nested model that its parent may run in its stead."""
    model = node.operation
    if not isinstance(model, (Functional, keras.Sequential)) or "call" in vars(model):
        return False
    try:
        functional_of(model)
    except RecomputeError:
        return False
    masked = any(getattr(tensor, "_keras_mask", None) is not None for tensor in node.input_tensors)
    named = {name for name, value in node.arguments.kwargs.items() if value is not None}
    plain = len(node.arguments.args) == 1 and named <= {"training"}
    return plain and not masked and model.activity_regularizer is None


def _is_repeated(node: Any) -> bool:
    """Whether a node is a model that TimeDistributed runs for each of so many steps of time, and its parent may run in its stead."""
    layer = node.operation
    if type(layer) is not keras.layers.TimeDistributed or "call" in vars(layer.layer):
        return False
    try:
        inner = functional_of(layer.layer)
    except RecomputeError:
        return False
    masked = any(getattr(tensor, "_keras_mask", None) is not None for tensor in node.input_tensors)
    named = {name for name, value in node.arguments.kwargs.items() if value is not None}
    alone = (
        len(node.input_tensors) == len(node.outputs) == len(inner.inputs) == len(inner.outputs) == 1
    )
    plain = alone and len(node.arguments.args) == 1 and named <= {"training"}
    return (
        plain
        and not masked
        and node.input_tensors[0].shape[1] is not None
        and layer.activity_regularizer is None
    )


def _with_time_first(tensor: Any) -> Any:
    """A tensor with its first two dimensions, examples and steps of time, the other way round."""
    return keras.ops.transpose(tensor, [1, 0, *range(2, len(tensor.shape))])
