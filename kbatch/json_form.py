"""The JSON form of stored values: text to plain values, and plain values to typed ones.

To write a value, use `dataclasses.asdict` and `json.dumps`. To read it again, use `parse` and
`read`, which refuse whatever the type hints of the value's class do not allow.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec

from kbatch.plain_text import without_controls

LARGEST = (1 << 63) - 1  # beyond 64 bits an integer is no measurement, and pandas cannot hold it

Whole = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
CountFrom1 = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
# neither infinite nor NaN: at most the largest float
Finite = Annotated[float, msgspec.Meta(ge=0, le=1.7976931348623157e308)]
FiniteAbove0 = Annotated[float, msgspec.Meta(gt=0, le=1.7976931348623157e308)]
HUGE = 1e100  # beyond it a number is no measurement, and its cube has no place in a float
# NaN is in no range
Number = Annotated[float, msgspec.Meta(ge=-HUGE, le=HUGE)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
SecondsAbove0 = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
Name = Annotated[str, msgspec.Meta(max_length=300)]
Text = Annotated[str, msgspec.Meta(max_length=1_000_000)]
# a path below a folder: neither absolute, nor with a step upwards, nor on another drive
Below = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(?![/\\]|[A-Za-z]:)(?!([^\x00-\x1f]*[/\\])?\.\.([/\\]|\Z))[^\x00-\x1f]*\Z",
        max_length=1000,
    ),
]

# how JSON writes control characters, or those themselves; most texts need no look at each string
MAY_CONTROL = re.compile(r"\\[bfru]|[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

Value = TypeVar("Value")
# makes the error to raise of the clause that says what was received
Refuse = Callable[[str], Exception]


def parse(text: bytes | str, refuse: Refuse) -> Any:
    """Read a JSON text into dicts, lists, strings and numbers, without control characters.

    Args:
        text: String or UTF-8 bytes.
        refuse: Function that returns the error to raise for another text; its argument is the
            clause that says what was received.

    Raises:
        Exception: What `refuse` returned, if the text is not JSON, or holds half of a character (a
            lone surrogate), which no table, file or terminal can hold.

    Example:
    >>> parse('{"a": [1, "ü"]}', ValueError)
    {'a': [1, 'ü']}
    """
    try:
        value = json.loads(text)
        written = json.dumps(value, ensure_ascii=False)
        written.encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise refuse(f"{error}") from error
    return without_controls(value) if MAY_CONTROL.search(written) else value


def read(form: type[Value], fields: Any, refuse: Refuse) -> Value:
    """Read a typed value from what JSON holds: no missing and no unknown names, no other types.

    Args:
        form: A dataclass, a `TypedDict` (which may hold further names), or another type hint.
        fields: What `parse` returned, or what `dataclasses.asdict` made.
        refuse: Function that returns the error to raise, as for `parse`.

    Raises:
        Exception: What `refuse` returned, if the fields are not of this form.

    Example:
    >>> read(tuple[int, ...], [1, 2], ValueError)
    (1, 2)
    """
    try:
        value = msgspec.convert(fields, form)
    except (msgspec.ValidationError, RecursionError) as error:
        raise refuse(f"{error}") from error
    unknown = _unknown_names(value, fields)
    if unknown:
        raise refuse(f"unknown names {', '.join(map(repr, unknown))}")
    return value


def fits(fields: Any, form: Any) -> bool:
    """Whether `read` would read a typed value of this form.

    Example:
    >>> fits([1.0, 2], list[float]), fits({"a": None}, dict[str, int | None]), fits(True, int)
    (True, True, False)
    """
    try:
        read(form, fields, ValueError)
    except ValueError:
        return False
    return True


def _unknown_names(value: Any, fields: Any) -> list[str]:
    """The names in JSON for which a dataclass, or one that it holds, has no field."""
    if isinstance(value, (list, tuple)):
        pairs = list(zip(value, fields, strict=True))
        return [name for part, given in pairs for name in _unknown_names(part, given)]
    if not dataclasses.is_dataclass(value):
        return []
    known = {field.name for field in dataclasses.fields(value)}
    unknown = sorted(fields.keys() - known)
    for name in known & fields.keys():
        unknown += _unknown_names(getattr(value, name), fields[name])
    return unknown
