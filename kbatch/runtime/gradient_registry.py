"""TensorFlow's registry of custom gradients, which keeps dead models alive.

`tf.custom_gradient` registers a closure under a new name at every trace and never removes it
(tensorflow#80895). The closure holds the variables of the model and of its optimizer.
"""

from __future__ import annotations

import gc

from kbatch.runtime import tensorflow_private

PREFIX = "CustomGradient-"


def registered() -> frozenset[str]:
    """Return the names of all custom gradients that TensorFlow holds now."""
    names = tensorflow_private.custom_gradients()
    return frozenset(name for name in names if name.startswith(PREFIX))


def purge(before: frozenset[str]) -> int:
    """Remove the custom gradients that were registered since, and free the models they held.

    Args:
        before: Frozenset of names, what `registered()` returned before the model was built. The
            model must not be trained any more.

    Returns:
        Integer, number of custom gradients that were removed.
    """
    since = registered() - before
    tensorflow_private.forget_custom_gradients(since)
    gc.collect()
    return len(since)
