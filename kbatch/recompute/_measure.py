"""Measurement of plans on this device: a few steps of each, and the best of them."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras

from kbatch.errors import RecomputeError, in_one_frame
from kbatch.recompute._apply import apply
from kbatch.recompute._plan import Plan, spans_of
from kbatch.recompute._planner import front, plan
from kbatch.recompute._restored import batch_size_of, restored
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
    fuses and orders operations its own way. At most three plans are measured, a few steps each.
    Without a budget these are `"minimal"`, `"sqrt"` and `"stages"`. With a budget they are the
    fastest plan that should meet it, a more careful one, and the faster of `"sqrt"` and
    `"stages"`. Plans that run out of memory are left out. The model is restored afterwards.

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
    for candidate in candidates(model, batch_size, peak_bytes):
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


def candidates(model: keras.Model, batch_size: int, peak_bytes: float | None) -> list[Plan]:
    """The plans that are worth measuring, the most promising first.

    Args:
        model: `keras.Model`, built.
        batch_size: Integer, examples per step.
        peak_bytes: Float, the budget, or `None` for the lowest peak.
    """
    simple = [plan(model, batch_size, "sqrt"), plan(model, batch_size, "stages")]
    if peak_bytes is None:
        return _distinct([plan(model, batch_size, "minimal"), *simple])
    plans = front(model, batch_size)
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
