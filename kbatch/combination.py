"""Combination: the parts of a recipe that decide, besides the batch size, how much memory a step needs."""

from __future__ import annotations

import collections
import itertools
from typing import Any

from kbatch.recipe import Recipe
from kbatch.space import AXES, Space

PLAIN = Recipe()
NAMES = [axis.name for axis in AXES if axis.decides_memory]
# policy, optimizer and jit_compile; of the others only what a plain recipe does not have
SAID_ALWAYS = 3

_namedtuple: Any = collections.namedtuple  # mypy wants to see the fields, which are the table's
_Parts: Any = _namedtuple("_Parts", NAMES, defaults=[getattr(PLAIN, name) for name in NAMES])


class Combination(_Parts):
    """One value for each axis that the table marks as deciding memory; those left out are a plain recipe's.

    Example:
    >>> print(Combination("float32", "sgd", True, "minimal"))
    sgd, float32, jit, recompute minimal
    """

    policy: str
    optimizer: str
    jit_compile: bool
    recompute: str

    __slots__ = ()

    @classmethod
    def of(cls, recipe: Recipe) -> Combination:
        """That of a recipe."""
        return cls(*(getattr(recipe, name) for name in NAMES))

    def __str__(self) -> str:
        words = [self.optimizer, self.policy, *(["jit"] if self.jit_compile else [])]
        return ", ".join([*words, *self.later_words()])

    def later_words(self) -> list[str]:
        """The values of the axes after the first three, where they are not a plain recipe's."""
        later = NAMES[SAID_ALWAYS:]
        return [
            f"{name} {getattr(self, name)}"
            for name in later
            if getattr(self, name) != getattr(PLAIN, name)
        ]


def combinations(space: Space) -> list[Combination]:
    """All combinations of a space, each once."""
    values = [found for axis, found in space.searched() if axis.decides_memory]
    return [Combination(*each) for each in itertools.product(*values)]
