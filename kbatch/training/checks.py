"""Checks before a search: the model suits its data, and each kind of recipe trains a step."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.data import augmentation
from kbatch.data.streams import Source, fits_inputs
from kbatch.data.validation import Data
from kbatch.errors import DataError, KbatchError, ModelError, Problems
from kbatch.models.maker import ModelMaker
from kbatch.recipe import Recipe
from kbatch.recipe_words import COMPILED, FLOAT8, FLOAT16, measures_noise
from kbatch.runtime import device
from kbatch.runtime.oom import is_out_of_memory
from kbatch.space import Space

SPARSE = "sparse_categorical_crossentropy"


def check_sizes(batch_sizes: Sequence[int], examples: int) -> None:
    """Refuse batch sizes above the number of examples."""
    too_large = [size for size in batch_sizes if size > examples]
    if too_large:
        raise _larger_than(
            examples, too_large, "Take these sizes out of the space, or train on more examples"
        )


def check_size(batch_size: int, examples: int) -> None:
    """Refuse one batch size above the number of examples."""
    if batch_size > examples:
        raise _larger_than(examples, [batch_size], "Pass a smaller batch, or more examples")


def _larger_than(examples: int, sizes: Sequence[int], do: str) -> DataError:
    return DataError(
        f"`batch_size` must be at most the number of training examples, {examples}",
        ", ".join(map(str, sizes)),
        do,
    )


def check_batches(
    problems: Problems,
    source: Source,
    sizes: Sequence[int],
    passes: Sequence[int],
    augmentations: Sequence[str],
    smallest_step: int,
) -> None:
    """Note the sizes of batches and passes that these data or devices cannot make.

    `smallest_step` is the number of examples of the smallest train step on one device.
    """
    problems.of(lambda: check_sizes(sizes, source.examples))
    for part in augmentation.mixing(augmentations):
        problems.of(functools.partial(part.check_examples, source.element_spec[0]))
        problems.of(functools.partial(part.check_count, smallest_step))
    problems.of(lambda: device.check_sizes(passes))


def check_agreement(model: keras.Model, loss: Any, data: Data) -> None:
    """Refuse examples that the model cannot take, and labels that its loss cannot."""
    validation = keras.tree.map_structure(_example_spec, data.validation.element_spec)
    check_agreement_in_training(model, loss, data.training)
    _check_inputs(model, validation[0], "to validate on")
    _check_ranks(data.training.element_spec[1], validation[1])
    classes = _classes(model, loss)
    if classes is not None:
        _check_range(data.labels(), classes, getattr(loss, "ignore_class", None), "to validate on")


def check_agreement_in_training(model: keras.Model, loss: Any, training: Source) -> None:
    """Refuse examples to train on that the model cannot take, and labels that its loss cannot."""
    _check_inputs(model, training.element_spec[0], "to train on")
    classes = _classes(model, loss)
    if classes is not None:
        ignored = getattr(loss, "ignore_class", None)
        _check_range(training.labels(), classes, ignored, "to train on")


def _example_spec(batch: Any) -> Any:
    """The spec of one example of a batch."""
    return tf.TensorSpec(batch.shape[1:], batch.dtype)


def _check_inputs(model: keras.Model, spec: Any, where: str) -> None:
    """Refuse examples that the model cannot be traced with."""
    if fits_inputs(model, spec):
        return
    shapes = [tuple(part.shape) for part in keras.tree.flatten(spec)]
    batch = keras.tree.map_structure(
        lambda part: tf.TensorSpec((None, *part.shape), part.dtype), spec
    )
    try:  # a model may take other sizes than those of its keras.Input
        tf.function(lambda inputs: model(inputs, training=False)).get_concrete_function(batch)
    except Exception as error:  # layers, the user's own among them, raise errors of any kind
        expected = ", ".join(str(tuple(tensor.shape[1:])) for tensor in model.inputs)
        received = f"examples {where} of {', '.join(map(str, shapes))}"
        raise DataError(
            f"Examples must have the shape of the model's input, {expected}",
            received,
            "Cut, resize or reshape them before they are passed",
        ) from error


def _check_ranks(training: Any, validation: Any) -> None:
    """Refuse class numbers together with one-hot labels."""
    pairs = zip(keras.tree.flatten(training), keras.tree.flatten(validation), strict=False)
    for own, other in pairs:
        shapes = [tuple(part.shape) for part in (own, other)]
        ranks = {len(shape[:-1] if shape[-1:] == (1,) else shape) for shape in shapes}
        if len(ranks) > 1:
            raise DataError(
                "Labels to validate on must be of the same kind as those to train on",
                f"labels of shape {shapes[1]} per example, "
                f"where those to train on have {shapes[0]}",
                "Give both as numbers of classes, or both one-hot",
            )


def _classes(model: keras.Model, loss: Any) -> int | None:
    """The number of classes of a loss that takes class numbers; `None` for others or if unknown."""
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    outputs = getattr(model, "outputs", None) or []
    if name not in (SPARSE, "SparseCategoricalCrossentropy") or len(outputs) != 1:
        return None
    axis = getattr(loss, "axis", -1)
    if not isinstance(axis, int):
        return None
    return model.outputs[0].shape[axis]  # type: ignore[no-any-return]


def _check_range(labels: np.ndarray | None, classes: int, ignored: int | None, where: str) -> None:
    """Refuse class numbers out of range; those that the loss ignores do not count."""
    if labels is None:
        return
    counted = labels if ignored is None else labels[labels != ignored]
    if not counted.size or (counted.min() >= 0 and counted.max() < classes):
        return
    raise DataError(
        f"Labels must be numbers of classes from 0 to {classes - 1}: "
        f"the model has {classes} outputs",
        f"labels {where} from {counted.min()} to {counted.max()}",
        "Number the classes from 0, or give the model as many outputs as there are classes",
    )


STAND_IN_RATE = 0.01  # of a model that is not trained


def rehearse(model_maker: ModelMaker, model: keras.Model, space: Space, problems: Problems) -> None:
    """Note what the model cannot be trained with, though the space may draw it.

    A model is made for each value that not every model can take. A default space has none.
    """
    for recipe in rehearsed_recipes(space):
        problems.of(functools.partial(_made, model_maker, recipe))
    own_step = type(model).train_step is not keras.Model.train_step
    by_noise = [each for each in space.batch_schedule if measures_noise(each)]
    if own_step and by_noise:
        problems.of(functools.partial(_refuse_own_step, model, by_noise[0]))


def rehearsed_recipes(space: Space) -> Iterator[Recipe]:
    """Iterate over recipes with one unusual value each, for each kind of optimizer."""
    named = [name for name in space.optimizer if name != COMPILED]
    kinds = [*named[:1], *(name for name in space.optimizer if name == COMPILED)]
    for field, values in _unusual(space).items():
        for value in values:
            for optimizer in kinds:
                rate = None if optimizer == COMPILED else STAND_IN_RATE
                fields: dict[str, Any] = {field: value}
                yield Recipe(optimizer=optimizer, learning_rate=rate, **fields)


def _unusual(space: Space) -> dict[str, list[Any]]:
    """The values of a space that not every model can take, by field of a recipe."""
    scaled = "sqrt" in space.dropout_rule or any(scale != 1 for scale in space.dropout_scale)
    return {
        "training": [each for each in space.training if each != "plain"],
        "policy": [each for each in space.policies if each in (FLOAT16, FLOAT8)],
        "normalization": [each for each in space.normalization if each != "batch"],
        "ema": [each for each in space.ema if each is not None][:1],
        "dropout_scale": [2.0] if scaled else [],
    }


def _made(model_maker: ModelMaker, recipe: Recipe) -> None:
    try:
        model_maker.make(recipe)
    except KbatchError:
        raise
    except Exception as error:  # TensorFlow has no one class for running out of memory
        if not is_out_of_memory(error):
            raise


def _refuse_own_step(model: keras.Model, schedule: str) -> None:
    raise ModelError(
        "A model must have Keras' own train_step for its batch to grow by the noise scale",
        f"{type(model).__name__} with batch_schedule={schedule!r}",
        "Take another schedule, such as exponential:8",
    )
