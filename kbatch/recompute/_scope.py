"""Scopes for tracing a model's operations: training under its policy, and variables as values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from kbatch.runtime.keras_private import tensorflow_variable


class Context(keras.layers.Layer):
    """A layer that calls a function, so that Keras applies training mode and a dtype policy to it.

    The private attributes that it sets keep Keras from converting the function, which is no tensor
    (`Layer.__init__`, keras/src/layers/layer.py, Keras 3.15.1).

    Args:
        policy: Dtype policy of the model.

    Attributes:
        segment: String, the segment that was begun last, for error messages.
    """

    def __init__(self, policy: Any) -> None:
        super().__init__(dtype=policy)
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.supports_masking = False
        self.built = True
        self.segment = ""

    def call(self, function: Callable[[], Any], training: bool | None = None) -> Any:
        """Call the function and return its result."""
        return function()


class Scope(keras.StatelessScope):
    """A stateless scope in which every variable keeps the value it had when it was first read.

    Args:
        entry: Values of variables by their `id`. The scopes of a segment's forward pass and of its
            recomputation share it, so that both begin with the same state. Variables that are
            missing are added when they are first read.

    Attributes:
        updated: Variables that were assigned inside of the scope, by their `id`.
    """

    def __init__(self, entry: dict[int, tf.Tensor]) -> None:
        super().__init__(collect_losses=True, initialize_variables=False)
        self.entry = entry
        self.updated: dict[int, Any] = {}

    def give(self, weights: Iterable[tuple[Any, tf.Tensor]]) -> None:
        """Set the values of variables.

        They are not passed to `keras.StatelessScope(state_mapping=...)`, which would cast each
        weight once by the policy, so that gradients would be summed in float16.
        """
        self.state_mapping.update((id(variable), value) for variable, value in weights)

    def get_current_value(self, variable: Any) -> tf.Tensor:
        """The value of a variable inside of the scope."""
        value = super().get_current_value(variable)
        if value is None:
            key = id(variable)
            if key not in self.entry:
                self.entry[key] = read(variable, self.original_scope)
            value = self.entry[key]
        return value

    def add_update(self, update: tuple[Any, tf.Tensor]) -> None:
        """Note the new value of a variable."""
        self.updated[id(update[0])] = update[0]
        super().add_update(update)


def read(variable: Any, outer: keras.StatelessScope | None) -> tf.Tensor:
    """The value of a variable outside of our own scopes, in the variable's own type.

    Args:
        variable: Keras variable.
        outer: The scope that the user's own code runs in, or `None`.
    """
    value = outer.get_current_value(variable) if outer is not None else None
    return tf.convert_to_tensor(tensorflow_variable(variable) if value is None else value)
