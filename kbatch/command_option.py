"""Command options: how typer reads the numbers and the axes of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import typer

from kbatch import plain_text
from kbatch.axis import Option

AXES_PANEL = "Axes of the recipes"  # of --help


@dataclass(frozen=True)
class AxisOptions:
    """The annotation of a field that holds the texts of the axes' options.

    Attributes:
        by_axis: Mapping from the name of an axis to its `Option`.
    """

    by_axis: Mapping[str, Option]


def _whole_number(text: object) -> int:
    number = plain_text.whole(str(text))
    if number is None:
        raise typer.BadParameter(f"{text!r} must be a whole number, in plain digits.")
    return number


def _number(text: object) -> float:
    number = plain_text.number(str(text))
    if number is None:
        raise typer.BadParameter(f"{text!r} must be a finite number, such as 0.5.")
    return number


# Arguments of `typer.Option`. Its own types read numbers as Python does: `1_0`, `٣` and `nan` too.
WHOLE: dict[str, Any] = {"parser": _whole_number, "metavar": "<int>"}
NUMBER: dict[str, Any] = {"parser": _number, "metavar": "<float>"}
