"""The check of state: no layer keeps a state from one batch to the next."""

from __future__ import annotations

import keras

from kbatch.checks.finding import Check, Finding
from kbatch.checks.subject import Subject
from kbatch.errors import ModelError
from kbatch.runtime import keras_private


def look(subject: Subject) -> Finding:
    """Refuse stateful layers.

    Args:
        subject: What is about to train.

    Raises:
        ModelError: If a layer has `stateful=True`.
    """
    refuse_stateful(subject.model)
    return Finding(holds=True)


def refuse_stateful(model: keras.Model) -> None:
    """Refuse stateful layers: batches are shuffled, cut anew for each size, and measured between.

    Args:
        model: `keras.Model`, built or not.

    Raises:
        ModelError: If a layer has `stateful=True`.
    """
    layers = keras_private.flatten_layers(model)
    stateful = [each.name for each in layers if getattr(each, "stateful", False) is True]
    if stateful:
        raise ModelError(
            "A batch must not depend on the batch before it: the examples are shuffled",
            f"{', '.join(stateful)} with stateful=True",
            "Leave out stateful=True, and give whole sequences as examples",
        )


STATE = Check(
    "state",
    "No layer keeps a state from one batch to the next",
    "Stateful layers are refused",
    look,
)
