"""Augmentation within the train step, on the device."""

from typing import NamedTuple

import keras
import tensorflow as tf

from kbatch.data.augmentation import has_places, moved, placed


def augmented(model, layers):
    """Return a train step that applies layers to the inputs before the model's own.

    Labels and weights of the height and width of the pictures move with them.
    """
    own_step = model.train_step

    def train_step(data):
        x, *labels = data
        parts = keras.tree.flatten(labels)
        follow = not keras.tree.is_nested(x) and any(has_places(part, x) for part in parts)
        planes = placed(x) if follow else None
        for layer in layers:
            if follow and hasattr(layer, "transform_segmentation_masks"):
                both = layer({"images": x, "segmentation_masks": planes}, training=True)
                x, planes = both["images"], both["segmentation_masks"]
            else:
                x = layer(x, training=True)
        return own_step((x, *(moved(labels, x, planes) if follow else labels)))

    return train_step


class MixedLabels(NamedTuple):
    """The labels of mixed examples, their partners' labels, and the weights of the loss at each."""

    own: tf.Tensor
    partner: tf.Tensor
    own_weight: tf.Tensor
    partner_weight: tf.Tensor
    share: tf.Tensor


def mixing(model, mix):
    """Return a train step that mixes each example with its partner, before the model's own.

    The loss of an example is that at both labels by their shares, so it must be a cross-entropy;
    training metrics are those at the label of the larger share.
    """
    own_step, loss_of, metrics_of = model.train_step, model.compute_loss, model.compute_metrics
    seed = keras.random.SeedGenerator()

    def compute_loss(x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if not isinstance(y, MixedLabels):
            return loss_of(x, y, y_pred, sample_weight, training)
        own = loss_of(x, y.own, y_pred, 2 * y.own_weight, training)
        return (own + loss_of(x, y.partner, y_pred, 2 * y.partner_weight, training)) / 2

    def compute_metrics(x, y, y_pred, sample_weight=None):
        if isinstance(y, MixedLabels):
            y = keras.tree.map_structure(
                lambda own, partner: tf.where(per_example(y.share >= 0.5, own), own, partner),
                y.own,
                y.partner,
            )
        return metrics_of(x, y, y_pred, sample_weight)

    def train_step(data):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        x, share = mix(x, seed)
        partners = keras.tree.map_structure(lambda part: tf.roll(part, 1, axis=0), y)
        weights = [share, 1 - share]
        if weight is not None:
            pair = [tf.cast(part, "float32") for part in (weight, tf.roll(weight, 1, axis=0))]
            chosen = per_example(share >= 0.5, pair[0])
            weight = tf.where(chosen, *pair)
            weights = [
                part * per_example(own, part) for part, own in zip(pair, weights, strict=True)
            ]
        labels = MixedLabels(y, partners, weights[0], weights[1], share)
        return own_step(keras.utils.pack_x_y_sample_weight(x, labels, weight))

    model.compute_loss, model.compute_metrics = compute_loss, compute_metrics
    return train_step


def per_example(numbers, like):
    """Reshape one number per example, so that it broadcasts over a tensor of examples."""
    return tf.reshape(numbers, [-1] + [1] * (len(like.shape) - 1))


def mix_up(x, seed):
    """Average each example with the one before it in the batch (MixUp, Zhang et al. 2018)."""
    share = keras.random.uniform((tf.shape(x)[0],), dtype="float32", seed=seed)
    x = x if x.dtype.is_floating else tf.cast(x, "float32")
    weight = tf.cast(per_example(share, x), x.dtype)
    return weight * x + (1 - weight) * tf.roll(x, 1, axis=0), share


def cut_mix(x, seed):
    """Paste a rectangle of the image before it into each image (CutMix, Yun et al. 2019)."""
    side = tf.sqrt(keras.random.uniform((tf.shape(x)[0],), dtype="float32", seed=seed))
    rows, row_count = covered(tf.shape(x)[1], side, seed)
    columns, column_count = covered(tf.shape(x)[2], side, seed)
    pasted = rows[:, :, None, None] & columns[:, None, :, None]
    pixels = tf.cast(tf.shape(x)[1] * tf.shape(x)[2], "float32")
    share = 1.0 - tf.cast(row_count * column_count, "float32") / pixels
    return tf.where(pasted, tf.roll(x, 1, axis=0), x), share


def covered(size, side, seed):
    """Return which rows, or columns, a rectangle covers in each image, and how many."""
    length = tf.cast(side * tf.cast(size, "float32"), "int32")
    drawn = keras.random.uniform(tf.shape(side), dtype="float32", seed=seed)
    first = tf.cast(drawn * tf.cast(size, "float32"), "int32") - length // 2
    first, end = tf.maximum(first, 0), tf.minimum(first + length, size)
    place = tf.range(size)[None, :]
    inside = (place >= first[:, None]) & (place < end[:, None])
    return inside, tf.maximum(end - first, 0)
