"""The policy scope: a `with` block under another dtype policy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import keras

from kbatch.dtype_policy import policy_of_keras


@contextmanager
def policy_scope(policy: str, restore: str | keras.DTypePolicy) -> Iterator[None]:
    """Set Keras' global dtype policy inside the `with` block, and `restore` afterwards.

    Args:
        policy: String, name of the policy of a recipe.
        restore: The user's own policy. It cannot be read here, since KerasTuner's `clear_session`
            has reset it before.
    """
    keras.config.set_dtype_policy(policy_of_keras(policy))
    try:
        yield
    finally:
        keras.config.set_dtype_policy(restore)
