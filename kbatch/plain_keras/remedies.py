"""Remedies as a script copies them: augmentation, dropout, normalization, smoothing, methods."""

from __future__ import annotations

import math
from typing import NamedTuple

import keras
import tensorflow as tf

from kbatch.data.augmentation import has_places, moved, placed
from kbatch.models.normalization import KEPT, groups_of


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


def scale_dropout(model, factor):
    """Multiply the rates of dropout, also in nested models; a rate is raised to 0.5 at most."""
    for layer in model.layers:
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = min(layer.rate * factor, max(0.5, layer.rate))
        elif isinstance(layer, keras.Model):
            scale_dropout(layer, factor)


def group_normalized(model):
    """Return the model with group normalization in the place of batch normalization.

    It is a Sequential or Functional model; all other layers stay the same objects.
    """

    def replaced(layer):
        if isinstance(layer, keras.layers.BatchNormalization):
            return group_normalization(layer)
        nested = isinstance(layer, keras.Model)
        return group_normalized(layer) if nested else layer

    def called(layer, *inputs, **named):
        if isinstance(layer, keras.layers.GroupNormalization):
            named.pop("training", None)
        return layer(*inputs, **named)

    functional = None if isinstance(model, keras.Sequential) else called
    return keras.models.clone_model(model, clone_function=replaced, call_function=functional)


def group_normalization(layer):
    """Return group normalization in the place of a layer of batch normalization."""
    shape = layer.get_build_config()["input_shape"]
    axis = layer.axis % len(shape)
    others = [size for place, size in enumerate(shape) if place not in (0, axis)]
    positions = math.prod(math.inf if size is None else size for size in others)
    settings = layer.get_config()
    kept = {name: settings[name] for name in KEPT}
    groups = groups_of(shape[axis], positions)
    return keras.layers.GroupNormalization(
        groups, **kept, name=layer.name, dtype=layer.dtype_policy
    )


CROSS_ENTROPIES = {
    "binary_crossentropy": keras.losses.BinaryCrossentropy,
    "binary_focal_crossentropy": keras.losses.BinaryFocalCrossentropy,
    "categorical_crossentropy": keras.losses.CategoricalCrossentropy,
    "categorical_focal_crossentropy": keras.losses.CategoricalFocalCrossentropy,
    "sparse_categorical_crossentropy": keras.losses.SparseCategoricalCrossentropy,
}


def smoothed(loss, amount):
    """Return losses whose labels are softened by an amount (Szegedy et al. 2016)."""
    return keras.tree.map_structure(lambda part: softened(part, amount), loss)


def softened(loss, amount):
    """Return a cross-entropy with softened labels."""
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", "")
    loss = CROSS_ENTROPIES[name]() if name in CROSS_ENTROPIES else loss
    if not isinstance(loss, keras.losses.SparseCategoricalCrossentropy):
        return type(loss).from_config({**loss.get_config(), "label_smoothing": amount})
    made = type(loss).from_config(loss.get_config())
    plain = made.fn

    def soft(y_true, y_pred, from_logits=False, ignore_class=None, axis=-1):
        """Keras has no label smoothing for labels that are numbers of classes."""
        right = plain(y_true, y_pred, from_logits=from_logits, axis=axis)
        classes = keras.ops.cast(keras.ops.shape(y_pred)[axis], y_pred.dtype)
        evenly = keras.ops.ones_like(y_pred) / classes
        spread = keras.ops.categorical_crossentropy(
            evenly, y_pred, from_logits=from_logits, axis=axis
        )
        return (1 - amount) * right + amount * spread

    made.fn = soft
    return made


def gradients_of(model, data):
    """Return the gradients of a batch, loss-scaled where the optimizer does so, and its loss."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    with tf.GradientTape() as tape:
        y_pred = model(x, training=True)
        loss = model.compute_loss(x, y, y_pred, sample_weight, training=True)
        scaled = model.optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled, model.trainable_variables)
    dense = [None if each is None else tf.convert_to_tensor(each) for each in gradients]
    return dense, (loss, y_pred)


def logged(model, data, loss, y_pred):
    """Return the metrics of a batch."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    for metric in model.metrics:
        if metric.name == "loss":
            metric.update_state(loss)
    return model.compute_metrics(x, y, y_pred, sample_weight)


def values_of(variables):
    """Return the present values of variables."""
    return [tf.convert_to_tensor(variable) for variable in variables]


def assign(variables, values):
    """Give variables other values."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def sam_step(model, radius):
    """Return a train step of sharpness-aware minimisation (Foret et al. 2021).

    The gradient at the worst weights nearby is applied to the present ones. Dropout drops the same
    units in both passes; moving statistics are those of the first.
    """

    def train_step(data):
        weights, others = model.trainable_variables, model.non_trainable_variables
        start, entered = values_of(weights), values_of(others)
        ascent, found = gradients_of(model, data)
        left = values_of(others)
        assign(others, entered)
        known = [tf.cast(each, "float32") for each in ascent if each is not None]
        norm = tf.linalg.global_norm(known)
        factor = tf.where(tf.math.is_finite(norm), tf.math.divide_no_nan(radius, norm), 0.0)
        for weight, value, gradient in zip(weights, start, ascent, strict=True):
            if gradient is not None:
                step = tf.math.multiply_no_nan(tf.cast(gradient, "float32"), factor)
                weight.assign(value + tf.cast(step, value.dtype))
        gradients, _ = gradients_of(model, data)
        assign(weights, start)
        assign(others, left)
        model.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return logged(model, data, *found)

    return train_step


def proximal_step(model, penalty, steps):
    """Return a train step of the proximal mini-batch method (Li et al., KDD 2014).

    The optimizer takes several steps on a batch, held back to the weights at which it began. All
    drop the same units; moving statistics are those of the first.
    """

    def train_step(data):
        weights, others = model.trainable_variables, model.non_trainable_variables
        start, entered = values_of(weights), values_of(others)
        gradients, found = gradients_of(model, data)
        left = values_of(others)
        model.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        for _ in range(steps - 1):
            assign(others, entered)
            gradients, _ = gradients_of(model, data)
            pull = model.optimizer.scale_loss(tf.constant(penalty))
            gradients = [
                None if each is None else each + tf.cast(pull, each.dtype) * (weight - value)
                for each, weight, value in zip(gradients, weights, start, strict=True)
            ]
            model.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        assign(others, left)
        return logged(model, data, *found)

    return train_step
