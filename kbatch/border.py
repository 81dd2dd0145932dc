"""Border: where KerasTuner's search is watched, and where errors become ones that it neither swallows nor tries again."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import keras_tuner

from kbatch.errors import KbatchError
from kbatch.records import disk


@contextmanager
def border() -> Iterator[None]:
    """Turn every error into one that ends a KerasTuner search at once."""
    try:
        yield
    except (keras_tuner.errors.FatalError, keras_tuner.errors.FailedTrialError):
        raise
    except KbatchError as error:
        raise _fatal(type(error))(error.must, error.received, error.do) from error
    except Exception as error:
        full = disk.trouble(error)
        if full is not None:
            raise _fatal(type(full))(full.must, full.received, full.do) from error
        raise keras_tuner.errors.FatalRuntimeError(
            f"A trial failed, and would fail again. {type(error).__name__}: {error}"
        ) from error


def watch_searches(
    kind: type, around: Callable[[Any, Any, Any, Any], AbstractContextManager[None]]
) -> None:
    """Let every `search` of a tuner with a hypermodel of this kind begin with a check of all that it is given.

    KerasTuner calls nothing of a hypermodel before its first trial, and nothing at all in a search
    that has finished. So this is the one place where its own code is wrapped. Tuners with other
    hypermodels are not concerned.

    Args:
        kind: Class of hypermodels.
        around: Function of the hypermodel, the tuner and the arguments of `search`; its context is
            entered around it.
    """
    search = keras_tuner.engine.base_tuner.BaseTuner.search

    @functools.wraps(search)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self.hypermodel, kind):
            return search(self, *args, **kwargs)
        try:
            with around(self.hypermodel, self, args, kwargs):
                return search(self, *args, **kwargs)
        except KbatchError as error:
            raise error.with_traceback(None) from None  # its message says it all

    keras_tuner.engine.base_tuner.BaseTuner.search = watched


def called_by_a_tuner() -> bool:
    """Whether a tuner of KerasTuner is among the callers: a search's own builds, and models that it loads with their weights.

    Its `HyperModel` is no tuner, and wraps every `build`.
    """
    frame = inspect.currentframe()
    while frame is not None:
        caller = str(frame.f_globals.get("__name__", ""))
        if caller.startswith("keras_tuner.") and not caller.endswith(".hypermodel"):
            return True
        frame = frame.f_back
    return False


def _fatal(kind: type[KbatchError]) -> type[KbatchError]:
    """The same kind of error, but one that ends a KerasTuner search."""
    if issubclass(kind, keras_tuner.errors.FatalError):
        return kind
    return type(
        kind.__name__, (kind, keras_tuner.errors.FatalError), {"__module__": kind.__module__}
    )
