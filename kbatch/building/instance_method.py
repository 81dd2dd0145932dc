"""An instance's own method: one that stands in for the method of its class for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(instance: Any, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """Replace a method of one object inside the `with` block.

    Afterwards the object has what it had before: the method of its class, or the one of another
    such block around this one.

    Args:
        instance: Object to change.
        name: String, name of the method.
        method: Function to call instead, without `self`.
    """
    before = vars(instance).get(name)
    setattr(instance, name, method)
    try:
        yield
    finally:
        if before is None:
            delattr(instance, name)
        else:
            setattr(instance, name, before)
