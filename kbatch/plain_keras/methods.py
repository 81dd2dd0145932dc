"""Train steps of sharpness-aware minimisation and of the proximal method."""

import keras
import tensorflow as tf


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
