"""The command `kbatch max-batch`: one sentence for one recipe, or a table for several."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kbatch.axes import AXES
from kbatch.axis import Axis, Option, words
from kbatch.cli.command import (
    WHOLE,
    AxisOptions,
    new_console,
    told_plainly,
    with_options,
)
from kbatch.errors import DataError, SearchError
from kbatch.memory import _prober
from kbatch.plain_text import example_shape
from kbatch.recipe import Recipe
from kbatch.recipe_words import OPTIMIZERS
from kbatch.runtime import signals, users_code
from kbatch.runtime.nvidia import has_card
from kbatch.runtime.users_code import imported
from kbatch.space import Combination, Space, combinations

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from kbatch.memory._max_batch import MaxBatch, Probe, Row

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
    lengths: Annotated[
        str | None,
        typer.Option(help="A row for each length of the examples, such as 128,256,512 tokens."),
    ] = None
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


@with_options(MaxBatchOptions)
def max_batch(options: MaxBatchOptions) -> None:
    """Find the largest batch that safely trains, by a few probes in a process that may die.

    Answers are kept in ~/.cache/kbatch (or $KBATCH_CACHE) under the traced model, and given again
    without a probe; --fresh measures again.
    """
    with told_plainly(
        stopped=" Sizes that were tried are not kept: the same command tries them again."
    ):
        answer(options, new_console())


def _lengths(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError as error:
        raise SearchError(
            "--lengths must be whole numbers, with commas between", text, "Pass 128,256,512, say"
        ) from error


SHARE = 0.9  # of the best speed, which the sentence names a batch size for; chosen by hand


def answer(options: MaxBatchOptions, console: Console) -> None:
    """Measure the largest batch, and print it."""
    with signals.at_once():
        from kbatch.memory._find import find_max_batch
        from kbatch.memory._table import max_batches

    users_code.use_folder(os.getcwd())
    build, example = imported(options.build), _example(options.shape, options.dtype)
    axes = options.axis_values()
    rows = math.prod(len(values) for values in axes.values())
    lengths = _lengths(options.lengths)
    several = options.table or rows > 1 or bool(lengths)
    if several and (options.accumulation > 1 or options.sizes != "any"):
        raise SearchError(
            "--table must come without --accumulation and --sizes",
            f"--accumulation {options.accumulation} --sizes {options.sizes}",
            "Leave them out, or name one recipe without --lengths",
        )
    _warn_of_slow_policies(axes["policy"], console)
    with console.status("Making the model …") as status:
        space = Space(**axes) if several else None
        probe_lines = _ProbeLines(console, status, None if space is None else combinations(space))
        common: dict[str, Any] = {
            "shape": None if example is None else example.shape,
            "memory_limit": options.memory_limit,
            "ceiling": options.ceiling,
            "loss": options.loss,
            "fresh": options.fresh,
            "on_probe": probe_lines,
        }
        if space is not None:
            of_rows: dict[str, Any] = {"lengths": lengths, "on_row": probe_lines.row}
            table = max_batches(build, example, space=space, **of_rows, **common)
            said = str(table)
        else:
            recipe = _recipe(axes, options.accumulation)
            largest = find_max_batch(build, example, recipe=recipe, sizes=options.sizes, **common)
            said = sentence(largest)
    console.print(said, highlight=False, soft_wrap=True)


def sentence(largest: MaxBatch) -> str:
    """Return the answer, and the batch size from which a larger one hardly adds speed.

    Sizes below the smallest one that was measured are not named.
    """
    from kbatch.memory._estimate import line_of_probes

    probes = [probe for probe in (*largest.probes, *largest.confirmations) if probe.passed]
    line = line_of_probes(probes)
    if line is None:
        return str(largest)
    smallest, fast = min(probe.batch_size for probe in probes), line.smallest(SHARE)
    reached = f"{smallest} or below" if fast <= smallest else f"{fast}"
    return f"{largest}; {SHARE:.0%} of the best speed is reached at {reached}"


class _ProbeLines(_prober.Lines):
    """Prints every probe and how long the rest takes, and shows what is going on meanwhile."""

    def __init__(
        self, console: Console, status: Status, rows: Sequence[Combination] | None
    ) -> None:
        super().__init__(console)
        self._status, self._rows = status, rows
        self._taken: list[tuple[Hashable, float]] = []
        self._done: set[Combination] = set()
        self._began, self._told = time.perf_counter(), False
        self._probed = (self._began, self._began)  # when the last two probes ended

    def __call__(self, probe: Probe) -> None:
        """Print the line of a probe, and after the first one how long the others take."""
        from kbatch.memory._margins import MARGINS
        from kbatch.results.words import finder_seconds, time_words

        super().__call__(probe)
        self._probed = (self._probed[1], time.perf_counter())
        if self._rows is None and probe.passed and not self._told:
            begin = time.perf_counter() - self._began - probe.seconds
            steps, confirmed = probe.step_seconds, MARGINS.confirmed_steps
            left = finder_seconds(begin, probe.seconds, steps, confirmed)
            self._tell(f"about {time_words(left)} left, for two more sizes and a confirmation")
        self._status.update("Probing …" if probe.passed else "Ran out; trying smaller …")

    def row(self, row: Row) -> None:
        """Print a row of the table as soon as it is known, and how long the others take."""
        from kbatch.results.words import alike_seconds, time_words

        self._console.print(f"{row}", highlight=False)
        self._done.add(row.combination)
        ended = time.perf_counter()
        # the sizes of later rows are computed from those of the first, and confirmed
        began = self._began if self._taken else self._probed[0]
        self._taken.append((_kind(row.combination), ended - began))
        self._began = ended
        left = [_kind(each) for each in self._rows or () if each not in self._done]
        seconds = alike_seconds(self._taken, left)
        if left and seconds is not None:
            rows = len(left) + len(self._done)
            self._tell(f"{len(self._done)} of {rows} rows: about {time_words(seconds)} left")

    def _tell(self, words: str) -> None:
        self._told = True
        self._console.print(f"  {words}", highlight=False, style="dim")


def _kind(combination: Combination) -> Hashable:
    """What decides how long a row takes: an optimizer hardly does."""
    return combination.policy, combination.jit_compile, combination.recompute


@dataclass(frozen=True)
class _Shape:
    """The shape and the type of one example, in place of data."""

    shape: tuple[int, ...]
    dtype: str


def _example(shape: str | None, dtype: str | None) -> _Shape | None:
    """The shape of one example; `None` for that of the model's own input."""
    import numpy as np

    if shape is None:
        if dtype is not None:
            raise DataError(
                "--dtype must come with --shape",
                f"--dtype {dtype}",
                "Pass --shape too; without both, the model's keras.Input is taken",
            )
        return None
    dtype = dtype or "float32"
    sizes = example_shape(shape)
    # NumPy takes many other texts, such as ",f4" for a record.
    is_name = re.fullmatch(r"[a-z]+[0-9]*", dtype) and dtype in np.sctypeDict
    kind = np.dtype(dtype) if is_name else None
    if kind is None or kind.kind not in "biuf" or kind.itemsize > 8:
        raise DataError("--dtype must be a NumPy type of numbers", dtype, "Write --dtype float32")
    return _Shape(sizes, kind.name)


def _warn_of_slow_policies(policies: tuple[str, ...], console: Console) -> None:
    slow = [policy for policy in policies if policy != "float32"]
    if slow and not has_card():
        console.print(
            f"There is no GPU here: a CPU computes {', '.join(slow)} several times slower "
            "than float32.",
            style="dim",
            highlight=False,
            soft_wrap=True,
        )


def _recipe(axes: Mapping[str, tuple[Any, ...]], accumulation: int) -> Recipe:
    """The recipe of the first value of each axis, with so many passes per weight update."""
    if accumulation < 1:
        raise SearchError(
            "--accumulation must be at least 1",
            accumulation,
            "Pass the passes per weight update, such as 4",
        )
    combination = Combination(**{name: values[0] for name, values in axes.items()})
    return Recipe(
        accumulation,
        # No bytes depend on the rate: 1e-3 stands for any.
        learning_rate=None if combination.optimizer == "compiled" else 1e-3,
        micro_batch_size=1 if accumulation > 1 else None,
        **combination._asdict(),
    )
