"""Errors of kbatch, whose messages say what must hold, what was received and what to do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

__all__ = [
    "DataError",
    "KbatchError",
    "MemoryLimitError",
    "ModelError",
    "NoMemoryLimitError",
    "ProjectChangedError",
    "RecipeError",
    "RecomputeError",
    "RecordError",
    "SearchError",
    "SpaceError",
]

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)


class KbatchError(Exception):
    """Base class of all errors of kbatch; catch it to catch them all.

    Args:
        must: String, the condition that must hold, as a clause without a full stop.
        received: The value that came instead; shown with `repr` unless it is a string.
        do: String, the remedy, as a clause without a full stop.

    Example:
    >>> str(KbatchError("`seconds` must be above 0", -1, "Pass the seconds to train"))
    '`seconds` must be above 0. Received: -1. Pass the seconds to train.'
    """

    def __init__(self, must: str, received: object, do: str) -> None:
        super().__init__(must, received, do)
        self.must, self.received, self.do = must, received, do

    def __str__(self) -> str:
        received = self.received if isinstance(self.received, str) else repr(self.received)
        return f"{self.must}. Received: {received}. {self.do}."


class RecipeError(KbatchError, ValueError):
    """A recipe with values that are not allowed, or that do not suit the model or the data."""


class SpaceError(KbatchError, ValueError):
    """An axis of the search space that cannot be searched."""


class DataError(KbatchError, ValueError):
    """Training data, validation data or a folder of images that cannot be used."""


class ModelError(KbatchError, ValueError):
    """A model that kbatch cannot train, because of its layers or its compile arguments."""


class MemoryLimitError(KbatchError, ValueError):
    """A memory limit that is not a number of bytes, or that a model does not fit into."""


class NoMemoryLimitError(MemoryLimitError):
    """A device that has no memory limit, or does not report it."""


class RecomputeError(KbatchError, ValueError):
    """A model that cannot be cut for recompute, or a plan of another model."""


class SearchError(KbatchError, ValueError):
    """A tuner, or an argument of `search` or `fit`, that kbatch does not support."""


class RecordError(KbatchError, ValueError):
    """A file of records that cannot be read or written."""


class ProjectChangedError(KbatchError, RuntimeError):
    """A search that is resumed with another space, data or horizon than at its start."""


def in_one_frame(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function raise kbatch's errors without the frames in which they arose.

    The message says what to do; the frames of kbatch would hide the user's own line.
    """

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except KbatchError as error:
            raise error.with_traceback(None) from None

    return called


def made_in_one_frame(kind: C) -> C:
    """Let the constructor of a class raise kbatch's errors in one frame; see `in_one_frame`."""
    made = cast(Any, kind)
    made.__init__ = in_one_frame(made.__init__)
    return kind


class Problems:
    """A collection of errors that are raised together."""

    def __init__(self) -> None:
        self._errors: list[KbatchError] = []

    def __bool__(self) -> bool:
        """Whether an error was kept."""
        return bool(self._errors)

    def of(self, check: Callable[[], Any]) -> Any:
        """Call a function and return its result; keep an error of kbatch, and return `None`."""
        try:
            return check()
        except KbatchError as error:
            self._errors.append(error)
            return None

    def raise_all(self) -> None:
        """Raise the errors that were kept: one as it is, several as one error that lists them."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            listed = "".join(
                f"\n  {number}. {error}" for number, error in enumerate(self._errors, 1)
            )
            raise SearchError(
                "The arguments of a search must be valid",
                f"{len(self._errors)} problems:{listed}\n",
                "Correct them",
            )
