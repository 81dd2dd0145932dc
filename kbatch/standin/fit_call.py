"""Fit call: what a `model.fit` was given, taken by a stand-in for it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import keras

from kbatch.runtime.users_code import users_frame

KERAS_FIT = keras.Model.fit
PARAMETERS = inspect.signature(KERAS_FIT)


@dataclass(frozen=True)
class FitCall:
    """One call of `model.fit`, before anything was trained."""

    model: keras.Model
    arguments: Mapping[str, Any]  # all arguments of `fit` by name, those with defaults too
    frame: FrameType | None = None  # where the user's code called it

    @classmethod
    def of(cls, model: keras.Model, args: Any, kwargs: Any) -> FitCall:
        """Return the call that was made with these arguments."""
        bound = PARAMETERS.bind(model, *args, **kwargs)
        bound.apply_defaults()
        given = {name: value for name, value in bound.arguments.items() if name != "self"}
        return cls(model, given, users_frame())

    @property
    def place(self) -> tuple[str, int] | None:
        """The file and the line of the call; `None` if no user's code made it."""
        return None if self.frame is None else (self.frame.f_code.co_filename, self.frame.f_lineno)

    @property
    def epochs(self) -> int:
        """Integer, the epochs that the call asks for."""
        return max(int(self.arguments["epochs"]) - int(self.arguments["initial_epoch"]), 1)


@contextlib.contextmanager
def standing_in(take: Callable[[FitCall], Any]) -> Iterator[None]:
    """Hand every call of `keras.Model.fit` inside of the `with` block to a function.

    What the function returns, `fit` returns. While it runs, `fit` is Keras' own again. Models whose
    class overrides `fit` are taken as soon as that calls `super().fit`.
    """

    def fit(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        call = FitCall.of(self, args, kwargs)
        with keras_own_fit():
            return take(call)

    fit.__doc__, fit.__signature__ = KERAS_FIT.__doc__, PARAMETERS  # type: ignore[attr-defined]
    with _replaced_fit(fit):
        yield


@contextlib.contextmanager
def keras_own_fit() -> Iterator[None]:
    """Let `fit` be Keras' own inside of the `with` block."""
    with _replaced_fit(KERAS_FIT):
        yield


@contextlib.contextmanager
def _replaced_fit(fit: Callable[..., Any]) -> Iterator[None]:
    before = vars(keras.Model).get("fit")
    keras.Model.fit = fit
    try:
        yield
    finally:
        if before is None:
            del keras.Model.fit  # which the trainer's class has
        else:
            keras.Model.fit = before
