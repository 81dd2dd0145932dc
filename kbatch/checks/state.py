"""The check of state: no layer keeps a state from one batch to the next."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from kbatch.checks.coupled_examples import OUTPUT_ROUNDING, own_layers
from kbatch.checks.finding import Check, Finding
from kbatch.checks.subject import Subject
from kbatch.errors import ModelError
from kbatch.models import accumulation
from kbatch.runtime import keras_private

ROUNDS = 8  # each of three calls; chosen by hand: a layer left out by half passes once in 65,536


def look(subject: Subject) -> Finding:
    """Refuse stateful layers.

    Args:
        subject: What is about to train.

    Raises:
        ModelError: If a layer has `stateful=True`.
    """
    refuse_stateful(subject.model)
    own = own_layers(subject.model) if subject.data is not None else []
    if not own or not carries(subject.model, subject.batch[0]):
        return Finding(holds=True)
    return Finding(
        holds=False,
        sentence=f"what a batch leaves in layers of your own ({', '.join(own)}) changes the "
        "next: batches are shuffled",
    )


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


def largest(numbers: np.ndarray) -> float:
    """The largest number of an array, without its sign; 0 of an empty one."""
    return float(np.max(np.abs(numbers), initial=0.0))


def carries(model: keras.Model, x: Any) -> bool:
    """Whether what a call leaves in a model changes the outputs or added losses of the next.

    Args:
        model: `keras.Model`, built.
        x: Examples of a batch.
    """
    kept = accumulation.state_but_seeds(model)

    def outputs() -> np.ndarray:
        flat = keras.tree.flatten(model(x, training=True))
        numbers = [each for each in [*flat, *model.losses] if each.dtype.is_floating]
        return np.concatenate([np.ravel(each) for each in numbers])

    def changes() -> bool:
        accumulation.put_back_state(kept)
        first, carried = outputs(), outputs()
        accumulation.put_back_state(kept)
        noise = largest(outputs() - first)
        return largest(carried - first) > max(OUTPUT_ROUNDING * largest(first), 4 * noise)

    try:
        # what is drawn at random once a batch may look like a state once, and not each time
        return all(changes() for _ in range(ROUNDS))
    except Exception:  # a model without a call, which its own train_step never makes
        return False
    finally:
        accumulation.put_back_state(kept)
        keras_private.clear_losses(model)


STATE = Check(
    "state",
    "No layer keeps a state from one batch to the next",
    "Stateful layers are refused; what own layers carry on is told",
    look,
)
