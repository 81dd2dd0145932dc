"""Search for one recipe's largest batch: predict, probe, confirm."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from kbatch.device import limit
from kbatch.errors import MemoryLimitError, ModelError
from kbatch.memory._confirm import Confirmed, confirmed
from kbatch.memory._max_batch import MaxBatch
from kbatch.memory._need import UNBOUNDED, Need
from kbatch.memory._next_size import ALLOWED, Allowed, Found, jump, settle
from kbatch.memory._probe import SUSPECTS, Facts, Probe
from kbatch.memory._prober import Prober
from kbatch.memory._speed_line import of_probes
from kbatch.memory._xla import TOO_LARGE
from kbatch.tracing.size import ALLOCATOR_SLACK, Moment

# with some memory to spare: what runs out at all does so at any step, not at once
CONFIRMED_STEPS = 20
FAR_SHARE = 0.75
# of what a confirmation has: each that fails costs a process and a wait for memory
AIMED_SHARE = 0.98
STEP_DOWN, BELOW_FAILED = 0.05, 0.1
COMPUTED_SHARE = 0.97  # of a size that is computed and not confirmed
FIRST_COMPILED, MOST_COMPILED = 16, 6
# A size above the second of these is worth a look at where speed stops to rise.
SPEED_SIZES, SPEED_STEPS, SPEED_GAIN = (512, 4096), 6, 0.02


@dataclass(frozen=True)
class SearchOptions:
    """What a search for the largest batch is told.

    Attributes:
        ceiling: Integer, the largest batch size to try, or `None`.
        sizes: `"any"`, `"powers_of_two"` or `"multiples_of_8"`.
        confirmed_steps: Integer, steps to train to confirm a size. Defaults to `20`.
    """

    ceiling: int | None = None
    sizes: str = "any"
    confirmed_steps: int = CONFIRMED_STEPS


def find(prober: Prober, options: SearchOptions) -> MaxBatch:
    """The largest batch size of the prober's workload.

    Raises:
        MemoryLimitError: If not even one example fits.
        ModelError: If the model does not train at any batch size.
    """
    began = time.perf_counter()
    facts = prober.facts()
    if facts.limit_bytes is None:
        raise limit.refuse_none()
    allowed, most, usable = (
        ALLOWED[options.sizes],
        options.ceiling or UNBOUNDED,
        limit.spared(facts.limit_bytes),
    )
    if options.confirmed_steps:
        prober.prepare()
    guess: int | None = None
    speed = Speeds((), None)
    if prober.workload.recipe.jit_compile:
        guess = compiled_maximum(prober.compiled_bytes, facts, most).batch_size
        speed = speeds(prober, min(guess, most))
        found = settle(prober.probe, guess, speed.most(most), allowed)
    else:
        need = traced_need(prober.moments(), facts)
        guess = need.largest(facts.limit_bytes)
        speed = speeds(prober, min(guess, most))
        found = jump(prober.probe, need, AIMED_SHARE * usable, speed.most(most), allowed)
    if not found.batch_size:
        raise nothing_fits(found.probes[-1], facts)
    size, failing, sure = found.batch_size, found.first_failing, Confirmed(0, None, ())
    if options.confirmed_steps:
        # XLA needs the same each time, in blocks that fit
        near = facts.limit_bytes if prober.workload.recipe.jit_compile else usable
        begin, used = (
            first_confirmed(found, near, allowed),
            max(probe.peak_bytes for probe in found.probes if probe.passed),
        )
        # nothing that less memory could show
        roomy = size == speed.most(most) and used <= FAR_SHARE * usable
        train = prober.train if roomy else prober.confirm
        sure = confirmed(
            lambda batch_size: train(batch_size, options.confirmed_steps), begin, STEP_DOWN, allowed
        )
        if not sure.batch_size:
            raise nothing_fits(sure.probes[-1], facts)
        size, failing = (
            sure.batch_size,
            min((failed for failed in (failing, sure.first_failing) if failed), default=None),
        )
    return MaxBatch(
        batch_size=size,
        peak_bytes=sure.peak_bytes
        or max(
            probe.peak_bytes for probe in found.probes if probe.batch_size == size and probe.passed
        ),
        limit_bytes=prober.limit_bytes or facts.limit_bytes,
        first_failing=failing,
        probes=(*speed.probes, *found.probes),
        confirmations=sure.probes,
        confirmed_steps=sure.steps,
        predicted=guess,
        ceiling=options.ceiling,
        recipe=prober.workload.recipe,
        seconds=time.perf_counter() - began,
        no_faster_from=speed.flat
        if speed.flat is not None and size >= allowed(speed.flat)
        else None,
    )


def first_confirmed(found: Found, usable: int, allowed: Allowed) -> int:
    """The size to confirm first: what failed with the whole limit, or took more than a confirmation has, is too near.

    Args:
        found: What was found with the whole limit.
        usable: Integer, bytes that a confirmation has.
        allowed: Function that rounds a size down to one that may be used.
    """
    size = found.batch_size
    sizes = [size]
    if found.first_failing is not None:
        sizes.append(allowed(int(found.first_failing * (1 - BELOW_FAILED))))
    if any(probe.batch_size == size and probe.peak_bytes > usable for probe in found.probes):
        below = allowed(int(size * (1 - STEP_DOWN)))
        sizes += [below] if below >= FAR_SHARE * size else []  # a power of two is worth a failure
    return max(1, min(sizes))


@dataclass(frozen=True)
class Speeds:
    """Where larger batches stop to be faster.

    Attributes:
        probes: Tuple of `Probe` that showed it.
        flat: Integer, the size from which on twice as many examples gain less than 2 % of speed;
            `None` if nobody asked.
    """

    probes: tuple[Probe, ...]
    flat: int | None

    def most(self, most: int) -> int:
        """The largest size to try, if a larger one may not be tried."""
        return most if self.flat is None else min(most, self.flat)


def speeds(prober: Prober, most: int) -> Speeds:
    """Where speed stops to rise, if that may be below a size that is to be tried: a model that needs next to nothing has no other end.

    Args:
        prober: Tries a batch size.
        most: Integer, the largest size to be tried.
    """
    if most <= SPEED_SIZES[-1]:
        return Speeds((), None)
    probes = tuple(prober.steps(size, SPEED_STEPS) for size in SPEED_SIZES)
    fitted = of_probes(probes)
    return Speeds(
        probes, None if fitted is None else max(SPEED_SIZES[-1], fitted.flat_from(SPEED_GAIN))
    )


def traced_need(moments: list[Moment], facts: Facts) -> Need:
    """The need of a step that TensorFlow runs operation by operation."""
    fixed = float(facts.static_bytes)
    lines = ((moment.total.fixed, moment.total.per_example) for moment in moments)
    return Need(
        tuple(
            (fixed + ALLOCATOR_SLACK * constant, ALLOCATOR_SLACK * slope)
            for constant, slope in lines
        )
    )


@dataclass(frozen=True)
class Compiled:
    """The largest batch size that fits when XLA compiles the step.

    Attributes:
        batch_size: Integer; 0 if not even one example fits.
        room: Integer, bytes for all buffers of the step.
        slope: Float, bytes that each example adds near that size.
    """

    batch_size: int
    room: int
    slope: float

    def largest(self, beside: int) -> int:
        """The largest batch size if so many bytes are held beside; computed, hence a little smaller than it may be."""
        return max(0, int((self.batch_size - beside / self.slope) * COMPUTED_SHARE))


def compiled_maximum(compiled_bytes: Callable[[int], int], facts: Facts, most: int) -> Compiled:
    """The largest batch size that fits when XLA compiles the step: exact, from a few sizes that are compiled, not run.

    Args:
        compiled_bytes: Function that compiles a batch size and gives the bytes of all its buffers.
        facts: What is known of the model.
        most: Integer, the largest batch size that may be tried.
    """
    room = facts.contiguous_bytes + facts.static_bytes  # the temporary buffers are one block
    known, size = {0: facts.static_bytes}, min(FIRST_COMPILED, most)
    for _ in range(MOST_COMPILED):
        known[size] = compiled_bytes(size)
        low, high = _around(known, room)
        slope = max((known[high] - known[low]) / (high - low), 1.0)
        if known[high] >= TOO_LARGE:
            size = (low + high) // 2  # it could not even be compiled: no line goes through it
            continue
        size = max(0, min(most, int(low + (room - known[low]) / slope)))
        if size in known or any(abs(size - other) <= 1 for other in known if other):
            break
    return Compiled(size, room, slope)


def _around(known: dict[int, int], room: float) -> tuple[int, int]:
    """The two sizes to draw a line through: around the room if there are such, else the two largest."""
    fitting, failing = (
        [size for size in known if known[size] <= room],
        [size for size in known if known[size] > room],
    )
    return (
        (max(fitting), min(failing))
        if fitting and failing
        else (sorted(known)[-2], sorted(known)[-1])
    )


def nothing_fits(probe: Probe, facts: Facts) -> MemoryLimitError | ModelError:
    """The error for a model of which not even one example trains."""
    if probe.ended in SUSPECTS:
        return ModelError(
            "A model must train one step on one example",
            f"{probe.ended}: {probe.message}",
            "Train it with model.fit to see why",
        )
    return MemoryLimitError(
        f"One example must fit into the memory limit of {(facts.limit_bytes or 0) / 1e6:,.0f} MB",
        f"a model whose weights and optimizer take {facts.static_bytes / 1e6:,.0f} MB, and more for the step",
        "Raise the limit, take SGD or a smaller model",
    )
