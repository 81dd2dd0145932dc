"""The command `kbatch recompute`: a model's plans as a table and a figure, and one in words."""

from __future__ import annotations

import bisect
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kbatch.cli.command import WHOLE, errors_of_users_code, new_console, told_plainly, with_options
from kbatch.errors import DataError, MemoryLimitError, RecomputeError
from kbatch.plain_text import example_shape
from kbatch.recipe import Recipe
from kbatch.recompute._plan import Plan, megabytes
from kbatch.records import files
from kbatch.runtime import device_memory, signals, users_code
from kbatch.runtime.users_code import imported
from kbatch.text_table import TextTable

if TYPE_CHECKING:
    import keras
    from rich.console import Console


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


@with_options(RecomputeOptions)
def recompute(options: RecomputeOptions) -> None:
    """Show how much memory gradient checkpointing saves in a model, and how much time it costs.

    It also shows where to cut the model. Each operation is traced forward and backward once;
    nothing is trained. Without a limit the plan of the lowest peak is shown in words.
    """
    with told_plainly():
        answer(options, new_console())


CAUTION = (
    "predicted; without XLA measured peaks were 0.8 to 1.2 times as high, more where the weights "
    "outweigh the activations: the optimizer's own step is not counted "
    "(kbatch max-batch --recompute measures)"
)
SHARES = (
    "budget:0.50 keeps half of what the plain model keeps from the forward to the backward pass"
)
MADE = "A model must be made, on the shape that is given"
DO = "Build it in Python to see where it fails"
LARGEST_BATCH = 1 << 20  # examples; larger batches are not looked for


@dataclass(frozen=True)
class Choice:
    """The plans of a front, and the memory that the device has for them."""

    plans: Sequence[Plan]  # plans at the batch size of the command, the fastest first
    # function from a plan and a batch size to the plan with the bytes of that size
    resized: Callable[[Plan, int], Plan]
    static_bytes: int  # bytes of weights and optimizer
    limit_bytes: int | None  # or `None` if there is no limit
    # the only batch size that the model takes, or `None` if it takes any
    fixed_batch_size: int | None = None

    @property
    def room_bytes(self) -> int | None:
        """Bytes of the limit that weights and optimizer leave; `None` without a limit."""
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
        sizes = range(1, LARGEST_BATCH + 1)
        return bisect.bisect_right(
            sizes,
            float(self.limit_bytes),
            key=lambda size: self.needed_bytes(self.resized(plan, size)),
        )

    @property
    def chosen(self) -> Plan:
        """The fastest plan that fits, or without a limit the one of the lowest peak."""
        if self.limit_bytes is None:
            return self.plans[-1]
        for plan in self.plans:
            if self.needed_bytes(plan) <= self.limit_bytes:
                return plan
        smallest = self.plans[-1]
        batch = self.largest(smallest)
        remedy = "Raise the limit, or take a smaller model"
        if batch:
            remedy = f"Take a batch of {batch}, and accumulate"
        raise MemoryLimitError(
            f"Some plan must fit into {megabytes(self.limit_bytes)} at batch {smallest.batch_size}",
            f"{megabytes(self.needed_bytes(smallest))} at least",
            remedy,
        )


def table(choice: Choice) -> str:
    """Return the front as a table, one row per plan, the fastest first."""
    limited = choice.limit_bytes is not None
    headings = ["plan", "segments", "run again", "kept MB", "peak MB", "more time"]
    rows = []
    for plan in choice.plans:
        row = [
            name_of(plan, choice.plans[0]),
            len(plan.segments),
            sum(segment.operations for segment in plan.segments if segment.recompute),
            f"{plan.kept_bytes / 1e6:,.1f}",
            f"{plan.peak_bytes / 1e6:,.1f}",
            f"{plan.extra_seconds_ratio:.1%}",
        ]
        rows.append([*row, choice.largest(plan)] if limited else row)
    if limited:
        headings.append("largest batch")
    static = f"weights and optimizer take {choice.static_bytes / 1e6:,.1f} MB"
    if choice.limit_bytes is not None:
        static += f" of {megabytes(choice.limit_bytes)}"
    shares = [SHARES] if any(plan.strategy == "budget" for plan in choice.plans) else []
    notes = [f"{static}, in addition to the peak", *shares, CAUTION]
    return TextTable(headings, rows, left=("plan",)).text(notes)


def name_of(plan: Plan, plain: Plan) -> str:
    """Return a plan's strategy; of a budget with the share of the plain model's bytes it keeps."""
    if plan.strategy == "budget":
        return f"budget:{plan.kept_bytes / plain.kept_bytes:.2f}"
    return plan.strategy


