"""Augmentation: the layers and mixtures of a pipeline, and labels that move with a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from kbatch.errors import DataError, RecipeError, in_one_frame, made_in_one_frame
from kbatch.recipe_words import AUGMENTATIONS


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
        self.seed = keras.random.SeedGenerator()

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


def drawn_shares(like: Any, seed: Any) -> Any:
    """Draw one number from 0 to 1 for each example."""
    # other Beta distributions than Beta(1, 1) take rejection sampling, which XLA cannot compile
    return keras.random.uniform((tf.shape(like)[0],), dtype="float32", seed=seed)


def mix_up(x: Any, seed: Any) -> tuple[Any, Any]:
    """Average each example with its partner (MixUp), and return the share that it keeps."""
    share = drawn_shares(keras.tree.flatten(x)[0], seed)

    def average(part: Any) -> Any:
        part = tf.convert_to_tensor(part)
        numbers = part if part.dtype.is_floating else tf.cast(part, "float32")
        weight = tf.cast(per_example(share, numbers), numbers.dtype)
        return weight * numbers + (1 - weight) * partner(numbers)

    return keras.tree.map_structure(average, x), share


def cut_mix(x: Any, seed: Any) -> tuple[Any, Any]:
    """Paste a rectangle of its partner into each image (CutMix), and return what it keeps."""
    x = tf.convert_to_tensor(x)
    side = tf.sqrt(drawn_shares(x, seed))
    rows, row_count, height = covered(x, side, 1, seed)
    columns, column_count, width = covered(x, side, 2, seed)
    pasted = rows[:, :, None, None] & columns[:, None, :, None]
    area = tf.cast(row_count * column_count, "float32") / tf.cast(height * width, "float32")
    return tf.where(pasted, partner(x), x), 1.0 - area


def covered(x: Any, side: Any, axis: int, seed: Any) -> tuple[Any, Any, Any]:
    """Draw which rows or columns a rectangle covers, and return their number and of how many."""
    size = tf.shape(x)[axis]
    length = tf.cast(side * tf.cast(size, "float32"), "int32")
    centre = tf.cast(drawn_shares(x, seed) * tf.cast(size, "float32"), "int32")
    first = tf.maximum(centre - length // 2, 0)
    end = tf.minimum(centre - length // 2 + length, size)
    # comparisons, since XLA compiles no slice whose size is drawn
    place = tf.range(size)[None, :]
    inside = (place >= first[:, None]) & (place < end[:, None])
    return inside, tf.maximum(end - first, 0), size


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
        return mix_up(x, self.seed)


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
        return cut_mix(x, self.seed)


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


def augmentation_names() -> tuple[str, ...]:
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
    """Return new layers of a pipeline."""
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


# A layer may compute in half precision, which has whole numbers up to 256 only.
DIGITS = 128


def has_places(label: Any, picture: Any) -> bool:
    """Tell whether a batch of labels has the height and the width of the pictures."""
    if label is None or len(label.shape) < 3 or len(picture.shape) != 4:
        return False
    return tuple(label.shape[1:3]) == tuple(picture.shape[1:3])


def placed(pictures: Any) -> tf.Tensor:
    """Return planes of which each pixel holds its own place, to be moved with the pictures."""
    count, height, width = tf.unstack(tf.shape(pictures)[:3])
    rows = tf.repeat(tf.range(height)[:, None], width, axis=1)
    columns = tf.repeat(tf.range(width)[None, :], height, axis=0)
    one = tf.ones_like(rows)
    # The last two differ by one, but not where a layer fills both with one value.
    digits = (rows // DIGITS, rows % DIGITS, columns // DIGITS, columns % DIGITS, one, 2 * one)
    planes = tf.cast(tf.stack(digits, axis=-1), "float32")
    return tf.repeat(planes[None], count, axis=0)


def inside(planes: Any) -> tf.Tensor:
    """Return which pixels come from the picture; others were filled from outside."""
    return tf.cast(planes[..., 5], "float32") - tf.cast(planes[..., 4], "float32") > 0.5


def moved(labels: Any, pictures: Any, planes: Any) -> Any:
    """Return labels of which those with places are moved; they are 0 where nothing is known.

    Args:
        labels: Structure of labels and weights of a batch.
        pictures: The pictures, before or after.
        planes: What `placed` returned, after it was moved with the pictures.
    """
    digits = tf.cast(tf.round(tf.cast(planes[..., :4], "float32")), "int32")
    rows, columns = (digits[..., at] * DIGITS + digits[..., at + 1] for at in (0, 2))
    known = inside(planes)
    source = tf.where(known[..., None], tf.stack([rows, columns], axis=-1), 0)

    def one(label: Any) -> Any:
        if not has_places(label, pictures):
            return label
        label = tf.convert_to_tensor(label)
        found = tf.gather_nd(label, source, batch_dims=1)
        shape = tf.concat([tf.shape(known), tf.ones([len(label.shape) - 3], "int32")], axis=0)
        return tf.where(tf.reshape(known, shape), found, tf.zeros_like(found))

    return keras.tree.map_structure(one, labels)


def follows(pictures: Any, labels: Any) -> bool:
    """Tell whether any label or weight has the places of the pictures, and is to move with them."""
    if keras.tree.is_nested(pictures):
        return False
    return any(has_places(label, pictures) for label in keras.tree.flatten(labels))


def carries(layer: Any) -> bool:
    """Tell whether a layer takes pictures together with masks, as Keras' own do."""
    return hasattr(layer, "transform_segmentation_masks")


def carried(layer: Any, pictures: Any, planes: Any) -> tuple[Any, Any]:
    """Return what a layer makes of pictures, and of planes that move with them."""
    both = layer({"images": pictures, "segmentation_masks": planes}, training=True)
    return both["images"], both["segmentation_masks"]


def augmented_step(
    own_step: Callable[[Any], Any],
    layers: Sequence[Any],
    moves: Callable[[Any], bool] = carries,
    followed: Callable[[Any, Any, Any], Any] = moved,
) -> Callable[[Any], Any]:
    """Return a train step that applies layers to the inputs before another step.

    Labels and weights of the height and width of the pictures move with them: `moves` tells which
    layers move, and `followed` returns labels that have followed.
    """

    def train_step(data: Any) -> Any:
        x, *labels = keras.utils.unpack_x_y_sample_weight(data)
        planes = placed(x) if follows(x, labels) else None
        for layer in layers:
            if planes is not None and moves(layer):
                x, planes = carried(layer, x, planes)
            else:
                x = layer(x, training=True)
        if planes is not None:
            labels = followed(labels, x, planes)
        return own_step(keras.utils.pack_x_y_sample_weight(x, *labels))

    return train_step
