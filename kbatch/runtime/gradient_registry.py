"""Gradient registry: TensorFlow keeps every traced custom gradient for the life of the process; this gives them back.

`tf.custom_gradient` registers a closure under a new name at every trace and never forgets it
(tensorflow#80895); the closure holds the model's variables and optimizer slots. The registry is
private, so this module alone touches it.
"""

from __future__ import annotations

import gc

from tensorflow.python.framework import ops

PREFIX = "CustomGradient-"


def registered() -> frozenset[str]:
    """Names of all custom gradients that TensorFlow holds now."""
    return frozenset(name for name in ops.gradient_registry.list() if name.startswith(PREFIX))


def purge(before: frozenset[str]) -> int:
    """Forget the custom gradients that were registered since, and collect what only they held.

    Args:
        before: What `registered()` said before the model was built. The model must not be trained
            any more.

    Returns:
        How many were forgotten.
    """
    since = registered() - before
    for name in since:
        ops.gradient_registry._registry.pop(name)
    gc.collect()
    return len(since)
