"""A function of the user's that returns arrays, named as `module:function`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kbatch.errors import DataError, ModelError
from kbatch.memory._build_function import Imported, imported
from kbatch.sources import arrays
from kbatch.sources.class_folders import TEST, TRAIN, VALIDATION
from kbatch.sources.examples import Examples, Progress
from kbatch.sources.shares import Shares

RETURNS = "(x, y), (train, test), (train, validation, test) of such pairs, or a dict of arrays"
PAIR = 2
OF_PAIRS = {2: (TRAIN, TEST), 3: (TRAIN, VALIDATION, TEST)}


@dataclass(frozen=True)
class FunctionSource:
    """A function; see `kbatch.sources.source.Source`.

    Attributes:
        function: The function, which is imported when it is called.
        shares: `Shares` of examples that are not split yet.
        seed: Integer, the seed of the split.
    """

    function: Imported
    shares: Shares
    seed: int
    classes = ()
    total = None
    shape = None
    images = False

    @property
    def name(self) -> str:
        """The function's name."""
        return f"{self.function.module}:{self.function.name}"

    def load(self, on_progress: Progress) -> Examples:
        """Return the examples; see `kbatch.sources.source.Source`."""
        try:
            found = self.function.load()()
        except ModelError as error:
            raise _refusal(self.name, error.received) from error
        except (Exception, SystemExit) as error:  # of the user's own code
            raise DataError(
                f"{self.name} must return data",
                " ".join(f"{type(error).__name__}: {error}".split()),
                "Call it in Python to see where it fails",
            ) from error
        named = self._named(found)
        shapes = {name: array.shape for name, array in named.items()}
        arrays.check(shapes, {name: array.dtype for name, array in named.items()}, self.name)
        return arrays.examples_of(named, self.name, self.shares, self.seed)

    def _named(self, found: Any) -> dict[str, np.ndarray]:
        """What the function returned, as arrays by name."""
        if isinstance(found, Mapping):
            return {str(name): self._array(array) for name, array in found.items()}
        parts = list(found) if isinstance(found, (tuple, list)) else []
        if len(parts) == PAIR and not any(isinstance(part, tuple) for part in parts):
            return dict(zip((arrays.X, arrays.Y), map(self._array, parts), strict=True))
        if len(parts) not in OF_PAIRS or not all(_is_pair(part) for part in parts):
            kinds = ", ".join(type(part).__name__ for part in parts)
            raise _refusal(self.name, f"({kinds})" if parts else type(found).__name__)
        return {
            f"{kind}_{name}": self._array(array)
            for name, pair in zip(OF_PAIRS[len(parts)], parts, strict=True)
            for kind, array in zip((arrays.X, arrays.Y), pair, strict=True)
        }

    def _array(self, value: Any) -> np.ndarray:
        if not hasattr(value, "__array__") and not isinstance(value, (list, tuple)):
            raise _refusal(self.name, type(value).__name__)
        try:
            return np.asarray(value)
        except (TypeError, ValueError) as error:  # of rows of different lengths
            raise _refusal(self.name, f"{error}") from error


def look(text: str, shares: Shares, seed: int) -> FunctionSource:
    """Find the module of a function, without importing it.

    Args:
        text: String, such as `"mydata:load"`.
        shares: `Shares` of examples that are not split yet.
        seed: Integer, the seed of the split.

    Raises:
        DataError: If there is no such module.
    """
    try:
        return FunctionSource(imported(text), shares, seed)
    except ModelError as error:
        raise DataError(
            "--data as module:function must name a module that can be imported from here",
            text,
            "Run the command in the module's folder, or set PYTHONPATH",
        ) from error


def _is_pair(part: Any) -> bool:
    return isinstance(part, (tuple, list)) and len(part) == PAIR


def _refusal(name: str, received: object) -> DataError:
    return DataError(f"{name} must be a function that returns {RETURNS}", received, "Return these")
