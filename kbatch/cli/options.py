"""Options of the commands but those that search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import typer

from kbatch.axis import Axis, Option, words
from kbatch.cli import search_options
from kbatch.command_option import NUMBER, WHOLE, AxisOptions
from kbatch.errors import SearchError
from kbatch.recipe import Recipe
from kbatch.recipe_words import OPTIMIZERS
from kbatch.space import AXES


@dataclass(frozen=True, kw_only=True)
class AdviseOptions:
    """The options of `kbatch advise`, which `--help` explains."""

    directory: Annotated[
        str | None,
        typer.Argument(
            show_default=False,
            help="Folder of a search. Its best recipe and its baseline are looked at.",
        ),
    ] = None
    recipe: Annotated[
        str | None,
        typer.Option(
            show_default="those of the folder",
            help="Fields of a recipe as JSON, such as '{\"batch_size\": 512}'; others have their "
            "defaults.",
        ),
    ] = None
    build: Annotated[
        str | None,
        typer.Option(
            help="module:function of the function that returns the model, importable from here."
        ),
    ] = None
    max_batch: Annotated[
        int | None, typer.Option(**WHOLE, help="Examples that fit in one pass (kbatch max-batch).")
    ] = None
    examples: Annotated[
        int | None,
        typer.Option(**WHOLE, show_default="the folder's", help="Number of training examples."),
    ] = None
    epochs: Annotated[
        float | None,
        typer.Option(
            **NUMBER,
            show_default="the length of a trial",
            help="Passes over the data that you plan.",
        ),
    ] = None
    devices: Annotated[
        int, typer.Option(**WHOLE, help="Devices that share each forward and backward pass.")
    ] = 1
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="The model has pretrained weights.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class RecomputeOptions:
    """The options of `kbatch recompute`, which `--help` explains."""

    build: Annotated[
        str,
        typer.Argument(
            help="module:function of the function that returns the model, importable from here."
        ),
    ]
    shape: Annotated[
        str | None,
        typer.Option(
            help="Shape of one example, such as 224,224,3, if the model has no keras.Input."
        ),
    ] = None
    policy: Annotated[
        Literal["float32", "mixed_float16", "mixed_bfloat16"], typer.Option(help="Dtype policy.")
    ] = "float32"
    optimizer: Annotated[
        Literal["sgd", "adam"],
        typer.Option(
            help="Optimizer whose slots take memory; of another one, the nearest of these."
        ),
    ] = "adam"
    batch_size: Annotated[
        int, typer.Option(**WHOLE, help="Examples per step, for which bytes are given.")
    ] = 32
    memory_limit: Annotated[
        str | None,
        typer.Option(
            help="Such as 8GB: the fastest plan that fits is shown, and the largest batch of each."
        ),
    ] = None
    figure: Annotated[str, typer.Option(help="PNG file for peak against time.")] = "recompute.png"
    plan: Annotated[str | None, typer.Option(help="JSON file for the plan that is shown.")] = None


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options of `kbatch export`, which `--help` explains."""

    directory: Annotated[str, typer.Argument(help="Folder of a search, or what --out was.")]
    best: Annotated[
        bool, typer.Option("--best", help="The best recipe; so it is without an option.")
    ] = False
    trial: Annotated[
        int | None, typer.Option(**WHOLE, help="The recipe of a trial, by its number.")
    ] = None
    baseline: Annotated[bool, typer.Option("--baseline", help="The recipe of the baseline.")] = (
        False
    )
    out: Annotated[
        str | None,
        typer.Option(
            show_default="standard output", help="File to write, which must not exist yet."
        ),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Write over the file of --out if it exists.")
    ] = False

    def check(self) -> None:
        """Refuse options that contradict each other."""
        named = [
            *(["--best"] if self.best else []),
            *([f"--trial {self.trial}"] if self.trial is not None else []),
            *(["--baseline"] if self.baseline else []),
        ]
        if len(named) > 1:
            raise SearchError(
                "One recipe must be named to export", " and ".join(named), "Leave the others out"
            )
        if self.force and self.out is None:
            raise SearchError(
                "--force must come with --out", "--force alone", "Name the file with --out"
            )


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """The options of `kbatch doctor`, which `--help` explains."""

    model: Annotated[
        str | None,
        typer.Argument(
            show_default=False,
            help="module:function of your build(hp), importable from here, to check what kbatch "
            "assumes of it; needs --data.",
        ),
    ] = None
    data: Annotated[str | None, search_options.DATA] = None
    image_size: Annotated[int | None, search_options.IMAGE_SIZE] = None
    split: Annotated[str, search_options.SPLIT] = "60,20,20"
    labels: Annotated[Literal["numbers", "one-hot"] | None, search_options.LABELS] = None
    values: Annotated[str | None, search_options.VALUES] = None
    loss: Annotated[str | None, search_options.LOSS] = None
    metric: Annotated[str | None, search_options.METRIC] = None
    seed: Annotated[int, typer.Option(**WHOLE, help="Seed of the split and the weights.")] = 0
    gpu: Annotated[bool, typer.Option("--gpu", help="Check the GPU too: about two minutes.")] = (
        False
    )

    def check(self) -> None:
        """Refuse a model without data, and data without a model."""
        if (self.model is None) == (self.data is None):
            return
        received = f"--data {self.data}" if self.model is None else self.model
        raise SearchError(
            "A model must be checked with its data",
            f"{received} alone",
            "Pass both: kbatch doctor mymodel:build --data FOLDER",
        )

    def search(self) -> search_options.SearchOptions:
        """Return the options of the search that is checked; its horizon is of no concern."""
        return search_options.SearchOptions(
            model=self.model or "",
            data=self.data or "",
            image_size=self.image_size,
            split=self.split,
            labels=self.labels,
            values=self.values,
            loss=self.loss,
            metric=self.metric,
            seed=self.seed,
            epochs=search_options.DEFAULT_EPOCHS,
            axes={},
        )


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
class MaxBatchOptions:
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
        """Return a tuple of values for each axis."""
        values = {}
        for name, text in self.axes.items():
            option = AXIS_OPTIONS.by_axis[name]
            values[name] = tuple(option.read(f"--{option.name}", text))
        return values
