"""The checks of the start: each training begins anew, and another seed begins elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kbatch.checks.finding import Check, Finding
from kbatch.checks.subject import Subject
from kbatch.errors import ModelError
from kbatch.models.start import NAMED
from kbatch.runtime import keras_private


def look_for_shared(subject: Subject) -> Finding:
    """Find the variables that two calls of `build` share, so that each training puts them back.

    Args:
        subject: What is about to train.

    Raises:
        ModelError: If the model has no weight to train.
    """
    if subject.data is not None and subject.model.built and not subject.model.trainable_variables:
        raise ModelError(
            "A model must have weights to train",
            f"{subject.model.name}, whose weights are all frozen or missing",
            "Set trainable = True for the layers to train",
        )
    start = subject.model_maker.start
    start.begin(subject.model, subject.other, subject.inputs)
    trained = start.trained(subject.model)
    if not trained:
        return Finding(holds=True)
    more = f" and {len(trained) - NAMED} more" if len(trained) > NAMED else ""
    return Finding(
        holds=False,
        sentence=f"weights that are made outside of `build` ({', '.join(trained[:NAMED])}{more}) "
        "get back their first values before each training",
        facts={"shared": len(trained)},
    )


def look_at_seeds(subject: Subject) -> Finding | None:
    """Compare the weights of two seeds: at least one trainable weight must differ.

    Args:
        subject: What is about to train.
    """
    if not subject.seeds and subject.model_maker.seed == 0:
        return None
    shared = {id(variable) for variable in subject.other.variables}
    own = [each for each in subject.model.trainable_variables if id(each) not in shared]
    known = {id(variable) for variable in subject.model.variables}
    pairs = _pairs(
        own, [each for each in subject.other.trainable_variables if id(each) not in known]
    )
    if not subject.model.trainable_variables or any(_differ(*pair) for pair in pairs):
        return Finding(holds=True)
    if len(pairs) < len(own):  # another architecture, by a random draw in `build`
        return Finding(holds=True)
    return Finding(
        holds=False,
        sentence="every seed begins with the same weights (a seed that `build` sets, initializers "
        "with a seed, or weights that it loads or shares): fresh seeds differ in the order of the "
        "data only, so nothing can be claimed. Leave the seed out of `build`",
        claimable=False,
    )


def _pairs(own: Sequence[Any], others: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The weights of two models that stand for each other: in order, or else by their paths.

    Names of layers may be drawn or counted, and differ from call to call.
    """
    if [each.shape for each in own] == [each.shape for each in others]:
        return list(zip(own, others, strict=True))
    by_path = {each.path: each for each in others}
    return [(each, by_path[each.path]) for each in own if each.path in by_path]


def _differ(first: Any, second: Any) -> bool:
    one, other = (keras_private.tensorflow_variable(each).numpy() for each in (first, second))
    return not np.array_equal(one, other)


START = Check(
    "start",
    "Each call of `build` makes new weights",
    "Weights that models share get back their first values before each training",
    look_for_shared,
)
SEEDS = Check(
    "seeds",
    "Another seed makes other weights",
    "A confirmation claims nothing",
    look_at_seeds,
)
