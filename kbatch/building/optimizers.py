"""Optimizers for recipes, whose schedules count weight updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from kbatch.building.lars import LARS
from kbatch.building.schedules import Schedule, in_passes
from kbatch.errors import ModelError, RecipeError
from kbatch.recipe import Recipe
from kbatch.runtime import keras_private

Settings = dict[str, Any]


@keras.saving.register_keras_serializable(package="kbatch")
class PerUpdate(Schedule):
    """A learning-rate schedule that counts weight updates under gradient accumulation.

    Keras calls a schedule with the number of passes, and an accumulating optimizer takes several
    passes per update. This wrapper is used only for schedules that `in_passes` cannot convert: a
    model saved with it loads only where kbatch can be imported. Older versions of kbatch saved
    every warm-up under accumulation in it.

    Args:
        schedule: Learning-rate schedule that counts weight updates.
        accumulation_steps: Integer, passes per weight update.
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
    """Return a new optimizer for a recipe.

    Args:
        recipe: `Recipe` of the training.
        compiled: Optimizer that the user compiled the model with; `None` (the default) without one.

    Raises:
        RecipeError: If the recipe asks for the compiled optimizer, and there is none or it cannot
            accumulate.
    """
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
    return keras.optimizers.Adam(beta_1=recipe.momentum, weight_decay=decay, **settings)


def _adamw(recipe: Recipe, settings: Settings) -> keras.optimizers.Optimizer:
    return keras.optimizers.AdamW(
        beta_1=recipe.momentum, weight_decay=recipe.weight_decay, **settings
    )


def _lars(recipe: Recipe, settings: Settings) -> keras.optimizers.Optimizer:
    return LARS(momentum=recipe.momentum, l2=recipe.weight_decay, **settings)


def _lamb(recipe: Recipe, settings: Settings) -> keras.optimizers.Optimizer:
    decay = recipe.weight_decay or None
    return keras.optimizers.Lamb(beta_1=recipe.momentum, weight_decay=decay, **settings)


_BY_NAME: dict[str, Callable[[Recipe, Settings], keras.optimizers.Optimizer]] = {
    "sgd": _sgd,
    "adam": _adam,
    "adamw": _adamw,
    "lars": _lars,
    "lamb": _lamb,
}


def of_its_own(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return a new optimizer with the settings of one that several models are compiled with.

    Keras ties an optimizer to the weights of the first model that it trains.

    Args:
        optimizer: Optimizer that was made outside of `build`, and that no training has changed.

    Raises:
        ModelError: If its config does not hold all of its settings.
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
    return in_passes(schedule, accumulation) or PerUpdate(schedule, accumulation)


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
