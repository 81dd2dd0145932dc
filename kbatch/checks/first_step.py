"""The check of a first step: loss and metrics can be computed on the first examples."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from kbatch.checks.check import Check, Finding, Subject
from kbatch.errors import KbatchError, ModelError
from kbatch.models.policies import explained
from kbatch.plain_text import one_line
from kbatch.runtime.oom import is_out_of_memory

FEW = 2  # examples: a step of them costs less than any other check
NOISE = re.compile(r"\x1b\[[0-9;]*m|\{\{.*?\}\} ")  # colours, and names of TensorFlow's nodes


def look(subject: Subject) -> Finding | None:
    """Refuse a model whose loss or metrics do not suit its outputs and the labels."""
    if subject.data is None:
        return None
    model = _compiled(subject)
    if not _steps_as_keras_does(model) or _has_fixed_batch(model):
        return None
    few = tuple(keras.tree.map_structure(lambda part: part[:FEW], subject.batch))
    error = _error(model, few)
    # A loss of groups or pairs needs a whole batch, and one that asks for gradients a graph.
    if error is not None and _error(model, _whole_batch(subject), tf.function) is not None:
        raise ModelError(
            "Loss and metrics must suit the model's outputs and the labels",
            f"{_words(error)} ({_given(model, few)})",
            "Correct the loss, the metrics or the labels: `model.evaluate` shows the same",
        ) from error
    return Finding(holds=True)


def _error(
    model: keras.Model, batch: Sequence[Any], traced: Callable[[Any], Any] = lambda step: step
) -> Exception | None:
    """The error of a step of validation; `None` if there is none."""
    try:
        with explained(model.dtype_policy.name):
            traced(model.test_step)(batch)
    except KbatchError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return error
    finally:
        model.reset_metrics()
    return None


def _whole_batch(subject: Subject) -> tuple[Any, ...]:
    """A batch as the baseline trains on."""
    size = min(subject.recipes[0].batch_size, subject.training.examples)
    return tuple(next(iter(subject.training.stream(size, 0))))


def _compiled(subject: Subject) -> keras.Model:
    """The user's model if `build` compiles it, else one that is compiled for the recipe."""
    return subject.model if subject.model.compiled else subject.make(subject.recipes[0])


def _steps_as_keras_does(model: keras.Model) -> bool:
    """Whether no step is the user's own: such a step may need neither loss nor labels."""
    return all(
        getattr(type(model), name) is getattr(keras.Model, name)
        for name in ("train_step", "test_step", "compute_loss")
    )


def _has_fixed_batch(model: keras.Model) -> bool:
    """Whether the model takes no other number of examples than its own."""
    return any(each.shape[0] is not None for each in getattr(model, "inputs", None) or ())


def _words(error: Exception) -> str:
    """What an error of Keras says, without the list of arguments that follows."""
    text = NOISE.sub("", str(error)).partition("Arguments received by")[0]
    return f"{type(error).__name__}: {one_line(text)}"


def _given(model: keras.Model, batch: Sequence[Any]) -> str:
    """The shapes that must suit each other, in words."""
    labels = batch[1] if len(batch) > 1 else ()
    words = f"labels of shape {_shapes(labels)}"
    outputs = getattr(model, "outputs", None)
    return f"{words}, outputs of shape {_shapes(outputs)}" if outputs else words


def _shapes(structure: Any) -> str:
    parts = keras.tree.flatten(structure)
    return ", ".join(str((None, *part.shape[1:])) for part in parts) or "none"


FIRST_STEP = Check(
    "first step",
    "Loss and metrics suit the model's outputs and the labels",
    "What cannot be computed on the first examples is refused, with the shapes",
    look,
)
