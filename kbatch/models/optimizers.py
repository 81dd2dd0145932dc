"""Optimizers: those of a recipe, with schedule, decay and clipping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops
from keras.optimizers.schedules import LearningRateSchedule as Schedule

from kbatch.errors import ModelError, RecipeError
from kbatch.recipe import Recipe
from kbatch.recipe_words import FLOAT16
from kbatch.runtime import keras_private

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


Config = dict[str, Any]


def schedule_in_passes(schedule: Schedule, passes: int) -> Schedule | None:
    """Convert a schedule that counts weight updates into one that counts passes.

    Keras calls a schedule with the number of passes; update `u` (from 0) happens at pass
    `passes * u + passes - 1`. Most schedules of Keras can be stretched and shifted so that they
    give at that pass the value for update `u`. The converted schedule is of the same class, so that
    the saved model loads without kbatch.

    Returns a schedule that counts passes; `None` for schedules that cannot be converted:
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


Settings = dict[str, Any]


@keras.saving.register_keras_serializable(package="kbatch")
class PerUpdate(Schedule):
    """A learning-rate schedule that counts weight updates under gradient accumulation.

    Keras calls a schedule with the number of passes, and an accumulating optimizer takes several
    passes per update. This wrapper is used only for schedules that `schedule_in_passes` cannot
    convert: a model saved with it loads only where kbatch can be imported.
    """

    def __init__(self, schedule: Schedule, accumulation_steps: int) -> None:
        self.schedule, self.accumulation_steps = schedule, accumulation_steps

    def __call__(self, step: Any) -> Any:
        """Return the learning rate of the update that pass `step` belongs to."""
        return self.schedule(keras.ops.floor_divide(step, self.accumulation_steps))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the schedule."""
        schedule = keras.optimizers.schedules.serialize(self.schedule)
        return {"schedule": schedule, "accumulation_steps": self.accumulation_steps}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> PerUpdate:
        """Make a schedule of what `get_config` returned."""
        return cls(
            keras.optimizers.schedules.deserialize(config["schedule"]), config["accumulation_steps"]
        )


def optimizer_of(
    recipe: Recipe, compiled: keras.optimizers.Optimizer | None = None
) -> keras.optimizers.Optimizer:
    """Return a new optimizer for a recipe."""
    accumulation = recipe.steps_per_update if recipe.steps_per_update > 1 else None
    if recipe.optimizer == "compiled":
        _check_average(recipe, compiled)
        return _compiled(compiled, accumulation)
    settings = {
        # a number, not a schedule: warm-up is a callback, and the user's may set the rate too
        "learning_rate": recipe.learning_rate,
        "global_clipnorm": recipe.clip_norm,
        "gradient_accumulation_steps": accumulation,
    }
    return _BY_NAME[recipe.optimizer](recipe, settings)


def _sgd(recipe: Recipe, settings: Settings) -> keras.optimizers.Optimizer:
    decay = recipe.weight_decay or None
    return keras.optimizers.SGD(momentum=recipe.momentum, weight_decay=decay, **settings)


def _adam(recipe: Recipe, settings: Settings) -> keras.optimizers.Optimizer:
    decay = recipe.weight_decay or None
    return keras.optimizers.Adam(weight_decay=decay, **_betas(recipe), **settings)


def _adamw(recipe: Recipe, settings: Settings) -> keras.optimizers.Optimizer:
    return keras.optimizers.AdamW(weight_decay=recipe.weight_decay, **_betas(recipe), **settings)


def _lars(recipe: Recipe, settings: Settings) -> keras.optimizers.Optimizer:
    return LARS(momentum=recipe.momentum, l2=recipe.weight_decay, **settings)


def _lamb(recipe: Recipe, settings: Settings) -> keras.optimizers.Optimizer:
    decay = recipe.weight_decay or None
    return keras.optimizers.Lamb(weight_decay=decay, **_betas(recipe), **settings)


def _betas(recipe: Recipe) -> Settings:
    """The momentums of the gradient and of its square in the Adam family."""
    return {"beta_1": recipe.momentum, "beta_2": recipe.beta_2}


_BY_NAME: dict[str, Callable[[Recipe, Settings], keras.optimizers.Optimizer]] = {
    "sgd": _sgd,
    "adam": _adam,
    "adamw": _adamw,
    "lars": _lars,
    "lamb": _lamb,
}


def own_optimizer(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return a new optimizer with the settings of one that several models are compiled with.

    Keras ties an optimizer to the weights of the first model that it trains.
    """
    try:
        copy = _copied(optimizer, {})
        lost = "" if str(copy.get_config()) == str(optimizer.get_config()) else "lacks settings"
    except (TypeError, ValueError, KeyError) as error:
        lost = f"does not make it again ({' '.join(str(error).split())[:200]})"
    if lost:
        raise ModelError(
            "An optimizer that is made outside of `build` must be copied by its config for each "
            "training",
            f"{type(optimizer).__name__}, whose get_config() {lost}",
            "Make it inside of `build`",
        )
    return copy


