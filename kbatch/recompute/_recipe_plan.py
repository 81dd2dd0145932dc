"""Recipe's plan: lets a model train with the recompute strategy of a recipe."""

from __future__ import annotations

import keras

from kbatch.errors import RecomputeError
from kbatch.recompute._apply import apply
from kbatch.recompute._nested_models import functional_of
from kbatch.recompute._planner import plan_for
from kbatch.recompute_strategy import WORDS, Strategy

# Batch size to plan for, whatever the recipe's: with the same cuts at every size, the bytes that a
# plan keeps are linear in the batch, and one probe tells of all sizes. Chosen by hand.
PLANNED_BATCH_SIZE = 32


def apply_recipe(model: keras.Model, recompute: str, batch_size: int = PLANNED_BATCH_SIZE) -> None:
    """Plan a model by a recipe's strategy and apply the plan; `"none"` leaves the model as it is.

    Args:
        model: `keras.Model`, built.
        recompute: Text such as `"minimal"` or `"budget:0.5"`.
        batch_size: Integer, examples per forward and backward pass, for the plan's bytes. Defaults
            to `32`.

    Raises:
        RecomputeError: If the text is not a strategy, or the model cannot be cut.
    """
    strategy = Strategy.parse(recompute)
    if strategy is None:
        raise RecomputeError(f"`recompute` must be {WORDS}", recompute, "Pass one of these")
    if strategy.name == "none":
        return
    fixed = functional_of(model).inputs[0].shape[0]
    planned = fixed or PLANNED_BATCH_SIZE
    apply(model, plan_for(model, strategy, planned, fixed or batch_size))
