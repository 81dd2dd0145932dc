"""Nodes of an op graph: one call of one operation each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

from kbatch.runtime.keras_private import call_function


@dataclass(frozen=True, eq=False)
class Node:
    """One call of an operation.

    Values, that is tensors between operations, are known by numbers.

    Attributes:
        operation: The layer or operation.
        name: String, the operation's name after those of the nested models that hold it.
        arguments: The call's arguments with symbolic tensors, as Keras keeps them
            (`SymbolicArguments`, keras/src/ops/symbolic_arguments.py, Keras 3.15.1).
        symbols: Number of the value that stands for a symbolic tensor, by the tensor's `id`.
        writes: Tuple of integers, numbers of the values that the call returns.
        time_step: Name of the TimeDistributed layer that repeats the call, and the integer step of
            time. `None` outside of such layers.
    """

    operation: Any
    name: str
    arguments: Any
    symbols: Mapping[int, int]
    writes: tuple[int, ...]
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
        """Call the operation in training mode.

        Args:
            values: Tensors by their numbers. Those that the call returns are added.
        """
        tensors = {symbol: values[number] for symbol, number in self.symbols.items()}
        args, kwargs = self.arguments.fill_in(tensors)
        outputs = call_function(self.operation, training=True)(*args, **kwargs)
        values.update(zip(self.writes, keras.tree.flatten(outputs), strict=True))


@dataclass(frozen=True)
class ListArgument:
    """Arguments of a call that takes one list of tensors, in the form of Keras' own class.

    Attributes:
        keys: Tuple of objects, each of which stands for a tensor of the list.
        kwargs: Keyword arguments; always empty.
    """

    keys: tuple[object, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments, with keys in place of tensors."""
        return (list(self.keys),)

    def fill_in(self, tensors: Mapping[int, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments with tensors, given by the `id` of their keys."""
        return ([tensors[id(key)] for key in self.keys],), {}
