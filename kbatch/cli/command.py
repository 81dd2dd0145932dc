"""Commands whose options are declared once, as the fields of a dataclass."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, get_args, get_type_hints

import typer

from kbatch.axis import Option
from kbatch.command_option import AXES_PANEL, AxisOptions


def with_options(kind: type) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Give a command that takes one dataclass an option for each field of it.

    Typer reads a field as it reads a function's argument: `Annotated[type, typer.Option(…)]`. A
    field annotated with `AxisOptions` stands for an option of each axis, and holds the texts of
    those that were given, by the name of the axis.

    Args:
        kind: The dataclass.
    """

    def decorate(command: Callable[[Any], None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(**given: Any) -> None:
            command(kind(**_fields(kind, given)))

        parameters = list(_parameters(kind))
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        return called

    return decorate


def _axis_options(hint: Any) -> Mapping[str, Option] | None:
    """The options by axis of a field that stands for axes; `None` for any other field."""
    for note in get_args(hint)[1:]:
        if isinstance(note, AxisOptions):
            return note.by_axis
    return None


def _parameters(kind: type) -> Iterator[inspect.Parameter]:
    """The arguments of the function that typer reads."""
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        options = _axis_options(hints[field.name])
        if options is None:
            missing = field.default is dataclasses.MISSING
            default = inspect.Parameter.empty if missing else field.default
            yield _parameter(field.name, default, hints[field.name])
            continue
        for option in options.values():
            declared = typer.Option(
                f"--{option.name}",
                help=option.help,
                show_default=option.default_words or True,
                rich_help_panel=AXES_PANEL,
            )
            yield _parameter(option.parameter, option.default, Annotated[str | None, declared])


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _fields(kind: type, given: dict[str, Any]) -> dict[str, Any]:
    """The fields of the dataclass, from the arguments that typer gives."""
    hints = get_type_hints(kind, include_extras=True)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        options = _axis_options(hints[field.name])
        if options is None:
            fields[field.name] = given[field.name]
            continue
        texts = {axis: given[option.parameter] for axis, option in options.items()}
        fields[field.name] = {axis: text for axis, text in texts.items() if text is not None}
    return fields
