"""Options: what the driver was asked for, checked before anything slow begins."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbatch import json_form, number_text
from kbatch.axes import AXES
from kbatch.axis import Axis
from kbatch.device.card import has_card
from kbatch.errors import SearchError
from kbatch.option import Range
from kbatch.records import disk
from kbatch.space import Space

TUNERS = ("random", "bayesian", "grid")
GRID_RATES = 3
PROJECT = "search"
BATCH_SIZES = "16,32,64,128,256"
CHANCE = 0.5  # of two classes with as many pictures each
BOUNDS: dict[str, tuple[float, float]] = {
    "trials": (1, 10_000),
    "confirm": (0, 1_000),
    "confirm_top": (1, 1_000),
    "image_size": (8, 1024),
    "seed": (0, 2_000_000_000),  # room for the seeds of a confirmation below NumPy's largest
    "seconds_per_trial": (0.05, 604_800),  # a week
    "epochs": (1, 100_000),
    "micro_batch_size": (1, number_text.MOST),
}
LONGEST_NAME = 200  # of the files below --out, for the system's limit on a path


@dataclass(frozen=True)
class Options:
    """Everything `kbatch cats-vs-dogs` can be told; see its `--help`.

    `axes` holds the texts of the options of the axes that were given, by the name of the axis.
    """

    data: str
    image_size: int
    trials: int
    seconds_per_trial: float | None
    epochs: int | None
    tuner: str
    model: str
    axes: Mapping[str, str]
    micro_batch_size: int | None
    max_batch: str
    target: float | None
    confirm: int
    confirm_top: int
    seed: int
    out: str

    def check(self) -> None:
        """Refuse what makes no sense.

        Raises:
            SearchError: If a number is out of range or a name unknown.
        """
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
        if self.target is not None and not CHANCE < self.target <= 1:
            raise SearchError(
                f"--target must be an accuracy above chance, {CHANCE}, and at most 1",
                self.target,
                "Pass 0.8, say",
            )
        self.max_batch_number()
        for name, allowed in (("tuner", TUNERS), ("model", ("cnn", "small-resnet"))):
            if getattr(self, name) not in allowed:
                raise SearchError(
                    f"--{name} must be one of {', '.join(allowed)}",
                    getattr(self, name),
                    "Pass one of these names",
                )

    def max_batch_number(self) -> int | None:
        """The number that --max-batch is; `None` for `auto` and `off`.

        Raises:
            SearchError: If it is none of these.
        """
        if self.max_batch in ("auto", "off"):
            return None
        number = number_text.whole(self.max_batch) or 0
        if not 1 <= number <= number_text.MOST:
            raise SearchError(
                "--max-batch must be auto, off or a whole number of at least 1",
                self.max_batch,
                "Pass one of these",
            )
        return number

    def space(self) -> Space:
        """The space that the axis options say.

        Raises:
            SearchError: If one cannot be read.
            SpaceError: If an axis cannot be searched.
        """
        arguments: dict[str, Any] = {}
        for axis in AXES:
            if axis.option is None:
                continue
            text = self.axes[axis.name] if axis.name in self.axes else _default(axis)
            values = axis.option.read(f"--{axis.option.name}", text)
            if axis.only_if is None:
                arguments[axis.name] = values
            else:
                arguments.setdefault(axis.of, {})[axis.only_if[1]] = self._drawn_from(values)
        return Space(**arguments, micro_batch_size=self.micro_batch_size)

    def _drawn_from(self, values: Range) -> Any:
        """A range as `Space` takes it: for a grid some values of it."""
        return _steps(values) if self.tuner == "grid" else (values.lowest, values.highest)

    def told(self) -> dict[str, Any]:
        """What was asked for by the names of the options."""
        own = {
            name.replace("_", "-"): value for name, value in vars(self).items() if name != "axes"
        }
        given = {
            axis.option.name: self.axes[axis.name]
            for axis in AXES
            if axis.option and axis.name in self.axes
        }
        return {**own, **given}

    def as_begun(self, facts: Mapping[str, Any]) -> Options:
        """These options, with the policies that a project was begun with where none are named: its machine may have been another.

        Args:
            facts: What the project was started with; empty if it was not.
        """
        begun = facts.get("space")
        if (
            "policy" not in self.axes
            and isinstance(begun, dict)
            and json_form.fits(begun.get("policy"), list[str])
        ):
            return dataclasses.replace(
                self, axes={**self.axes, "policy": ",".join(begun["policy"])}
            )
        return self

    def ready_folder(self) -> Path:
        """The folder of the results, made and seen to be writable.

        Raises:
            SearchError: If it is not.
        """
        folder = Path(self.out)
        try:
            self.out.encode("utf-8")  # TensorFlow takes no other names
            (folder / PROJECT / ("x" * LONGEST_NAME)).exists()  # a path that is too long shows here
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except ValueError as error:
            raise SearchError(
                "--out must be the name of a folder, in UTF-8",
                repr(self.out),
                "Pass another folder",
            ) from error
        except OSError as error:
            received = f"{folder}: {error.strerror or error}"
            raise disk.trouble(error) or SearchError(
                "--out must be a folder that can be written", received, "Pass another folder"
            ) from error
        return folder


def default_policies() -> str:
    """The policies that are worth a search on this machine: on a CPU mixed_float16 was measured five times slower than float32."""
    return "float32,mixed_float16" if has_card() else "float32"


def _default(axis: Axis) -> str:
    """The text of an option that was left out."""
    if axis.name == "policy":
        return default_policies()
    return BATCH_SIZES if axis.name == "batch_size" else str(axis.option and axis.option.default)


def _steps(rates: Range) -> list[float]:
    """Three rates from the lowest to the highest, evenly spaced on a log scale."""
    low, high = rates.lowest, rates.highest
    return [low * (high / low) ** (step / (GRID_RATES - 1)) for step in range(GRID_RATES)]
