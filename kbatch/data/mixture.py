"""A mixture: parts of augmentation pipelines that blend the examples of a batch."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from kbatch.errors import DataError, made_in_one_frame


def partner(values: Any) -> Any:
    """Return the values of each example's partner, which is the example before it in the batch.

    Training data are shuffled in each pass, so the neighbour is a random partner. Nothing is drawn.
    """
    return keras.tree.map_structure(
        lambda part: None if part is None else tf.roll(part, 1, axis=0), values
    )


def per_example(numbers: tf.Tensor, like: Any) -> tf.Tensor:
    """Reshape one number per example, so that it broadcasts over a tensor of examples."""
    return tf.reshape(numbers, [-1] + [1] * (len(like.shape) - 1))


class Mixing:
    """A part of an augmentation pipeline that blends each example with its partner.

    The loss of a mixed example is `share` times the loss at its own label, plus `1 - share` times
    the loss at its partner's label.
    """

    def __init__(self) -> None:
        self._seed = keras.random.SeedGenerator()

    def check(self, x: Any) -> None:
        """Refuse inputs that cannot be mixed.

        Args:
            x: Inputs of the model, as tensors or as `tf.TensorSpec`, with the batch dimension.

        Raises:
            DataError: If they cannot be mixed.
        """
        raise NotImplementedError

    def check_examples(self, spec: Any) -> None:
        """Refuse examples that cannot be mixed, given the spec of one.

        Raises:
            DataError: If they cannot be mixed.
        """
        batched = keras.tree.map_structure(
            lambda part: tf.TensorSpec((None, *part.shape), part.dtype), spec
        )
        self.check(batched)

    def check_count(self, examples: int) -> None:
        """Refuse examples that have no partner.

        Args:
            examples: Integer, the fewest that are mixed with one another.

        Raises:
            DataError: If it is one.
        """
        if examples < 2:
            raise DataError(
                f"{type(self).__name__} must have two examples or more in every pass",
                "passes of 1, which it would not change",
                "Take a larger micro-batch or first batch, or leave it out of `augmentation`",
            )

    def mix(self, x: Any) -> tuple[Any, tf.Tensor]:
        """Return mixed inputs, and the share of its own label that each example keeps.

        Args:
            x: Inputs of the model, a batch.
        """
        raise NotImplementedError

    def _uniform(self, like: Any) -> tf.Tensor:
        """One number from 0 to 1 for each example."""
        # other Beta distributions than Beta(1, 1) take rejection sampling, which XLA cannot compile
        return keras.random.uniform((tf.shape(like)[0],), dtype="float32", seed=self._seed)


@made_in_one_frame
class MixUp(Mixing):
    """Averages each example with its partner (MixUp, Zhang et al. 2018).

    Use it in an augmentation pipeline of your own; the built-in pipelines `mixup` and
    `flip_shift_mixup` hold it. It takes float tensors of any shape, and images as whole numbers
    (`uint8`), which become `float32`. Each example draws its share uniformly, which is Beta(1, 1).
    In a model with several inputs, an example has the same share in all of them.

    Reference:
        [Zhang et al. 2018, "mixup: Beyond Empirical Risk Minimization"](
        https://arxiv.org/abs/1710.09412).

    Example:
    >>> import kbatch
    >>> kbatch.register_augmentation("flip_mixup", lambda: [keras.layers.RandomFlip(), MixUp()])
    """

    def check(self, x: Any) -> None:
        """Refuse inputs that cannot be averaged, such as numbers of words."""
        for part in keras.tree.flatten(x):
            dtype = tf.as_dtype(part.dtype)
            if not dtype.is_floating and dtype != tf.uint8:
                raise DataError(
                    "MixUp must have inputs that can be averaged: floats, or images as uint8",
                    f"{dtype.name} of shape {tuple(part.shape)}",
                    "Leave mixup out of `augmentation`, or pass floats",
                )

    def mix(self, x: Any) -> tuple[Any, tf.Tensor]:
        """Average each example with its partner."""
        self.check(x)
        share = self._uniform(keras.tree.flatten(x)[0])
        return keras.tree.map_structure(lambda part: _average(part, share), x), share


@made_in_one_frame
class CutMix(Mixing):
    """Pastes a rectangle of its partner into each image (CutMix, Yun et al. 2019).

    Use it in an augmentation pipeline of your own; the built-in pipelines `cutmix` and
    `flip_shift_cutmix` hold it. It takes images of shape `(batch, height, width, channels)`. Each
    image draws its rectangle: the area uniformly, which is Beta(1, 1), and the centre uniformly.
    What lies outside of the image is cut off, and the share is that of the pixels that remain.

    Reference:
        [Yun et al. 2019, "CutMix"](https://arxiv.org/abs/1905.04899).

    Example:
    >>> import kbatch
    >>> kbatch.register_augmentation("flip_cutmix", lambda: [keras.layers.RandomFlip(), CutMix()])
    """

    def check(self, x: Any) -> None:
        """Refuse inputs that are not one batch of images."""
        if keras.tree.is_nested(x) or len(x.shape) != 4:
            shapes = [str(tuple(part.shape)) for part in keras.tree.flatten(x)]
            raise DataError(
                "CutMix must have images of shape (batch, height, width, channels)",
                f"inputs of shape {', '.join(shapes)}",
                "Leave cutmix out of `augmentation`; MixUp takes any floats",
            )

    def mix(self, x: Any) -> tuple[Any, tf.Tensor]:
        """Paste a rectangle of its partner into each image."""
        self.check(x)
        x = tf.convert_to_tensor(x)
        side = tf.sqrt(self._uniform(x))
        rows, row_count, height = self._range(x, side, axis=1)
        columns, column_count, width = self._range(x, side, axis=2)
        pasted = rows[:, :, None, None] & columns[:, None, :, None]
        area = tf.cast(row_count * column_count, "float32") / tf.cast(height * width, "float32")
        return tf.where(pasted, partner(x), x), 1.0 - area

    def _range(self, x: tf.Tensor, side: tf.Tensor, axis: int) -> tuple[tf.Tensor, ...]:
        """Which rows or columns a rectangle covers in each image, their number, and of how many."""
        size = tf.shape(x)[axis]
        length = tf.cast(side * tf.cast(size, "float32"), "int32")
        centre = tf.cast(self._uniform(x) * tf.cast(size, "float32"), "int32")
        first = tf.maximum(centre - length // 2, 0)
        end = tf.minimum(centre - length // 2 + length, size)
        # comparisons, since XLA compiles no slice whose size is drawn
        place = tf.range(size)[None, :]
        covered = (place >= first[:, None]) & (place < end[:, None])
        return covered, tf.maximum(end - first, 0), size


def _average(part: Any, share: tf.Tensor) -> tf.Tensor:
    part = tf.convert_to_tensor(part)
    numbers = part if part.dtype.is_floating else tf.cast(part, "float32")
    weight = tf.cast(per_example(share, numbers), numbers.dtype)
    return weight * numbers + (1 - weight) * partner(numbers)
