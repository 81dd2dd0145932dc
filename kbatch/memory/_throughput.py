"""Throughput: examples per second over batch sizes, measured on steady steps."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbatch import notebook, text_table
from kbatch.device import gpu_in_use, limit
from kbatch.errors import MemoryLimitError
from kbatch.memory._find import check_size, pipelines
from kbatch.memory._probe import Probe
from kbatch.memory._probe_lines import shown
from kbatch.memory._prober import Prober
from kbatch.memory._speed_line import NEARLY, UNSTEADY, Line, fit
from kbatch.memory._workload import Workload, sample_of
from kbatch.recipe import Recipe
from kbatch.results import speed_figure

if TYPE_CHECKING:
    import pandas

DOUBLINGS = tuple(2**power for power in range(1, 13))
MEASURED_STEPS = 12
SLOW_STEP_SECONDS = 2.0
HEADINGS = ("batch", "ms/step", "examples/s", "of best")
FLAT = 1.02  # a doubling that gains less than this is the last


@dataclass(frozen=True)
class Speed:
    """What one batch size reached.

    Attributes:
        batch_size: Integer, examples per forward and backward pass.
        seconds_per_step: Float, the median steady step.
        examples_per_second: Float.
        peak_bytes: Integer, the most bytes in use; 0 if the device cannot tell.
    """

    batch_size: int
    seconds_per_step: float
    examples_per_second: float
    peak_bytes: int


@dataclass(frozen=True)
class Throughput:
    """Speeds over batch sizes; iterate over it for the rows.

    Attributes:
        rows: Tuple of `Speed`, by batch size.
        line: `Line` of seconds per step, or `None` with one size.
        smallest_fast: Integer, the smallest batch size within 5 % of the best speed.
        first_failing: Integer, the batch size that ran out of memory, or `None`.
    """

    rows: tuple[Speed, ...]
    line: Line | None
    smallest_fast: int
    first_failing: int | None = None

    def __iter__(self) -> Iterator[Speed]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def frame(self) -> pandas.DataFrame:
        """The rows as pandas has them."""
        import pandas

        return pandas.DataFrame([vars(row) for row in self.rows])

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Draw examples per second over batch sizes into a PNG file."""
        measured = [(row.batch_size, row.examples_per_second) for row in self.rows]
        fitted = self.line.examples_per_second if self.line else None
        infos = speed_figure.speed_infos(measured, fitted)
        speed_figure.draw_throughput(infos, self.smallest_fast, os.fspath(path))

    def _repr_html_(self) -> str:
        return notebook.table(HEADINGS, self._cells(), [self._sentence()])

    def __str__(self) -> str:
        return f"{text_table.columns(HEADINGS, self._cells())}\n{self._sentence()}"

    def _cells(self) -> list[list[str]]:
        """The rows of the table as text."""
        best = max(row.examples_per_second for row in self.rows)
        return [
            [
                str(row.batch_size),
                f"{1e3 * row.seconds_per_step:,.2f}",
                f"{row.examples_per_second:,.0f}",
                f"{row.examples_per_second / best:.0%}",
            ]
            for row in self.rows
        ]

    def _sentence(self) -> str:
        return f"within 5 % of the best speed from batch {self.smallest_fast}"


