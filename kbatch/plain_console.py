"""Console that prints texts as they are, and leaves a closed pipe to its caller."""

from __future__ import annotations

import errno
from typing import Any

from rich.console import Console

from kbatch.plain_text import CONTROLS


class PlainConsole(Console):
    """A console of rich's without markup, emoji and control characters of the texts.

    Args:
        **options: As for `rich.console.Console`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print objects; names of files and texts of records may hold what commands a terminal."""
        super().print(*map(_plain, objects), **options)

    def on_broken_pipe(self) -> None:
        """Raise what `print` would, where rich ends the process.

        Raises:
            BrokenPipeError: Always.
        """
        raise BrokenPipeError(errno.EPIPE, "the reader of standard output has left")


def _plain(value: Any) -> Any:
    return CONTROLS.sub("", value) if isinstance(value, str) else value
