"""Arguments: loss, metrics, class weights, shapes of batches and own values that nobody chose."""

from __future__ import annotations

import math
import numbers
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.checks.check import EXAMPLES, Check, Finding, Subject
from kbatch.data.streams import Source
from kbatch.errors import DataError, KbatchError, ModelError
from kbatch.model_spec import text_of_values
from kbatch.models.maker import idle, own_values, unsaid_values
from kbatch.models.policies import explained
from kbatch.plain_text import one_line
from kbatch.recipe_words import COMPILED
from kbatch.runtime.oom import is_out_of_memory

FEW = 2  # examples: a step of them costs less than any other check
NOISE = re.compile(r"\x1b\[[0-9;]*m|\{\{.*?\}\} ")  # colours, and names of TensorFlow's nodes


def look_at_first_step(subject: Subject) -> Finding | None:
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
    look_at_first_step,
)


GIVE_WEIGHTS = "Pass a weight for each class by its number: class_weight={0: 1.0, 1: 3.0}"


def look_at_class_weights(subject: Subject) -> Finding | None:
    """Refuse class weights that no example would have, and labels that are no classes."""
    if subject.class_weight is None or subject.data is None:
        return None
    source = subject.data.training
    classes = check_class_weights(subject.class_weight, source, subject.model, subject.loss)
    return Finding(holds=True, facts={"classes": classes})


def check_class_weights(weights: Any, source: Source, model: keras.Model, loss: Any) -> int:
    """Return the number of classes, or refuse class weights; see `look_at_class_weights`."""
    _check_weights(weights)
    output = (getattr(model, "outputs", None) or [None])[0]
    shape = None if output is None else tuple(output.shape)
    classes = _classes(_labels(source), shape, getattr(loss, "ignore_class", None))
    unknown = sorted(int(key) for key in weights if not 0 <= int(key) < classes)
    if unknown:
        raise DataError(
            f"`class_weight` must name classes from 0 to {classes - 1}",
            f"class {', '.join(map(str, unknown))}",
            GIVE_WEIGHTS,
        )
    return classes


def _check_weights(weights: Any) -> None:
    if not isinstance(weights, Mapping):
        raise DataError(
            "`class_weight` must be a mapping from class to weight", weights, GIVE_WEIGHTS
        )
    for key, weight in weights.items():
        if not isinstance(key, numbers.Real) or not float(key).is_integer():
            raise DataError(
                "`class_weight` must name classes by whole numbers", repr(key), GIVE_WEIGHTS
            )
        is_number = isinstance(weight, numbers.Real)
        if not is_number or not math.isfinite(weight) or weight < 0:
            raise DataError(
                "A class must weigh a finite number of at least 0", f"{key}: {weight}", GIVE_WEIGHTS
            )


def _labels(source: Source) -> np.ndarray:
    """All labels of arrays, the first ones of a dataset."""
    parts = keras.tree.flatten(source.element_spec[1])
    if len(parts) != 1:
        raise DataError(
            "`class_weight` must come with one output: it weighs whole examples",
            f"labels of {len(parts)} outputs",
            "Pass sample_weight, or a dataset of (x, y, sample_weight), with weights of each",
        )
    own = source.labels()
    if own is not None:
        return own
    _, labels = next(iter(source.stream(min(EXAMPLES, source.examples), 0)))
    return np.asarray(keras.tree.flatten(labels)[0])


def _classes(labels: np.ndarray, output: tuple[Any, ...] | None, ignored: Any) -> int:
    """The number of classes, by the columns of one-hot labels, the model's, or the labels."""
    if labels.ndim > 1 and labels.shape[-1] != 1:
        _check_one_hot(labels, output)
        return int(labels.shape[-1])
    columns = None if output is None else output[-1]
    known = labels if ignored is None else labels[labels != ignored]
    classes = max(columns or 1, 2)
    if output is None:
        classes = max(int(known.max(initial=0)) + 1, 2)
    is_whole = np.array_equal(known, np.round(known))
    if not is_whole or known.min(initial=0) < 0 or known.max(initial=0) >= classes:
        raise DataError(
            f"With `class_weight` labels must be numbers of classes from 0 to {classes - 1}",
            f"labels from {known.min()} to {known.max()}",
            "Number the classes from 0, or pass sample_weight",
        )
    return classes


def _check_one_hot(labels: np.ndarray, output: tuple[Any, ...] | None) -> None:
    """Refuse a row of labels of which none, or several, are the class."""
    several = (labels == labels.max(axis=-1, keepdims=True)).sum(axis=-1).max(initial=1) > 1
    if several or (output is not None and len(output) != labels.ndim):
        raise DataError(
            "With `class_weight` each example must have one class",
            f"labels of shape {labels.shape[1:]} that name none or several",
            "Pass sample_weight instead",
        )


