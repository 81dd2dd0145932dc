"""Next size: which batch size to probe next, until the largest that passes is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kbatch.memory._need import Need
from kbatch.memory._probe import Probe

# of what the limit leaves beside what no batch changes: far enough from both ends to be measured
# well
FIRST_SHARE = 0.5
# of the limit: without XLA the same batch needs up to a few percent more or less in each step
TARGET_SHARE = 0.97
TOLERANCE = 0.05
# of a corrected prediction: closer than the tolerance, which leaves some of the limit as well
NEAR = 0.04
TRUSTED = 0.7  # a prediction that was further off than this is not believed at the end either
ROUNDED_UP = 1.33  # a power of two is worth a failure where the prediction excludes it so narrowly

ProbeOf = Callable[[int], Probe]
Allowed = Callable[[int], int]


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        batch_size: Integer, the largest batch size that passed; 0 if none did.
        first_failing: Integer, the smallest that failed, or `None` if none did.
        probes: Tuple of all probes, in their order.
    """

    batch_size: int
    first_failing: int | None
    probes: tuple[Probe, ...]


def any_size(batch_size: int) -> int:
    """Every batch size may be used."""
    return batch_size


def power_of_two(batch_size: int) -> int:
    """The largest power of two up to a batch size."""
    return 1 << (batch_size.bit_length() - 1) if batch_size > 0 else 0


def multiple_of_8(batch_size: int) -> int:
    """The largest multiple of 8 up to a batch size; below 8, any size."""
    return batch_size // 8 * 8 if batch_size >= 8 else batch_size


class Log:
    """The probes so far.

    Args:
        probe: Function that tries a batch size.
    """

    def __init__(self, probe: ProbeOf) -> None:
        self._probe = probe
        self.probes: list[Probe] = []

    def passes(self, batch_size: int) -> bool:
        """Whether a batch size passes, now."""
        self.probes.append(self._probe(batch_size))
        return self.probes[-1].passed

    def found(self) -> Found:
        """What they say together."""
        passed = [probe.batch_size for probe in self.probes if probe.passed]
        failed = [probe.batch_size for probe in self.probes if not probe.passed]
        # The same size may pass once and fail once: it is not one to rely on.
        low = max((size for size in passed if not failed or size < min(failed)), default=0)
        return Found(low, min(failed, default=None), tuple(self.probes))


def jump(probe: ProbeOf, need: Need, limit_bytes: float, ceiling: int, allowed: Allowed) -> Found:
    """Probe near half of the limit, correct the prediction by what was measured, jump to the limit, close in.

    Stops when the largest that passed is within 5 % (or 1) of the smallest that failed, or of the
    corrected prediction. A peak near the limit is no reason to stop
    before; one above it ends the steps that go beyond a prediction which was far off.
    """
    log, low, high, failures = Log(probe), 0, None, 0
    predicted, stride = need.largest(limit_bytes), TOLERANCE
    size = first(need, limit_bytes, ceiling, allowed)
    while True:
        if log.passes(size):
            low = max(low, size)
        else:
            failures += 1
            high = size if high is None else min(high, size)
            low = low if low < high else 0
        guess = max(
            curve.largest(TARGET_SHARE * limit_bytes)
            for curve in need.corrected(log.probes, limit_bytes)
        )
        if high is not None:
            size = _between(low, high, guess, failures, allowed)
        else:
            size = max(
                allowed(min(ceiling, guess)),
                allowed(min(ceiling, int(guess * ROUNDED_UP))) if allowed is power_of_two else 0,
            )
            near = size <= low * (1 + NEAR)
            if (
                near
                and not low * TRUSTED <= predicted <= low / TRUSTED
                and log.probes[-1].peak_bytes <= limit_bytes
            ):
                # Wrong about the start, wrong perhaps about the end: a little further, so that a
                # failure ends the search.
                size = allowed(min(ceiling, low + max(1, int(stride * low))))
                stride *= 2
            elif near and size < allowed(ceiling):
                return log.found()
        if size <= low:
            return log.found()


def first(need: Need, limit_bytes: float, ceiling: int, allowed: Allowed) -> int:
    """The first batch size to probe: near half of the largest that is predicted."""
    fixed = min(need.at(0), limit_bytes)
    return max(1, allowed(min(ceiling, need.largest(fixed + FIRST_SHARE * (limit_bytes - fixed)))))


def settle(probe: ProbeOf, guess: int, ceiling: int, allowed: Allowed) -> Found:
    """Probe what was predicted exactly, and smaller sizes only if it fails, each time by one more part in a hundred."""
    log, size, step = Log(probe), max(1, allowed(min(guess, ceiling))), 1
    while not log.passes(size) and size > 1:
        size = max(1, allowed(min(size - 1, int(size * (1 - step / 100)))))
        step *= 2
    return log.found()


def _between(low: int, high: int, guess: int, failures: int, allowed: Allowed) -> int:
    """The next batch size between what passed and what failed; 0 if there is none."""
    if high - low <= max(1, TOLERANCE * low):
        return 0
    if guess >= high and failures == 1:
        # a prediction that is a little too high: just below what failed
        guess = int(high / (1 + TOLERANCE))
    # A guess far down, or one that failed before, has been wrong already: halve what is left.
    size = allowed(guess if low + (high - low) // 8 < guess < high else (low + high) // 2)
    return size if size > low else 0


ALLOWED: dict[str, Allowed] = {
    "any": any_size,
    "powers_of_two": power_of_two,
    "multiples_of_8": multiple_of_8,
}
