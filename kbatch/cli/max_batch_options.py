"""Options of the command `kbatch max-batch`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import typer

from kbatch.axis import Axis, Option, words
from kbatch.command_option import WHOLE, AxisOptions
from kbatch.recipe import Recipe
from kbatch.recipe_words import OPTIMIZERS
from kbatch.space import AXES

AXES_OF_MEMORY = {axis.name: axis for axis in AXES if axis.decides_memory}
# A search varies several policies and optimizers; here one is the rule.
SINGULAR = {"policies": "policy", "optimizers": "optimizer"}
JIT_WORDS = {False: "off", True: "on"}


def _option(axis: Axis, option: Option) -> Option:
    """The axis' option of this command: its default is the value of a plain recipe."""
    value = getattr(Recipe(), axis.name)
    # Without a learning rate to search, the model's own optimizer will do too.
    known = f"{', '.join(OPTIMIZERS)}." if axis.name == "optimizer" else option.help
    return replace(
        option,
        name=SINGULAR.get(option.name, option.name),
        help=f"{known} Several make a table.",
        default=_text_of(axis, value),
        default_words="",
        read=words if axis.name == "optimizer" else option.read,
    )


def _text_of(axis: Axis, value: Any) -> str:
    """The text of an axis' option that stands for a value."""
    if isinstance(value, bool):
        return JIT_WORDS[value]
    return str(axis.absent if value is None else value)


AXIS_OPTIONS = AxisOptions(
    {
        name: _option(axis, axis.option)
        for name, axis in AXES_OF_MEMORY.items()
        if axis.option is not None
    }
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `kbatch max-batch`, which `--help` explains.

    `axes` holds the texts of the axes' options by the name of the axis.
    """

    build: Annotated[
        str,
        typer.Argument(
            help="module:function of the function that returns the model, importable from here."
        ),
    ]
    shape: Annotated[
        str | None,
        typer.Option(
            show_default="the model's keras.Input", help="Shape of one example, such as 224,224,3."
        ),
    ] = None
    dtype: Annotated[
        str | None, typer.Option(show_default="float32", help="Type of the examples, with --shape.")
    ] = None
    memory_limit: Annotated[
        str | None,
        typer.Option(
            show_default="the GPU's memory, or a CPU's set limit", help="Bytes, such as 8GB."
        ),
    ] = None
    ceiling: Annotated[int | None, typer.Option(**WHOLE, help="Largest batch size to try.")] = None
    loss: Annotated[
        str | None,
        typer.Option(help="Loss by Keras' name, if the function does not compile the model."),
    ] = None
    accumulation: Annotated[
        int,
        typer.Option(
            **WHOLE, help="Passes per weight update; the answer is the largest micro-batch."
        ),
    ] = 1
    sizes: Annotated[
        Literal["any", "powers_of_two", "multiples_of_8"],
        typer.Option(help="Batch sizes that may be answered."),
    ] = "any"
    table: Annotated[
        bool,
        typer.Option(
            "--table", help="One row per combination of the axes, also if there is only one."
        ),
    ] = False
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again what was measured before.")
    ] = False
    axes: Annotated[Mapping[str, str], AXIS_OPTIONS]

    def axis_values(self) -> dict[str, Any]:
        """Return a tuple of values for each axis.

        Raises:
            KbatchError: If a text cannot be read.
        """
        values = {}
        for name, text in self.axes.items():
            option = AXIS_OPTIONS.by_axis[name]
            values[name] = tuple(option.read(f"--{option.name}", text))
        return values
