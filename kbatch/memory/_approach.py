"""Approach to the largest batch: predict it, probe near it, confirm it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kbatch.errors import MemoryLimitError, ModelError
from kbatch.memory._max_batch import MARGINS, Margins, SearchResult
from kbatch.memory._next_size import (
    ALLOWED,
    UNBOUNDED,
    Allowed,
    Need,
    SpeedBound,
    jump,
    settle,
    speed_bound,
)
from kbatch.memory._probe import SUSPECTS, TOO_LARGE, ModelFacts, Probe, Probing
from kbatch.runtime import device_memory
from kbatch.runtime.trace import ALLOCATOR_SLACK, Moment

MOST_TAKEN_OFF = 0.5  # a step down halves the size at most


def confirmed(
    confirm: Callable[[int], Sequence[Probe]],
    batch_size: int,
    step: float,
    allowed: Allowed,
    margins: Margins = MARGINS,
) -> SearchResult:
    """Return the largest batch size, from `batch_size` down, that passes its confirmation.

    A failure shrinks the size by `step`. From the third failure on the share doubles each time.
    Afterwards the gap between the last failure and the first pass is bisected down to one `step`.
    """
    probes: list[Probe] = []
    failed: list[int] = []
    size = batch_size

    def passes(size: int) -> bool:
        probes.extend(confirm(size))
        if not probes[-1].passed:
            failed.append(size)
        return probes[-1].passed

    while size >= 1 and not passes(size):
        doublings = max(0, len(failed) - margins.equal_steps)
        share = min(MOST_TAKEN_OFF, step * 2**doublings)
        below = allowed(min(size - 1, int(size * (1 - share))))
        size = max(1, below) if size > 1 else 0
    while size and failed and min(failed) - size > math.ceil(step * min(failed)):
        middle = allowed((size + min(failed)) // 2)
        if middle <= size:
            break
        size = middle if passes(middle) else size
    return SearchResult(size, min(failed, default=None), confirmations=tuple(probes))


# Chosen by hand. Where needs are convex, six compilations reach brute force's answer within 1
# (tests/test_compiled_size.py).
FIRST_SIZE, MOST_COMPILATIONS = 16, 6


@dataclass(frozen=True)
class CompiledSize:
    """The largest batch size that fits when XLA compiles the step.

    Attributes:
        batch_size: Integer; 0 if not even one example fits.
        slope: Float, bytes that each example adds near that size.
        compilations: Integer, batch sizes that were compiled.
    """

    batch_size: int
    slope: float
    compilations: int

    def with_added(self, added_bytes: int, margins: Margins = MARGINS) -> int:
        """The largest batch size while some more bytes are held: computed, hence a margin lower."""
        return max(0, int((self.batch_size - added_bytes / self.slope) * margins.computed))


def compiled_size(
    compiled_bytes: Callable[[int], int], model: ModelFacts, ceiling: int
) -> CompiledSize:
    """Compile a few batch sizes, run none, and return the largest that fits."""
    room = model.contiguous_bytes + model.static_bytes
    known, size = {0: model.static_bytes}, min(FIRST_SIZE, ceiling)
    slope = 1.0
    for _ in range(MOST_COMPILATIONS):
        known[size] = compiled_bytes(size)
        low, high = _nearest(known, room)
        slope = max((known[high] - known[low]) / (high - low), 1.0)
        if known[high] >= TOO_LARGE:
            size = (low + high) // 2  # too large to be compiled: no line leads through it
            continue
        size = max(0, min(ceiling, int(low + (room - known[low]) / slope)))
        if size in known or any(abs(size - other) <= 1 for other in known if other):
            break
    return CompiledSize(size, slope, len(known) - 1)


def _nearest(known: dict[int, int], room: float) -> tuple[int, int]:
    """The two sizes to draw a line through: on both sides of the room, else the two largest."""
    fitting = [size for size in known if known[size] <= room]
    failing = [size for size in known if known[size] > room]
    if fitting and failing:
        return max(fitting), min(failing)
    two_largest = sorted(known)[-2:]
    return two_largest[0], two_largest[1]


MOST_ELEMENTS = 2**31 - 1  # of one tensor


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search for the largest batch.

    Attributes:
        ceiling: Integer, the largest batch size to try, or `None`.
        sizes: `"any"`, `"powers_of_two"` or `"multiples_of_8"`.
        confirmed_steps: Integer, steps to train to confirm a size; 0 confirms nothing.
        validation_batch_size: Integer, examples of a validation batch, or `None` for the size that
            is confirmed, as in Keras' `fit`.
    """

    ceiling: int | None = None
    sizes: str = "any"
    confirmed_steps: int = MARGINS.confirmed_steps
    validation_batch_size: int | None = None

    @property
    def allowed(self) -> Allowed:
        """Function that rounds a size down to one that may be used."""
        return ALLOWED[self.sizes]

    @property
    def largest(self) -> int:
        """The ceiling, or a size that nothing reaches."""
        return self.ceiling or UNBOUNDED


