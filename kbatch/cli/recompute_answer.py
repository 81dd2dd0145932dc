"""The answer of `kbatch recompute`: a model's plans as a table and a figure, and one in words."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console

from kbatch.cli.plan_choice import Choice, name_of, table
from kbatch.cli.recompute_options import Options
from kbatch.errors import DataError, KbatchError, ModelError, RecomputeError
from kbatch.models.maker import ModelMaker
from kbatch.models.optimizers import optimizer_of
from kbatch.plain_text import example_shape
from kbatch.recipe import Recipe
from kbatch.recompute._planner import front, resizer
from kbatch.records import files
from kbatch.results.charts.probes import PlanInfo, draw_plans
from kbatch.runtime import memory_limit, users_code
from kbatch.runtime.users_code import imported

WORTH = 0.05  # of the plain model's peak, below which a plan is not worth its time; by hand


def answer(options: Options, console: Console) -> None:
    """Find the plans of a model, print and draw them.

    Raises:
        KbatchError: If an option or the model cannot be used.
    """
    users_code.use_folder(os.getcwd())
    _check_file("--figure", options.figure, ".png")
    if options.plan is not None:
        _check_file("--plan", options.plan, ".json")
    # No bytes depend on the rate: 1e-3 stands for any.
    recipe = Recipe(options.batch_size, options.optimizer, 1e-3, policy=options.policy)
    limit_bytes = (
        None if options.memory_limit is None else memory_limit.bytes_of(options.memory_limit)
    )
    with console.status("Making the model …") as status:
        with _errors_of_the_user():
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
        draw_plans(_points(choice), title, options.figure, choice.room_bytes)
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
    """Return the sentence for a model whose plans save next to nothing; empty for others.

    Args:
        choice: The plans of the model.
        model: The model.
    """
    plain, lowest = choice.plans[0], min(choice.plans, key=lambda plan: plan.peak_bytes)
    if lowest.peak_bytes < (1 - WORTH) * plain.peak_bytes:
        return ""
    frozen = sum(int(np.prod(weight.shape)) for weight in model.non_trainable_variables)
    weights = sum(int(np.prod(weight.shape)) for weight in model.variables)
    why = ""
    if weights and frozen > weights / 2:
        why = (
            f": {frozen / weights:.0%} of the weights are frozen, and below the first one that "
            "trains nothing is kept for a backward pass"
        )
    return f"There is nothing to gain by recompute here{why}."


def built(model: Any, shape: str | None) -> keras.Model:
    """Return the model with its weights made, from the shape if the model waits for one.

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
        with _errors_of_the_user():
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
    optimizer = optimizer_of(recipe, None)
    optimizer.build(model.trainable_variables)
    return sum(
        int(np.prod(variable.shape)) * tf.as_dtype(variable.dtype).size
        for variable in (*model.variables, *optimizer.variables)
    )


def _points(choice: Choice) -> list[PlanInfo]:
    """The plans as points of the figure."""
    plain = choice.plans[0]
    return [
        PlanInfo(name_of(plan, plain), plan.peak_bytes, plan.extra_seconds_ratio)
        for plan in choice.plans
    ]


def _fits(sizes: tuple[int, ...], own: tuple[int | None, ...]) -> bool:
    """Whether a shape is that of an input, whose open sizes take any."""
    return len(sizes) == len(own) and all(
        length in (size, None) for size, length in zip(sizes, own, strict=True)
    )


def _fixed_batch_size(model: keras.Model) -> int | None:
    return next((tensor.shape[0] for tensor in model.inputs if tensor.shape[0] is not None), None)


@contextmanager
def _errors_of_the_user() -> Iterator[None]:
    """Turn any error of the user's own code into one sentence."""
    try:
        yield
    except KbatchError:
        raise
    except (Exception, SystemExit) as error:
        received = " ".join(f"{type(error).__name__}: {error}".split())
        raise ModelError(
            "A model must be made, on the shape that is given",
            received,
            "Build it in Python to see where it fails",
        ) from error


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
