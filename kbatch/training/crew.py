"""A crew: threads that train beside the main one."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from kbatch.runtime import signals
from kbatch.runtime.signals import Ended, Turns
from kbatch.training.trial import Trainer
from kbatch.training.workers import IsolatedTrainer

LOOK_SECONDS = 0.1  # so that Ctrl-C is seen while the others end; chosen by hand


class _Helper:
    """One thread of a crew.

    Attributes:
        error: The error that ended it, or `None`.
    """

    def __init__(self, turns: Turns, work: Callable[[], None], name: str) -> None:
        self._turns, self._work = turns, work
        self.error: BaseException | None = None
        # `Thread.join` that Ctrl-C interrupts says of a thread that it has ended (Python 3.11).
        self._ended = threading.Event()
        threading.Thread(target=self._run, name=name).start()

    def wait(self) -> None:
        """Wait until it has ended."""
        while not self._ended.wait(LOOK_SECONDS):
            pass

    def _run(self) -> None:
        try:
            with self._turns.taken():
                self._turns.check()
                self._work()
        except Ended:
            pass
        except BaseException as error:  # the block of the crew raises it
            self.error = error
            self._turns.end()
        finally:
            self._ended.set()


@contextmanager
def crew(
    turns: Turns,
    work: Callable[[int], None],
    helpers: int,
    done: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Let threads do the same work as the `with` block, each while the others wait.

    An error or Ctrl-C in one thread ends all. The block raises the first error of another thread.
    """

    def worked(number: int) -> None:
        work(number)
        done()

    started: list[_Helper] = []
    turns.begin()
    try:
        with turns.taken():
            for number in range(1, helpers + 1):
                started.append(
                    _Helper(turns, functools.partial(worked, number), f"kbatch-{number}")
                )
            yield
            done()
        for each in started:
            each.wait()
    except BaseException as error:
        turns.end()
        with signals.undisturbed():
            for each in started:
                each.wait()
        if not isinstance(error, Ended):
            raise
    for each in started:
        if each.error is not None:
            raise each.error


def beside(
    trainer: Trainer, work: Callable[[int], None], done: Callable[[], None] = lambda: None
) -> AbstractContextManager[None]:
    """Return a context in which a thread for each further worker of a trainer works too."""
    if not isinstance(trainer, IsolatedTrainer) or trainer.workers == 1:
        return nullcontext()
    return crew(trainer.turns, work, trainer.workers - 1, done)
