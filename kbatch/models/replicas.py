"""Replicas: models under a distribution strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from kbatch.errors import ModelError
from kbatch.models.losses import loss_counts
from kbatch.recipe import Recipe
from kbatch.runtime import device, keras_private
from kbatch.runtime.keras_private import replaced_method
from kbatch.space import Space

Apply = Callable[[Sequence[Any], Any], None]
# What an axis must be with several devices, and why.
ONLY = {
    "jit_compile": (False, "XLA does not compile a step that reaches over devices"),
    "training": ("plain", "its passes over a batch are made on one device"),
    "batch_schedule": ("constant", "the devices must get equal parts of every batch"),
}


def check(model: keras.Model, recipe: Recipe, loss: Any) -> None:
    """Refuse what several devices would train otherwise than one device."""
    if device.replicas() == 1:
        return
    for name in ONLY:
        _check_axis(name, (getattr(recipe, name),))
    device.check_sizes([recipe.examples_per_pass])
    outside = [each.path for each in model.variables if not _is_shared(each)]
    if outside:
        raise ModelError(
            "A model for several devices must be made anew by each call of `build`",
            f"{outside[0]}, which was made outside of the strategy's scope",
            "Make all layers inside `build`",
        )
    if loss_counts(model, loss):
        raise ModelError(
            "A loss on several devices must be a mean over the batch, "
            "not over a count of its own (a mask, ignore_class, mean_with_sample_weight)",
            f"{model.name} on {device.replicas()} devices",
            "Leave out distribution_strategy",
        )
    for part in keras.tree.flatten(loss):
        reduction = getattr(part, "reduction", "sum_over_batch_size")
        if reduction in ("sum", "none", None):
            raise ModelError(
                "A loss on several devices must be a mean over the batch",
                f"{getattr(part, 'name', type(part).__name__)} with reduction={reduction!r}",
                "Leave out reduction=, or distribution_strategy",
            )


def check_scope(model: Any) -> None:
    """Refuse a model of several devices whose strategy is entered by `build` alone."""
    own = getattr(model, "distribute_strategy", None)
    entered = tf.distribute.get_strategy()
    if own is None or own is entered or own.num_replicas_in_sync == 1:
        return
    raise ModelError(
        "`build` must make its model in the scope in which it is trained",
        f"a model of a {type(own).__name__} of {own.num_replicas_in_sync} devices, "
        "whose scope `build` enters itself",
        "Leave the scope out of `build`; enter it around kbatch.train, or give the strategy to the "
        "tuner: distribution_strategy=…",
    )


def check_space(space: Space) -> None:
    """Refuse a space with values that several devices cannot train by.

    What a space leaves to the machine is no such value.
    """
    if device.replicas() > 1:
        for name in ONLY:
            _check_axis(name, getattr(space, name) or ())


def check_metric(model: keras.Model, metric: str) -> None:
    """Refuse a metric that Keras averages over parts of batches, as if all were equally large."""
    losses = [f"val_{name}_loss" for name in keras_private.output_names(model)]
    if device.replicas() > 1 and len(losses) > 1 and metric in losses:
        raise ModelError(
            "On several devices `metric` must be a metric, or the loss of the whole model",
            f"{metric}, which Keras averages over unequal parts",
            "Score val_loss, or compile with a metric of this output",
        )


def _check_axis(name: str, values: Sequence[Any]) -> None:
    only, why = ONLY[name]
    others = [value for value in values if value != only]
    if others:
        raise ModelError(
            f"On several devices `{name}` must be {only!r}: {why}",
            ", ".join(map(repr, others)),
            f"Pass {name}={only!r}, or leave out distribution_strategy",
        )


def _is_shared(variable: keras.Variable) -> bool:
    """Whether all devices have a copy of a variable."""
    held = keras_private.tensorflow_variable(variable)
    return isinstance(held, tf.distribute.DistributedValues)


@contextmanager
def as_one_device(model: keras.Model) -> Iterator[None]:
    """Let the optimizer of a model see the gradient of the whole batch on every device.

    Keras lets each device clip, and check for overflow, the gradient of its own part, and adds them
    up afterwards; and it cannot accumulate on several devices. Inside the `with` block, gradients
    are added up first. Methods are wrapped on the instance: the model, its optimizer and the saved
    file stay the same. With one device nothing is done.
    """
    if device.replicas() == 1:
        yield
        return
    outer = model.optimizer
    inner = getattr(outer, "inner_optimizer", outer)
    own_apply = outer.apply

    def apply(grads: Sequence[Any], trainable_variables: Any = None) -> None:
        own_apply(_summed(grads), trainable_variables)

    inner_methods: dict[str, Any] = {keras_private.REDUCTION: lambda pairs: pairs}
    if inner.gradient_accumulation_steps:
        inner_methods[keras_private.APPLICATION] = _Accumulation(inner).apply
    model.train_function = None
    try:
        with ExitStack() as wrapped:
            wrapped.enter_context(replaced_method(outer, "apply", apply))
            for name, method in inner_methods.items():
                wrapped.enter_context(replaced_method(inner, name, method))
            yield
    finally:
        model.train_function = None


def _summed(grads: Sequence[Any]) -> list[Any]:
    """The gradients, added up over all devices; `None` where there is none."""
    present = [grad for grad in grads if grad is not None]
    context = tf.distribute.get_replica_context()
    summed = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, present))
    return [None if grad is None else next(summed) for grad in grads]


class _Accumulation:
    """The accumulation of gradients, decided once for all devices instead of in each."""

    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        self._optimizer, self._passes = optimizer, optimizer.gradient_accumulation_steps

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any]) -> None:
        """Add the gradients of a pass to the sums; after the last pass, update the weights."""
        dense = [tf.convert_to_tensor(grad) for grad in grads]  # slices of rows cannot be added
        tf.distribute.get_replica_context().merge_call(
            self._decided, args=(dense, list(trainable_variables))
        )

    def _decided(self, distribution: Any, grads: list[Any], variables: list[Any]) -> None:
        sums = self._sums(variables)
        before = tf.convert_to_tensor(keras_private.passes(self._optimizer))

        def update() -> tf.Tensor:
            distribution.extended.call_for_each_replica(self._update, args=(grads, variables))
            for each in sums:
                distribution.extended.update(each, _emptied, group=False)
            return tf.constant(True)

        def add() -> tf.Tensor:
            for grad, each in zip(grads, sums, strict=True):
                distribution.extended.update(each, _added, args=(grad,), group=False)
            return tf.constant(True)

        tf.cond(tf.equal((before + 1) % self._passes, 0), update, add)

    def _sums(self, variables: Sequence[Any]) -> list[Any]:
        """The sums of the gradients of these weights, as the `tf.Variable` behind each."""
        sums = (keras_private.accumulated_gradient_of(self._optimizer, each) for each in variables)
        return [each.value for each in sums]

    def _update(self, grads: list[Any], variables: list[Any]) -> None:
        """Update the weights by the mean of the passes, on one of the devices."""
        sums = self._sums(variables)
        pairs = zip(grads, sums, strict=True)
        means = [(grad + tf.convert_to_tensor(each)) / self._passes for grad, each in pairs]
        keras_private.update_weights(self._optimizer, means, variables)


def _added(variable: tf.Variable, grad: tf.Tensor) -> None:
    variable.assign_add(tf.cast(grad, variable.dtype))


def _emptied(variable: tf.Variable) -> None:
    variable.assign(tf.zeros_like(variable))
