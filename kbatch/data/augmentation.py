"""Augmentation: named pipelines of Keras layers that run on the device, on whole batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from kbatch.data.mixture import CutMix, Mixing, MixUp
from kbatch.errors import RecipeError, in_one_frame
from kbatch.recipe_fields import AUGMENTATIONS

Part: TypeAlias = "keras.layers.Layer | Mixing"
Pipeline = Callable[[], Sequence[Part]]


class RandomShift(keras.layers.Layer):
    """Layer that shifts each image by a random number of pixels, and repeats its edge.

    `keras.layers.RandomTranslation` uses an operation that XLA cannot compile
    (ImageProjectiveTransform, Keras 3.15.1). This layer gathers rows and columns, so that it also
    runs under `jit_compile=True`.

    Args:
        factor: Float, the largest shift as a share of the height and of the width. Defaults to
            `0.1`.

    Call arguments:
        images: Tensor of shape `(batch, height, width, channels)`; or a dict of `"images"`, and
            perhaps `"segmentation_masks"` of the same batch, height and width, which move alike.
            What else is in it stays as it is.
        training: Boolean, whether to shift the images.
    """

    def __init__(self, factor: float = 0.1, **layer_arguments: Any) -> None:
        super().__init__(**layer_arguments)
        self.factor = factor
        self.seed_generator = keras.random.SeedGenerator()

    def call(self, images: Any, training: bool = True) -> Any:
        """Shift every image by a random distance of its own."""
        if not training:
            return images
        first = images["images"] if isinstance(images, dict) else images
        sources = [self._source(first, axis) for axis in (1, 2)]
        if not isinstance(images, dict):
            return self._moved(images, sources)
        moved = {**images, "images": self._moved(first, sources)}
        if "segmentation_masks" in images:
            masks = self.transform_segmentation_masks(images["segmentation_masks"], sources)
            moved["segmentation_masks"] = masks
        return moved

    def transform_segmentation_masks(self, masks: Any, sources: Any) -> Any:
        """Shift masks as images were."""
        return self._moved(masks, sources)

    def _source(self, images: Any, axis: int) -> Any:
        """Draw which row or column each row or column of an image comes from."""
        size = images.shape[axis]
        most = max(int(size * self.factor), 1)
        shift = keras.random.randint(
            (tf.shape(images)[0], 1), -most, most + 1, seed=self.seed_generator
        )
        return tf.clip_by_value(tf.range(size)[None, :] + tf.cast(shift, tf.int32), 0, size - 1)

    def _moved(self, images: Any, sources: Any) -> Any:
        """Gather the rows and columns of each image."""
        for axis, source in enumerate(sources, start=1):
            images = tf.gather(images, source, axis=axis, batch_dims=1)
        return images


# What each word in the name of a built-in pipeline stands for, in the order of the name.
_parts: dict[str, Callable[[], Part]] = {
    "flip": lambda: keras.layers.RandomFlip("horizontal", dtype="float32"),
    "shift": lambda: RandomShift(0.1, dtype="float32"),
    "contrast": lambda: keras.layers.RandomContrast(0.3, value_range=(0, 255), dtype="float32"),
    "mixup": MixUp,
    "cutmix": CutMix,
}


def _built_in(name: str) -> list[Part]:
    return [] if name == "none" else [_parts[part]() for part in name.split("_")]


_pipelines: dict[str, Pipeline] = {name: partial(_built_in, name) for name in AUGMENTATIONS}


def names() -> tuple[str, ...]:
    """Return the names of all registered pipelines."""
    return tuple(_pipelines)


def registered(chosen: tuple[str, ...]) -> dict[str, Pipeline]:
    """Return the pipelines of these names, without names that are not registered."""
    return {name: _pipelines[name] for name in chosen if name in _pipelines}


@in_one_frame
def register_augmentation(name: str, pipeline: Pipeline) -> None:
    """Register an augmentation pipeline of your own under a name.

    Use it before the search; then put the name into `Space(augmentation=("none", name))`. Built-in
    pipelines are `none`, `flip`, `flip_shift`, `flip_shift_contrast`, `mixup`, `cutmix`,
    `flip_shift_mixup` and `flip_shift_cutmix`. They take images of shape
    `(batch, height, width, channels)`, with contrast of pixels from 0 to 255; `mixup` takes any
    floats.

    Args:
        name: String, name of the pipeline in recipes and tables.
        pipeline: Function without arguments that returns new Keras layers, with at most one
            `kbatch.MixUp()` or `kbatch.CutMix()` among them. They are applied in order to `x`, and
            must keep its shape. With `jit_compile=True` XLA must be able to compile them.

    Raises:
        RecipeError: If the name is empty, or taken by another pipeline.

    Example:
    >>> import keras
    >>> register_augmentation("gaussian_noise", lambda: [keras.layers.GaussianNoise(0.1)])
    """
    if not isinstance(name, str) or not name or _pipelines.get(name, pipeline) is not pipeline:
        raise RecipeError(
            "The name of an augmentation must be new and not empty", name, "Choose another name"
        )
    _pipelines[name] = pipeline


def layers(name: str) -> list[Part]:
    """Return new layers of a pipeline.

    Args:
        name: String, name of the pipeline.

    Raises:
        RecipeError: If no pipeline has this name, or it mixes examples twice.
    """
    if name not in _pipelines:
        raise RecipeError(
            f"`augmentation` must be one of {', '.join(_pipelines)}",
            name,
            "Register it with kbatch.register_augmentation",
        )
    parts = list(_pipelines[name]())
    if len(_mixing(parts)) > 1:
        raise RecipeError(
            "An augmentation pipeline must mix examples at most once",
            f"{name} with {', '.join(type(part).__name__ for part in _mixing(parts))}",
            "Register each in a pipeline of its own",
        )
    return parts


def mixing(names: Iterable[str]) -> list[Mixing]:
    """Return the parts of these pipelines that mix examples; names not registered are left out."""
    return [part for name in names if name in _pipelines for part in _mixing(layers(name))]


def _mixing(parts: Iterable[Part]) -> list[Mixing]:
    return [part for part in parts if isinstance(part, Mixing)]
