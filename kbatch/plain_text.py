"""Plain text: numbers, JSON and sentences, read and shown."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec

from kbatch.errors import DataError

MOST = (1 << 31) - 1  # the largest int32, in which TensorFlow counts
# of one example: a gigabyte in float32; chosen by hand, not tuned
MOST_VALUES, MOST_AXES = 1 << 28, 8


def whole(text: str) -> int | None:
    """Read a whole number of plain digits; `None` for another text.

    `int` alone would accept `1_0` and digits of other scripts.

    Example:
    >>> whole("32"), whole("-1"), whole("1_0"), whole("²")
    (32, -1, None, None)
    """
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,300}", text.strip()) else None


def number(text: str) -> float | None:
    """Read a finite number; `None` for another text.

    Example:
    >>> number("0.5"), number("1e-3"), number("nan"), number("1e999")
    (0.5, 0.001, None, None)
    """
    plain = re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,6})?", text.strip())
    value = float(text) if plain else math.inf
    return value if math.isfinite(value) else None


def shortest(value: float) -> str:
    """Write a number in the one way in which it is shortest.

    Example:
    >>> shortest(8.0), shortest(0.050), shortest(1e-5)
    ('8', '0.05', '1e-05')
    """
    return repr(float(value)).removesuffix(".0")


def sizes_of(option: str, text: str, remedy: str) -> tuple[int, ...]:
    """Read the sizes in the text of an option.

    Example:
    >>> sizes_of("--batch-sizes", "32,64", "Separate them by commas")
    (32, 64)
    """
    sizes = [whole(size) or 0 for size in text.split(",")]
    if min(sizes) < 1:
        raise DataError(f"{option} must be whole numbers of at least 1", text, remedy)
    if max(sizes) > MOST:
        raise DataError(f"{option} must be whole numbers of at most {MOST}", text, remedy)
    return tuple(sizes)


def example_shape(text: str) -> tuple[int, ...]:
    """Read the shape of one example, without the batch dimension, in the text of `--shape`.

    Example:
    >>> example_shape("224,224,3")
    (224, 224, 3)
    """
    remedy = "Write the shape of one example, without the batch: 224,224,3"
    shape = sizes_of("--shape", text, remedy)
    if math.prod(shape) > MOST_VALUES or len(shape) > MOST_AXES:
        raise DataError(
            f"--shape must be of at most {MOST_VALUES} values and {MOST_AXES} axes", text, remedy
        )
    return shape


class StatusLine:
    """A line of text that is written over while a cell runs.

    Example:
    ```python
    line = Line()
    line.show("1 of 2 s")
    line.clear()
    ```
    """

    def __init__(self) -> None:
        self._text = ""

    def show(self, text: str) -> None:
        """Write another text over the line; the same text is not written again."""
        if text != self._text:
            print(f"\r{text:<{len(self._text)}}", end="", flush=True)
            self._text = text

    def clear(self) -> None:
        """Empty the line, for the next output."""
        if self._text:
            print("\r" + " " * len(self._text), end="\r", flush=True)
            self._text = ""


# C0 without tab and new line, DEL, C1, and what turns the direction of writing
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
LINK = re.compile(r"\[(?=[^\]]*\][(\[:])")  # the bracket that begins a link, or names its target
LONGEST = 2_000  # characters of a sentence on the screen


def without_controls(value: Any) -> Any:
    r"""Return what JSON holds with texts and names without control characters.

    Example:
    >>> without_controls({"a\x1b[2J": ["\x07b", 1]})
    {'a[2J': ['b', 1]}
    """
    if isinstance(value, str):
        return CONTROLS.sub("", value)
    if isinstance(value, list):
        return [without_controls(each) for each in value]
    if isinstance(value, dict):
        return {without_controls(name): without_controls(each) for name, each in value.items()}
    return value


def one_line(text: str) -> str:
    r"""Return a text on one line, without control characters.

    Example:
    >>> one_line("a\n# b\x1b[31m")
    'a # b[31m'
    """
    return " ".join(CONTROLS.sub("", text).split())


def sentence(text: str) -> str:
    """Return a text on one line, without control characters and without the middle of a long one.

    Example:
    >>> len(sentence("x" * 120_000))
    2000
    """
    line = one_line(text)
    if len(line) <= LONGEST:
        return line
    half = LONGEST // 2
    return f"{line[: half - 3]} … {line[-half:]}"


def markdown(text: str) -> str:
    r"""Return a text as a part of a line of Markdown: no HTML, no link, no new line.

    Example:
    >>> print(markdown("<img src=x>\n# [a](b) -> c"))
    &lt;img src=x> # \[a](b) -> c
    """
    return LINK.sub(r"\\[", one_line(text).replace("<", "&lt;"))


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


def parse_json(text: bytes | str, refuse: Refuse) -> Any:
    """Read a JSON text into dicts, lists, strings and numbers, without control characters.

    Example:
    >>> parse_json('{"a": [1, "ü"]}', ValueError)
    {'a': [1, 'ü']}
    """
    try:
        value = json.loads(text)
        written = json.dumps(value, ensure_ascii=False)
        written.encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise refuse(f"{error}") from error
    return without_controls(value) if MAY_CONTROL.search(written) else value


def read_json(form: type[Value], fields: Any, refuse: Refuse) -> Value:
    """Read a typed value from what JSON holds: no missing and no unknown names, no other types.

    Example:
    >>> read_json(tuple[int, ...], [1, 2], ValueError)
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


def fits_json(fields: Any, form: Any) -> bool:
    """Whether `read_json` would read a typed value of this form.

    Example:
    >>> [fits_json([1.0, 2], list[float]), fits_json({"a": None}, dict[str, int | None])]
    [True, True]
    """
    try:
        read_json(form, fields, ValueError)
    except ValueError:
        return False
    return True


SIMPLE = (float, int, str, type(None))


@functools.cache
def _field_names(form: type[Any]) -> frozenset[str]:
    """The names of a dataclass's fields; a project's records ask for them many thousand times."""
    return frozenset(field.name for field in dataclasses.fields(form))


def _unknown_names(value: Any, fields: Any) -> list[str]:
    """The names in JSON for which a dataclass, or one that it holds, has no field."""
    if isinstance(value, (list, tuple)):
        if not value or all(isinstance(part, SIMPLE) for part in (value[0], value[-1])):
            return []
        if isinstance(value[0], tuple) and all(isinstance(part, SIMPLE) for part in value[0]):
            return []  # points of a curve, of which a project has many thousands
        pairs = list(zip(value, fields, strict=True))
        return [name for part, given in pairs for name in _unknown_names(part, given)]
    if not dataclasses.is_dataclass(value):
        return []
    form: Any = type(value)
    known = _field_names(form)
    unknown = sorted(fields.keys() - known)
    for name in known & fields.keys():
        part = getattr(value, name)
        if not isinstance(part, SIMPLE):  # a call less for most fields, of which there are many
            unknown += _unknown_names(part, fields[name])
    return unknown
