"""Portfolio: recipes that were good on many tasks, which a search tries early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras

from kbatch.axis import Range, rates_of
from kbatch.models import weight_history
from kbatch.space import Space

TRIED = 4  # as many as were judged
PICTURE_RANK = 3  # dimensions of a picture: height, width and channels


@dataclass(frozen=True)
class Entry:
    """A recipe of the portfolio."""

    optimizer: str
    schedule: str
    batch_size: int
    rate_at_32: float  # learning rate at batch 32
    reason: str

    def __str__(self) -> str:
        rate = f"{self.optimizer} {self.rate_at_32:g} (at batch 32)"
        return f"{rate}, batch {self.batch_size}, {self.schedule}"

    def values(self) -> dict[str, Any]:
        """Return the values of its axes, as `Space` names them."""
        return {
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "batch_size": self.batch_size,
            f"learning_rate_{self.optimizer}": self.rate_at_32,
        }

    def is_drawn_by(self, space: Space) -> bool:
        """Tell whether a space draws all of it."""
        if self.optimizer not in space.optimizer or self.schedule not in space.schedule:
            return False
        if self.batch_size not in space.batch_size:
            return False
        rates = rates_of(self.optimizer, space.learning_rate.get(self.optimizer))
        if isinstance(rates, Range):
            return rates.lowest <= self.rate_at_32 <= rates.highest
        return self.rate_at_32 in rates


# Learned on the 20 tables of scripts/results/tables that are no pictures: the first four of all
# recipes, and then those of Adam at a constant rate, which kbatch's default space draws. Judged on
# the 13 of scripts/results/fresh_tables (`scripts/bench_portfolio.py --fresh`). A percentage is
# the share of the best score that a task loses without the entry, given those before it
# (`scripts/bench_portfolio.py --portfolio`).
ENTRIES = (
    Entry("adam", "constant", 64, 6.36e-3, "the best single recipe of 20 other tasks"),
    Entry(
        "adamw",
        "cosine",
        256,
        4.51e-3,
        "without it, a task of characters loses 15 % of its best score",
    ),
    Entry("adamw", "cosine", 32, 6.15e-3, "without it, a task of averaged words loses 6 %"),
    Entry("adamw", "cosine", 64, 2.4e-3, "without it, a task of attention to words loses 4 %"),
    Entry("adam", "constant", 128, 4.04e-4, "without it, a task of attention to words loses 3 %"),
    Entry("adam", "constant", 64, 1.47e-3, "without it, a task of averaged words loses 2 %"),
)


def why_not(model: keras.Model | None, element_spec: Any) -> str:
    """Return why a task is unlike those that the portfolio was learned on; empty if it is not.

    Args:
        model: The user's model; `None` if it does not fit into memory.
        element_spec: Structure of `tf.TensorSpec` of an example, the inputs first.
    """
    inputs = keras.tree.flatten(element_spec[0])
    if any(part.shape.rank >= PICTURE_RANK for part in inputs):
        return "the examples are pictures"
    if model is None:
        return "the model did not fit into memory"
    if weight_history.was_trained(model):
        return "the model has frozen layers, or weights that are not new"
    return ""


def recipes_for(space: Space) -> list[Entry]:
    """Return what a search of this space tries early, the first of what it draws."""
    return [each for each in ENTRIES if each.is_drawn_by(space)][:TRIED]
