"""Problems: what is wrong with what a user gave, collected so that it is said at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbatch.errors import KbatchError, SearchError


class Problems:
    """Collects what is wrong, so that it is said at once."""

    def __init__(self) -> None:
        self._found: list[KbatchError] = []

    def of(self, check: Callable[[], Any]) -> Any:
        """What a function returns; `None` if it raises an error of kbatch's, which is kept."""
        try:
            return check()
        except KbatchError as error:
            self._found.append(error)
            return None

    def raise_all(self) -> None:
        """Raise what was found: one error as it is, several as one that lists them.

        Raises:
            KbatchError: If anything was found.
        """
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            listed = "".join(
                f"\n  {number}. {error}" for number, error in enumerate(self._found, 1)
            )
            raise SearchError(
                "A search must be able to use all that it is given",
                f"{len(self._found)} things that it cannot use:{listed}\n",
                "Mend them",
            )
