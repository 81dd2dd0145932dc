"""A combination: the settings of a recipe that decide the memory of a step, but the batch size."""

from __future__ import annotations

import collections
import itertools
from typing import Any

from kbatch.axes import AXES
from kbatch.recipe import Recipe
from kbatch.space import Space

PLAIN = Recipe()
OF_MEMORY = [axis for axis in AXES if axis.decides_memory]
NAMES = [axis.name for axis in OF_MEMORY]
# the first three (policy, optimizer, jit_compile) are always shown, later ones if not the default
ALWAYS_SHOWN = 3

_namedtuple: Any = collections.namedtuple  # untyped, since mypy cannot read fields of a table
_Parts: Any = _namedtuple("_Parts", NAMES, defaults=[getattr(PLAIN, name) for name in NAMES])


class Combination(_Parts):
    """A value for each axis that decides memory; a missing value has the default of `Recipe`.

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
        """Return the combination of a recipe."""
        return cls(*(axis.like_in_memory(getattr(recipe, axis.name)) for axis in OF_MEMORY))

    def __str__(self) -> str:
        words = [self.optimizer, self.policy, *(["jit"] if self.jit_compile else [])]
        return ", ".join([*words, *self.later_words()])

    def later_words(self) -> list[str]:
        """Return words for the axes after the first three that do not have their default."""
        later = NAMES[ALWAYS_SHOWN:]
        return [
            f"{name} {getattr(self, name)}"
            for name in later
            if getattr(self, name) != getattr(PLAIN, name)
        ]


def combinations(space: Space) -> list[Combination]:
    """Return all combinations of a space that may differ in memory, each once."""
    values = [
        dict.fromkeys(map(axis.like_in_memory, given))
        for axis, given in space.searched()
        if axis.decides_memory
    ]
    return [Combination(*each) for each in itertools.product(*values)]
