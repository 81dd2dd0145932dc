"""Kinds: whether what came out of JSON is of the kind that a field says."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

LARGEST = 1 << 63  # beyond it an integer is no measurement, and cannot become a float


class Above0:
    """The kind of a finite number above 0."""


def parsed(text: bytes | str) -> Any:
    """What a text of JSON says.

    Raises:
        ValueError: If it is none, or holds half of a character (a lone surrogate), which no table
            or file can hold.

    Example:
    >>> parsed('{"a": [1, "ü"]}')
    {'a': [1, 'ü']}
    """
    value = json.loads(text)
    json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind.

    Args:
        value: What came out of JSON, or a dataclass made of it.
        kind: A type hint of `str`, `bool`, `int`, `float`, `None`, `list`, `tuple`, mappings and
            unions of them, or a dataclass; `Any` takes everything.

    Example:
    >>> fits([1.0, 2], list[float]), fits({"a": None}, dict[str, int | None]), fits(True, int), fits("1", float)
    (True, True, False, False)
    """
    if kind is Any:
        return True
    if dataclasses.is_dataclass(kind):
        return isinstance(value, kind) and wrong_field(value) is None  # type: ignore[arg-type]
    if kind is Above0:
        return fits(value, float) and 0 < value < math.inf
    if kind is float:
        return isinstance(value, float) or fits(value, int)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST
    return (
        _composed(value, typing.get_origin(kind), typing.get_args(kind))
        if typing.get_args(kind)
        else isinstance(value, kind or types.NoneType)
    )


def wrong_field(value: Any) -> str | None:
    """The first field of a dataclass whose value is not of the kind that its type hint says, or `None`.

    Args:
        value: A dataclass.
    """
    kind_of: dict[str, Any] = _kinds(type(value))  # type: ignore[arg-type]
    return next(
        (name for name, kind in kind_of.items() if not fits(getattr(value, name), kind)), None
    )


@functools.cache
def _kinds(of: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(of)
    return {field.name: hints[field.name] for field in dataclasses.fields(of)}


def _composed(value: Any, origin: Any, kinds: tuple[Any, ...]) -> bool:
    if origin in (types.UnionType, typing.Union):
        return any(fits(value, kind) for kind in kinds)
    if issubclass(origin, Mapping):
        return isinstance(value, dict) and all(
            fits(key, kinds[0]) and fits(each, kinds[1]) for key, each in value.items()
        )
    if origin is tuple and kinds[-1] is not Ellipsis:
        return (
            isinstance(value, tuple) and len(value) == len(kinds) and all(map(fits, value, kinds))
        )
    return isinstance(value, origin) and all(fits(each, kinds[0]) for each in value)