@dataclass(frozen=True)
class Prediction:
    """The memory of a train step as a function of the batch size, before any probe of it.

    Attributes:
        model: `ModelFacts`, with a limit.
        need: `Need`, the curve of a step that TensorFlow runs operation by operation, or `None`.
        compiled: `CompiledSize`, the exact answer of a step that XLA compiles, or `None`.
        usable_bytes: Integer, the limit less what is kept free.
        most_examples: Integer, the largest size whose tensors TensorFlow's kernels can count.
    """

    model: ModelFacts
    need: Need | None
    compiled: CompiledSize | None
    usable_bytes: int
    most_examples: int = UNBOUNDED

    @property
    def limit_bytes(self) -> int:
        """The limit; 0 only of a model without one, which is refused before."""
        return self.model.limit_bytes or 0

    def largest(self, limit_bytes: float) -> int:
        """The largest batch size that is predicted to fit into `limit_bytes`."""
        if self.need is not None:
            return self.need.largest(limit_bytes)
        return self.compiled.batch_size if self.compiled is not None else 0


@dataclass(frozen=True)
class Approach:
    """The size that a confirmation begins from.

    Attributes:
        prediction: `Prediction`.
        result: `SearchResult` of the probes, without a confirmation.
        speed: `SpeedBound`.
        ceiling: Integer, the largest size that the options and the speed allow.
        accumulating: Integer, the largest micro-batch that is predicted to fit while gradients are
            accumulated; 0 where nobody asks for it.
    """

    prediction: Prediction
    result: SearchResult
    speed: SpeedBound
    ceiling: int
    accumulating: int = 0


def predict(prober: Probing, options: SearchOptions, margins: Margins = MARGINS) -> Prediction:
    """Predict the need of the prober's workload from its trace, or from XLA's buffers."""
    model = prober.facts()
    if model.limit_bytes is None:
        raise device_memory.no_limit()
    if options.confirmed_steps:
        prober.prepare()
    usable = margins.usable(model.limit_bytes)
    if prober.workload.recipe.jit_compile:
        most = _most_examples(prober, model)
        size = compiled_size(prober.compiled_bytes, model, min(options.largest, most))
        return Prediction(model, None, size, usable, most)
    need = traced_need(prober.moments(), model)
    return Prediction(model, need, None, usable, _most_examples(prober, model))


def _most_examples(prober: Probing, model: ModelFacts) -> int:
    """The largest size whose tensors have no more elements than a kernel of a GPU can count.

    Some of TensorFlow's kernels there count by 32 bits, such as that of a bias' gradient
    (tensorflow/core/kernels/bias_op.cc, TensorFlow 2.21.0), and so do some of cuDNN's, which XLA
    calls too.
    """
    if model.device.startswith("CPU"):
        return UNBOUNDED
    elements = prober.most_elements()
    return max(1, int(MOST_ELEMENTS / elements)) if elements else UNBOUNDED


def traced_need(moments: list[Moment], model: ModelFacts) -> Need:
    """The need of a step that TensorFlow runs operation by operation."""
    static, lines = float(model.static_bytes), []
    for moment in moments:
        total = moment.total
        lines.append((static + ALLOCATOR_SLACK * total.fixed, ALLOCATOR_SLACK * total.per_example))
    return Need(tuple(lines))


def approach(
    prober: Probing, prediction: Prediction, options: SearchOptions, margins: Margins = MARGINS
) -> Approach:
    """Probe until the largest size is near: with XLA the prediction is exact and nothing is probed.

    Args:
        prober: Tries batch sizes.
        prediction: `Prediction` of the prober's workload.
        options: `SearchOptions`.
        margins: `Margins`.
    """
    most = min(options.largest, prediction.most_examples)
    guess = min(prediction.largest(prediction.limit_bytes), most)
    speed = speed_bound(prober.steps, guess)
    ceiling = speed.lowered(most)
    if prediction.need is not None:
        aimed_bytes = margins.aimed * prediction.usable_bytes
        result = jump(prober.probe, prediction.need, aimed_bytes, ceiling, options.allowed, margins)
    elif options.confirmed_steps:
        result = SearchResult(max(1, options.allowed(min(guess, ceiling))), None)
    else:
        result = settle(prober.probe, guess, ceiling, options.allowed)
    return Approach(prediction, result, speed, ceiling)


