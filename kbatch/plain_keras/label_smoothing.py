"""Label smoothing of the cross-entropies of Keras."""

import keras

CROSS_ENTROPIES = {
    "binary_crossentropy": keras.losses.BinaryCrossentropy,
    "binary_focal_crossentropy": keras.losses.BinaryFocalCrossentropy,
    "categorical_crossentropy": keras.losses.CategoricalCrossentropy,
    "categorical_focal_crossentropy": keras.losses.CategoricalFocalCrossentropy,
    "sparse_categorical_crossentropy": keras.losses.SparseCategoricalCrossentropy,
}


def smoothed(loss, amount):
    """Return a cross-entropy whose labels are softened by an amount (Szegedy et al. 2016)."""
    loss = CROSS_ENTROPIES[loss]() if isinstance(loss, str) else loss
    if not isinstance(loss, keras.losses.SparseCategoricalCrossentropy):
        return type(loss).from_config({**loss.get_config(), "label_smoothing": amount})
    from_logits = loss.get_config()["from_logits"]

    def soft(y_true, y_pred):
        """Keras has no label smoothing for labels that are numbers of classes."""
        classes = y_pred.shape[-1]
        labels = keras.ops.one_hot(keras.ops.cast(y_true, "int32"), classes, dtype=y_pred.dtype)
        labels = keras.ops.reshape(labels, keras.ops.shape(y_pred))
        soft_labels = labels * (1 - amount) + amount / classes
        return keras.ops.categorical_crossentropy(soft_labels, y_pred, from_logits=from_logits)

    return soft
