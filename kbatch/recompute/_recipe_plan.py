"""Recipe's plan: a model made to train as a recipe's `recompute` says."""

from __future__ import annotations

import keras

from kbatch.errors import RecomputeError
from kbatch.recompute._apply import apply
from kbatch.recompute._op_graph import functional_of
from kbatch.recompute._planner import plan_for
from kbatch.recompute_strategy import WORDS, Strategy

# The same for every batch size, so that what a plan keeps is linear in the batch and one probe
# tells of all of them.
PLANNED_BATCH_SIZE = 32


def follow(model: keras.Model, recompute: str, batch_size: int = PLANNED_BATCH_SIZE) -> None:
    """Plan and apply what a recipe says; `"none"` leaves the model as `build` returned it.

    Args:
        model: `keras.Model`, built.
        recompute: Text such as `"minimal"` or `"budget:0.5"`.
        batch_size: Integer, examples per forward and backward pass, whose bytes the plan says.
            Defaults to `32`.

    Raises:
        RecomputeError: If the text says no strategy, or the model cannot be cut.
    """
    strategy = Strategy.parse(recompute)
    if strategy is None:
        raise RecomputeError(f"`recompute` must be {WORDS}", recompute, "Pass one of these")
    if strategy.name != "none":
        fixed = functional_of(model).inputs[0].shape[0]
        apply(
            model,
            plan_for(
                model,
                strategy.name,
                strategy.kept_share,
                fixed or PLANNED_BATCH_SIZE,
                fixed or batch_size,
            ),
        )
