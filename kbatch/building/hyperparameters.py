"""Hyperparameters: the user's `build` called with KerasTuner's `hp`, kept away from the names that are kbatch's."""

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
    """The same hyperparameters as another object, refusing to declare one under a reserved name.

    Args:
        hp: `keras_tuner.HyperParameters` whose state is shared.
        reserved: Names that must not be declared.
    """

    def __init__(self, hp: keras_tuner.HyperParameters, reserved: frozenset[str]) -> None:
        self.__dict__ = hp.__dict__
        self.__dict__["_kbatch_reserved"] = reserved

    def _retrieve(self, hp: Any) -> Any:
        if hp.name in self.__dict__["_kbatch_reserved"]:
            raise SpaceError(
                "A hyperparameter in `build` must not have the name of one of kbatch's",
                hp.name,
                f"Rename it, or narrow it with Space({hp.name}=…)",
            )
        return super()._retrieve(hp)


def fresh(values: Mapping[str, Any] | None = None) -> keras_tuner.HyperParameters:
    """Hyperparameters with these values; those that `build` asks for beside them take their defaults."""
    hp = keras_tuner.HyperParameters()
    hp.values = dict(values or {})
    return hp


def call_build(
    build: Build, hp: keras_tuner.HyperParameters, reserved: frozenset[str]
) -> keras.Model:
    """The model that the user's `build(hp)`, or `build()`, returns."""
    positional = [
        p
        for p in inspect.signature(build).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    takes_hp = any(p.name == "hp" or p.default is p.empty for p in positional)
    return build(GuardedHyperParameters(hp, reserved)) if takes_hp else build()
