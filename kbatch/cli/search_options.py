"""Search options: what `kbatch search` and `kbatch cats-vs-dogs` are told, and refuse."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import typer

from kbatch import plain_text
from kbatch.axes import AXES
from kbatch.axis import Axis, Range
from kbatch.cli.command import AXES_PANEL, NUMBER, WHOLE, AxisOptions
from kbatch.errors import SearchError
from kbatch.runtime.nvidia import may_use_card
from kbatch.space import Space

DEFAULT_EPOCHS = 5
DEFAULT_SECONDS = 8.0  # of the case study
CHANCE = 0.5  # of two classes of equal size
GRID_RATES = 3
PROJECT = "search"
BATCH_SIZES = "16,32,64,128,256"
BOUNDS: dict[str, tuple[float, float]] = {
    "trials": (1, 10_000),
    "confirm_top": (1, 1_000),
    "workers": (1, 1_000),
    "image_size": (8, 1024),
    "seed": (0, 2_000_000_000),  # the seeds of a confirmation are larger, NumPy's largest is 2**32
    "seconds_per_trial": (0.05, 604_800),  # a week
    "epochs": (1, 100_000),
    "micro_batch_size": (1, plain_text.MOST),
}
MOST_SEEDS = 1_000
JIT = {
    frozenset((False,)): "off",
    frozenset((True,)): "on",
    frozenset((False, True)): "both",
}
AXIS_OPTIONS = AxisOptions({axis.name: axis.option for axis in AXES if axis.option is not None})


ISOLATED = typer.Option(
    "--isolated", help="Train each recipe in a process of its own, which may die."
)


Own = TypeVar("Own", bound="CommonOptions")


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """The options of every search, which `--help` of its command explains.

    A command's own class says again those that it explains in other words. `axes` holds the texts
    of the options of the axes that were given, by the name of the axis.
    """

    data: str
    image_size: int | None
    trials: Annotated[int, typer.Option(**WHOLE, help="Recipes to try.")] = 10
    seconds_per_trial: Annotated[
        float | None,
        typer.Option(
            **NUMBER, show_default="8, unless --epochs", help="Training seconds of every trial."
        ),
    ] = None
    epochs: Annotated[
        int | None,
        typer.Option(
            **WHOLE,
            help="Instead of seconds: every trial trains as long as the baseline takes for so many "
            "epochs.",
        ),
    ] = None
    tuner: Annotated[
        Literal["kbatch", "random", "bayesian", "grid"],
        typer.Option(
            help="'kbatch' stops poor trials early; a grid takes three learning rates an optimizer."
        ),
    ] = "kbatch"
    model: str
    target: float | None = None
    confirm: Annotated[
        str,
        typer.Option(
            help="Fresh seeds per recipe for the confirmation; a claim needs 3, and 0 skips it. "
            "Several, such as 3,5,8, make a race: the better half goes on.",
        ),
    ] = "3"
    confirm_top: Annotated[
        int, typer.Option(**WHOLE, help="Leading recipes to confirm, besides the baseline.")
    ] = 2
    seed: int = 0
    out: str
    isolated: Annotated[bool, ISOLATED] = False
    executor: Annotated[
        Literal["local", "ray"] | None,
        typer.Option(
            help="Train in worker processes, each with a GPU of its own, of this machine or of a "
            "Ray cluster. Needs 'kbatch' as the tuner. [default: this process]",
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(
            **WHOLE,
            help="Recipes trained at once. [default: one, or with --executor one on each GPU]",
        ),
    ] = None
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard", help="Show every training in TensorBoard; see 'tensorboard' in --out."
        ),
    ] = False
    axes: Annotated[Mapping[str, str], AXIS_OPTIONS]
    micro_batch_size: Annotated[
        int | None,
        typer.Option(
            **WHOLE,
            help="Most examples per pass; larger batches accumulate gradients.",
            rich_help_panel=AXES_PANEL,
        ),
    ] = None
    max_batch: Annotated[
        str,
        typer.Option(
            help="Largest micro-batch: auto (measured first, where the device has a memory limit), "
            "off or a number.",
            rich_help_panel=AXES_PANEL,
        ),
    ] = "auto"

    def check(self) -> None:
        """Refuse options that make no sense."""
        for name, (least, most) in BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                option = name.replace("_", "-")
                raise SearchError(
                    f"--{option} must be at least {least:,} and at most {most:,}",
                    value,
                    "Pass a number between these",
                )
        if (self.seconds_per_trial is None) == (self.epochs is None):
            received = "neither" if self.epochs is None else "both"
            raise SearchError(
                "One of --seconds-per-trial and --epochs must be given", received, "Leave one out"
            )
        if self.has_executor and self.tuner != "kbatch":
            raise SearchError(
                "--executor and --workers need kbatch's own tuner",
                f"--tuner {self.tuner}",
                "Leave out --tuner, or pass --isolated instead",
            )
        self.max_batch_number()
        self.confirm_seeds()

    @property
    def has_executor(self) -> bool:
        """Boolean, whether an executor's workers make the trainings."""
        return self.executor is not None or self.workers is not None

    @property
    def in_workers(self) -> bool:
        """Boolean, whether this process makes no training."""
        return self.isolated or self.has_executor

    def confirm_seeds(self) -> tuple[int, ...]:
        """Return the numbers of `--confirm`; none if it is 0."""
        seeds = [plain_text.whole(part) for part in self.confirm.split(",")]
        if seeds == [0]:
            return ()
        known = [seed for seed in seeds if seed is not None and 1 <= seed <= MOST_SEEDS]
        if len(known) < len(seeds) or known != sorted(set(known)):
            raise SearchError(
                f"--confirm must be at least 0 and at most {MOST_SEEDS:,}, or rising numbers",
                self.confirm,
                "Pass 3, or 3,5,8,12 for a race",
            )
        return tuple(known)

    def max_batch_number(self) -> int | None:
        """Return the number of `--max-batch`; `None` for `auto` and `off`."""
        if self.max_batch in ("auto", "off"):
            return None
        number = plain_text.whole(self.max_batch) or 0
        if not 1 <= number <= plain_text.MOST:
            raise SearchError(
                "--max-batch must be auto, off or a whole number of at least 1",
                self.max_batch,
                "Pass one of these",
            )
        return number

    def space(self) -> Space:
        """Return the space of the axis options."""
        texts = {axis.name: self.axes.get(axis.name, self.default_of(axis)) for axis in AXES}
        arguments = axis_arguments(texts, self._drawn_from)
        return Space(**arguments, micro_batch_size=self.micro_batch_size)

    def default_of(self, axis: Axis) -> str | None:
        """Return the text of an axis' option that was left out; `None` to leave it to `Space`."""
        if axis.option is None:
            return None
        if axis.name == "policy":
            return default_policies()
        if axis.name == "jit_compile":
            return "both" if may_use_card() else "off"
        return (
            BATCH_SIZES if axis.name == "batch_size" else str(axis.option and axis.option.default)
        )

    def _drawn_from(self, values: Range) -> Any:
        """A range as `Space` takes it; for a grid a few values of it."""
        return _steps(values) if self.tuner == "grid" else (values.lowest, values.highest)

    def told(self) -> dict[str, Any]:
        """Return the values of all options by their names; the texts of axes only if given."""
        own = {
            name.replace("_", "-"): value for name, value in vars(self).items() if name != "axes"
        }
        given = {
            axis.option.name: self.axes[axis.name]
            for axis in AXES
            if axis.option and axis.name in self.axes
        }
        return {**own, **given}

    def as_begun(self: Own, facts: Mapping[str, Any]) -> Own:
        """Return these options with the policies and `--jit` of a project that was begun before.

        Those that nobody named depend on the machine, and a project may come from another one.
        """
        begun = facts.get("space")
        if not isinstance(begun, dict):
            return self
        texts = {}
        if plain_text.fits_json(begun.get("policy"), list[str]):
            texts["policy"] = ",".join(begun["policy"])
        if plain_text.fits_json(begun.get("jit_compile"), list[bool]):
            texts["jit_compile"] = JIT.get(frozenset(begun["jit_compile"]), "off")
        return dataclasses.replace(self, axes={**texts, **self.axes})


