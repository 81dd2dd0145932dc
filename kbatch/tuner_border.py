"""The border to KerasTuner, at which searches are checked and errors made fatal.

KerasTuner would swallow other errors, or try the same trial again.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import keras_tuner

from kbatch.errors import KbatchError
from kbatch.records import files

TRIAL = "A trial failed, and would fail again"
BUILD = "`build` failed, and would fail again"


@contextmanager
def border(what: str = TRIAL) -> Iterator[None]:
    """Turn every error inside the `with` block into one that ends a KerasTuner search at once.

    Args:
        what: String, what an error that is not kbatch's means, as a sentence without a full stop.
    """
    try:
        yield
    except (keras_tuner.errors.FatalError, keras_tuner.errors.FailedTrialError):
        raise
    except KbatchError as error:
        raise _fatal(type(error))(error.must, error.received, error.do) from error
    except Exception as error:
        full = files.disk_trouble(error)
        if full is not None:
            raise _fatal(type(full))(full.must, full.received, full.do) from error
        raise keras_tuner.errors.FatalRuntimeError(
            f"{what}. {type(error).__name__}: {error}"
        ) from error


def watch_searches(
    kind: type, around: Callable[[Any, Any, Any, Any], AbstractContextManager[dict[str, Any]]]
) -> None:
    """Wrap `search` of all tuners, for hypermodels of one class only.

    KerasTuner calls no method of a hypermodel before the first trial, and none at all in a search
    that has finished already. So its own method has to be wrapped, to check the arguments first.

    Args:
        kind: Class of hypermodels.
        around: Function that takes the hypermodel, the tuner, and the positional and keyword
            arguments of `search`. It returns a context manager, which is entered around the search
            and gives the arguments by name to search with.

    A tuner with a method `beside`, which takes the same arguments, enters the context manager that
    it returns around KerasTuner's loop.
    """
    search = keras_tuner.engine.base_tuner.BaseTuner.search

    @functools.wraps(search)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self.hypermodel, kind):
            return search(self, *args, **kwargs)
        try:
            with around(self.hypermodel, self, args, kwargs) as left:
                beside = getattr(self, "beside", _nothing)
                with beside(*args, **left):
                    return search(self, *args, **left)
        except KbatchError as error:
            raise error.with_traceback(None) from None  # the message is enough

    keras_tuner.engine.base_tuner.BaseTuner.search = watched


def _nothing(*args: Any, **kwargs: Any) -> AbstractContextManager[None]:
    return nullcontext()


def called_by_a_tuner() -> bool:
    """Tell whether a tuner of KerasTuner is among the callers.

    That is so for the models that a search builds, and for those that a tuner loads with their
    weights. Functions of KerasTuner's `HyperModel` do not count: it wraps every `build`.
    """
    frame = inspect.currentframe()
    while frame is not None:
        caller = str(frame.f_globals.get("__name__", ""))
        if caller.startswith("keras_tuner.") and not caller.endswith(".hypermodel"):
            return True
        frame = frame.f_back
    return False


def _fatal(kind: type[KbatchError]) -> type[KbatchError]:
    """Return a subclass of an error class that ends a KerasTuner search.

    It has the name of the error class, which the user sees in the traceback.
    """
    if issubclass(kind, keras_tuner.errors.FatalError):
        return kind
    bases = (kind, keras_tuner.errors.FatalError)
    return type(kind.__name__, bases, {"__module__": kind.__module__})
