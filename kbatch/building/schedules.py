"""Learning-rate schedules under accumulation, where Keras counts passes, not weight updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras.optimizers.schedules import LearningRateSchedule as Schedule

Config = dict[str, Any]


def in_passes(schedule: Schedule, passes: int) -> Schedule | None:
    """Convert a schedule that counts weight updates into one that counts passes.

    Keras calls a schedule with the number of passes; update `u` (from 0) happens at pass
    `passes * u + passes - 1`. Most schedules of Keras can be stretched and shifted so that they
    give at that pass the value for update `u`. The converted schedule is of the same class, so that
    the saved model loads without kbatch.

    Args:
        schedule: Schedule that counts weight updates.
        passes: Integer, passes per weight update.

    Returns:
        A schedule that counts passes; `None` for schedules that cannot be converted:
        `CosineDecayRestarts`, a `PolynomialDecay` that cycles, and classes of the user's.
    """
    if passes == 1:
        return schedule
    stretch = _STRETCHED.get(type(schedule))
    stretched = stretch(dict(schedule.get_config()), passes) if stretch else None
    return None if stretched is None else type(schedule)(**stretched)


def _piecewise(config: Config, passes: int) -> Config | None:
    return {
        **config,
        "boundaries": [passes * boundary + passes - 1 for boundary in config["boundaries"]],
    }


def _polynomial(config: Config, passes: int) -> Config | None:
    if config["cycle"]:
        return None
    span = passes * config["decay_steps"]
    steps = span + passes - 1
    end = config["end_learning_rate"]
    start = end + (config["initial_learning_rate"] - end) * (steps / span) ** config["power"]
    return {**config, "initial_learning_rate": start, "decay_steps": steps}


def _exponential(config: Config, passes: int) -> Config | None:
    span = passes * config["decay_steps"]
    if config["staircase"]:
        return _stairs(config, span)
    return {
        **config,
        "initial_learning_rate": config["initial_learning_rate"]
        * config["decay_rate"] ** (-(passes - 1) / span),
        "decay_steps": span,
    }


def _inverse_time(config: Config, passes: int) -> Config | None:
    span = passes * config["decay_steps"]
    if config["staircase"]:
        return _stairs(config, span)
    base = 1 - config["decay_rate"] * (passes - 1) / span
    if base <= 0:
        return None
    return {
        **config,
        "initial_learning_rate": config["initial_learning_rate"] / base,
        "decay_rate": config["decay_rate"] / base,
        "decay_steps": span,
    }


def _stairs(config: Config, span: float) -> Config | None:
    """Stretch a staircase of steps; no shift is needed if each step lasts whole updates."""
    return {**config, "decay_steps": span} if float(config["decay_steps"]).is_integer() else None


def _cosine(config: Config, passes: int) -> Config | None:
    """Convert a cosine decay, which can be shifted by its warm-up only.

    Without a warm-up, a constant one of `passes - 1` passes is added, in which no update happens.
    """
    target = config["warmup_target"]
    start = top = config["initial_learning_rate"] if target is None else target
    rise = 0 if target is None else passes * config["warmup_steps"]
    steps = rise + passes - 1
    if rise:
        start = top - (top - config["initial_learning_rate"]) * steps / rise
    return {
        **config,
        "initial_learning_rate": start,
        "warmup_target": top,
        "warmup_steps": steps,
        "decay_steps": passes * config["decay_steps"],
    }


_STRETCHED: dict[type[Schedule], Callable[[Config, int], Config | None]] = {
    keras.optimizers.schedules.PiecewiseConstantDecay: _piecewise,
    keras.optimizers.schedules.PolynomialDecay: _polynomial,
    keras.optimizers.schedules.ExponentialDecay: _exponential,
    keras.optimizers.schedules.InverseTimeDecay: _inverse_time,
    keras.optimizers.schedules.CosineDecay: _cosine,
}
