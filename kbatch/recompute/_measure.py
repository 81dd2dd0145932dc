"""Measurement of plans: a few steps of each on this device, and the smallest or the fastest that fits."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras

from kbatch.device import meter
from kbatch.errors import RecomputeError
from kbatch.recompute._apply import apply
from kbatch.recompute._plan import Plan
from kbatch.recompute._planner import front, plan
from kbatch.recompute._restored import batch_size_of, untouched
from kbatch.runtime import gradient_registry
from kbatch.runtime.oom import is_out_of_memory

WARM_STEPS, MEASURED_STEPS = 2, 3  # the first ones trace, compile and choose algorithms
CAREFUL = 0.9  # of the budget: the second candidate, if the prediction of the first was too low


def best_plan(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    peak_bytes: float | None = None,
    on_measured: Callable[[Plan], None] | None = None,
) -> Plan:
    """The best of the most promising plans, by a few steps of each on this device.

    Use it where a prediction is not enough: under `jit_compile`, where XLA fuses and orders
    operations its own way, or close to the limit. Measured are at most three: without a budget
    `"minimal"`, `"sqrt"` and `"stages"`; with one the fastest plan that should meet it, a more
    careful one, and the faster of `"sqrt"` and `"stages"`. A plan that runs out of memory is left
    out. The model is left as it was.

    Args:
        model: `keras.Model`, built and compiled, with the `jit_compile` to measure with.
        x: Inputs of one batch.
        y: Labels of that batch. Optional.
        sample_weight: Weights of its examples. Optional.
        peak_bytes: Float, the most bytes of a step beside what is held before it (weights,
            optimizer, data). Without it the lowest peak is looked for. Optional.
        on_measured: Function called with each plan as soon as it is measured. Optional.

    Returns:
        The `Plan`, with `measured_peak_bytes` and `measured_seconds`.

    Raises:
        RecomputeError: If the batch is empty, the model cannot be cut or is not compiled, no
            measured plan meets the budget, or this device cannot tell its bytes.

    Example:
    ```python
    recompute.apply(model, recompute.best_plan(model, x[:16], y[:16]))
    ```
    """
    batch_size = batch_size_of(x)
    if meter.bytes_now() is None:
        raise RecomputeError(
            "Plans must be measured on a device that can tell its bytes",
            meter.device_words(),
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
    if peak_bytes is None:
        return min(measured, key=lambda one: one.measured_peak_bytes or 0)
    fitting = [one for one in measured if (one.measured_peak_bytes or 0) <= peak_bytes]
    if not fitting:
        least = min(one.measured_peak_bytes or 0 for one in measured)
        raise RecomputeError(
            f"Some plan must need at most {peak_bytes / 1e6:,.0f} MB at batch {batch_size}",
            f"{least / 1e6:,.0f} MB at least, as measured",
            "Raise `peak_bytes`, or take a smaller batch",
        )
    return min(fitting, key=lambda one: one.measured_seconds or 0.0)


def measure(
    model: keras.Model, plan: Plan, x: Any, y: Any = None, sample_weight: Any = None
) -> Plan:
    """A plan with what it needs and takes on this device, from a few steps on one batch; the model is left as it was.

    Args:
        model: `keras.Model`, built and compiled.
        plan: `Plan` to train by.
        x: Inputs of one batch.
        y: Labels of that batch. Optional.
        sample_weight: Weights of its examples. Optional.

    Returns:
        The plan with `measured_peak_bytes`, beside what was held before the step, and
        `measured_seconds`, the median step.

    Raises:
        RecomputeError: If the batch is empty, the model is not compiled, or the plan cannot be
            applied to it.
    """
    if not isinstance(plan, Plan):
        raise RecomputeError(
            "`plan` must be a Plan", type(plan).__name__, "Pass measure(model, plan, x, y)"
        )
    batch_size_of(x)
    registered = gradient_registry.registered()
    try:
        with untouched(model):
            apply(model, plan)
            model.train_function = None

            def step() -> float:
                began = time.perf_counter()
                model.train_on_batch(x, y, sample_weight)
                meter.wait()
                return time.perf_counter() - began

            for _ in range(WARM_STEPS):
                step()
            held = meter.bytes_now()
            meter.reset_peak()
            seconds = statistics.median(step() for _ in range(MEASURED_STEPS))
            peak = meter.bytes_peak()
    finally:
        gradient_registry.purge(registered)
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
        return _different([plan(model, batch_size, "minimal"), *simple])
    plans = front(model, batch_size)
    found = [
        _fastest(plans, peak_bytes),
        _fastest(plans, CAREFUL * peak_bytes),
        _fastest(sorted(simple, key=_extra), peak_bytes),
    ]
    return _different([*(one for one in found if one), *([plans[-1]] if not found[0] else [])])


def _fastest(plans: Sequence[Plan], peak_bytes: float) -> Plan | None:
    return next((one for one in plans if one.peak_bytes <= peak_bytes), None)


def _extra(plan: Plan) -> float:
    return plan.extra_seconds_ratio


def _different(plans: Sequence[Plan]) -> list[Plan]:
    return list({tuple(one.stretches()): one for one in reversed(plans)}.values())[::-1]
