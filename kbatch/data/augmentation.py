"""Augmentation: named pipelines of Keras layers that run on the device, on whole batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from kbatch.errors import RecipeError

Pipeline = Callable[[], Sequence[keras.layers.Layer]]


class RandomShift(keras.layers.Layer):
    """Layer that shifts each image by a random number of pixels, and repeats its edge.

    `keras.layers.RandomTranslation` uses an operation that XLA cannot compile
    (ImageProjectiveTransform, Keras 3.15.1). This layer gathers rows and columns, so that it also
    runs under `jit_compile=True`.

    Args:
        factor: Float, the largest shift as a share of the height and of the width. Defaults to
            `0.1`.

    Call arguments:
        images: Tensor of shape `(batch, height, width, channels)`.
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
        return self._move(self._move(images, axis=1), axis=2)

    def _move(self, images: Any, axis: int) -> Any:
        """Shift along one axis, by gathering rows or columns of each image."""
        size = images.shape[axis]
        most = max(int(size * self.factor), 1)
        shift = keras.random.randint(
            (tf.shape(images)[0], 1), -most, most + 1, seed=self.seed_generator
        )
        source = tf.clip_by_value(tf.range(size)[None, :] + tf.cast(shift, tf.int32), 0, size - 1)
        return tf.gather(images, source, axis=axis, batch_dims=1)


def _none() -> list[keras.layers.Layer]:
    return []


def _flip() -> list[keras.layers.Layer]:
    return [keras.layers.RandomFlip("horizontal", dtype="float32")]


def _flip_shift() -> list[keras.layers.Layer]:
    return [*_flip(), RandomShift(0.1, dtype="float32")]


def _flip_shift_contrast() -> list[keras.layers.Layer]:
    return [*_flip_shift(), keras.layers.RandomContrast(0.3, value_range=(0, 255), dtype="float32")]


_pipelines: dict[str, Pipeline] = {
    "none": _none,
    "flip": _flip,
    "flip_shift": _flip_shift,
    "flip_shift_contrast": _flip_shift_contrast,
}


def names() -> tuple[str, ...]:
    """Return the names of all registered pipelines."""
    return tuple(_pipelines)


def registered(chosen: tuple[str, ...]) -> dict[str, Pipeline]:
    """Return the pipelines of these names, without names that are not registered."""
    return {name: _pipelines[name] for name in chosen if name in _pipelines}


def register_augmentation(name: str, pipeline: Pipeline) -> None:
    """Register an augmentation pipeline of your own under a name.

    Use it before the search; then put the name into `Space(augmentation=("none", name))`. Built-in
    pipelines are `none`, `flip`, `flip_shift` and `flip_shift_contrast`. They take images of shape
    `(batch, height, width, channels)`, the last one with pixels from 0 to 255.

    Args:
        name: String, name of the pipeline in recipes and tables.
        pipeline: Function without arguments that returns new Keras layers. They are applied in
            order to `x`, and must keep its shape. With `jit_compile=True` XLA must be able to
            compile them.

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


def layers(name: str) -> list[keras.layers.Layer]:
    """Return new layers of a pipeline.

    Args:
        name: String, name of the pipeline.

    Raises:
        RecipeError: If no pipeline has this name.
    """
    if name not in _pipelines:
        raise RecipeError(
            f"`augmentation` must be one of {', '.join(_pipelines)}",
            name,
            "Register it with kbatch.register_augmentation",
        )
    return list(_pipelines[name]())
