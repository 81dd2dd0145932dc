"""Turns: threads of one search, of which one at a time runs.

A thread hands its turn over where it waits for a worker, and nowhere else. So nothing besides has
to be safe in threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kbatch.runtime import ctrl_c


class Ended(KeyboardInterrupt):
    """Another thread has ended the search, by an error or by Ctrl-C."""


class Turns:
    """The turn that the threads of a search hand to each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own = threading.local()
        self._over = threading.Event()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for the turn, and keep it inside the `with` block."""
        try:
            self._take()
            yield
        finally:
            self._give()

    @contextmanager
    def given(self) -> Iterator[None]:
        """Hand the turn over inside the `with` block; a thread without it does nothing.

        Raises:
            Ended: If another thread has ended the search meanwhile.
        """
        if not getattr(self._own, "has", False):
            yield
            return
        self._give()
        try:
            yield
        finally:
            self._take()
        self.check()

    def begin(self) -> None:
        """Forget that an earlier search was ended."""
        self._over.clear()

    def end(self) -> None:
        """Let `check` end all other threads."""
        self._over.set()

    def check(self) -> None:
        """End this thread if another one has ended the search.

        Raises:
            Ended: If it has.
        """
        if self._over.is_set():
            raise Ended

    def _take(self) -> None:
        # Ctrl-C waits, so that nobody goes on without the turn
        with ctrl_c.undisturbed():
            self._lock.acquire()
            self._own.has = True

    def _give(self) -> None:
        if getattr(self._own, "has", False):
            self._own.has = False
            self._lock.release()
