"""Scaled fields: the values of a recipe for its batch size, of values drawn at batch 32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kbatch.recipe_fields import COMPILED
from kbatch.rules import dropout, learning_rate, momentum, warmup, weight_decay

Drawn = Mapping[str, Any]


def recipe_fields(
    fields: Mapping[str, Any], drawn: Drawn, rule_of: Callable[[str], str]
) -> dict[str, Any]:
    """Return fields of a recipe, scaled from batch 32 to its batch size.

    Args:
        fields: Values of the recipe's axes at batch 32; without settings of the optimizer for the
            one that the model is compiled with.
        drawn: The value of each axis by name.
        rule_of: Function from optimizer to its learning-rate rule.
    """
    optimizer, batch_size = drawn["optimizer"], drawn["batch_size"]
    fields = dict(fields)
    fields["dropout_scale"] *= dropout.factor(batch_size, drawn["dropout_rule"])
    if fields["ema"] is not None:
        fields["ema"] = momentum.at(batch_size, fields["ema"], drawn["momentum_rule"])
    if optimizer == COMPILED:
        return {**fields, "learning_rate": None}
    factor = learning_rate.factor(batch_size, rule_of(optimizer))
    fields["learning_rate"] = drawn[f"learning_rate_{optimizer}"] * factor
    fields["weight_decay"] *= weight_decay.factor(batch_size, drawn["weight_decay_rule"])
    fields["momentum"] = momentum.at(batch_size, fields["momentum"], drawn["momentum_rule"])
    return fields


def warmup_updates(drawn: Drawn, examples: int, horizon_examples: float | None) -> dict[str, int]:
    """Return the field of warm-up, in updates; no field for a compiled optimizer.

    Args:
        drawn: The value of each axis by name.
        examples: Integer, number of training examples.
        horizon_examples: Float, examples of a training within its horizon. `None` sets no limit.
    """
    if drawn["optimizer"] == COMPILED:
        return {}
    updates = warmup.updates(
        drawn["batch_size"], examples, drawn["warmup_passes"], horizon_examples
    )
    return {"warmup_updates": updates}
