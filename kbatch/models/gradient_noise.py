"""Gradient noise: measured in the train step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from kbatch.recipe import Recipe
from kbatch.rules.noise_scale import DECAY, NoiseEstimate, Smoothed
from kbatch.runtime import keras_private
from kbatch.runtime.keras_private import replaced_method

PassCount = Callable[[], Any]
# Of so many updates one is measured, since reading all gradients once more takes up to a tenth of
# the time of a dense network's pass (scripts/bench_noise_scale.py).
INTERVAL = 8


@contextmanager
def measured(
    model: keras.Model,
    recipe: Recipe,
    pass_count: PassCount | None = None,
    interval: int = INTERVAL,
) -> Iterator[NoiseMeter | None]:
    """Measure the gradient noise scale of a model that accumulates, inside the `with` block.

    The gradients of single passes are noisier than their mean, and by how much tells the noise. The
    training itself stays the same. Sums stay on the device: nothing waits for them before they are
    read. Methods are wrapped on the instance, as in `kbatch.models.accumulation`.
    """
    if not _can_be_measured(model, recipe):
        yield None
        return
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    meter = NoiseMeter(optimizer, recipe, pass_count, interval)
    model.train_function = None
    try:
        with ExitStack() as wrapped:
            wrapped.enter_context(
                replaced_method(optimizer, "apply", meter.following(optimizer.apply))
            )
            if recipe.growth.factor > 1:
                sizing = meter.sizing(model.compute_loss)
                wrapped.enter_context(replaced_method(model, "compute_loss", sizing))
            yield meter
    finally:
        model.train_function = None


def _can_be_measured(model: keras.Model, recipe: Recipe) -> bool:
    own_step = type(model).train_step is not keras.Model.train_step
    return (
        recipe.steps_per_update > 1
        and model.distribute_strategy.num_replicas_in_sync == 1
        and not (own_step and recipe.growth.factor > 1)
    )


class NoiseMeter:
    """The noise of the gradients of a training, on the device until it is read."""

    def __init__(
        self, optimizer: Any, recipe: Recipe, pass_count: PassCount | None, interval: int
    ) -> None:
        self._optimizer, self._pass_count, self._interval = optimizer, pass_count, interval
        self._passes = recipe.accumulation_steps
        self._examples: Any = float(recipe.examples_per_pass)
        # Few variables, since each assignment takes time. Of the passes since the last update: the
        # sum of their squared norms times counts, the sum of counts, of examples, and of passes.
        self._sums = tf.Variable([0.0] * 4, trainable=False)
        # weight, |G|^2 and trace of `Smoothed`; the updates so far; the last |G|^2 and trace
        self._found = tf.Variable([0.0] * 6, trainable=False)

    def noise_scale(self) -> float | None:
        """Return the smoothed noise scale so far, in examples; `None` if it is not known.

        It waits for the device, so do not call it in every update of a fast training.
        """
        weight, squared_norm, trace = map(float, self._found.numpy()[:3])
        return Smoothed(DECAY, weight, squared_norm, trace).critical_batch

    def last(self) -> tuple[int, NoiseEstimate]:
        """Return the number of measured updates and the estimate of the last one."""
        updates, squared_norm, trace = map(float, self._found.numpy()[3:])
        return int(updates), NoiseEstimate(squared_norm, trace)

    def sizing(self, compute_loss: Callable[..., Any]) -> Callable[..., Any]:
        """Return the `compute_loss` of a model that also notes the examples of the pass."""

        def noted(x: Any = None, *others: Any, **by_name: Any) -> Any:
            self._examples = tf.cast(tf.shape(keras.tree.flatten(x)[0])[0], "float32")
            return compute_loss(x, *others, **by_name)

        return noted

    def following(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        """Return the `apply` of an optimizer that also measures the gradients it is given."""

        def measured_apply(grads: Sequence[Any], trainable_variables: Any = None) -> None:
            if trainable_variables is None:  # the user's own step, which does not say of what
                apply(grads)
                return
            variables = list(trainable_variables)
            if not self._optimizer.built:  # the sums of gradients are needed before
                self._optimizer.build(variables)
            passes_before = tf.convert_to_tensor(keras_private.passes(self._optimizer))
            number = passes_before // self._passes
            tf.cond(
                tf.equal(number % self._interval, 0),
                lambda: self._measure(self._pairs(grads, variables), passes_before),
                lambda: None,
            )
            apply(grads, variables)

        return measured_apply

    def _pairs(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[tuple[Any, Any]]:
        """The gradients of a pass in the type of their sum, each with the variable of the sum."""
        known = [
            (grad, keras_private.accumulated_gradient_of(self._optimizer, variable))
            for grad, variable in zip(grads, variables, strict=True)
            if grad is not None and not getattr(variable, "overwrite_with_gradient", False)
        ]
        return [(tf.cast(tf.convert_to_tensor(grad), held.dtype), held) for grad, held in known]

    def _measure(self, pairs: Sequence[tuple[Any, Any]], passes_before: Any) -> None:
        """Add one pass to the sums, and after the last one take the estimate of the update."""
        count = None if self._pass_count is None else tf.cast(self._pass_count(), "float32")
        squared_norm = _squared_norm([grad for grad, _ in pairs])
        part = [squared_norm, 1.0] if count is None else [count * squared_norm, count]
        self._sums.assign_add(tf.stack([*part, self._examples, 1.0]))
        last = tf.equal((passes_before + 1) % self._passes, 0)
        tf.cond(last, lambda: self._conclude(pairs, count), lambda: None)

    def _conclude(self, pairs: Sequence[tuple[Any, Any]], count: Any) -> None:
        """Take the estimate of an update, unless a pass of it is missing or not finite."""
        weighted_norms, counts, examples, passes = tf.unstack(self._sums.read_value())
        norms: list[Any] = []
        for grad, sum_before in pairs:
            # one after another, so that the sums are never all in memory a second time
            with tf.control_dependencies(norms[-1:]):
                weighed = grad if count is None else grad * tf.cast(count, grad.dtype)
                norms.append(_squared_norm([tf.convert_to_tensor(sum_before) + weighed]))
        pass_norm, batch_norm = weighted_norms / counts, tf.add_n(norms) / counts**2
        k = float(self._passes)
        squared_norm = (k * batch_norm - pass_norm) / (k - 1)
        trace = (pass_norm - batch_norm) * examples / (k - 1)
        sound = tf.math.is_finite(squared_norm) & tf.math.is_finite(trace) & tf.equal(passes, k)
        before = self._found.read_value()
        new = tf.stack([1.0, squared_norm, trace])
        after = tf.concat(
            [DECAY * before[:3] + (1 - DECAY) * new, [before[3] + 1.0], new[1:]], axis=0
        )
        self._found.assign(tf.where(sound, after, before))
        self._sums.assign(tf.zeros_like(self._sums))


def _squared_norm(tensors: Sequence[Any]) -> Any:
    """The squared norm of all tensors together."""
    halves = [tf.nn.l2_loss(tf.cast(tensor, "float32")) for tensor in tensors]
    return 2.0 * tf.add_n(halves)
