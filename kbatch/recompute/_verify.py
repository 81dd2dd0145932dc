"""Verification: a model trained a few steps with a plan and without it, compared number by number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.recompute._apply import apply
from kbatch.recompute._plan import Plan
from kbatch.recompute._restored import batch_size_of, untouched

STEPS = 3
OFF = "disable_meta_optimizer"


@dataclass(frozen=True)
class Report:
    """How far training by a plan is from plain training; 0 everywhere if it is the same.

    Attributes:
        loss: Float, the largest difference of a loss over three steps.
        gradients: Float, the largest difference in a gradient of the first step.
        weights: Float, the largest difference in a trainable weight or an optimizer slot after
            three steps.
        state: Float, the largest difference in anything else that training changes, such as
            BatchNormalization's statistics and seeds.
    """

    loss: float
    gradients: float
    weights: float
    state: float

    @property
    def exact(self) -> bool:
        """Whether every number is the same."""
        return self.loss == self.gradients == self.weights == self.state == 0

    def __str__(self) -> str:
        if self.exact:
            return f"Exact: loss, gradients, and weights and state after {STEPS} steps are those of the plain model."
        parts = ", ".join(
            f"{name} {getattr(self, name):.2g}"
            for name in ("loss", "gradients", "weights", "state")
        )
        return f"Not exact; largest differences: {parts}."


@dataclass(frozen=True)
class _Trained:
    losses: list[Any]
    gradients: list[Any]
    weights: list[np.ndarray]
    state: list[np.ndarray]


def verify(
    model: keras.Model, plan: Plan, x: Any, y: Any = None, sample_weight: Any = None
) -> Report:
    """Compare training by a plan with plain training: losses, gradients, weights and state.

    Use it where `apply` accepts a model but you want to see it for yourself. The model is left as
    it was, with its weights, optimizer slots and the plan it had. TensorFlow's graph optimizer is
    off meanwhile: it regroups sums and products and fuses operations by who else reads a tensor, so
    that with it the last digits of a deep model differ, as they do under `jit_compile`; and where
    that saves memory it adds up gradients in the order in which they come, so that a few models
    (InceptionResNetV2, for one) do not train the same twice without a plan either.

    Args:
        model: `keras.Model`, built and compiled.
        plan: `Plan` to compare with.
        x: Inputs of one batch.
        y: Labels of that batch. Optional.
        sample_weight: Weights of its examples. Optional.

    Returns:
        The `Report`; its `str()` is a sentence.

    Raises:
        RecomputeError: If the batch is empty, the model is not compiled, or the plan cannot be
            applied to it.

    Example:
    ```python
    print(recompute.verify(model, recompute.plan(model, batch_size=16), x[:16], y[:16]))
    ```
    """
    batch_size_of(x)
    with untouched(model) as restore, as_written():
        model.train_function = None
        plain = _train(model, x, y, sample_weight, restore)
        apply(model, plan)
        model.train_function = None
        planned = _train(model, x, y, sample_weight, restore)
    return Report(
        *(
            _difference(getattr(plain, name), getattr(planned, name))
            for name in ("losses", "gradients", "weights", "state")
        )
    )


@contextmanager
def as_written() -> Iterator[None]:
    """Without TensorFlow's graph optimizer, whose rewriting depends on who else reads a tensor.

    What recompute leaves out of the forward pass, nobody reads there; so other sums are regrouped
    and other operations fused, and they round otherwise.
    """
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({OFF: True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({OFF: before.get(OFF, False)})


def _train(
    model: keras.Model, x: Any, y: Any, sample_weight: Any, restore: Callable[[], None]
) -> _Trained:
    def gradients(x: Any, y: Any, sample_weight: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(
                x=x, y=y, y_pred=model(x, training=True), sample_weight=sample_weight, training=True
            )
        return [
            tf.convert_to_tensor(each)
            for each in tape.gradient(loss, [v.value for v in model.trainable_variables])
            if each is not None
        ]

    tensors = keras.tree.map_structure(
        lambda part: None if part is None else tf.convert_to_tensor(part), (x, y, sample_weight)
    )
    run = (
        gradients
        if model.run_eagerly
        else tf.function(gradients, jit_compile=bool(model.jit_compile))
    )
    first = [np.array(each) for each in run(*tensors)]
    restore()
    losses = [
        model.train_on_batch(x, y, sample_weight, return_dict=True)["loss"] for _ in range(STEPS)
    ]
    trainable = {id(variable) for variable in model.trainable_variables}
    others = [variable for variable in model.variables if id(variable) not in trainable]
    found = _Trained(
        losses,
        first,
        [np.array(v) for v in (*model.trainable_variables, *model.optimizer.variables)],
        [np.array(v) for v in others],
    )
    restore()
    return found


def _difference(one: Sequence[Any], other: Sequence[Any]) -> float:
    """The largest difference; two NaN are the same, one NaN is infinitely far."""
    if len(one) != len(other):
        return float("inf")
    most = 0.0
    for a, b in zip(one, other, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        if a.dtype.name in ("bfloat16", "float16"):
            a, b = a.astype("float32"), b.astype("float32")
        if not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
            difference = np.abs(a.astype("float64") - b.astype("float64"))
            most = max(
                most, float("inf") if np.isnan(difference).any() else float(difference.max())
            )
    return most