CLASS_WEIGHTS = Check(
    "class weights",
    "Class weights are of classes that the labels have; classes that are not named weigh 1",
    "Other weights, and labels that are no classes, are refused",
    look_at_class_weights,
)


# Chosen by hand: as many shapes as a dataset in buckets has, and batches and seconds of a look.
FEW_SHAPES = 4
SHAPED_BATCHES = 64
SHAPES_SECONDS = 2.0


def look_at_shapes(subject: Subject) -> Finding | None:
    """Count the shapes among the first batches of data whose examples differ in shape."""
    if subject.data is None:
        return None
    source = subject.data.training
    if all(part.shape.is_fully_defined() for part in tf.nest.flatten(source.element_spec)):
        return Finding(holds=True)
    size = subject.recipes[0].examples_per_pass if subject.recipes else EXAMPLES
    shapes, longest, batches = _seen(source, min(size, source.examples))
    facts = {"shapes": len(shapes), "batches": batches, "longest": longest}
    if len(shapes) <= FEW_SHAPES:
        return Finding(holds=True, facts=facts)
    why = "the longest decides what fits, and kernels may be tuned for each new one"
    if True in subject.compilations:
        why = "XLA compiles a step for each new one, for seconds on the clock"
    return Finding(
        holds=False,
        sentence=f"the first {batches} batches have {len(shapes)} shapes, up to {longest}: {why}; "
        "pad to few lengths (padded_shapes=), or use bucket_by_sequence_length",
        facts=facts,
    )


def _seen(source: Any, size: int) -> tuple[set[Any], str, int]:
    """The shapes of inputs among the first batches, the largest sizes, and the batches read."""
    shapes: set[Any] = set()
    began, batches = time.monotonic(), 0
    for batch in source.unshuffled(size).take(SHAPED_BATCHES):
        shapes.add(tuple(tuple(part.shape[1:]) for part in tf.nest.flatten(batch[0])))
        batches += 1
        if time.monotonic() - began > SHAPES_SECONDS:
            break
    parts = zip(*shapes, strict=True)
    longest = [tuple(map(max, zip(*sizes, strict=True))) for sizes in parts]
    return shapes, ", ".join(map(str, longest)), batches


SHAPES = Check(
    "shapes",
    "Batches have few shapes: each is traced, compiled or tuned for once",
    "The number of shapes is told, with what to do",
    look_at_shapes,
)


OWN_VALUES_NAME = "own values"  # under which a project keeps the finding


def look_at_own_values(subject: Subject) -> Finding | None:
    """Look which hyperparameters of `build` have neither a value nor a `default=`.

    KerasTuner takes the lowest value for them, or the first choice, which is seldom what anybody
    has today.
    """
    hp = subject.model_maker.hyperparameters()
    subject.model_maker.raw(subject.policy, hp)
    idle_names = _idle(subject, hp)
    unsaid = _without(unsaid_values(hp), idle_names)
    if unsaid:
        return Finding(holds=False, sentence=own_values_sentence(unsaid), facts={"lowest": unsaid})
    defaults = _without(own_values(hp), (*subject.model_maker.values, *idle_names))
    if defaults and not subject.seeds:
        return Finding(holds=True, sentence=_sentence_on_defaults(defaults))
    return Finding(holds=True)


def _idle(subject: Subject, hp: Any) -> tuple[str, ...]:
    """The hyperparameters that have no effect, since every recipe replaces the optimizer."""
    if any(recipe.optimizer == COMPILED for recipe in subject.recipes):
        return ()
    unsaid = unsaid_values(hp)
    axes = [axis for axis in hp.space if axis.name in unsaid]
    return idle(subject.model_maker, subject.policy, axes)


def _without(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    left_out = set(names)
    return {name: value for name, value in values.items() if name not in left_out}


def own_values_sentence(unsaid: Mapping[str, Any]) -> str:
    """Return the sentence on values that nobody chose."""
    return (
        f"your hyperparameters at their lowest values: {text_of_values(unsaid)}; give values= or "
        "default= for what you have today"
    )


def _sentence_on_defaults(defaults: Mapping[str, Any]) -> str:
    return (
        f"your hyperparameters at the defaults of `build`: {text_of_values(defaults)}; "
        "kbatch.retrain takes those of a search"
    )


OWN_VALUES = Check(
    OWN_VALUES_NAME,
    "The hyperparameters of `build` have values that somebody chose",
    "The claim and a warning name those at their lowest values",
    look_at_own_values,
)
