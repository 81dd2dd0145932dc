"""Following: a model made to train as a recipe's `recompute` says."""

from __future__ import annotations

import keras

from kbatch.errors import RecomputeError
from kbatch.recompute.applying import apply
from kbatch.recompute.chain import functional_of
from kbatch.recompute.planning import plan
from kbatch.strategy import WORDS, Strategy

# The same for every batch size, so that what a plan keeps is linear in the batch and one probe tells of all of them.
PLANNED_BATCH_SIZE = 32


def follow(model: keras.Model, recompute: str) -> None:
    """Plan and apply what a recipe says; `"none"` leaves the model as `build` returned it.

    Args:
        model: `keras.Model`, built.
        recompute: Text such as `"minimal"` or `"budget:0.5"`.

    Raises:
        RecomputeError: If the text says no strategy, or the model cannot be cut.
    """
    strategy = Strategy.parse(recompute)
    if strategy is None:
        raise RecomputeError(f"`recompute` must be {WORDS}", recompute, "Pass one of these")
    if strategy.name != "none":
        batch_size = functional_of(model).inputs[0].shape[0] or PLANNED_BATCH_SIZE
        apply(model, plan(model, batch_size, strategy.name, kept_share=strategy.kept_share))
