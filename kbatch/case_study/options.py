"""Options: what the driver was asked for, checked before anything slow begins."""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import dataclass
from pathlib import Path

from kbatch.errors import SearchError
from kbatch.recipe import OPTIMIZERS, POLICIES
from kbatch.sizes import sizes_of
from kbatch.space import Space

TUNERS = ("random", "bayesian", "grid")
GRID_RATES = 3
PROJECT = "search"


@dataclass(frozen=True)
class Options:
    """Everything `kbatch cats-vs-dogs` can be told; see its `--help`."""

    data: str
    image_size: int
    trials: int
    seconds_per_trial: float | None
    epochs: int | None
    tuner: str
    model: str
    optimizers: str
    sgd_rates: str
    adam_rates: str
    batch_sizes: str
    policies: str
    augmentations: str
    jit: str
    recompute: str
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
        for name, least in (("trials", 1), ("confirm", 0), ("confirm_top", 1), ("image_size", 8), ("seed", 0)):
            if getattr(self, name) < least:
                raise SearchError(f"--{name.replace('_', '-')} must be at least {least}", getattr(self, name), "Pass a larger number")
        if (self.seconds_per_trial is None) == (self.epochs is None):
            raise SearchError("One of --seconds-per-trial and --epochs must be given", "both", "Leave one out")
        if self.seconds_per_trial is not None and not 0 < self.seconds_per_trial < math.inf:
            raise SearchError("--seconds-per-trial must be above 0", self.seconds_per_trial, "Pass 8, say")
        if self.epochs is not None and self.epochs < 1:
            raise SearchError("--epochs must be at least 1", self.epochs, "Pass 3, say")
        self.max_batch_number()
        for name, allowed in (("tuner", TUNERS), ("model", ("cnn", "small-resnet")), ("jit", ("off", "on", "both"))):
            if getattr(self, name) not in allowed:
                raise SearchError(f"--{name} must be one of {', '.join(allowed)}", getattr(self, name), "Pass one of these names")

    def max_batch_number(self) -> int | None:
        """The number that --max-batch is; `None` for `auto` and `off`.

        Raises:
            SearchError: If it is none of these.
        """
        if self.max_batch in ("auto", "off"):
            return None
        if not self.max_batch.isdigit() or int(self.max_batch) < 1:
            raise SearchError("--max-batch must be auto, off or a whole number of at least 1", self.max_batch, "Pass one of these")
        return int(self.max_batch)

    def space(self) -> Space:
        """The space that the axis options say.

        Raises:
            SearchError: If one cannot be read.
            SpaceError: If an axis cannot be searched.
        """
        sgd, adam = _range("--sgd-rates", self.sgd_rates), _range("--adam-rates", self.adam_rates)
        rates = {name: _steps(pair) if self.tuner == "grid" else pair for name, pair in (("sgd", sgd), ("adam", adam))}
        return Space(
            optimizer=_names("--optimizers", self.optimizers, OPTIMIZERS[:2]),
            learning_rate=rates,  # type: ignore
            policy=_names("--policies", self.policies, POLICIES),
            augmentation=_names("--augmentations", self.augmentations, ("none", "flip", "flip_shift", "flip_shift_contrast")),
            jit_compile={"off": (False,), "on": (True,), "both": (False, True)}[self.jit],
            recompute=tuple(part.strip() for part in self.recompute.split(",")),
            micro_batch_size=self.micro_batch_size,
            batch_size=sizes_of("--batch-sizes", self.batch_sizes, "Separate them by commas: 32,64,128"),
        )

    def ready_folder(self) -> Path:
        """The folder of the results, made and seen to be writable.

        Raises:
            SearchError: If it is not.
        """
        folder = Path(self.out)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / ".writable"
            probe.write_text("")
            probe.unlink()
        except OSError as error:
            raise SearchError(
                "--out must be a folder that can be written", f"{folder}: {os.strerror(error.errno or 0)}", "Pass another folder"
            ) from error
        return folder


def grid_size(space: Space) -> int:
    """How many recipes a grid over the space holds."""
    rates = sum(len(space.learning_rate[name]) for name in space.optimizer)  # type: ignore
    others = (space.policies, space.augmentation, space.jit_compile, space.recompute, space.batch_size)
    return rates * len(list(itertools.product(*others)))


def _steps(pair: tuple[float, float]) -> list[float]:
    """Three rates from the lowest to the highest, evenly spaced on a log scale."""
    low, high = pair
    return [low * (high / low) ** (step / (GRID_RATES - 1)) for step in range(GRID_RATES)]


def _names(option: str, text: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in allowed]
    if unknown or not names:
        raise SearchError(f"{option} must be names out of {', '.join(allowed)}", text, "Separate them by commas")
    return names


def _range(option: str, text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(":"))
        if not 0 < low < high < math.inf:
            raise ValueError(text)
    except ValueError as error:
        raise SearchError(f"{option} must be two rates above 0, the lower first", text, "Write them as 0.001:0.1") from error
    return low, high
