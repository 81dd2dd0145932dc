"""Part: what one field of a recipe adds to its code."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from kbatch.code.definitions import Definition


@dataclass(frozen=True)
class Part:
    """What one field of a recipe adds to the function `train` of its code.

    Each attribute is a tuple of strings, pieces of code in the order of the function.

    Attributes:
        settings: Statements before the model is built.
        model: Statements about the model that was built.
        optimizer: Arguments of the optimizer.
        wrapped: Statements about the optimizer that was made.
        compilation: Arguments of `compile`.
        step: Statements about the compiled model.
        shares: Factors of the learning rate of each update, as expressions of `update`.
        callbacks: Callbacks, as expressions.
        definitions: The definitions that these use.
    """

    settings: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    optimizer: tuple[str, ...] = ()
    wrapped: tuple[str, ...] = ()
    compilation: tuple[str, ...] = ()
    step: tuple[str, ...] = ()
    shares: tuple[str, ...] = ()
    callbacks: tuple[str, ...] = ()
    definitions: tuple[Definition, ...] = ()


def together(parts: Iterable[Part]) -> Part:
    """Return the pieces of several parts as one.

    Example:
    >>> together([Part(shares=("0.5",)), Part(shares=("0.1",))]).shares
    ('0.5', '0.1')
    """
    every = list(parts)
    names = [field.name for field in dataclasses.fields(Part)]
    return Part(**{name: sum((getattr(each, name) for each in every), ()) for name in names})