def _copied(optimizer: keras.optimizers.Optimizer, changed: Settings) -> keras.optimizers.Optimizer:
    """A new optimizer with the settings of another, some of them changed."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        inner = _copied(optimizer.inner_optimizer, changed)
        return keras.optimizers.LossScaleOptimizer(
            inner, optimizer.initial_scale, optimizer.dynamic_growth_steps, name=optimizer.name
        )
    settings = optimizer.get_config()
    rate = keras_private.learning_rate_setting(optimizer)
    if callable(rate) and not isinstance(rate, (keras.Variable, Schedule)):
        settings["learning_rate"] = rate
    copy = type(optimizer).from_config({**settings, **changed})
    keras_private.copy_decay_exclusions(optimizer, copy)
    return copy


def learning_rate_of(optimizer: keras.optimizers.Optimizer) -> float | None:
    """Return the constant learning rate of an optimizer, or `None` if it has a schedule."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    constant = not isinstance(keras_private.learning_rate_setting(inner), Schedule)
    return float(keras.ops.convert_to_numpy(inner.learning_rate)) if constant else None


def _per_update(schedule: Schedule, accumulation: int) -> Schedule:
    """Return the schedule for an accumulating optimizer, of a class of Keras if possible."""
    return schedule_in_passes(schedule, accumulation) or PerUpdate(schedule, accumulation)


def _check_average(recipe: Recipe, compiled: keras.optimizers.Optimizer | None) -> None:
    """Refuse a second moving average of the weights."""
    inner = getattr(compiled, "inner_optimizer", compiled)
    if recipe.ema is not None and getattr(inner, "use_ema", False):
        raise RecipeError(
            "The weights must be averaged once",
            f"ema={recipe.ema} and an optimizer compiled with use_ema=True",
            "Leave use_ema out: the average is an axis of the search",
        )


def _compiled(
    optimizer: keras.optimizers.Optimizer | None, accumulation: int | None
) -> keras.optimizers.Optimizer:
    if optimizer is None:
        raise RecipeError(
            'optimizer="compiled" must come with a compiled model',
            "a model without an optimizer",
            "Compile it in `build`",
        )
    if accumulation is None:
        return optimizer
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    config = inner.get_config()
    if config.get("use_ema") or config.get("gradient_accumulation_steps"):
        raise RecipeError(
            "A compiled optimizer that is to accumulate must have neither use_ema "
            "nor gradient_accumulation_steps",
            f"use_ema={config.get('use_ema')}, "
            f"gradient_accumulation_steps={config.get('gradient_accumulation_steps')}",
            "Leave them out, or raise micro_batch_size to the batch size",
        )
    changed: Settings = {"gradient_accumulation_steps": accumulation}
    rate = keras_private.learning_rate_setting(inner)
    if isinstance(rate, Schedule):
        changed["learning_rate"] = _per_update(rate, accumulation)
    # Keras calls a function without a count, so there is nothing to convert
    return _copied(optimizer, changed)


def check_gradient_norm(model: keras.Model, recipe: Recipe, optimizer: Any) -> None:
    """Refuse to clip the norm of gradients of several types, which Keras cannot add up."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    types = sorted({variable.dtype for variable in model.trainable_variables})
    if getattr(inner, "global_clipnorm", None) and len(types) > 1 and recipe.policy != FLOAT16:
        raise ModelError(
            "All weights must be of one type to clip the norm of the whole gradient",
            f"clip_norm={inner.global_clipnorm:g} and weights of {' and '.join(types)}",
            "Leave out clip_norm, or the dtype of the layers",
        )