def _ends(values: Range) -> Any:
    return values.lowest, values.highest


def axis_arguments(
    texts: Mapping[str, str | None], drawn_from: Callable[[Range], Any] = _ends
) -> dict[str, Any]:
    """Return the arguments of a `Space` that texts of options stand for.

    Args:
        texts: Texts by the name of the axis; `None` to leave an axis out.
        drawn_from: Function from a range of learning rates to what `Space` takes for it.
    """
    arguments: dict[str, Any] = {}
    for axis in AXES:
        text = texts.get(axis.name)
        if axis.option is None or text is None:
            continue
        values = axis.option.read(f"--{axis.option.name}", text)
        if not axis.of or axis.only_if is None:
            arguments[axis.name] = values
        else:
            optimizer = axis.only_if[1][0]
            arguments.setdefault(axis.of, {})[optimizer] = drawn_from(values)
    return arguments


def default_policies() -> str:
    """Return the policies that are worth a search on this machine.

    On a CPU, mixed_float16 was measured five times slower than float32.
    """
    return "float32,mixed_float16" if may_use_card() else "float32"


def _steps(rates: Range) -> list[float]:
    """Return three rates from the lowest to the highest, evenly spaced on a log scale."""
    low, high = rates.lowest, rates.highest
    return [low * (high / low) ** (step / (GRID_RATES - 1)) for step in range(GRID_RATES)]


