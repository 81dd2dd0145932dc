"""Plans: the command `kbatch recompute`, from its options to the front of a model's plans, one of them in words, and a figure."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console

from kbatch.building.model_maker import ModelMaker
from kbatch.building.optimizers import optimizer_of
from kbatch.device import limit
from kbatch.errors import DataError, KbatchError, MemoryLimitError, ModelError, RecomputeError
from kbatch.memory._build_function import imported
from kbatch.number_text import example_shape
from kbatch.recipe import Recipe
from kbatch.recompute._plan import Plan, megabytes
from kbatch.recompute._planner import front, resizer
from kbatch.records import atomic_file
from kbatch.results import figures

CAUTION = (
    "predicted; without XLA measured peaks were 0.8 to 1.2 times as high, more where the weights outweigh the activations: "
    "the optimizer's own step is not among it (kbatch max-batch --recompute measures)"
)
SHARES = (
    "budget:0.50 keeps half of what the plain model keeps from the forward to the backward pass"
)
OPTIMIZERS = ("sgd", "adam")
MOST = 1 << 20  # examples; larger batches are nobody's question


@dataclass(frozen=True)
class Asked:
    """Everything `kbatch recompute` can be told; see its `--help`."""

    build: str
    shape: str | None
    policy: str
    optimizer: str
    batch_size: int
    memory_limit: str | None
    figure: str
    plan: str | None


@dataclass(frozen=True)
class Choice:
    """The plans of a front, and what the device has for them.

    Attributes:
        plans: Plans at the batch size that was asked for, the fastest first.
        resized: Function from a plan and a batch size to the plan with the bytes of that size.
        static_bytes: Integer, weights and optimizer.
        limit_bytes: Integer, or `None` if there is no limit.
        fixed_batch_size: Integer, the only batch size that the model takes, or `None` if it takes
            any.
    """

    plans: Sequence[Plan]
    resized: Callable[[Plan, int], Plan]
    static_bytes: int
    limit_bytes: int | None
    fixed_batch_size: int | None = None

    @property
    def room_bytes(self) -> int | None:
        """What the limit leaves beside weights and optimizer; `None` without a limit."""
        return None if self.limit_bytes is None else self.limit_bytes - self.static_bytes

    def needed_bytes(self, plan: Plan) -> float:
        """Bytes of a training by a plan, as the allocator hands them out."""
        return self.static_bytes + plan.peak_bytes

    def largest(self, plan: Plan) -> int | None:
        """The largest batch that is predicted to fit; `None` without a limit, 0 if none fits."""
        if self.limit_bytes is None:
            return None
        if self.fixed_batch_size is not None:
            return self.fixed_batch_size if self.needed_bytes(plan) <= self.limit_bytes else 0
        low, high = 0, MOST
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (
                (middle, high)
                if self.needed_bytes(self.resized(plan, middle)) <= self.limit_bytes
                else (low, middle - 1)
            )
        return low

    @property
    def chosen(self) -> Plan:
        """The fastest plan that fits, or without a limit the one of the lowest peak.

        Raises:
            MemoryLimitError: If none fits.
        """
        if self.limit_bytes is None:
            return self.plans[-1]
        for plan in self.plans:
            if self.needed_bytes(plan) <= self.limit_bytes:
                return plan
        least = self.plans[-1]
        raise MemoryLimitError(
            f"Some plan must fit into {megabytes(self.limit_bytes)} at batch {least.batch_size}",
            f"{megabytes(self.needed_bytes(least))} at least",
            f"Take a batch of {self.largest(least)}, and accumulate"
            if self.largest(least)
            else "Raise the limit, or take a smaller model",
        )


def answer(asked: Asked, console: Console) -> None:
    """Find the plans that were asked for, print and draw them.

    Raises:
        KbatchError: If something the user gave cannot be used.
    """
    sys.path.insert(0, os.getcwd())
    _check_file("--figure", asked.figure, ".png")
    if asked.plan is not None:
        _check_file("--plan", asked.plan, ".json")
    if asked.optimizer not in OPTIMIZERS:
        raise DataError(
            "--optimizer must be sgd or adam",
            asked.optimizer,
            "Pass the one whose slots are nearest to those of yours",
        )
    recipe = Recipe(asked.batch_size, asked.optimizer, 1e-3, policy=asked.policy)
    limit_bytes = None if asked.memory_limit is None else limit.bytes_of(asked.memory_limit)
    with console.status("Making the model …") as status:
        with _of_the_user():
            made = ModelMaker(imported(asked.build).load()).raw(asked.policy)
        model = built(made, asked.shape)
        status.update("Tracing each operation forward and backward …")
        found = Choice(
            front(model, recipe.batch_size),
            resizer(model),
            static_bytes(model, recipe),
            limit_bytes,
            _fixed_batch_size(model),
        )
        rows = [
            figures.PlanInfo(
                _named(plan, found.plans[0]), plan.peak_bytes, plan.extra_seconds_ratio
            )
            for plan in found.plans
        ]
        figures.draw_plans(
            rows,
            f"{asked.build} at batch {recipe.batch_size}, {recipe.policy}",
            asked.figure,
            found.room_bytes,
        )
    console.print(table(found), highlight=False, soft_wrap=True)
    console.print(f"Figure: {asked.figure}", highlight=False, soft_wrap=True)
    chosen = found.chosen
    console.print(str(chosen), highlight=False, soft_wrap=True)
    if asked.plan:
        atomic_file.write(Path(asked.plan), chosen.to_json())
        console.print(
            f"Plan: {asked.plan} (recompute.Plan.from_json, recompute.apply)",
            highlight=False,
            soft_wrap=True,
        )


def table(choice: Choice) -> str:
    """The front in words, a row per plan, the fastest first."""
    batches = "" if choice.limit_bytes is None else f"{'largest batch':>15}"
    lines = [
        f"{'plan':<14}{'segments':>9}{'run again':>11}{'kept MB':>10}{'peak MB':>10}{'more time':>11}{batches}"
    ]
    for plan in choice.plans:
        again = sum(segment.operations for segment in plan.segments if segment.recompute)
        largest = "" if choice.limit_bytes is None else f"{choice.largest(plan):>15}"
        name = _named(plan, choice.plans[0])
        sizes = f"{plan.kept_bytes / 1e6:>10,.1f}{plan.peak_bytes / 1e6:>10,.1f}"
        lines.append(
            f"{name:<14}{len(plan.segments):>9}{again:>11}{sizes}{plan.extra_seconds_ratio:>11.1%}{largest}"
        )
    shares = [SHARES] if any(plan.strategy == "budget" for plan in choice.plans) else []
    room = "" if choice.limit_bytes is None else f" of {megabytes(choice.limit_bytes)}"
    return "\n".join(
        [
            *lines,
            f"weights and optimizer take {choice.static_bytes / 1e6:,.1f} MB{room} beside the peak",
            *shares,
            CAUTION,
        ]
    )


def built(model: Any, shape: str | None) -> keras.Model:
    """A model with weights: one that waits for its input is given the shape.

    Raises:
        DataError: If the shape cannot be read or is not the model's.
        RecomputeError: If there is no model, or no shape for one that needs it.
    """
    if not isinstance(model, keras.Model):
        raise RecomputeError(
            "The function must return a keras.Model", type(model).__name__, "Return the model"
        )
    if shape is None:
        if not model.built:
            raise RecomputeError(
                "A model without a keras.Input must be given a shape",
                model.name,
                "Pass --shape 224,224,3, or add a keras.Input",
            )
        return model
    sizes = example_shape(shape)
    if not model.built:
        with _of_the_user():
            model.build((None, *sizes))
    own = [tuple(tensor.shape[1:]) for tensor in getattr(model, "inputs", None) or []]
    if len(own) == 1 and not _fits(sizes, own[0]):
        raise DataError(
            "--shape must be that of the model's input",
            shape,
            f"Pass {','.join(map(str, own[0]))}, or leave it out",
        )
    return model


def _fits(sizes: tuple[int, ...], own: tuple[int | None, ...]) -> bool:
    return len(sizes) == len(own) and all(
        length in (size, None) for size, length in zip(sizes, own, strict=True)
    )


def _fixed_batch_size(model: keras.Model) -> int | None:
    return next((tensor.shape[0] for tensor in model.inputs if tensor.shape[0] is not None), None)


def static_bytes(model: keras.Model, recipe: Recipe) -> int:
    """Bytes of the weights and of what the recipe's optimizer holds."""
    optimizer = optimizer_of(recipe, None)
    optimizer.build(model.trainable_variables)
    return sum(
        int(np.prod(variable.shape)) * tf.as_dtype(variable.dtype).size
        for variable in (*model.variables, *optimizer.variables)
    )


@contextmanager
def _of_the_user() -> Iterator[None]:
    """Turn what the user's own code raises into one sentence."""
    try:
        yield
    except KbatchError:
        raise
    except (Exception, SystemExit) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise ModelError(
            "A model must be made, on the shape that is given",
            said,
            "Build it in Python to see where it fails",
        ) from error


def _check_file(option: str, path: str, suffix: str) -> None:
    target, must = Path(path), f"{option} must be a {suffix} file that can be written"
    if target.suffix != suffix:
        raise DataError(must, path, f"Name one that ends in {suffix}")
    if target.exists() and not target.is_file():
        raise DataError(must, path, "Name a file, not a folder or a device")
    try:
        with tempfile.TemporaryFile(dir=target.parent, prefix=target.name):
            pass
    except (OSError, ValueError) as error:
        raise DataError(
            must,
            f"{path} ({type(error).__name__})",
            "Name one in a folder that exists and may be written to",
        ) from error


def _named(plan: Plan, plain: Plan) -> str:
    return (
        f"budget:{plan.kept_bytes / plain.kept_bytes:.2f}"
        if plan.strategy == "budget"
        else plan.strategy
    )
