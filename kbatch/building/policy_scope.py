"""Policy scope: a dtype policy for the length of a `with`, after which the user's own is back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import keras


@contextmanager
def policy_scope(policy: str, restore: str | keras.DTypePolicy) -> Iterator[None]:
    """Set Keras' global dtype policy, and set `restore` afterwards.

    Args:
        policy: Name of the policy inside the `with`.
        restore: The user's own policy. Given, not read here: KerasTuner's `clear_session` has reset
            it by then.
    """
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(restore)
