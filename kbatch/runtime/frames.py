"""Frames of a traceback: an error of kbatch shows the user's line, and none of kbatch's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from kbatch.errors import KbatchError

P = ParamSpec("P")
R = TypeVar("R")


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
