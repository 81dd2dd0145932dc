"""Search for the largest batch: predict it, probe near it, confirm it."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kbatch.errors import MemoryLimitError, ModelError
from kbatch.memory._estimate import SIZES, SpeedBound, speed_bound
from kbatch.memory._margins import MARGINS
from kbatch.memory._max_batch import Probe, SearchResult
from kbatch.memory._prober import SLOW_STEP_SECONDS, SUSPECTS, TOO_LARGE, ModelFacts, Prober
from kbatch.runtime import device_memory
from kbatch.runtime.trace import ALLOCATOR_SLACK, Moment

Sizes: TypeAlias = Generator[int, Probe, None]


def tried(sizes: Sizes, attempt: Callable[[int], Sequence[Probe]]) -> tuple[Probe, ...]:
    """Attempt each size that `sizes` names next, once it has heard how the last one ended."""
    probes: list[Probe] = []
    size = next(sizes, None)
    while size is not None:
        probes += attempt(size)
        try:
            size = sizes.send(probes[-1])
        except StopIteration:
            break
    return tuple(probes)


UNBOUNDED = 1 << 24  # no batch is larger
LEAST_SLOPE = 1e-3  # of two probes far apart: a need that hardly rises must still rise


@dataclass(frozen=True)
class Need:
    """A curve of bytes over batch sizes that never falls: the highest of some lines."""

    lines: tuple[tuple[float, float], ...]  # (fixed bytes, bytes per example)

    def at(self, batch_size: int) -> float:
        """Bytes needed at a batch size."""
        return max(fixed + slope * batch_size for fixed, slope in self.lines)

    def largest(self, limit_bytes: float) -> int:
        """The largest batch size that needs at most `limit_bytes`; 0 if none does."""
        return bisect_right(range(1, UNBOUNDED + 1), limit_bytes, key=self.at)

    def corrected(self, probes: Sequence[Probe], limit_bytes: float) -> tuple[Need, ...]:
        """Rescale the predicted curve so that it agrees with the probes.

        Only probes whose peak is reliable (`MARGINS.reliable`) set the slope: two of them if their
        sizes differ by `MARGINS.apart` or more, otherwise one, which may only make it steeper.
        Returns that curve through the largest such probe, and the same slope through the largest
        probe of all, whose peak may include allocator slack. Without a probe that passed, the
        prediction is returned as it is.
        """
        passed = _largest_last(probes)
        if not passed:
            return (self,)
        trusted_bytes = MARGINS.reliable * limit_bytes
        reliable = [probe for probe in passed if probe.peak_bytes <= trusted_bytes] or passed[:1]
        rise = self._rise(reliable)
        if passed[-1] is not reliable[-1]:
            # A peak near the limit is never below the need, so it may only lower the slope.
            near_limit = self._rise([reliable[-1], passed[-1]])
            rise = min(rise, max(near_limit, MARGINS.flatter))
        return tuple(self._through(probe, rise) for probe in {reliable[-1], passed[-1]})

    def scale(self, probe: Probe) -> tuple[float, float]:
        """The factor on the slope, and the bytes to add, that lead the curve through a probe."""
        rise = max(self._ratio(probe), MARGINS.flatter)
        return rise, probe.peak_bytes - self._lowest - rise * (
            self.at(probe.batch_size) - self._lowest
        )

    def scaled(self, rise: float, added_bytes: float) -> Need:
        """The curve with a steeper slope above its lowest part, and some bytes added."""
        lowest = self._lowest
        return Need(
            tuple(
                (lowest + added_bytes + rise * (fixed - lowest), rise * slope)
                for fixed, slope in self.lines
            )
        )

    @property
    def _lowest(self) -> float:
        return min(fixed for fixed, _ in self.lines)

    def _rise(self, measured: list[Probe]) -> float:
        """The factor between the measured and the predicted slope."""
        last = measured[-1]
        if len(measured) == 1 or last.batch_size < MARGINS.apart * measured[-2].batch_size:
            # One probe cannot tell a wrong slope from a wrong constant.
            return max(self._ratio(last), 1.0)
        before = measured[-2]
        predicted = self.at(last.batch_size) - self.at(before.batch_size)
        rise = (last.peak_bytes - before.peak_bytes) / max(predicted, 1.0)
        near = last.batch_size < MARGINS.far * before.batch_size
        return min(max(rise, MARGINS.flattest if near else LEAST_SLOPE), MARGINS.steepest)

    def _ratio(self, probe: Probe) -> float:
        """Measured over predicted bytes, both above the lowest part of the curve."""
        predicted = max(self.at(probe.batch_size) - self._lowest, 1.0)
        return min((probe.peak_bytes - self._lowest) / predicted, MARGINS.steepest)

    def _through(self, probe: Probe, rise: float) -> Need:
        offset = probe.peak_bytes - rise * self.at(probe.batch_size)
        return Need(tuple((offset + rise * fixed, rise * slope) for fixed, slope in self.lines))


def _largest_last(probes: Sequence[Probe]) -> list[Probe]:
    """The last passed probe of each size, by size."""
    by_size = {each.batch_size: each for each in probes if each.passed and each.peak_bytes}
    return [by_size[size] for size in sorted(by_size)]


Allowed = Callable[[int], int]


def any_size(batch_size: int) -> int:
    """Every batch size may be used."""
    return batch_size


def power_of_two(batch_size: int) -> int:
    """The largest power of two up to a batch size."""
    return 1 << (batch_size.bit_length() - 1) if batch_size > 0 else 0


def multiple_of_8(batch_size: int) -> int:
    """The largest multiple of 8 up to a batch size; below 8, any size."""
    return batch_size // 8 * 8 if batch_size >= 8 else batch_size


ALLOWED: dict[str, Allowed] = {
    "any": any_size,
    "powers_of_two": power_of_two,
    "multiples_of_8": multiple_of_8,
}


@dataclass
class Jump:
    """The sizes to probe where the prediction is a curve: near half of the limit, then near it.

    Each probe corrects the prediction. The sizes end when the largest that passed is within
    `MARGINS.tolerance` (or 1) of the smallest that failed, or within `MARGINS.near` of the
    corrected prediction. A peak near the limit does not end them earlier. A peak above the limit
    ends the steps beyond a prediction that was far off. Where steps are slow, one probe that agrees
    with the prediction is enough.
    """

    need: Need
    limit_bytes: float
    ceiling: int
    allowed: Allowed
    slow_seconds: float = math.inf  # a step that takes longer is slow
    steps_further: int = 0

    def sizes(self) -> Sizes:
        """Name the first size, near half of the largest that is predicted, and each next one."""
        probes: tuple[Probe, ...] = ()
        fixed = min(self.need.at(0), self.limit_bytes)
        aimed = self.need.largest(fixed + MARGINS.first * (self.limit_bytes - fixed))
        size, passed = max(1, self.allowed(min(self.ceiling, aimed))), 0
        while size > passed:
            probes = (*probes, (yield size))
            found = SearchResult.of(probes)
            size, passed = self._following(found), found.batch_size

    def result(self, probes: tuple[Probe, ...]) -> SearchResult:
        """What the probes show: the largest that passed, or the size that one was enough for."""
        found = SearchResult.of(probes)
        return dataclasses.replace(found, batch_size=self._foreseen(found) or found.batch_size)

    def after(self, probe: Probe) -> int:
        """The size to try after one that passed; that one itself if none is clearly larger."""
        found = SearchResult.of((probe,))
        size = self._foreseen(found) or self._following(found)
        return size if size > probe.batch_size * (1 + MARGINS.near) else probe.batch_size

    def _foreseen(self, found: SearchResult) -> int:
        """The size that one slow probe, as it was predicted, is enough for; else 0."""
        first, *others = found.probes
        if others or not first.passed or first.step_seconds[-1] <= self.slow_seconds:
            return 0
        if abs(first.peak_bytes / self.need.at(first.batch_size) - 1) > MARGINS.agreeing:
            return 0
        (curve,) = self.need.corrected(found.probes, self.limit_bytes)
        return self.allowed(min(self.ceiling, curve.largest(MARGINS.computed * self.limit_bytes)))

    def _following(self, found: SearchResult) -> int:
        """The size to probe next; at most the largest that passed if the search ends."""
        if self._foreseen(found):
            return 0
        low, probes = found.batch_size, found.probes
        curves = self.need.corrected(probes, self.limit_bytes)
        guess = max(curve.largest(MARGINS.computed * self.limit_bytes) for curve in curves)
        if found.first_failing is not None:
            return self._between(guess, found)
        size = self.allowed(min(self.ceiling, guess))
        if self.allowed is power_of_two:
            size = max(size, self.allowed(min(self.ceiling, int(guess * MARGINS.rounded_up))))
        if size > low * (1 + MARGINS.near):
            return size
        if self._is_distrusted(low) and probes[-1].peak_bytes <= self.limit_bytes:
            return self._further(low)
        return low if size < self.allowed(self.ceiling) else size

    def _is_distrusted(self, low: int) -> bool:
        """Whether the first prediction was so wrong that it may be wrong near the limit too."""
        predicted, trusted = self.need.largest(self.limit_bytes), MARGINS.trusted
        return not low * trusted <= predicted <= low / trusted

    def _further(self, low: int) -> int:
        """A little above what passed, so that a failure ends the search; each time further."""
        stride = MARGINS.tolerance * 2**self.steps_further
        self.steps_further += 1
        return self.allowed(min(self.ceiling, low + max(1, int(stride * low))))

    def _between(self, guess: int, found: SearchResult) -> int:
        """The next size between what passed and what failed; 0 if they are near enough."""
        low, high, tolerance = found.batch_size, found.first_failing or 0, MARGINS.tolerance
        if high - low <= max(1, tolerance * low):
            return 0
        failures = sum(not probe.passed for probe in found.probes)
        if guess >= high and failures == 1:
            guess = int(high / (1 + tolerance))  # a little too high a prediction: just below
        # A guess far down, or one that failed before, has been wrong already: halve the gap.
        usable = low + (high - low) // 8 < guess < high
        return self.allowed(guess if usable else (low + high) // 2)


EIGHTH = 8  # of the predicted size, for the steps that tell how slow it is: chosen by hand
FIRST_STEP_DOWN = 0.01  # from an exact prediction
MOST_TAKEN_OFF = 0.5  # a step down from a confirmation that failed halves the size at most


def settling(guess: int, ceiling: int, allowed: Allowed) -> Sizes:
    """The sizes to probe where the prediction is exact: itself, and smaller ones if it fails."""
    size, share = max(1, allowed(min(guess, ceiling))), FIRST_STEP_DOWN
    while not (yield size).passed and size > 1:
        size, share = _lower(size, share, allowed), 2 * share


def stepping_down(size: int, step: float, allowed: Allowed) -> Sizes:
    """The sizes to confirm, from `size` down until one passes.

    A failure shrinks the size by `step`. From the third failure on the share doubles each time.
    Afterwards the gap between the last failure and the first pass is bisected down to one `step`.
    """
    failed: list[int] = []
    while size and not (yield size).passed:
        failed.append(size)
        doublings = max(0, len(failed) - MARGINS.equal_steps)
        share = min(MOST_TAKEN_OFF, step * 2**doublings)
        size = _lower(size, share, allowed) if size > 1 else 0
    while size and failed and failed[-1] - size > math.ceil(step * failed[-1]):
        middle = allowed((size + failed[-1]) // 2)
        if middle <= size:
            break
        if (yield middle).passed:
            size = middle
        else:
            failed.append(middle)


def _lower(size: int, share: float, allowed: Allowed) -> int:
    return max(1, allowed(min(size - 1, int(size * (1 - share)))))


# Chosen by hand. Where needs are convex, six compilations reach brute force's answer within 1
# (tests/pure/test_size_search.py).
FIRST_SIZE, MOST_COMPILATIONS = 16, 6


@dataclass(frozen=True)
class CompiledSize:
    """The largest batch size that fits when XLA compiles the step."""

    batch_size: int  # 0 if not even one example fits
    slope: float  # bytes that each example adds near that size
    compilations: int  # batch sizes that were compiled

    def with_added(self, added_bytes: int) -> int:
        """The largest batch size while some more bytes are held: computed, hence a margin lower."""
        return max(0, int((self.batch_size - added_bytes / self.slope) * MARGINS.computed))


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
class SizeOptions:
    """Options of a search for the largest batch."""

    ceiling: int | None = None  # the largest batch size to try
    sizes: str = "any"  # a key of `ALLOWED`
    confirmed_steps: int = MARGINS.confirmed_steps  # 0 confirms nothing
    validation_batch_size: int | None = None  # `None`: the size itself, as in Keras' `fit`

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
    """The memory of a train step as a function of the batch size, before any probe of it."""

    model: ModelFacts  # with a limit
    need: Need | None  # of a step that TensorFlow runs operation by operation
    compiled: CompiledSize | None  # the exact answer of a step that XLA compiles
    usable_bytes: int  # the limit less what is kept free
    most_examples: int = UNBOUNDED  # the largest size whose tensors TensorFlow's kernels can count

    @property
    def limit_bytes(self) -> int:
        """The limit; 0 only of a model without one, which is refused before."""
        return self.model.limit_bytes or 0

    def bytes_at(self, batch_size: int) -> float:
        """The bytes that a size is predicted to need; 0 where XLA predicts the size itself."""
        return 0.0 if self.need is None else self.need.at(batch_size)

    def largest(self, limit_bytes: float) -> int:
        """The largest batch size that is predicted to fit into `limit_bytes`."""
        if self.need is not None:
            return self.need.largest(limit_bytes)
        return self.compiled.batch_size if self.compiled is not None else 0


@dataclass(frozen=True)
class Approach:
    """The size that a confirmation begins from."""

    prediction: Prediction
    result: SearchResult  # of the probes, without a confirmation
    speed: SpeedBound
    ceiling: int  # the largest size that the options and the speed allow
    # The largest micro-batch that is predicted to fit while gradients are accumulated; 0 where
    # nobody asks for it.
    accumulating: int = 0


def predict(prober: Prober, options: SizeOptions) -> Prediction:
    """Predict the need of the prober's workload from its trace, or from XLA's buffers."""
    model = prober.facts()
    if model.limit_bytes is None:
        raise device_memory.no_limit()
    usable = MARGINS.usable(model.limit_bytes)
    if prober.workload.recipe.jit_compile:
        if options.confirmed_steps:
            prober.prepare()
        most = _most_examples(prober, model)
        size = compiled_size(prober.compiled_bytes, model, min(options.largest, most))
        return Prediction(model, None, size, usable, most)
    need = traced_need(prober.moments(), model)
    return Prediction(model, need, None, usable, _most_examples(prober, model))


def _most_examples(prober: Prober, model: ModelFacts) -> int:
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


def at_once(
    prober: Prober, prediction: Prediction, options: SizeOptions
) -> tuple[Probe | None, Probe | None]:
    """Confirm the predicted size before any other if its steps are slow.

    It spares a process and a probe where the prediction holds. Two steps of an eighth of the size
    come first, which tell whether steps are slow and may lower the size.

    Returns:
        The probe of an eighth, and the confirmation. None of either if the prediction may miss some
        bytes, or if speed may bound the size.
    """
    most = min(options.largest, prediction.most_examples)
    guess = min(most, prediction.largest(prediction.limit_bytes))
    need, lower = prediction.need, guess // EIGHTH
    if need is None or not options.confirmed_steps or not 0 < guess <= SIZES[-1]:
        return None, None
    if not lower or prober.misses_some():
        return None, None
    small = prober.steps(lower, 2)
    if not small.passed or small.step_seconds[-1] * EIGHTH <= SLOW_STEP_SECONDS:
        return small, None
    aimed_bytes = MARGINS.computed * _aimed_bytes(prediction)
    (curve,) = need.corrected((small,), prediction.limit_bytes)
    size = options.allowed(min(most, curve.largest(aimed_bytes)))
    if not size:
        return small, None
    steps, validation = options.confirmed_steps, options.validation_batch_size
    return small, prober.confirm_at_once(size, steps, validation)


def size_after(first: Probe, prediction: Prediction, options: SizeOptions) -> int:
    """The size that a prediction allows once one that passed has corrected it."""
    most = min(options.largest, prediction.most_examples)
    return _jump(prediction, options, most).after(first)


def _aimed_bytes(prediction: Prediction) -> float:
    """The bytes that probing aims at."""
    return MARGINS.aimed * prediction.usable_bytes


def _jump(prediction: Prediction, options: SizeOptions, ceiling: int) -> Jump:
    """The sizes to probe where the prediction is a curve."""
    slow_seconds = SLOW_STEP_SECONDS if options.confirmed_steps else math.inf
    need = prediction.need or Need(())
    return Jump(need, _aimed_bytes(prediction), ceiling, options.allowed, slow_seconds)


def computed(size: int, prediction: Prediction, options: SizeOptions) -> Approach:
    """An approach without a probe: a size that the corrected prediction allows."""
    return Approach(prediction, SearchResult(size, None), SpeedBound(), options.largest)


def approach(prober: Prober, prediction: Prediction, options: SizeOptions) -> Approach:
    """Probe until the largest size is near; a size that XLA predicts is only confirmed."""
    if options.confirmed_steps:
        prober.prepare()
    most = min(options.largest, prediction.most_examples)
    guess = min(prediction.largest(prediction.limit_bytes), most)
    speed = speed_bound(prober.steps, guess)
    ceiling = speed.lowered(most)
    if prediction.need is None and options.confirmed_steps:
        result = SearchResult(max(1, options.allowed(min(guess, ceiling))), None)
        return Approach(prediction, result, speed, ceiling)
    if prediction.need is None:
        sizes = settling(guess, ceiling, options.allowed)
        result = SearchResult.of(tried(sizes, lambda size: [prober.probe(size)]))
        return Approach(prediction, result, speed, ceiling)
    jump = _jump(prediction, options, ceiling)
    probes = tried(jump.sizes(), lambda size: [prober.probe(size)])
    return Approach(prediction, jump.result(probes), speed, ceiling)


def conclude(prober: Prober, approach: Approach, options: SizeOptions) -> SearchResult:
    """Confirm the size of an approach in a fresh process, or a smaller one."""
    result, prediction = approach.result, approach.prediction
    if not result.batch_size or not options.confirmed_steps:
        return result
    train = prober.confirm
    if _is_roomy(approach):
        train = prober.train  # less memory could show nothing: the ceiling decides
    step = MARGINS.step_down if prediction.compiled is None else MARGINS.compiled_step_down

    def confirm(size: int) -> list[Probe]:
        probes: list[Probe] = []
        while len(probes) < _processes(prediction):
            probes.append(train(size, options.confirmed_steps, options.validation_batch_size))
            if not probes[-1].passed:
                break
        probe = probes[-1]
        if probe.phase == "validation" and options.validation_batch_size and not probe.passed:
            raise _validation_does_not_fit(probe, options.validation_batch_size)
        return probes

    begin = first_confirmed(result, prediction.usable_bytes, options.allowed)
    sizes = stepping_down(begin, step, options.allowed)
    return SearchResult.of(result.probes, tried(sizes, confirm))


def _processes(prediction: Prediction) -> int:
    """How many processes must train a size, one after the other, to confirm it.

    On a GPU, XLA times kernels while it compiles and takes the fastest, which may be another one,
    with other scratch memory, in the next process. Elsewhere its numbers hold in every process.
    """
    timed = prediction.compiled is not None and not prediction.model.device.startswith("CPU")
    return MARGINS.timed_processes if timed else 1


def first_confirmed(result: SearchResult, usable_bytes: int, allowed: Allowed) -> int:
    """The size to confirm first: lower than the result where that is too near the limit.

    Too near is a size just below one that failed with the whole limit, and a size whose peak is
    above what a confirmation may use.
    """
    size = result.batch_size
    sizes = [size]
    if result.first_failing is not None:
        sizes.append(allowed(int(result.first_failing * (1 - MARGINS.below_failed))))
    if any(each.batch_size == size and each.peak_bytes > usable_bytes for each in result.probes):
        below = allowed(int(size * (1 - MARGINS.step_down)))
        if below >= MARGINS.roomy * size:  # half of a power of two is worth a failure
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


def _is_roomy(approach: Approach) -> bool:
    """Whether a size is at its ceiling and its probes used far less than a confirmation may."""
    result = approach.result
    if result.batch_size != approach.ceiling:
        return False
    passed = (probe for probe in result.probes if probe.passed)
    peaks = [probe.peak_bytes for probe in passed if probe.batch_size == result.batch_size]
    if not peaks:
        return False
    return max(peaks) <= MARGINS.roomy * approach.prediction.usable_bytes


def _validation_does_not_fit(probe: Probe, validation_batch_size: int) -> MemoryLimitError:
    ended = probe.ended.replace("_", " ")
    return MemoryLimitError(
        f"A validation batch of {validation_batch_size} examples must fit into the memory limit",
        f"a model that trains with {probe.batch_size} and then ended: {ended}",
        "Raise the limit, or take a smaller model",
    )
