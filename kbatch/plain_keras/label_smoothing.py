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
