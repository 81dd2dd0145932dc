"""Movement: whether an augmentation moves pixels, and what its labels need then."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbatch.data import augmentation
from kbatch.data.augmentation import carries
from kbatch.errors import ModelError, RecipeError
from kbatch.models.start import seed_scope

STILL, MOVES, MIXES = "still", "moves", "mixes"
EXAMPLES, DRAWS = 16, 6  # chosen by hand: a flip of a whole batch is missed once in 4,096 times
FEWEST, VALUES = 4, 2**20  # examples of large pictures, and values of all
FEW = 4  # pixels of each example
UNKNOWN = 16  # pixels of a side that only the data tell
LEAST = 0.05  # of the range of pixels: what counts as an answer
NEAR = 1.5  # pixels between the place of a picture's pixel and that of its label
_known: dict[Any, Any] = {}  # what was measured, for the life of the process


def flat(layers: Iterable[Any]) -> list[Any]:
    """Return layers with those inside of `keras.Sequential` and `keras.layers.Pipeline` instead."""
    found = []
    for layer in layers:
        inner = isinstance(layer, (keras.Sequential, getattr(keras.layers, "Pipeline", ())))
        found += flat(layer.layers) if inner else [layer]
    return found


def kind(layer: Any, pictures: Any) -> str:
    """Return what a layer does: it moves places, mixes examples, or leaves every pixel in place.

    One pixel of every second example is changed. Where the layer answers at another pixel more than
    there, it moves places; where another example answers, it mixes. All is as before afterwards.
    """
    return _remembered("kind", layer, pictures, _kind)


def fills(layer: Any, pictures: Any) -> bool:
    """Tell whether a layer that moves pictures may fill pixels from outside of them."""
    return _remembered("fills", layer, pictures, _fills)


def check(layers: Iterable[Any], pictures: Any) -> None:
    """Refuse layers that move pictures, but not the labels that have their places."""
    for layer in layers:
        if kind(layer, pictures) == MOVES and not _moves_masks(layer, pictures):
            raise RecipeError(
                "Labels with the height and width of a picture must move with it",
                f"{type(layer).__name__}, which moves pictures, and not their masks",
                'Let it take {"images": …, "segmentation_masks": …} and give it '
                "transform_segmentation_masks, as Keras' layers have, or leave it out",
            )


def takes_weights(model: keras.Model, loss: Any, pictures: Any, labels: Any) -> bool:
    """Tell whether each loss of labels with places has one number per place, to be weighed."""
    for method in ("train_step", "compute_loss"):
        if getattr(type(model), method) is not getattr(keras.Model, method):
            return False
    count = 2 if pictures.shape[1] != 2 else 3
    specs = keras.tree.map_structure(
        lambda part: tf.TensorSpec((count, *part.shape[1:]), part.dtype), (pictures, labels)
    )

    def losses(x: Any, y: Any) -> list[Any]:
        return [
            _values(part, label, found)
            for part, label, found in _pairs(model, loss, y, model(x, training=False))
            if augmentation.has_places(label, x)
        ]

    try:
        traced = tf.function(losses).get_concrete_function(*specs)
    except Exception:  # losses of the user's own raise errors of any kind
        return False
    shape = (count, *pictures.shape[1:3])
    return all(tuple(each.shape) == shape for each in traced.structured_outputs)


def weighed(labels: Any, sample_weight: Any, pictures: Any, planes: Any) -> Any:
    """Return weights of examples and places that leave out what was filled from outside."""
    known = tf.cast(augmentation.inside(planes), "float32")

    def one(label: Any, weight: Any) -> Any:
        if not augmentation.has_places(label, pictures):
            return tf.ones(tf.shape(known)[:1]) if weight is None else weight
        if weight is None:
            return known
        weight = tf.cast(weight, "float32")
        if len(weight.shape) > 2:
            return weight * (known[..., None] if len(weight.shape) == 4 else known)
        return tf.reshape(weight, [-1, 1, 1]) * known

    if not keras.tree.is_nested(sample_weight):
        return keras.tree.map_structure(lambda label: one(label, sample_weight), labels)
    return keras.tree.map_structure(one, labels, sample_weight)


def _pairs(model: keras.Model, loss: Any, labels: Any, outputs: Any) -> list[tuple[Any, Any, Any]]:
    """Each loss with its labels and its output."""
    if isinstance(labels, dict) and isinstance(outputs, (list, tuple)):
        outputs = dict(zip(model.output_names, outputs, strict=True))
    if isinstance(labels, dict) and isinstance(loss, (list, tuple)):
        loss = dict(zip(model.output_names, loss, strict=True))
    if isinstance(labels, dict):
        every = loss if isinstance(loss, dict) else dict.fromkeys(labels, loss)
        return [(every[name], labels[name], outputs[name]) for name in labels]
    flat_labels, flat_outputs = keras.tree.flatten(labels), keras.tree.flatten(outputs)
    parts = keras.tree.flatten(loss)
    parts = parts * len(flat_labels) if len(parts) == 1 else parts
    return list(zip(parts, flat_labels, flat_outputs, strict=True))


def _values(loss: Any, labels: Any, outputs: Any) -> Any:
    """The losses of a batch before they are reduced."""
    loss = keras.losses.get(loss)
    if isinstance(loss, keras.losses.Loss):
        return loss.call(labels, outputs)
    return loss(labels, outputs)


def _pictures(like: Any, scale: float) -> tuple[Any, Any, np.ndarray]:
    """Pictures of random pixels, the same with one changed in every second, and its place."""
    rng = np.random.default_rng(0)
    sides = [side or UNKNOWN for side in like.shape[1:]]
    count = max(FEWEST, min(EXAMPLES, VALUES // math.prod(sides) // 2 * 2))
    shape = (count, *sides)
    first = rng.uniform(0, scale, shape)
    own = rng.integers(0, shape[1] * shape[2], count)
    other = first.reshape(count, -1, shape[3]).copy()
    for example in range(0, count, 2):
        pixel = other[example, own[example]]
        other[example, own[example]] = np.where(pixel > scale / 2, 0, scale)
    dtype = tf.as_dtype(like.dtype).as_numpy_dtype
    made = (tf.constant(each.astype(dtype)) for each in (first, other.reshape(shape)))
    return *made, own


def _answers(layer: Any, pictures: Any) -> Any:
    """How much each pixel answers to the changed ones, by draw; and which were changed."""
    scales = (255.0,) if not tf.as_dtype(pictures.dtype).is_floating else (1.0, 255.0)
    for scale in scales:
        first, second, own = _pictures(pictures, scale)
        for seed in range(DRAWS):
            one, other = (_drawn(layer, each, seed) for each in (first, second))
            if one.shape != first.shape:
                raise RecipeError(
                    "A layer of augmentation must keep the shape of pictures",
                    f"{type(layer).__name__}: {tuple(first.shape[1:])} became "
                    f"{tuple(one.shape[1:])}",
                    "Resize or crop in the model or in the data instead",
                )
            change = np.abs(_numbers(other) - _numbers(one)).max(axis=-1) / scale
            yield change.reshape(len(own), -1), own


def _kind(layer: Any, pictures: Any) -> str:
    with tf.init_scope():
        for answer, own in _answers(layer, pictures):
            # statistics of the batch, as for equal histograms, change many pixels
            if 0 < (answer[1::2] > LEAST).sum() < FEW * len(own):
                return MIXES
            at_own = np.take_along_axis(answer, own[:, None], axis=1)[:, 0]
            if (answer.max(axis=1) > np.maximum(2 * at_own, LEAST))[::2].any():
                return MOVES
    return STILL


def _fills(layer: Any, pictures: Any) -> bool:
    if getattr(layer, "fill_mode", None) == "constant":
        return True
    with tf.init_scope():
        made, _, _ = _pictures(pictures, 1.0)
        planes = [_carried(layer, made, seed)[1] for seed in range(DRAWS)]
        return any(not augmentation.inside(each).numpy().all() for each in planes)


def _moves_masks(layer: Any, pictures: Any) -> bool:
    try:
        return carries(layer) and bool(_remembered("follows", layer, pictures, _follows))
    except Exception:  # layers raise errors of any kind where they take no masks of six planes
        return False


def _remembered(what: str, layer: Any, pictures: Any, measure: Any) -> Any:
    """What was measured of a layer; that of Keras' kind is measured once for equal settings."""
    if not carries(layer):
        return measure(layer, pictures)
    config = {name: value for name, value in layer.get_config().items() if name != "name"}
    key = (what, type(layer), str(config), str(pictures.shape[1:]), pictures.dtype)
    if key not in _known:
        _known[key] = measure(layer, pictures)
    return _known[key]


