"""Optimizers for recipes, whose schedules count weight updates."""

from __future__ import annotations

from typing import Any

import keras

from kbatch.building.schedules import Schedule, in_passes
from kbatch.errors import RecipeError
from kbatch.recipe import Recipe
from kbatch.runtime import keras_private

MOMENTUM = 0.9  # the usual value; not tuned


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
    accumulation = recipe.accumulation_steps if recipe.accumulation_steps > 1 else None
    if recipe.optimizer == "compiled":
        return _compiled(compiled, accumulation)
    # a number, not a schedule: warm-up is a callback, and the user's callbacks may set the rate too
    rate = recipe.learning_rate
    if recipe.optimizer == "sgd":
        return keras.optimizers.SGD(
            rate, momentum=MOMENTUM, gradient_accumulation_steps=accumulation
        )
    return keras.optimizers.Adam(rate, gradient_accumulation_steps=accumulation)


def learning_rate_of(optimizer: keras.optimizers.Optimizer) -> float | None:
    """Return the constant learning rate of an optimizer, or `None` if it has a schedule."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    constant = not isinstance(keras_private.learning_rate_setting(inner), Schedule)
    return float(inner.learning_rate) if constant else None


def _per_update(schedule: Schedule, accumulation: int) -> Schedule:
    """Return the schedule for an accumulating optimizer, of a class of Keras if possible."""
    return in_passes(schedule, accumulation) or PerUpdate(schedule, accumulation)


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
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        inner = _compiled(optimizer.inner_optimizer, accumulation)
        return keras.optimizers.LossScaleOptimizer(
            inner, optimizer.initial_scale, optimizer.dynamic_growth_steps, name=optimizer.name
        )
    config = optimizer.get_config()
    if config.get("use_ema") or config.get("gradient_accumulation_steps"):
        raise RecipeError(
            "A compiled optimizer that is to accumulate must have neither use_ema "
            "nor gradient_accumulation_steps",
            f"use_ema={config.get('use_ema')}, "
            f"gradient_accumulation_steps={config.get('gradient_accumulation_steps')}",
            "Leave them out, or raise micro_batch_size to the batch size",
        )
    rate = keras_private.learning_rate_setting(optimizer)
    if isinstance(rate, Schedule):
        config["learning_rate"] = _per_update(rate, accumulation)
    elif callable(rate) and not isinstance(rate, keras.Variable):
        # Keras calls a function without a count, so there is nothing to convert
        config["learning_rate"] = rate
    accumulating = type(optimizer).from_config(
        {**config, "gradient_accumulation_steps": accumulation}
    )
    keras_private.copy_decay_exclusions(optimizer, accumulating)
    return accumulating
