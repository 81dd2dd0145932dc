"""The hyperparameters of the user's `build`, which must not take the names of kbatch's axes."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import keras
import keras_tuner
import numpy as np

from kbatch.axes import RESERVED
from kbatch.errors import SearchError, SpaceError
from kbatch.runtime import keras_private

Build = Callable[..., keras.Model]
Declare = Callable[[Any], None]
UNSAID = "kbatch_unsaid"  # where hyperparameters keep the names that nobody gave a value or default
# Of a class of KerasTuner: what its values are, and in words.
KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "Boolean": ((bool, np.bool_), "True or False"),
    "Int": ((numbers.Integral,), "a whole number"),
    "Float": ((numbers.Real,), "a number"),
    "text": ((str,), "a text"),
}


def nothing(hp: Any) -> None:
    """Declare no hyperparameters."""


class GuardedHyperParameters(keras_tuner.HyperParameters):
    """Hyperparameters that share their state with others, and refuse reserved names.

    Overrides the private method `_retrieve`, through which every `hp.Choice` and its kind declare
    themselves (keras_tuner/src/engine/hyperparameters/hyperparameters.py, KerasTuner 1.4.8).

    Args:
        hp: `keras_tuner.HyperParameters` to share the state of.
        reserved: Frozenset of names that must not be declared.
        today: Mapping, values that take the place of defaults. Optional.
    """

    __slots__ = ("_bare", "_reserved", "_today")  # not in the dict that is shared

    def __init__(
        self,
        hp: keras_tuner.HyperParameters,
        reserved: frozenset[str],
        today: Mapping[str, Any] | None = None,
    ) -> None:
        self.__dict__ = hp.__dict__  # type: ignore[misc]
        self._reserved, self._today = reserved, today or {}
        self._bare = False

    def Boolean(self, name: str, default: Any = None, *args: Any, **conditions: Any) -> Any:  # noqa: N802
        """Declare a boolean, and note whether it has a default, which KerasTuner does not tell."""
        self._bare = default is None
        try:
            return super().Boolean(name, bool(default), *args, **conditions)
        finally:
            self._bare = False

    def _retrieve(self, hp: Any) -> Any:
        if hp.name in self._reserved:
            raise SpaceError(
                "A hyperparameter in `build` must not have the name of an axis of kbatch's",
                hp.name,
                f"Rename it, or narrow it with Space({hp.name}=…)",
            )
        known = hp.name in self.values
        value = super()._retrieve(hp)
        if known or hp.name not in self.values:  # it has a value already, or is not active
            return value
        if hp.name in self._today:
            _check_kind(hp, self._today[hp.name])
            self.values[hp.name] = self._today[hp.name]
        elif (self._bare or keras_private.has_no_default(hp)) and _varies(hp):
            self.__dict__.setdefault(UNSAID, []).append(hp.name)
        return self.values[hp.name]


def _check_kind(hp: Any, value: Any) -> None:
    """Refuse a value of another kind than a hyperparameter takes; a fixed one takes any."""
    kind = type(hp).__name__
    if kind == "Choice":
        kind = "text" if all(isinstance(each, str) for each in hp.values) else "Float"
    if kind not in KINDS:
        return
    taken, words = KINDS[kind]
    is_boolean = isinstance(value, (bool, np.bool_))
    fits = isinstance(value, taken) and is_boolean == (kind == "Boolean")
    if not fits or (kind == "Float" and not math.isfinite(value)):
        raise SearchError(
            f"`values` must give the hyperparameter {hp.name} {words}",
            repr(value),
            "Correct its kind",
        )


def _varies(hp: Any) -> bool:
    """Whether a hyperparameter has more than one value."""
    if hasattr(hp, "max_value"):
        return bool(hp.min_value != hp.max_value)
    return len(getattr(hp, "values", (False, True))) > 1


def own_values(hp: keras_tuner.HyperParameters) -> dict[str, Any]:
    """Return the values of the user's own hyperparameters, once `build` has declared them.

    Args:
        hp: Hyperparameters that `build` was called with.
    """
    names = dict.fromkeys(each.name for each in hp.space)
    return {name: hp.values[name] for name in names if name not in RESERVED and name in hp.values}


def unsaid_values(hp: keras_tuner.HyperParameters) -> dict[str, Any]:
    """Return the values that nobody chose: neither a value was given nor a `default=`.

    KerasTuner then takes the lowest value, or the first choice.

    Args:
        hp: Hyperparameters that `build` was called with.
    """
    own = own_values(hp)
    return {name: own[name] for name in vars(hp).get(UNSAID, ()) if name in own}


def check_known(given: Mapping[str, Any], hp: Any, build: Callable[[Any], Any]) -> None:
    """Refuse values of hyperparameters that `build` does not declare: they have no effect.

    Values of hyperparameters that it declares beside other values, such as those of a third layer
    of two, may stay.

    Args:
        given: Mapping of the values that were given.
        hp: Hyperparameters that `build` was called with.
        build: Function that calls `build` with other hyperparameters.

    Raises:
        SearchError: If one is never declared.
    """
    declared = {each.name for each in hp.space}
    unknown = {name for name in given if name not in declared and name not in RESERVED}
    for axis in list(hp.space) if unknown else ():
        for other in _others(axis, hp):
            varied = fresh({**hp.values, axis.name: other})
            build(varied)
            unknown -= {each.name for each in varied.space}
            declared |= {each.name for each in varied.space}
    if unknown:
        known = ", ".join(sorted(declared)) or "none"
        raise SearchError(
            f"`values` must name hyperparameters that `build` declares ({known})",
            ", ".join(sorted(unknown)),
            "Correct the names, or leave them out",
        )


def _others(axis: Any, hp: Any) -> list[Any]:
    """Other values of a hyperparameter, beside which `build` may declare more."""
    if axis.name in RESERVED or axis.name not in hp.values or not _varies(axis):
        return []
    if isinstance(getattr(axis, "max_value", None), float):
        return []
    others = [axis.max_value] if hasattr(axis, "max_value") else list(axis.values)
    return [other for other in others if other != hp.values[axis.name]]


def fresh(values: Mapping[str, Any] | None = None) -> keras_tuner.HyperParameters:
    """Return hyperparameters with these values; all others take their defaults."""
    hp = keras_tuner.HyperParameters()
    hp.values = dict(values or {})
    return hp


def call_build(
    build: Build,
    hp: keras_tuner.HyperParameters,
    reserved: frozenset[str],
    today: Mapping[str, Any] | None = None,
) -> keras.Model:
    """Call the user's `build(hp)` or `build()`, and return its model.

    Args:
        build: The function.
        hp: Hyperparameters for it.
        reserved: Frozenset of names that it must not declare.
        today: Mapping, values that take the place of defaults. Optional.
    """
    positional = [
        p
        for p in inspect.signature(build).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    takes_hp = any(p.name == "hp" or p.default is p.empty for p in positional)
    return build(GuardedHyperParameters(hp, reserved, today)) if takes_hp else build()