def _follows(layer: Any, pictures: Any) -> bool:
    """Whether masks move as pictures do: where the changed pixel is, its place is too."""
    with tf.init_scope():
        near = []
        first, second, own = _pictures(pictures, 1.0)
        for seed in range(DRAWS):
            one, planes = _carried(layer, first, seed)
            other, _ = _carried(layer, second, seed)
            change = np.abs(_numbers(other) - _numbers(one)).max(axis=-1).reshape(len(own), -1)
            seen = (change.max(axis=1) > LEAST)[::2]
            digits = _numbers(planes).reshape(len(own), -1, 6)
            at = np.arange(len(own)), change.argmax(axis=1)
            found = digits[at][::2]
            seen &= augmentation.inside(planes).numpy().reshape(len(own), -1)[at][::2]
            rows, columns = np.divmod(own[::2], first.shape[2])
            apart = np.maximum(
                np.abs(found[:, 0] * augmentation.DIGITS + found[:, 1] - rows),
                np.abs(found[:, 2] * augmentation.DIGITS + found[:, 3] - columns),
            )
            near += list(apart[seen] <= NEAR)
        return bool(near) and float(np.mean(near)) > 0.9


def _carried(layer: Any, pictures: Any, seed: int) -> tuple[Any, Any]:
    both = {"images": pictures, "segmentation_masks": augmentation.placed(pictures)}
    both = _drawn(layer, both, seed)
    return both["images"], both["segmentation_masks"]


def _drawn(layer: Any, inputs: Any, seed: int) -> Any:
    """What a layer makes of inputs by the draws of a seed; its own generators stay as they were."""
    variables = [*layer.variables]
    before = [keras.ops.convert_to_numpy(each) for each in variables]
    try:
        with seed_scope(seed):
            for each, value in zip(variables, before, strict=True):
                drawn = np.issubdtype(value.dtype, np.integer)
                each.assign(value + np.asarray(seed, value.dtype) if drawn else value)
            return layer(inputs, training=True)
    finally:
        for each, value in zip(variables, before, strict=True):
            each.assign(value)


def _numbers(tensor: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32"))


def refuse_mixing(layer: Any) -> ModelError:
    """Return the refusal of a layer that mixes examples without their labels."""
    return ModelError(
        "A layer of augmentation must take each example by itself: labels stay as they are",
        f"{type(layer).__name__}, which mixes the examples of a batch",
        "Take kbatch.MixUp() or kbatch.CutMix() instead, which mix labels too",
    )
