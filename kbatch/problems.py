"""The problems of a user's arguments, collected to be reported together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbatch.errors import KbatchError, SearchError


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
        """Raise the errors that were kept: one as it is, several as one error that lists them.

        Raises:
            KbatchError: If an error was kept.
        """
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
