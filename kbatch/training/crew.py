"""A crew: threads that search beside the main one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from kbatch.runtime.turns import Ended, Turns

LOOK_SECONDS = 0.1  # so that Ctrl-C is seen while the others end; chosen by hand


class Crew:
    """Lets threads do the same work as the `with` block, each while the others wait.

    An error or Ctrl-C in one thread ends all. The block raises the first error.

    Args:
        turns: `Turns` that the work hands over where it waits.
        work: Function of a thread's number, from 1.
        helpers: Integer, how many threads there are besides the one of the block.
        done: Function that is called in each thread once it has no more work. Defaults to nothing.
    """

    def __init__(
        self,
        turns: Turns,
        work: Callable[[int], None],
        helpers: int,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        self._turns, self._work, self._done = turns, work, done
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"kbatch-{id(self)}-{number}")
            for number in range(1, helpers + 1)
        ]
        self._errors: list[BaseException] = []
        self._turn = turns.taken()

    def __enter__(self) -> Crew:
        self._turn.__enter__()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._done()
        else:
            self._turns.end()
        self._turn.__exit__(None, None, None)
        try:
            self._join()
        except KeyboardInterrupt:
            self._turns.end()
            self._join()
            raise
        if self._errors and (error is None or isinstance(error, Ended)):
            raise self._errors[0]

    def _join(self) -> None:
        for thread in self._threads:
            while thread.is_alive():
                thread.join(LOOK_SECONDS)

    def _run(self, number: int) -> None:
        try:
            with self._turns.taken():
                self._turns.check()
                self._work(number)
                self._done()
        except Ended:
            pass
        except BaseException as error:  # the block raises it
            self._errors.append(error)
            self._turns.end()
