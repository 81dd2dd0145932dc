"""Measure: a plan trained beside none, for bytes, seconds and equal gradients."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.errors import RecomputeError, in_one_frame
from kbatch.recompute._apply import apply, batch_size_of, restored
from kbatch.recompute._plan import Plan, spans_of
from kbatch.recompute._planner import front, plan
from kbatch.runtime import device_memory, tensorflow_private
from kbatch.runtime.oom import is_out_of_memory

# Steps of a plan. The first ones trace, compile and choose algorithms. Chosen by hand.
WARM_STEPS, MEASURED_STEPS = 2, 3

# Share of the budget for the second candidate, in case the first needs more than predicted. Chosen
# by hand.
CAREFUL = 0.9


@in_one_frame
def best_plan(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    peak_bytes: float | None = None,
    on_measured: Callable[[Plan], None] | None = None,
) -> Plan:
    """Measure the most promising plans on this device, and return the best.

    Use it where a prediction is not enough: close to the limit, or under `jit_compile`, where XLA
    fuses and orders operations its own way. At most four plans are measured, a few steps each.
    Without a budget these are `"minimal"`, `"sqrt"`, `"stages"` and `"blocks"`. With a budget they
    are the fastest plan that should meet it, a more careful one, and the fastest of the last three
    that should. Plans that run out of memory are left out. The model is restored afterwards.

    Args:
        model: `keras.Model`, built and compiled, with the `jit_compile` to measure with.
        x: Inputs of one batch: an array or tensor, or a list or dict of them.
        y: Labels of that batch. Optional.
        sample_weight: Weights of its examples. Optional.
        peak_bytes: Float, largest peak of a step in bytes, not counting what is held before it
            (weights, optimizer, data). Without it, the plan of the lowest peak is the best.
            Optional.
        on_measured: Function that is called with each plan as soon as it is measured. Optional.

    Returns:
        The `Plan`, with `measured_peak_bytes` and `measured_seconds`.

    Raises:
        RecomputeError: If the batch is empty, the model is not compiled or cannot be cut, or this
            device cannot tell its bytes. Also if no measured plan meets the budget.

    Example:
    >>> recompute.apply(model, recompute.best_plan(model, x[:16], y[:16]))  # doctest: +SKIP
    """
    batch_size = batch_size_of(x)
    device_memory.tell_of_unused_card()
    if device_memory.bytes_now() is None:
        raise RecomputeError(
            "Plans must be measured on a device that can tell its bytes",
            device_memory.device_words(),
            "Set TF_CPU_ALLOCATOR_USE_BFC=true",
        )
    measured: list[Plan] = []
    for candidate in candidates(model, batch_size, peak_bytes, x):
        try:
            measured.append(measure(model, candidate, x, y, sample_weight))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            continue
        if on_measured:
            on_measured(measured[-1])
    if not measured:
        raise RecomputeError(
            "Some plan must fit into memory", f"none at batch {batch_size}", "Take a smaller batch"
        )
    return _best(measured, peak_bytes)


def _best(measured: Sequence[Plan], peak_bytes: float | None) -> Plan:
    """The fastest measured plan within a budget, or without one the plan of the lowest peak."""
    least = min(measured, key=lambda each: each.measured_peak_bytes or 0)
    if peak_bytes is None:
        return least
    fitting = [each for each in measured if (each.measured_peak_bytes or 0) <= peak_bytes]
    if not fitting:
        raise RecomputeError(
            f"Some plan must need at most {peak_bytes / 1e6:,.0f} MB at batch {least.batch_size}",
            f"{(least.measured_peak_bytes or 0) / 1e6:,.0f} MB at least, as measured",
            "Raise `peak_bytes`, or take a smaller batch",
        )
    return min(fitting, key=lambda each: each.measured_seconds or 0.0)


@in_one_frame
def measure(
    model: keras.Model, plan: Plan, x: Any, y: Any = None, sample_weight: Any = None
) -> Plan:
    """Measure the peak and the seconds of a plan on this device.

    Use it to compare plans of your own. It takes a few steps on one batch, and the model is
    restored afterwards.

    Args:
        model: `keras.Model`, built and compiled.
        plan: `Plan` to train by.
        x: Inputs of one batch: an array or tensor, or a list or dict of them.
        y: Labels of that batch. Optional.
        sample_weight: Weights of its examples. Optional.

    Returns:
        The plan with `measured_peak_bytes`, not counting what was held before the step, and
        `measured_seconds` of the median step.

    Raises:
        RecomputeError: If the batch is empty, the model is not compiled, or the plan cannot be
            applied to it.

    Example:
    >>> import numpy as np
    >>> from kbatch import recompute
    >>> model = keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(8) for _ in range(9))])
    >>> model.compile(loss="mse")
    >>> x, y = np.ones((16, 8)), np.ones((16, 8))
    >>> measured = recompute.measure(model, recompute.plan(model, 16, "sqrt"), x, y)
    >>> measured.measured_seconds > 0
    True
    """
    if not isinstance(plan, Plan):
        raise RecomputeError(
            "`plan` must be a Plan", type(plan).__name__, "Pass measure(model, plan, x, y)"
        )
    batch_size_of(x)
    registered = tensorflow_private.registered_gradients()
    try:
        with restored(model):
            apply(model, plan)
            model.train_function = None

            def step() -> float:
                began = time.perf_counter()
                model.train_on_batch(x, y, sample_weight)
                device_memory.wait()
                return time.perf_counter() - began

            for _ in range(WARM_STEPS):
                step()
            held = device_memory.bytes_now()
            device_memory.reset_peak()
            seconds = statistics.median(step() for _ in range(MEASURED_STEPS))
            peak = device_memory.bytes_peak()
    finally:
        tensorflow_private.purge_gradients(registered)
    return dataclasses.replace(
        plan,
        measured_peak_bytes=None if peak is None or held is None else peak - held,
        measured_seconds=seconds,
    )


def candidates(
    model: keras.Model, batch_size: int, peak_bytes: float | None, x: Any = None
) -> list[Plan]:
    """The plans that are worth measuring, the most promising first."""
    simple = [plan(model, batch_size, kind, x=x) for kind in ("sqrt", "stages", "blocks")]
    if peak_bytes is None:
        return _distinct([plan(model, batch_size, "minimal", x=x), *simple])
    plans = front(model, batch_size, x)
    simple.sort(key=lambda each: each.extra_seconds_ratio)
    fastest = _first_within(plans, peak_bytes)
    options = [
        fastest,
        _first_within(plans, CAREFUL * peak_bytes),
        _first_within(simple, peak_bytes),
    ]
    chosen = [each for each in options if each is not None]
    if fastest is None:
        chosen.append(plans[-1])  # the lowest peak, which may need less than predicted
    return _distinct(chosen)


def _first_within(plans: Sequence[Plan], peak_bytes: float) -> Plan | None:
    """The first plan whose predicted peak is within a budget."""
    for each in plans:
        if each.peak_bytes <= peak_bytes:
            return each
    return None


def _distinct(plans: Sequence[Plan]) -> list[Plan]:
    """The plans without those that have the same segments as an earlier one."""
    distinct: dict[tuple[Any, ...], Plan] = {}
    for each in plans:
        distinct.setdefault(tuple(spans_of(each)), each)
    return list(distinct.values())


STEPS = 3

# TensorFlow's option that switches its graph optimizer off.
OFF = "disable_meta_optimizer"


@dataclass(frozen=True)
class Verification:
    """Differences between training by a plan and plain training; all 0 if they are the same.

    `verify` returns it, and `str()` makes a sentence of it.

    Attributes:
        loss: Float, largest difference of a loss over three steps.
        gradients: Float, largest difference in a gradient of the first step.
        weights: Float, largest difference in a trainable weight or an optimizer slot after three
            steps.
        state: Float, largest difference in anything else that training changes, such as the
            statistics of BatchNormalization and seeds.
        plain: `Verification` of plain training compared with itself, where a plan made a
            difference; else `None`. On a GPU some of cuDNN's kernels add in another order each
            time.

    Example:
    >>> print(Verification(loss=0.0, gradients=0.0, weights=0.25, state=0.0))
    Not exact; largest differences: loss 0, gradients 0, weights 0.25, state 0.
    """

    loss: float
    gradients: float
    weights: float
    state: float
    plain: Verification | None = None

    @property
    def exact(self) -> bool:
        """Whether every number is the same."""
        return self.loss == self.gradients == self.weights == self.state == 0

    def __str__(self) -> str:
        if self.exact:
            return (
                f"Exact: loss, gradients, and weights and state after {STEPS} steps are those of "
                "the plain model."
            )
        text = f"Not exact; largest differences: {_differences(self)}."
        if self.plain is None or self.plain.exact:
            return text
        return f"{text} Plain training, repeated, differs too: {_differences(self.plain)}."


def _differences(found: Verification) -> str:
    names = ("loss", "gradients", "weights", "state")
    return ", ".join(f"{name} {getattr(found, name):.2g}" for name in names)


@dataclass(frozen=True)
class _Training:
    """What some steps of training gave.

    Attributes:
        losses: Loss of each step.
        gradients: Gradients of the first step.
        weights: Trainable weights and optimizer slots after the last step.
        state: All other variables after the last step.
    """

    losses: list[Any]
    gradients: list[Any]
    weights: list[np.ndarray]
    state: list[np.ndarray]


@in_one_frame
def verify(
    model: keras.Model, plan: Plan, x: Any, y: Any = None, sample_weight: Any = None
) -> Verification:
    """Compare training by a plan with plain training: losses, gradients, weights and state.

    Use it to see for yourself that a plan changes nothing. Three steps are trained with the plan
    and three without it; afterwards the model is restored, with its weights, optimizer slots and
    plan.

    TensorFlow's graph optimizer is off meanwhile. It regroups sums and products and fuses
    operations by who else reads a tensor. With it the last digits of a deep model differ, as they
    do under `jit_compile`. Where that saves memory, it also sums gradients in the order in which
    they come: a few models, such as InceptionResNetV2, then do not train the same twice even
    without a plan. Nor do kernels of cuDNN on a GPU: where a plan makes a difference, plain
    training is repeated, and the report says by how much that differs.

    Args:
        model: `keras.Model`, built and compiled.
        plan: `Plan` to compare with.
        x: Inputs of one batch: an array or tensor, or a list or dict of them.
        y: Labels of that batch. Optional.
        sample_weight: Weights of its examples. Optional.

    Returns:
        The `Verification`. `print(report)` says in a sentence whether training is exact.

    Raises:
        RecomputeError: If the batch is empty, the model is not compiled, or the plan cannot be
            applied to it.

    Example:
    >>> from kbatch import recompute
    >>> model = keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(8) for _ in range(9))])
    >>> model.compile(loss="mse")
    >>> x, y = np.ones((16, 8)), np.ones((16, 8))
    >>> recompute.verify(model, recompute.plan(model, batch_size=16), x, y).exact
    True
    """
    batch_size_of(x)
    with restored(model) as restore, without_graph_optimizer():
        model.train_function = None
        plain = _train(model, x, y, sample_weight, restore)
        apply(model, plan)
        model.train_function = None
        planned = _train(model, x, y, sample_weight, restore)
    report = _compared(plain, planned)
    if report.exact:
        return report
    with restored(model) as restore, without_graph_optimizer():
        model.train_function = None
        again = _train(model, x, y, sample_weight, restore)
    return dataclasses.replace(report, plain=_compared(plain, again))


def _compared(one: _Training, other: _Training) -> Verification:
    return Verification(
        loss=_difference(one.losses, other.losses),
        gradients=_difference(one.gradients, other.gradients),
        weights=_difference(one.weights, other.weights),
        state=_difference(one.state, other.state),
    )


@contextmanager
def without_graph_optimizer() -> Iterator[None]:
    """Switch TensorFlow's graph optimizer off inside a `with` block.

    It regroups sums and fuses operations by who else reads a tensor. With a plan fewer operations
    read the tensors of the forward pass, so it would round differently.
    """
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({OFF: True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({OFF: before.get(OFF, False)})


def _train(
    model: keras.Model, x: Any, y: Any, sample_weight: Any, restore: Callable[[], None]
) -> _Training:
    """Compute gradients, train `STEPS` steps on one batch, and restore the model."""
    gradients = _gradients(model, x, y, sample_weight)
    restore()
    losses = [
        model.train_on_batch(x, y, sample_weight, return_dict=True)["loss"] for _ in range(STEPS)
    ]
    trainable = {id(variable) for variable in model.trainable_variables}
    weights = [*model.trainable_variables, *model.optimizer.variables]
    others = [variable for variable in model.variables if id(variable) not in trainable]
    training = _Training(
        losses,
        gradients,
        [np.array(variable) for variable in weights],
        [np.array(variable) for variable in others],
    )
    restore()
    return training


def _gradients(model: keras.Model, x: Any, y: Any, sample_weight: Any) -> list[np.ndarray]:
    """The gradients of one step, computed as the model is compiled to."""

    def gradients(x: Any, y: Any, sample_weight: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(
                x=x, y=y, y_pred=model(x, training=True), sample_weight=sample_weight, training=True
            )
        all_of = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        return [tf.convert_to_tensor(gradient) for gradient in all_of if gradient is not None]

    run = gradients
    if not model.run_eagerly:
        run = tf.function(gradients, jit_compile=bool(model.jit_compile))
    tensors = keras.tree.map_structure(
        lambda part: None if part is None else tf.convert_to_tensor(part), (x, y, sample_weight)
    )
    return [np.array(gradient) for gradient in run(*tensors)]


def _difference(one: Sequence[Any], other: Sequence[Any]) -> float:
    """The largest difference between two lists of arrays.

    Two NaN are equal; one NaN is infinitely far from a number.
    """
    if len(one) != len(other):
        return float("inf")
    return max((_distance(a, b) for a, b in zip(one, other, strict=True)), default=0.0)


def _distance(one: Any, other: Any) -> float:
    """The largest difference between two arrays."""
    a, b = np.asarray(one), np.asarray(other)
    if a.dtype.name in ("bfloat16", "float16"):
        a, b = a.astype("float32"), b.astype("float32")
    if np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
        return 0.0
    difference = np.abs(a.astype("float64") - b.astype("float64"))
    return float("inf") if np.isnan(difference).any() else float(difference.max())
