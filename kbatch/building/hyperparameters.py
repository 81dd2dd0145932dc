"""The hyperparameters of the user's `build`, which must not take the names of kbatch's axes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import keras
import keras_tuner

from kbatch.errors import SpaceError

Build = Callable[..., keras.Model]
Declare = Callable[[Any], None]


def nothing(hp: Any) -> None:
    """Declare no hyperparameters."""


class GuardedHyperParameters(keras_tuner.HyperParameters):
    """Hyperparameters that share their state with others, and refuse reserved names.

    Overrides the private method `_retrieve`, through which every `hp.Choice` and its kind declare
    themselves (keras_tuner/src/engine/hyperparameters/hyperparameters.py, KerasTuner 1.4.8).

    Args:
        hp: `keras_tuner.HyperParameters` to share the state of.
        reserved: Frozenset of names that must not be declared.
    """

    __slots__ = ("_reserved",)  # not in the dict that is shared

    def __init__(self, hp: keras_tuner.HyperParameters, reserved: frozenset[str]) -> None:
        self.__dict__ = hp.__dict__  # type: ignore[misc]
        self._reserved = reserved

    def _retrieve(self, hp: Any) -> Any:
        if hp.name in self._reserved:
            raise SpaceError(
                "A hyperparameter in `build` must not have the name of an axis of kbatch's",
                hp.name,
                f"Rename it, or narrow it with Space({hp.name}=…)",
            )
        return super()._retrieve(hp)


def fresh(values: Mapping[str, Any] | None = None) -> keras_tuner.HyperParameters:
    """Return hyperparameters with these values; all others take their defaults."""
    hp = keras_tuner.HyperParameters()
    hp.values = dict(values or {})
    return hp


def call_build(
    build: Build, hp: keras_tuner.HyperParameters, reserved: frozenset[str]
) -> keras.Model:
    """Call the user's `build(hp)` or `build()`, and return its model."""
    positional = [
        p
        for p in inspect.signature(build).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    takes_hp = any(p.name == "hp" or p.default is p.empty for p in positional)
    return build(GuardedHyperParameters(hp, reserved)) if takes_hp else build()
