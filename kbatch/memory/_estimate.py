"""Estimate and throughput: bytes predicted and speed measured over batch sizes."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbatch.errors import MemoryLimitError, in_one_frame
from kbatch.memory._max_batch import Probe
from kbatch.memory._prober import SLOW_STEP_SECONDS, ModelFacts, Prober, shown_lines
from kbatch.memory._workload import check_size, workload_of
from kbatch.model_spec import ModelArguments, ModelSpec, shows
from kbatch.recipe import Recipe
from kbatch.runtime import device, device_memory
from kbatch.runtime.trace import ALLOCATOR_SLACK, Moment
from kbatch.text_table import TextTable

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Unpack


@dataclass(frozen=True)
class Estimate:
    """Bytes that a train step needs at its highest moment, by part.

    Attributes:
        batch_size: Integer, examples per forward and backward pass.
        weights: Bytes of the model's variables.
        optimizer_slots: Bytes of the optimizer's variables; those of gradient accumulation are
            among them.
        gradients: Bytes of the gradients of weights that are alive then.
        activations: Bytes of all else that grows with the batch, the batch itself among it.
        workspace: Bytes of what does not, and of what the allocator gives beyond what was asked
            for.
        shape: String, the shape of one example that the bytes are for, where examples differ or
            `shape=` was passed; else `""`.
    """

    batch_size: int
    weights: int
    optimizer_slots: int
    gradients: int
    activations: int
    workspace: int
    shape: str = ""

    @property
    def total(self) -> int:
        """All parts together."""
        return (
            self.weights + self.optimizer_slots + self.gradients + self.activations + self.workspace
        )

    def __str__(self) -> str:
        parts = {
            "weights": self.weights,
            "optimizer slots": self.optimizer_slots,
            "gradients": self.gradients,
            "activations": self.activations,
            "workspace": self.workspace,
            "total": self.total,
        }
        rows = [
            (name, f"{size / 1e6:,.1f} MB", f"{size / self.total:.0%}")
            for name, size in parts.items()
        ]
        of = f" and {self.shape}" if self.shape else ""
        table = TextTable(("part", "bytes", "share"), rows, left=("part",))
        return table.text([f"at batch {self.batch_size}{of}"])


@shows(ModelSpec)
@in_one_frame
def estimate(
    build: Callable[..., Any] | ModelSpec,
    x: Any = None,
    y: Any = None,
    recipe: Recipe | None = None,
    batch_size: int | None = None,
    *,
    shape: Any = None,
    **arguments: Unpack[ModelArguments],
) -> Estimate:
    """Estimate the bytes of a train step at a batch size, by part, without running it.

    Use it to see where memory goes. Without XLA, one train step is traced and the liveness of its
    tensors followed. No trace shows the workspace of kernels, so the estimate is rough for small
    batches and small convolution nets. With `jit_compile`, XLA compiles the step and tells its
    buffers exactly, but not which of them are activations: whatever grows with the batch counts as
    such.

    Args:
        build: Function `build(hp)` or `build()` that returns a model, or a `kbatch.ModelSpec`.
        x: See `kbatch.find_max_batch`.
        y: See `kbatch.find_max_batch`.
        recipe: `Recipe` to train by. Defaults to `Recipe()`.
        batch_size: Integer, examples per forward and backward pass. Defaults to the recipe's
            micro-batch, or batch.
        shape: See `kbatch.find_max_batch`.
        **arguments: `loss`, `metrics`, `seed`, `values`, `declare`; see `kbatch.ModelSpec`.

    Returns:
        The `Estimate`; its `str()` is a table.

    Raises:
        KbatchError: If model, data or arguments cannot be used.

    Example:
    ```python
    print(kbatch.memory.estimate(build, (224, 224, 3), batch_size=64))
    ```
    """
    recipe = recipe or Recipe()
    size = check_size("batch_size", batch_size) or recipe.examples_per_pass
    workload, _ = workload_of(ModelSpec.of(build, **arguments), x, y, recipe, shape)
    device.check_gpu_free()
    with Prober(workload, None) as prober:
        model = prober.facts()
        if recipe.jit_compile:
            whole, half = prober.compiled_bytes(size), prober.compiled_bytes(max(1, size // 2))
            found = _compiled(model, size, whole, half)
        else:
            found = _traced(model, size, prober.moments())
    return dataclasses.replace(found, shape=workload.at)


def _traced(model: ModelFacts, size: int, moments: list[Moment]) -> Estimate:
    """The estimate from the highest moment of a traced step."""
    top = max(moments, key=lambda moment: moment.total.at(size))
    slack = (ALLOCATOR_SLACK - 1) * top.total.at(size)
    return Estimate(
        size,
        model.weight_bytes,
        model.slot_bytes,
        int(top.gradients.at(size)),
        int(top.activations.at(size)),
        int(top.workspace.at(size) + slack),
    )


def _compiled(model: ModelFacts, size: int, whole: int, half: int) -> Estimate:
    """The estimate from XLA's bytes at a batch size, and at half of it."""
    growing = int((whole - half) * size / (size - size // 2)) if size > 1 else 0
    rest = max(0, whole - model.static_bytes - growing)
    gradients = min(model.gradient_bytes, rest)
    return Estimate(
        size, model.weight_bytes, model.slot_bytes, gradients, growing, rest - gradients
    )


# steps of a probe that are not counted: the first traces, compiles and fills the input pipeline
UNSTEADY = 1
NEARLY = 0.95  # of the best speed: what "as fast" means; chosen by hand


@dataclass(frozen=True)
class SpeedLine:
    """Seconds of a step: `overhead_seconds + seconds_per_example * batch_size`.

    Attributes:
        overhead_seconds: Float, seconds of a step that do not depend on the batch size.
        seconds_per_example: Float, seconds that each example adds.
        largest: Integer, the largest batch size that the line was fitted to.

    Example:
    >>> line = SpeedLine(overhead_seconds=0.01, seconds_per_example=0.001, largest=64)
    >>> line.examples_per_second(10)
    500.0
    """

    overhead_seconds: float
    seconds_per_example: float
    largest: int

    def examples_per_second(self, batch_size: int) -> float:
        """Speed at a batch size."""
        return batch_size / (self.overhead_seconds + self.seconds_per_example * batch_size)

    def smallest(self, share: float = NEARLY) -> int:
        """The smallest batch size with at least that share of the best speed up to `largest`.

        Example:
        >>> line = SpeedLine(overhead_seconds=0.01, seconds_per_example=0.001, largest=10_000)
        >>> line.smallest(0.95)
        187
        """
        speed = share * self.examples_per_second(self.largest)
        room = 1 - speed * self.seconds_per_example
        return min(self.largest, max(1, math.ceil(speed * self.overhead_seconds / room - 1e-9)))

    def flat_from(self, gain: float) -> int:
        """The batch size from which on twice as many examples gain at most `gain` of speed.

        Example:
        >>> SpeedLine(overhead_seconds=0.01, seconds_per_example=0.001, largest=64).flat_from(0.02)
        245
        """
        return max(
            1, math.ceil(self.overhead_seconds / self.seconds_per_example * (1 / gain - 1) / 2)
        )


def fitted_line(seconds: Mapping[int, Sequence[float]]) -> SpeedLine | None:
    """Fit a line through the median steps of batch sizes, robust to disturbed ones.

    Args:
        seconds: Steady seconds of steps, by batch size.

    Returns:
        The `SpeedLine`, or `None` if there are not two sizes. Its slope is the median of those
        between all pairs (Theil 1950, Sen 1968), each pair weighted by how far apart it is.
    """
    medians = {size: statistics.median(steps) for size, steps in seconds.items() if steps}
    pairs = [(small, large) for small, large in itertools.combinations(sorted(medians), 2)]
    if not pairs:
        return None
    slopes = sorted(
        ((medians[large] - medians[small]) / (large - small), large - small)
        for small, large in pairs
    )
    slope = max(_weighted_median(slopes), 1e-12)
    overhead = max(
        0.0, statistics.median(second - slope * size for size, second in medians.items())
    )
    if overhead == 0.0:
        slope = statistics.median(second / size for size, second in medians.items())
    return SpeedLine(overhead, slope, max(medians))


def line_of_probes(probes: Iterable[Probe]) -> SpeedLine | None:
    """The line of probes that passed; `None` if they tried one size only."""
    seconds: dict[int, list[float]] = {}
    for probe in probes:
        if probe.passed:
            seconds.setdefault(probe.batch_size, []).extend(probe.step_seconds[UNSTEADY:])
    return fitted_line(seconds)


def _weighted_median(values: list[tuple[float, int]]) -> float:
    half, weight = sum(weight for _, weight in values) / 2, 0
    for value, own in values:
        weight += own
        if weight >= half:
            return value
    return values[-1][0]


# Chosen by hand. Two sizes give the line of seconds per step; up to the larger one, a batch is
# worth trying whatever its speed.
SIZES, STEPS = (512, 4096), 6
GAIN = 0.02  # of twice as many examples: chosen by hand, about the noise of a step's seconds


@dataclass(frozen=True)
class SpeedBound:
    """Where larger batches stop being faster."""

    probes: tuple[Probe, ...] = ()  # those that show it
    # The size from which on twice as many examples gain less than 2 % of speed, if it was measured.
    flat: int | None = None

    def lowered(self, ceiling: int) -> int:
        """The ceiling, or the size from which on speed is flat, whichever is lower."""
        return ceiling if self.flat is None else min(ceiling, self.flat)


def speed_bound(steps: Callable[[int, int], Probe], largest: int) -> SpeedBound:
    """Measure where speed stops rising, if memory allows sizes where that matters.

    A model that needs next to no memory has no other bound on its batch size.
    """
    if largest <= SIZES[-1]:
        return SpeedBound()
    probes = tuple(steps(size, STEPS) for size in SIZES)
    line = line_of_probes(probes)
    if line is None:
        return SpeedBound(probes)
    return SpeedBound(probes, max(SIZES[-1], line.flat_from(GAIN)))


# Chosen by hand: the whole measurement takes about a minute, and its medians are steady
# (tests/pure/test_throughput.py, and `kbatch max-batch --speed` on two cores).
DOUBLINGS = tuple(2**power for power in range(1, 13))
MEASURED_STEPS = 12
FLAT = 1.02  # a doubling that gains less than this factor is the last
HEADINGS = ("batch", "ms/step", "examples/s", "of best")


@dataclass(frozen=True)
class Speed:
    """What one batch size reached.

    Attributes:
        batch_size: Integer, examples per forward and backward pass.
        seconds_per_step: Float, the median steady step; the median pass of SAM and proximal steps.
        examples_per_second: Float.
        peak_bytes: Integer, peak bytes in use; 0 if the device cannot tell.
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
        line: `SpeedLine` of seconds per step, or `None` with one size.
        smallest_fast: Integer, the smallest batch size within 5 % of the best speed.
        first_failing: Integer, the batch size that ran out of memory, or `None`.
        shape: String, the shape of one example that the speeds are for, where examples differ or
            `shape=` was passed; else `""`.
    """

    rows: tuple[Speed, ...]
    line: SpeedLine | None
    smallest_fast: int
    first_failing: int | None = None
    shape: str = ""

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
        from kbatch.canvas import draw_throughput, speed_rows

        measured = [(row.batch_size, row.examples_per_second) for row in self.rows]
        fitted = self.line.examples_per_second if self.line else None
        draw_throughput(speed_rows(measured, fitted), self.smallest_fast, os.fspath(path))

    def _repr_html_(self) -> str:
        return self._text_table().html([self._sentence()])

    def __str__(self) -> str:
        return self._text_table().text([self._sentence()])

    def _text_table(self) -> TextTable:
        best = max(row.examples_per_second for row in self.rows)
        rows = [
            [
                str(row.batch_size),
                f"{1e3 * row.seconds_per_step:,.2f}",
                f"{row.examples_per_second:,.0f}",
                f"{row.examples_per_second / best:.0%}",
            ]
            for row in self.rows
        ]
        return TextTable(HEADINGS, rows)

    def _sentence(self) -> str:
        at = f" at {self.shape}" if self.shape else ""
        return f"within 5 % of the best speed from batch {self.smallest_fast}{at}"


@shows(ModelSpec)
@in_one_frame
def throughput(
    build: Callable[..., Any] | ModelSpec,
    x: Any = None,
    y: Any = None,
    recipe: Recipe | None = None,
    batch_sizes: Sequence[int] | None = None,
    *,
    shape: Any = None,
    memory_limit: int | float | str | None = None,
    on_probe: Callable[[Probe], None] | None = None,
    **arguments: Unpack[ModelArguments],
) -> Throughput:
    """Measure examples per second over batch sizes, and the smallest batch within 5 % of the best.

    Use it to see from which size on a larger batch buys no speed. Steps are timed in a process of
    their own, and the clock waits for the device. The first step of each size (trace, compile) does
    not count. Medians and a robust line keep disturbances out.

    Args:
        build: Function `build(hp)` or `build()` that returns a model, or a `kbatch.ModelSpec`.
        x: See `kbatch.find_max_batch`.
        y: See `kbatch.find_max_batch`.
        recipe: `Recipe` to train by. Defaults to `Recipe()`.
        batch_sizes: Sequence of integers. Defaults to 2, 4, 8, … until memory runs out, a step
            takes 2 seconds, or doubling gains less than 2 %.
        shape: See `kbatch.find_max_batch`.
        memory_limit: Bytes that the device may use. Optional.
        on_probe: Function called with every `Probe`. Defaults to a printed line each, in a
            terminal or a notebook.
        **arguments: `loss`, `metrics`, `seed`, `values`, `declare`; see `kbatch.ModelSpec`.

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
    spec = ModelSpec.of(build, **arguments)
    workload, examples = workload_of(spec, x, y, recipe or Recipe(), shape)
    sizes = _sizes(batch_sizes, examples)
    device.check_gpu_free()
    with Prober(
        workload, device_memory.checked_limit(memory_limit), on_probe=shown_lines(on_probe)
    ) as prober:
        probes = list(_probes(prober, sizes, batch_sizes is None))
    passes = workload.recipe.examples_per_step // workload.recipe.examples_per_pass
    passed = [_of_a_pass(probe, passes) for probe in probes if probe.passed]
    if not passed:
        raise MemoryLimitError(
            "A batch size must fit",
            f"{probes[0].batch_size}, which ended {probes[0].ended}",
            "Pass smaller batch_sizes",
        )
    failed = [probe.batch_size for probe in probes if not probe.passed]
    measured = _throughput(passed, failed[0] if failed else None)
    return dataclasses.replace(measured, shape=workload.at)


def _sizes(batch_sizes: Sequence[int] | None, examples: int | None) -> tuple[int, ...]:
    """The batch sizes to measure: the user's own, or doublings up to the number of examples."""
    if batch_sizes is None:
        if examples is None:
            return DOUBLINGS
        return tuple(size for size in DOUBLINGS if size <= examples) or (1,)
    if not batch_sizes:
        raise MemoryLimitError(
            "`batch_sizes` must hold at least one size",
            batch_sizes,
            "Pass sizes such as (16, 32, 64), or leave it out",
        )
    return tuple(sorted({check_size("batch_sizes", size) or 1 for size in batch_sizes}))


def _probes(prober: Prober, sizes: Sequence[int], until_flat: bool) -> Iterator[Probe]:
    """Probes of increasing sizes, until one fails or, if asked, speed is flat or steps are slow."""
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


def _of_a_pass(probe: Probe, passes: int) -> Probe:
    """A probe with the seconds of one pass for each step, which takes `passes` of them."""
    return dataclasses.replace(
        probe, step_seconds=tuple(seconds / passes for seconds in probe.step_seconds)
    )


def _throughput(passed: Sequence[Probe], first_failing: int | None) -> Throughput:
    """The result of probes that passed."""
    steady = {probe.batch_size: probe.step_seconds[UNSTEADY:] for probe in passed}
    rows = []
    for probe in passed:
        seconds = statistics.median(steady[probe.batch_size])
        rows.append(Speed(probe.batch_size, seconds, probe.batch_size / seconds, probe.peak_bytes))
    line = fitted_line(steady)
    return Throughput(tuple(rows), line, _smallest_fast(rows, line), first_failing)


def _smallest_fast(rows: Sequence[Speed], line: SpeedLine | None) -> int:
    """The smallest batch size within 5 % of the best speed.

    The line tells it, but never above a size that was measured to be within 5 %.
    """
    best = max(row.examples_per_second for row in rows)
    measured = min(row.batch_size for row in rows if row.examples_per_second >= NEARLY * best)
    return measured if line is None else min(line.smallest(), measured)
