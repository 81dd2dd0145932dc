"""Options of `kbatch search`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from kbatch.axes import AXES
from kbatch.axis import Axis
from kbatch.command_option import NUMBER, WHOLE, AxisOptions
from kbatch.driver import options
from kbatch.runtime.nvidia import may_use_card

DEFAULT_EPOCHS = 5
BY_AXIS = options.AXIS_OPTIONS.by_axis
AXIS_OPTIONS = AxisOptions(
    {
        **BY_AXIS,
        "augmentation": dataclasses.replace(
            BY_AXIS["augmentation"],
            default=None,
            default_words=f"{BY_AXIS['augmentation'].default}; none but for pictures",
        ),
    }
)


# Options that `kbatch doctor` has too.
DATA = typer.Option(
    help="Folder or zip with one folder of pictures per class (perhaps in train, val and test), an "
    "NPZ file with x and y, tfds:NAME, or module:function."
)
IMAGE_SIZE = typer.Option(
    **WHOLE, show_default="64", help="Height and width of pictures, which are resized."
)
SPLIT = typer.Option(
    help="Percentages to train, validate and test on, of data that are not split yet; 80,20 for no "
    "test set."
)
LABELS = typer.Option(show_default="as the loss needs", help="Form of the labels of classes.")
LOSS = typer.Option(help="Loss by Keras' name, if the function does not compile the model.")
METRIC = typer.Option(
    show_default="accuracy, else the model's first metric, else its loss",
    help="Metric to score by.",
)
VALUES = typer.Option(
    show_default="default= in build(hp), else the lowest",
    help="Values of your own hyperparameters that you have today, such as units=32,lr=0.0001, or "
    "the folder of a tuner's project: the baseline is built with them.",
)


@dataclass(frozen=True, kw_only=True)
class SearchOptions(options.CommonOptions):
    """The options of `kbatch search`, which `--help` explains."""

    data: Annotated[str, DATA]
    image_size: Annotated[int | None, IMAGE_SIZE] = None
    epochs: Annotated[
        int | None,
        typer.Option(
            **WHOLE,
            show_default="5, unless --seconds-per-trial",
            help="Instead of seconds: every trial trains as long as the baseline takes for so many "
            "epochs.",
        ),
    ] = None
    seconds_per_trial: Annotated[
        float | None,
        typer.Option(**NUMBER, help="Training seconds of every trial."),
    ] = None
    model: Annotated[
        str,
        typer.Argument(
            help="module:function of your build(hp), importable from here; or cnn or small-resnet, "
            "for pictures."
        ),
    ]
    target: Annotated[
        float | None,
        typer.Option(
            **NUMBER,
            help="Value of the metric that is good enough: a trial ends once it is held.",
        ),
    ] = None
    seed: Annotated[
        int, typer.Option(**WHOLE, help="Seed of the split, tuner, weights and data order.")
    ] = 0
    out: Annotated[
        str,
        typer.Option(
            help="Folder of records, tables, figures and report; the same command resumes."
        ),
    ] = "kbatch-search"
    split: Annotated[str, SPLIT] = "60,20,20"
    labels: Annotated[Literal["numbers", "one-hot"] | None, LABELS] = None
    values: Annotated[str | None, VALUES] = None
    loss: Annotated[str | None, LOSS] = None
    metric: Annotated[str | None, METRIC] = None
    direction: Annotated[
        Literal["max", "min"] | None,
        typer.Option(show_default="by the metric's name", help="Where the metric should go."),
    ] = None
    chance: Annotated[
        float | None,
        typer.Option(
            **NUMBER,
            show_default="from the labels",
            help="The metric of a model that learned nothing.",
        ),
    ] = None

    axes: Annotated[Mapping[str, str], AXIS_OPTIONS]

    def told(self) -> dict[str, Any]:
        """Return the values of the options that differ from their defaults, by their names."""
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        own = {name: value for name, value in vars(self).items() if name not in ("model", "axes")}
        given = {
            axis.option.name: self.axes[axis.name]
            for axis in AXES
            if axis.option and self.axes.get(axis.name) not in (None, axis.option.default)
        }
        changed = {name: value for name, value in own.items() if value != usual[name]}
        return {**{name.replace("_", "-"): value for name, value in changed.items()}, **given}

    def default_of(self, axis: Axis) -> str | None:
        """Return the text of an axis' option that was left out.

        On a GPU, XLA is left to the model: it cannot compile all layers.
        """
        if axis.name == "jit_compile" and may_use_card():
            return None
        return super().default_of(axis)