def throughput(
    build: Callable[..., Any],
    x: Any = None,
    y: Any = None,
    recipe: Recipe | None = None,
    batch_sizes: Sequence[int] | None = None,
    *,
    memory_limit: int | float | str | None = None,
    loss: Any = None,
    metrics: Any = None,
    seed: int = 0,
    on_probe: Callable[[Probe], None] | None = None,
) -> Throughput:
    """Examples per second over batch sizes, and the smallest batch that is within 5 % of the best.

    Use it to see from where on a larger batch buys no speed. Steps are timed in a process of their
    own, with the device waited for; the first step of each size (trace, compile) does not count,
    and medians and a robust line keep disturbances out.

    Args:
        build: Function `build(hp)` or `build()` that returns a model, compiled or not.
        x: Array, nested structure of arrays, `tf.data.Dataset` of examples or of batches,
            `keras.utils.PyDataset`, or the shape of one example. Defaults to the shape of the
            model's `keras.Input`.
        y: Labels, for arrays. With shapes they are made to fit the loss. Optional.
        recipe: `Recipe` to train by. Defaults to `Recipe()`.
        batch_sizes: Sequence of integers. Defaults to 2, 4, 8, … until memory runs out, a step
            takes 2 seconds, or doubling gains less than 2 %.
        memory_limit: Bytes that the device may use. Optional.
        loss: Loss, if `build` does not compile.
        metrics: Metrics, if `build` does not compile.
        seed: Integer, seed of the weights. Defaults to `0`.
        on_probe: Function called with every `Probe`. Defaults to a line each where people see it.

    Returns:
        The `Throughput`; its `str()` is a table and `draw(path)` makes a figure.

    Raises:
        KbatchError: If model, data or arguments cannot be used, or no batch size passes.

    Example:
    ```python
    speeds = kbatch.throughput(build, (224, 224, 3), recipe=kbatch.Recipe(jit_compile=True))
    print(speeds, speeds.smallest_fast)
    ```
    """
    recipe = recipe or Recipe()
    sizes = (
        tuple(sorted({check_size("batch_sizes", size) or 1 for size in batch_sizes}))
        if batch_sizes is not None
        else DOUBLINGS
    )
    if not sizes:
        raise MemoryLimitError(
            "`batch_sizes` must hold at least one size",
            batch_sizes,
            "Pass sizes such as (16, 32, 64), or leave it out",
        )
    sample, examples = sample_of(x, y)
    if batch_sizes is None and examples is not None:
        sizes = tuple(size for size in sizes if size <= examples) or (1,)
    gpu_in_use.check_free()
    limit_bytes = limit.checked(memory_limit)
    workload = Workload(
        build, sample, recipe, loss, metrics, seed, pipelines=pipelines((recipe.augmentation,))
    )
    with Prober(workload, limit_bytes, on_probe=shown(on_probe)) as prober:
        probes = list(_probes(prober, sizes, batch_sizes is None))
    passed = [probe for probe in probes if probe.passed]
    if not passed:
        raise MemoryLimitError(
            "A batch size must fit",
            f"{probes[0].batch_size}, which ended {probes[0].ended}",
            "Pass smaller batch_sizes",
        )
    return _throughput(
        passed, next((probe.batch_size for probe in probes if not probe.passed), None)
    )


def _probes(prober: Prober, sizes: Sequence[int], until_flat: bool) -> Iterator[Probe]:
    best = 0.0
    for size in sizes:
        probe = prober.steps(size, MEASURED_STEPS)
        yield probe
        if not probe.passed:
            return
        seconds = statistics.median(probe.step_seconds[UNSTEADY:])
        if until_flat and (seconds > SLOW_STEP_SECONDS or size / seconds < FLAT * best):
            return
        best = max(best, size / seconds)


def _throughput(passed: Sequence[Probe], first_failing: int | None) -> Throughput:
    steady = {probe.batch_size: probe.step_seconds[UNSTEADY:] for probe in passed}
    rows = []
    for probe in passed:
        seconds = statistics.median(steady[probe.batch_size])
        rows.append(Speed(probe.batch_size, seconds, probe.batch_size / seconds, probe.peak_bytes))
    line = fit(steady)
    return Throughput(tuple(rows), line, _smallest_fast(rows, line), first_failing)


def _smallest_fast(rows: Sequence[Speed], line: Line | None) -> int:
    """The smallest batch size within 5 % of the best speed: by the line, but none above one that was measured to be."""
    best = max(row.examples_per_second for row in rows)
    measured = min(row.batch_size for row in rows if row.examples_per_second >= NEARLY * best)
    return measured if line is None else min(line.smallest(), measured)