def conclude(
    prober: Probing, approach: Approach, options: SearchOptions, margins: Margins = MARGINS
) -> SearchResult:
    """Confirm the size of an approach in a fresh process, or a smaller one."""
    result, prediction = approach.result, approach.prediction
    if not result.batch_size or not options.confirmed_steps:
        return result
    train = prober.confirm
    if _is_roomy(approach, margins):
        train = prober.train  # less memory could show nothing: the ceiling decides
    step = margins.step_down if prediction.compiled is None else margins.compiled_step_down

    def confirm(size: int) -> list[Probe]:
        probes: list[Probe] = []
        while len(probes) < _processes(prediction, margins):
            probes.append(train(size, options.confirmed_steps, options.validation_batch_size))
            if not probes[-1].passed:
                break
        probe = probes[-1]
        if probe.phase == "validation" and options.validation_batch_size and not probe.passed:
            raise _validation_does_not_fit(probe, options.validation_batch_size)
        return probes

    begin = first_confirmed(result, prediction.usable_bytes, options.allowed, margins)
    sure = confirmed(confirm, begin, step, options.allowed, margins)
    failed = [size for size in (result.first_failing, sure.first_failing) if size]
    return dataclasses.replace(sure, first_failing=min(failed, default=None), probes=result.probes)


def _processes(prediction: Prediction, margins: Margins) -> int:
    """How many processes must train a size, one after the other, to confirm it.

    On a GPU, XLA times kernels while it compiles and takes the fastest, which may be another one,
    with other scratch memory, in the next process. Elsewhere its numbers hold in every process.
    """
    timed = prediction.compiled is not None and not prediction.model.device.startswith("CPU")
    return margins.timed_processes if timed else 1


def first_confirmed(
    result: SearchResult, usable_bytes: int, allowed: Allowed, margins: Margins = MARGINS
) -> int:
    """The size to confirm first: lower than the result where that is too near the limit.

    Too near is a size just below one that failed with the whole limit, and a size whose peak is
    above what a confirmation may use.
    """
    size = result.batch_size
    sizes = [size]
    if result.first_failing is not None:
        sizes.append(allowed(int(result.first_failing * (1 - margins.below_failed))))
    if any(each.batch_size == size and each.peak_bytes > usable_bytes for each in result.probes):
        below = allowed(int(size * (1 - margins.step_down)))
        if below >= margins.roomy * size:  # half of a power of two is worth a failure
            sizes.append(below)
    return max(1, min(sizes))


def nothing_fits(probe: Probe | None, model: ModelFacts) -> MemoryLimitError | ModelError:
    """The error for a model of which not even one example trains."""
    variables = f"{model.static_bytes / 1e6:,.0f} MB"
    limit = f"the memory limit of {(model.limit_bytes or 0) / 1e6:,.0f} MB"
    if probe is not None and probe.ended in SUSPECTS:
        # A kernel that runs out of memory may end its process and say nothing (oneDNN's does).
        return ModelError(
            f"A model must train one step on one example within {limit}",
            f"{probe.ended}: {probe.message}; its weights and optimizer take {variables}",
            "Raise the limit. If that does not help, train it with model.fit to see why",
        )
    return MemoryLimitError(
        f"One example must fit into {limit}",
        f"a model whose weights and optimizer take {variables}, and more for the step",
        "Raise the limit, take SGD or a smaller model",
    )


def _is_roomy(approach: Approach, margins: Margins) -> bool:
    """Whether a size is at its ceiling and its probes used far less than a confirmation may."""
    result = approach.result
    peaks = [probe.peak_bytes for probe in result.probes if probe.passed]
    if not peaks or result.batch_size != approach.ceiling:
        return False
    return max(peaks) <= margins.roomy * approach.prediction.usable_bytes


def _validation_does_not_fit(probe: Probe, validation_batch_size: int) -> MemoryLimitError:
    ended = probe.ended.replace("_", " ")
    return MemoryLimitError(
        f"A validation batch of {validation_batch_size} examples must fit into the memory limit",
        f"a model that trains with {probe.batch_size} and then ended: {ended}",
        "Raise the limit, or take a smaller model",
    )
