"""LARS: SGD with momentum whose rate follows, layer by layer, the ratio of weight to gradient."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

TRUST = 0.001  # the coefficient of You et al. 2017


@keras.saving.register_keras_serializable(package="kbatch")
class LARS(keras.optimizers.Optimizer):
    """Layer-wise adaptive rate scaling (You et al. 2017).

    Use it for large batches of SGD. The rate of each kernel is multiplied by
    `trust * |w| / (|g| + l2 * |w|)`, so that no layer moves by more than a share of its own norm.
    Vectors, which are biases and the weights of normalization, take the plain rate and no `l2`, as
    is usual. Keras has no LARS of its own (3.15.1).

    Args:
        learning_rate: Float or schedule. Defaults to `1.0`.
        momentum: Float from 0 to below 1. Defaults to `0.9`.
        trust: Float above 0, the trust coefficient. Defaults to `0.001`.
        l2: Float, weight decay inside of the ratio, as in the paper. Defaults to `0.0`.
        name: String, name of the optimizer. Defaults to `"lars"`.
        **settings: The other arguments of `keras.optimizers.Optimizer`, such as `global_clipnorm`.

    Example:
    >>> optimizer = LARS(2.0, l2=1e-4)
    """

    def __init__(
        self,
        learning_rate: Any = 1.0,
        momentum: float = 0.9,
        trust: float = TRUST,
        l2: float = 0.0,
        name: str = "lars",
        **settings: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, name=name, **settings)
        self.momentum, self.trust, self.l2 = momentum, trust, l2
        self._velocities: list[Any] = []

    def build(self, variables: list[Any]) -> None:
        """Make a velocity for each variable."""
        if not self.built:
            super().build(variables)
            self._velocities = self.add_optimizer_variables(variables, "velocity")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Move one variable."""
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        if len(variable.shape) > 1:
            rate, gradient = self._of_layer(rate, gradient, variable)
        velocity = self._velocities[self._get_variable_index(variable)]
        momentum = ops.cast(self.momentum, variable.dtype)
        self.assign(velocity, ops.subtract(velocity * momentum, rate * gradient))
        self.assign_add(variable, velocity)

    def _of_layer(self, rate: Any, gradient: Any, variable: Any) -> tuple[Any, Any]:
        """The rate and the gradient of one kernel."""
        weight = ops.convert_to_tensor(variable)
        # in float32: squares of float16 overflow
        of_weight, of_gradient = _norm(weight), _norm(gradient)
        below = of_gradient + self.l2 * of_weight
        known = ops.logical_and(of_weight > 0, of_gradient > 0)
        ratio = ops.where(known, self.trust * of_weight / ops.where(known, below, 1.0), 1.0)
        decay = ops.cast(self.l2, variable.dtype)
        return rate * ops.cast(ratio, variable.dtype), gradient + decay * weight

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the optimizer."""
        own = {"momentum": self.momentum, "trust": self.trust, "l2": self.l2}
        return {**super().get_config(), **own}


def _norm(tensor: Any) -> Any:
    dtype = "float64" if keras.backend.standardize_dtype(tensor.dtype) == "float64" else "float32"
    return ops.sqrt(ops.sum(ops.square(ops.cast(tensor, dtype))))