BY_AXIS = AXIS_OPTIONS.by_axis
OWN_AXIS_OPTIONS = AxisOptions(
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
DIRECTION = typer.Option(show_default="by the metric's name", help="Where the metric should go.")
CHANCE_OPTION = typer.Option(
    **NUMBER, show_default="from the labels", help="The metric of a model that learned nothing."
)
VALUES = typer.Option(
    show_default="default= in build(hp), else the lowest",
    help="Values of your own hyperparameters that you have today, such as units=32,lr=0.0001, or "
    "the folder of a tuner's project: the baseline is built with them.",
)


@dataclass(frozen=True, kw_only=True)
class SearchOptions(CommonOptions):
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
    direction: Annotated[Literal["max", "min"] | None, DIRECTION] = None
    chance: Annotated[float | None, CHANCE_OPTION] = None

    axes: Annotated[Mapping[str, str], OWN_AXIS_OPTIONS]

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


@dataclass(frozen=True, kw_only=True)
class CaseOptions(CommonOptions):
    """The options of `kbatch cats-vs-dogs`, which `--help` explains."""

    data: Annotated[
        str,
        typer.Option(
            help="'drawn' (by code, no download), 'tfds', or a folder or zip with two folders of "
            "photographs, 100 of each class at least."
        ),
    ] = "drawn"
    image_size: Annotated[int, typer.Option(**WHOLE, help="Height and width in pixels.")] = 32
    model: Annotated[
        Literal["cnn", "small-resnet"],
        typer.Option(help="'cnn' is the published case study's; it learns in longer trials."),
    ] = "small-resnet"
    target: Annotated[
        float | None,
        typer.Option(**NUMBER, help="Accuracy that is good enough: a trial ends once it is held."),
    ] = None
    seed: Annotated[
        int, typer.Option(**WHOLE, help="Seed of drawn data, tuner, weights and data order.")
    ] = 0
    out: Annotated[
        str,
        typer.Option(
            help="Folder of records, tables, figures and report; the same command resumes."
        ),
    ] = "kbatch-cats-vs-dogs"

    def check(self) -> None:
        """Refuse options that make no sense."""
        super().check()
        if self.target is not None and not CHANCE < self.target <= 1:
            raise SearchError(
                f"--target must be an accuracy above chance, {CHANCE}, and at most 1",
                self.target,
                "Pass 0.8, say",
            )