WORTH = 0.05  # of the plain model's peak, below which a plan is not worth its time; by hand


def answer(options: RecomputeOptions, console: Console) -> None:
    """Find the plans of a model, print and draw them."""
    with signals.at_once(), signals.turned_away():
        from kbatch.canvas import PlanInfo, draw_plans
        from kbatch.models.maker import ModelMaker
        from kbatch.recompute._planner import front, resizer

    users_code.use_folder(os.getcwd())
    _check_file("--figure", options.figure, ".png")
    if options.plan is not None:
        _check_file("--plan", options.plan, ".json")
    # No bytes depend on the rate: 1e-3 stands for any.
    recipe = Recipe(options.batch_size, options.optimizer, 1e-3, policy=options.policy)
    limit_bytes = (
        None if options.memory_limit is None else device_memory.bytes_of(options.memory_limit)
    )
    with console.status("Making the model …") as status:
        with errors_of_users_code(MADE, DO):
            raw = ModelMaker(imported(options.build).load()).raw(options.policy)
        model = built(raw, options.shape)
        status.update("Tracing each operation forward and backward …")
        choice = Choice(
            front(model, recipe.batch_size),
            resizer(model),
            static_bytes(model, recipe),
            limit_bytes,
            _fixed_batch_size(model),
        )
        title = f"{options.build} at batch {recipe.batch_size}, {recipe.policy}"
        plain = choice.plans[0]
        points = [
            PlanInfo(name_of(plan, plain), plan.peak_bytes, plan.extra_seconds_ratio)
            for plan in choice.plans
        ]
        draw_plans(points, title, options.figure, choice.room_bytes)
    lines = [table(choice), f"Figure: {options.figure}"]
    console.print("\n".join(lines), highlight=False, soft_wrap=True)
    chosen = choice.chosen
    console.print(str(chosen), highlight=False, soft_wrap=True)
    nothing = nothing_to_gain(choice, model)
    if nothing:
        console.print(nothing, highlight=False, soft_wrap=True)
    if options.plan:
        files.write(Path(options.plan), chosen.to_json())
        console.print(
            f"Plan: {options.plan} (recompute.Plan.from_json, recompute.apply)",
            highlight=False,
            soft_wrap=True,
        )


def nothing_to_gain(choice: Choice, model: keras.Model) -> str:
    """Return the sentence for a model whose plans save next to nothing; empty for others."""
    plain, lowest = choice.plans[0], min(choice.plans, key=lambda plan: plan.peak_bytes)
    if lowest.peak_bytes < (1 - WORTH) * plain.peak_bytes:
        return ""
    frozen = sum(math.prod(weight.shape) for weight in model.non_trainable_variables)
    weights = sum(math.prod(weight.shape) for weight in model.variables)
    why = ""
    if weights and frozen > weights / 2:
        why = (
            f": {frozen / weights:.0%} of the weights are frozen, and below the first one that "
            "trains nothing is kept for a backward pass"
        )
    return f"There is nothing to gain by recompute here{why}."


def built(model: Any, shape: str | None) -> keras.Model:
    """Return the model with its weights made, from the shape if the model waits for one."""
    import keras

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
        with errors_of_users_code(MADE, DO):
            model.build((None, *sizes))
    inputs = [tuple(tensor.shape[1:]) for tensor in getattr(model, "inputs", None) or []]
    if len(inputs) == 1 and not _fits(sizes, inputs[0]):
        raise DataError(
            "--shape must be that of the model's input",
            shape,
            f"Pass {','.join(map(str, inputs[0]))}, or leave it out",
        )
    return model


def static_bytes(model: keras.Model, recipe: Recipe) -> int:
    """Return the bytes of the weights and of the slots of the recipe's optimizer."""
    import tensorflow as tf

    from kbatch.models.optimizers import optimizer_of

    optimizer = optimizer_of(recipe, None)
    optimizer.build(model.trainable_variables)
    return sum(
        math.prod(variable.shape) * tf.as_dtype(variable.dtype).size
        for variable in (*model.variables, *optimizer.variables)
    )


def _fits(sizes: tuple[int, ...], own: tuple[int | None, ...]) -> bool:
    """Whether a shape is that of an input, whose open sizes take any."""
    return len(sizes) == len(own) and all(
        length in (size, None) for size, length in zip(sizes, own, strict=True)
    )


def _fixed_batch_size(model: keras.Model) -> int | None:
    return next((tensor.shape[0] for tensor in model.inputs if tensor.shape[0] is not None), None)


def _check_file(option: str, path: str, suffix: str) -> None:
    """Refuse the name of a file that cannot be written, before anything slow begins."""
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
