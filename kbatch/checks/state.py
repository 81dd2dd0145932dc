"""State: what a model carries to the next batch or training, and labels that stay in place."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.checks.check import Check, Finding, Subject
from kbatch.data import augmentation
from kbatch.data.augmentation import Mixing
from kbatch.errors import ModelError, RecipeError
from kbatch.models import accumulation, movement
from kbatch.models.losses import BY_NAME, loss_of
from kbatch.models.start import NAMED
from kbatch.runtime import keras_private

OUTPUT_ROUNDING = 1e-4  # relative to the largest output; convolutions differ with the batch size
LIBRARIES = ("keras.", "keras_hub.")
ROUNDS = 8  # each of three calls; chosen by hand: a layer left out by half passes once in 65,536


def look_at_state(subject: Subject) -> Finding:
    """Refuse stateful layers."""
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
    """Refuse stateful layers: batches are shuffled, cut anew for a size, and measured between."""
    layers = keras_private.flatten_layers(model)
    stateful = [each.name for each in layers if getattr(each, "stateful", False) is True]
    if stateful:
        raise ModelError(
            "A batch must not depend on the batch before it: the examples are shuffled",
            f"{', '.join(stateful)} with stateful=True",
            "Leave out stateful=True, and give whole sequences as examples",
        )


def own_layers(model: keras.Model) -> list[str]:
    """Return the classes of layers that are not of Keras, and functions in `Lambda` layers."""
    layers = [model, *keras_private.flatten_layers(model)]
    return list(dict.fromkeys(type(each).__name__ for each in layers if _is_own(each)))


def _is_own(layer: Any) -> bool:
    kind = type(layer)
    return isinstance(layer, keras.layers.Lambda) or not kind.__module__.startswith(LIBRARIES)


def largest(numbers: np.ndarray) -> float:
    """The largest number of an array, without its sign; 0 of an empty one."""
    return float(np.max(np.abs(numbers), initial=0.0))


def carries(model: keras.Model, x: Any) -> bool:
    """Whether what a call leaves in a model changes the outputs or added losses of the next."""
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
    look_at_state,
)


def look_for_shared(subject: Subject) -> Finding:
    """Find the variables that two calls of `build` share, so that each training puts them back."""
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
    """Compare the weights of two seeds: at least one trainable weight must differ."""
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


OVER_CLASSES = (
    *BY_NAME.values(),
    keras.losses.KLDivergence,
    keras.losses.Hinge,
    keras.losses.SquaredHinge,
    keras.losses.CategoricalHinge,
)
SHARES = (keras.losses.CategoricalCrossentropy, keras.losses.CategoricalFocalCrossentropy)
NAMES = ("kl_divergence", "hinge", "squared_hinge", "categorical_hinge")


def look_at_places(subject: Subject) -> Finding | None:
    """Measure which augmentations move pictures, and what becomes of the labels."""
    names = augmentation.registered(tuple(each for each in subject.augmentations))
    if subject.data is None or not any(augmentation.layers(name) for name in names):
        return None
    x, y, *weights = keras.tree.map_structure(_batched, subject.data.training.element_spec)
    if keras.tree.is_nested(x):
        return _look_at_several(subject, names, x, (y, *weights))
    if not _is_picture(x):
        return None
    moving = []
    for name in names:
        parts = movement.flat(
            part for part in augmentation.layers(name) if not isinstance(part, Mixing)
        )
        kinds = [movement.kind(part, x) for part in parts]
        if movement.MIXES in kinds:
            raise movement.refuse_mixing(parts[kinds.index(movement.MIXES)])
        if movement.MOVES in kinds:
            moving.append(name)
            _check_labels(subject, parts, x, (y, *weights))
    if not moving:
        return Finding(holds=True)
    filled = [name for name in moving if _fills(name, x)]
    facts = {"moving": moving, "filled": filled}
    told = (_of_filled(subject, filled, x, y), _of_coordinates(subject, moving, x, y))
    sentence = "; ".join(each for each in told if each)
    return Finding(holds=not told[1], sentence=sentence, facts=facts)


def _look_at_several(subject: Subject, names: Any, x: Any, labels: Any) -> Finding | None:
    """Look at a model of several inputs, beside whose pictures no labels can be moved."""
    pictures = [part for part in keras.tree.flatten(x) if _is_picture(part)]
    moving = [name for name in names if _may_move(name, pictures)]
    if not moving:
        return None
    every = [each for each in keras.tree.flatten(labels) if each is not None]
    if any(augmentation.has_places(each, picture) for each in every for picture in pictures):
        raise RecipeError(
            "Labels with the height and width of a picture can move with it only where it is the "
            "one input",
            f"{', '.join(moving)} for a model of {len(keras.tree.flatten(x))} inputs",
            "Leave out of `augmentation` what moves pictures",
        )
    told = _of_coordinates(subject, moving, pictures[0], labels[0])
    return Finding(holds=not told, sentence=told, facts={"moving": moving})


def _may_move(name: str, pictures: list[Any]) -> bool:
    """Whether a pipeline moves pictures; a layer that cannot take one alone may do so."""
    parts = movement.flat(each for each in augmentation.layers(name) if not _mixes(each))
    for part, picture in itertools.product(parts, pictures):
        try:
            kind = movement.kind(part, picture)
        except Exception:  # the user's own layer, made for all inputs, raises any kind
            return True
        if kind == movement.MIXES:
            raise movement.refuse_mixing(part)
        if kind == movement.MOVES:
            return True
    return False


def _is_picture(part: Any) -> bool:
    return len(part.shape) == 4 and part.dtype != tf.string


def _check_labels(subject: Subject, parts: list[Any], x: Any, labels: Any) -> None:
    """Refuse labels that have places and cannot follow."""
    every = [each for each in keras.tree.flatten(labels) if each is not None]
    if any(augmentation.has_places(each, x) for each in every):
        movement.check(parts, x)
    classes = _rows_of_classes(subject, labels[0])
    smaller = [
        tuple(each.shape[1:])
        for each in every
        if _of_another_size(each, x) and not any(each is row for row in classes)
    ]
    if smaller:
        raise RecipeError(
            "Labels must have the height and width of the pictures to move with them",
            f"labels of shape {smaller[0]} for pictures of {tuple(x.shape[1:])}",
            "Leave out of `augmentation` what moves pictures, or give labels of their size",
        )


def _rows_of_classes(subject: Subject, y: Any) -> list[Any]:
    """The labels that are shares of classes, which may be as many as a picture has pixels."""
    every = keras.tree.flatten_with_path(y)
    losses = _losses(subject.loss, [path for path, _ in every])
    return [
        label
        for (_, label), loss in zip(every, losses, strict=True)
        if len(label.shape) == 2 and isinstance(loss_of(loss), SHARES)
    ]


def _of_another_size(label: Any, x: Any) -> bool:
    """Whether a label is a picture of another size or form.

    Such are a mask of half the height and width, and one whose places stand in one row.
    """
    shape, picture = tuple(label.shape), tuple(x.shape)
    if len(shape) < 2 or None in (*shape[1:3], *picture[1:3]):
        return False
    if shape[1] == picture[1] * picture[2]:
        return True
    if len(shape) not in (3, 4) or shape[1:3] == picture[1:3]:
        return False
    return min(shape[1:3]) > 1 and bool(shape[1] * picture[2] == shape[2] * picture[1])


def _fills(name: str, x: Any) -> bool:
    """Whether a pipeline fills pixels from outside of the picture."""
    parts = movement.flat(each for each in augmentation.layers(name) if not _mixes(each))
    moving = [part for part in parts if movement.kind(part, x) == movement.MOVES]
    return any(augmentation.carries(part) and movement.fills(part, x) for part in moving)


def _mixes(part: Any) -> bool:
    return isinstance(part, Mixing)


def _of_filled(subject: Subject, filled: list[str], x: Any, y: Any) -> str:
    """What becomes of labels where a pipeline fills pixels from outside."""
    if not filled or not any(augmentation.has_places(each, x) for each in keras.tree.flatten(y)):
        return ""
    which = f"what {', '.join(filled)} fills from outside of a picture"
    if movement.takes_weights(subject.model, subject.loss, x, y):
        return f"{which} is left out of the loss, by weights of places"
    return f"{which} has the label 0 in the loss, which takes no weights of places"


def _of_coordinates(subject: Subject, moving: list[str], x: Any, y: Any) -> str:
    """What is told of labels that stay as they are and may be places in the picture."""
    every = keras.tree.flatten_with_path(y)
    losses = _losses(subject.loss, [path for path, _ in every])
    own = [
        ".".join(map(str, path))
        for (path, label), loss in zip(every, losses, strict=True)
        if not augmentation.has_places(label, x) and _may_be_coordinates(label, loss)
    ]
    if not own:
        return ""
    names = ", ".join(each for each in own if each)
    return (
        f"{', '.join(moving)} moves pictures, and the labels{' ' if names else ''}{names} stay as "
        "they are: where they are coordinates, such as boxes or keypoints, or stand along the "
        "picture, such as its letters, leave it out of `augmentation`"
    )


def _losses(loss: Any, paths: list[Any]) -> list[Any]:
    """The loss of each label."""
    if isinstance(loss, dict):
        return [loss.get(path[0] if path else None) for path in paths]
    parts = keras.tree.flatten(loss)
    return parts if len(parts) == len(paths) else [loss] * len(paths)


def _may_be_coordinates(label: Any, loss: Any) -> bool:
    """Whether labels may name places: numbers, or classes of several places of one example."""
    rank = len(label.shape)
    if isinstance(loss_of(loss), keras.losses.SparseCategoricalCrossentropy):
        return rank > 1 and label.shape[1:] != (1,)
    name = getattr(loss, "__name__", loss)
    if loss is None or name in NAMES or isinstance(loss_of(loss), OVER_CLASSES):
        return loss is not None and rank > 2
    return tf.as_dtype(label.dtype).is_floating or rank > 1


def _batched(part: Any) -> tf.TensorSpec:
    return tf.TensorSpec((None, *part.shape), part.dtype)


PLACES = Check(
    "places",
    "Labels with the height and width of the pictures move with them, and no others have places",
    "Masks are moved with the same draw; a layer that cannot is refused, and coordinates are told",
    look_at_places,
)
