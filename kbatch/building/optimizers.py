"""Optimizers: what a recipe says, as a Keras optimizer whose schedule counts weight updates."""

from __future__ import annotations

from typing import Any

import keras

from kbatch.building.schedules import Schedule, in_passes
from kbatch.errors import RecipeError
from kbatch.recipe import Recipe

MOMENTUM = 0.9
# said to the optimizer, but not in its config
EXCLUDED_FROM_DECAY = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")


@keras.saving.register_keras_serializable(package="kbatch")
class PerUpdate(Schedule):
    """A learning-rate schedule that counts weight updates under gradient accumulation.

    Keras calls a schedule with the number of batches, of which an accumulating optimizer needs
    several per update. Only schedules of the user's that `in_passes` cannot tell in Keras' own
    words come in this wrapper, with which a saved model loads only where kbatch can be imported;
    older versions saved every warm-up under accumulation in it.

    Args:
        schedule: The schedule to follow, in weight updates.
        accumulation_steps: Integer, batches per weight update.
    """

    def __init__(self, schedule: Schedule, accumulation_steps: int) -> None:
        self.schedule, self.accumulation_steps = schedule, accumulation_steps

    def __call__(self, step: Any) -> Any:
        """The learning rate of the update that batch `step` belongs to."""
        return self.schedule(keras.ops.floor_divide(step, self.accumulation_steps))

    def get_config(self) -> dict[str, Any]:
        """Arguments to build it again."""
        schedule = keras.optimizers.schedules.serialize(self.schedule)
        return {"schedule": schedule, "accumulation_steps": self.accumulation_steps}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> PerUpdate:
        """Build it again from `get_config`."""
        return cls(
            keras.optimizers.schedules.deserialize(config["schedule"]), config["accumulation_steps"]
        )


def optimizer_of(
    recipe: Recipe, compiled: keras.optimizers.Optimizer | None = None
) -> keras.optimizers.Optimizer:
    """A fresh optimizer that does what the recipe says.

    Args:
        recipe: `Recipe` to follow.
        compiled: The optimizer that the user compiled the model with, if any.

    Raises:
        RecipeError: If the recipe asks for the compiled optimizer and there is none, or it cannot
            accumulate.
    """
    accumulation = recipe.accumulation_steps if recipe.accumulation_steps > 1 else None
    if recipe.optimizer == "compiled":
        return _compiled(compiled, accumulation)
    # a callback lets it rise: so it stays a number that other callbacks may set
    rate = recipe.learning_rate
    if recipe.optimizer == "sgd":
        return keras.optimizers.SGD(
            rate, momentum=MOMENTUM, gradient_accumulation_steps=accumulation
        )
    return keras.optimizers.Adam(rate, gradient_accumulation_steps=accumulation)


def learning_rate_of(optimizer: keras.optimizers.Optimizer) -> float | None:
    """The constant learning rate of an optimizer, or `None` if it follows a schedule of its own."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    constant = not isinstance(inner._learning_rate, Schedule)
    return float(inner.learning_rate) if constant else None


def _per_update(schedule: Schedule, accumulation: int) -> Schedule:
    """The schedule for an accumulating optimizer, in Keras' own words where they can say it."""
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
            "A compiled optimizer that is to accumulate must have neither use_ema nor gradient_accumulation_steps",
            f"use_ema={config.get('use_ema')}, gradient_accumulation_steps={config.get('gradient_accumulation_steps')}",
            "Leave them out, or raise micro_batch_size to the batch size",
        )
    rate = optimizer._learning_rate
    if isinstance(rate, Schedule):
        config["learning_rate"] = _per_update(rate, accumulation)
    elif callable(rate) and not isinstance(rate, keras.Variable):
        # called without a count, so that there is nothing to stretch
        config["learning_rate"] = rate
    accumulating = type(optimizer).from_config(
        {**config, "gradient_accumulation_steps": accumulation}
    )
    for name in EXCLUDED_FROM_DECAY:
        if hasattr(optimizer, name):
            setattr(accumulating, name, getattr(optimizer, name))
    return accumulating
