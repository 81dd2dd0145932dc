"""Cut points: where a model may be cut so that every gradient is summed in the order of a plain tape.

A tape adds up what the readers of a value send back in the order in which it comes. Of two readers
of which one feeds the other that order is the same with any cut; of two branches it is if no cut
lies between the first and where they join, since a tape takes an operation of each branch in turn,
and a recomputed segment is one operation.

A weight is read like a value. Where its order is certain (`Chain.summed`) segments keep it, however
they are cut; elsewhere its readers are not cut apart. The loss that a layer adds is one more
reader: that of an activity regularizer sends its gradient back before all others, and after any
other loss there is no cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import keras

from kbatch.errors import RecomputeError
from kbatch.recompute._op_graph import ORDERED, Chain, Node

# What reads each of its inputs once, and so sends back one gradient. Anything else may send
# several.
ONCE = frozenset(
    (
        *(
            "Conv1D",
            "Conv2D",
            "Conv3D",
            "DepthwiseConv1D",
            "DepthwiseConv2D",
            "SeparableConv1D",
            "SeparableConv2D",
            "Conv2DTranspose",
            "Dense",
        ),
        *(
            "MaxPooling1D",
            "MaxPooling2D",
            "AveragePooling1D",
            "AveragePooling2D",
            "GlobalAveragePooling1D",
            "GlobalAveragePooling2D",
        ),
        *(
            "ZeroPadding2D",
            "Cropping2D",
            "Add",
            "Concatenate",
            "Multiply",
            "Subtract",
            "Flatten",
            "Reshape",
            "Permute",
            "Dropout",
        ),
    )
)
SEVERAL = 2


@dataclass(frozen=True)
class Disorder:
    """Positions that must not be cut, since a sum would change its order.

    Attributes:
        first: Integer, the first of them.
        stop: Integer, the position after the last.
        what: String, the sum.
    """

    first: int
    stop: int
    what: str


class Ordering:
    """Finds where a chain may be cut.

    Args:
        chain: The chain.
        losing: Positions of the nodes that add losses of their own. Defaults to none.
    """

    def __init__(self, chain: Chain, losing: Collection[int] = ()) -> None:
        self.chain, self.losing = chain, losing
        self._writer = {
            number: position for position, node in enumerate(chain.nodes) for number in node.writes
        }

    @cached_property
    def disorders(self) -> list[Disorder]:
        """All of them."""
        of_values = (
            self._of_value(number) for number in self.chain.readers if self.chain.is_float(number)
        )
        return [*itertools.chain.from_iterable(of_values), *self._of_weights(), *self._of_losses()]

    @cached_property
    def positions(self) -> list[int]:
        """Where the chain may be cut, its begin and end among them."""
        forbidden = {position for one in self.disorders for position in range(one.first, one.stop)}
        return [
            position for position in range(len(self.chain.nodes) + 1) if position not in forbidden
        ]

    def check(self, cuts: Iterable[int]) -> None:
        """Refuse cuts that change the order of a sum.

        Args:
            cuts: Positions.

        Raises:
            RecomputeError: With the layer to cut after instead.
        """
        nodes = self.chain.nodes
        for cut in cuts:
            for one in self.disorders:
                if one.first <= cut < one.stop:
                    instead = next(position for position in self.positions if position >= one.stop)
                    raise RecomputeError(
                        f"A cut must not lie between branches that {one.what}, or its gradient would be summed in another order",
                        f"one after {nodes[cut - 1].name!r}, where they have not joined",
                        "Do not cut after them"
                        if instead == len(nodes)
                        else f"Cut after {nodes[instead - 1].name!r}",
                    )

    def _of_value(self, number: int) -> list[Disorder]:
        nodes, readers = self.chain.nodes, self.chain.readers[number]
        if sum(_terms(nodes[reader], number) for reader in readers) < ORDERED:
            return []
        name = nodes[self._writer[number]].name if number in self._writer else "an input"
        pairs = itertools.combinations_with_replacement(readers, 2)
        return [
            Disorder(one + 1, self._join(one, other), f"read the value of {name!r}")
            for one, other in pairs
            if self._are_branches(one, other)
        ]

    def _of_weights(self) -> Iterator[Disorder]:
        """Where nodes in branches share a weight, or a regularizer adds its gradient to those of several nodes."""
        known = self.chain.summed()
        for key, (variable, users) in self.chain.users().items():
            regularized = getattr(variable, "regularizer", None) is not None
            if key in known or len(users) + regularized < ORDERED:
                continue
            joins = (self._join(one, other) for one, other in itertools.combinations(users, 2))
            stop = len(self.chain.nodes) if regularized else max(joins)
            yield Disorder(users[0] + 1, stop, f"use the weight {variable.path!r}")

    def _of_losses(self) -> Iterator[Disorder]:
        """Where a value has a loss of its own, whose gradient comes to it before those of its readers."""
        end = len(self.chain.nodes)
        for position in self.losing:
            node = self.chain.nodes[position]
            own, read = (
                _terms_of_loss(node),
                [each for number in node.writes for each in self._read(number)],
            )
            stop = end if own is None else max((reader + 1 for reader, _ in read), default=position)
            if own is None or own + sum(terms for _, terms in read) >= ORDERED:
                yield Disorder(
                    position + 1,
                    stop,
                    f"lead from {node.name!r} to a loss of its own and to others",
                )

    def _read(self, number: int) -> Iterator[tuple[int, int]]:
        """Who reads a value, inside of a nested model too, and how many gradients each sends back; the loss reads the outputs at the end."""
        for position in self.chain.readers.get(number, ()):
            node = self.chain.nodes[position]
            if isinstance(node.operation, keras.Operation):
                yield position, _terms(node, number)
            else:
                yield from itertools.chain.from_iterable(map(self._read, node.writes))
        if number in self.chain.outputs:
            yield len(self.chain.nodes) - 1, SEVERAL

    def _are_branches(self, one: int, other: int) -> bool:
        """Whether neither of two operations feeds the other; one with several results branches by itself."""
        return (
            len(self.chain.nodes[one].writes) > 1
            if one == other
            else not self.chain.are_in_turn([one, other])
        )

    def _join(self, one: int, other: int) -> int:
        """The first position after two operations where at most one value is alive that comes from either."""
        either = self.chain.fed[one] | self.chain.fed[other]
        for position in range(other + 1, len(self.chain.nodes)):
            writers = (
                self._writer[number]
                for number in self.chain.live(position)
                if number in self._writer
            )
            if sum(either >> writer & 1 for writer in writers) <= 1:
                return position
        return len(self.chain.nodes)


def _terms(node: Node, number: int) -> int:
    """How many gradients an operation sends back to a value that it reads."""
    arguments = keras.tree.flatten((node.arguments.args, node.arguments.kwargs))
    times = sum(node.symbols.get(id(argument)) == number for argument in arguments)
    return times * (
        1 if type(node.operation).__name__ in ONCE and _is_of_keras(node.operation) else SEVERAL
    )


def _terms_of_loss(node: Node) -> int | None:
    """How many gradients the loss of an operation sends back to its result; `None` where it may depend on anything else."""
    layer = node.operation
    if (
        not _is_of_keras(layer)
        or len(list(layer._flatten_layers())) > 1
        or getattr(layer, "activity_regularizer", None) is None
    ):
        return None
    one = layer.activity_regularizer
    lone = isinstance(one, (keras.regularizers.L1, keras.regularizers.L2)) or (
        isinstance(one, keras.regularizers.L1L2) and not (one.l1 and one.l2)
    )
    return 1 if lone else SEVERAL


def _is_of_keras(operation: object) -> bool:
    return type(operation).__module__.startswith("keras.")
