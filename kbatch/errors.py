"""The error tree: every message says what must hold, what was received and what to do."""

from __future__ import annotations

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


class KbatchError(Exception):
    """Base of all errors raised by kbatch; catch it to catch them all.

    Args:
        must: What must hold, as a clause without a full stop.
        received: What came instead; shown with `repr` unless it is a string.
        do: What to do about it, as a clause without a full stop.

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
    """A recipe that says nothing sensible, or that this model or data cannot follow."""


class SpaceError(KbatchError, ValueError):
    """An axis of the search space that cannot be searched."""


class DataError(KbatchError, ValueError):
    """Training or validation data, or a folder of images, that cannot be used."""


class ModelError(KbatchError, ValueError):
    """A model, or what it was compiled with, that kbatch cannot train."""


class MemoryLimitError(KbatchError, ValueError):
    """A memory limit that says nothing, that the device cannot tell, or that a model does not fit into."""


class NoMemoryLimitError(MemoryLimitError):
    """A device that has no memory limit, or cannot tell it."""


class RecomputeError(KbatchError, ValueError):
    """A model that cannot be cut for recompute, or a plan that is not this model's."""


class SearchError(KbatchError, ValueError):
    """A tuner, or an argument of `search` or `fit`, that kbatch does not support."""


class RecordError(KbatchError, ValueError):
    """A file of records that cannot be read or written."""


class ProjectChangedError(KbatchError, RuntimeError):
    """A search that is resumed with another space, data or horizon than it was started with."""
