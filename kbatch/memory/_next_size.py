"""Next size: which batch size to probe next, until the largest that passes is known."""

from __future__ import annotations

from collections.abc import Callable

from kbatch.memory._margins import MARGINS, Margins
from kbatch.memory._need import Need
from kbatch.memory._probe import Probe
from kbatch.memory._search_result import SearchResult

ProbeOf = Callable[[int], Probe]
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


class Log:
    """The probes of a search so far.

    Args:
        probe: Function that tries a batch size.
    """

    def __init__(self, probe: ProbeOf) -> None:
        self._probe = probe
        self.probes: list[Probe] = []

    def passes(self, batch_size: int) -> bool:
        """Try a batch size, and return whether it passed."""
        self.probes.append(self._probe(batch_size))
        return self.probes[-1].passed

    def result(self) -> SearchResult:
        """The largest size that passed, below all that failed."""
        passed = [probe.batch_size for probe in self.probes if probe.passed]
        failed = [probe.batch_size for probe in self.probes if not probe.passed]
        # A size that passed once and failed once is not reliable.
        low = max((size for size in passed if not failed or size < min(failed)), default=0)
        return SearchResult(low, min(failed, default=None), tuple(self.probes))


class _Jump:
    """State of `jump`: the largest size that passed and the smallest that failed."""

    def __init__(
        self, need: Need, limit_bytes: float, ceiling: int, allowed: Allowed, margins: Margins
    ) -> None:
        self._need, self._limit_bytes, self._margins = need, limit_bytes, margins
        self._ceiling, self._allowed = ceiling, allowed
        self._predicted, self._stride = need.largest(limit_bytes), margins.tolerance
        self.low, self._high, self._failures = 0, 0, 0

    def note(self, size: int, passed: bool) -> None:
        """Narrow the interval by one probe."""
        if passed:
            self.low = max(self.low, size)
            return
        self._failures += 1
        self._high = min(self._high or size, size)
        if self.low >= self._high:
            self.low = 0  # a smaller size failed later: what passed above it is not reliable

    def following(self, probes: list[Probe]) -> int:
        """The size to probe next; at most `low` if the search ends."""
        curves = self._need.corrected(probes, self._limit_bytes, self._margins)
        fitting_bytes = self._margins.computed * self._limit_bytes
        guess = max(curve.largest(fitting_bytes) for curve in curves)
        if self._high:
            return self._between(guess)
        size = self._allowed(min(self._ceiling, guess))
        if self._allowed is power_of_two:
            above = min(self._ceiling, int(guess * self._margins.rounded_up))
            size = max(size, self._allowed(above))
        if size > self.low * (1 + self._margins.near):
            return size
        if self._distrusted() and probes[-1].peak_bytes <= self._limit_bytes:
            return self._further()
        return self.low if size < self._allowed(self._ceiling) else size

    def _distrusted(self) -> bool:
        """Whether the first prediction was so wrong that it may be wrong near the limit too."""
        trusted = self._margins.trusted
        return not self.low * trusted <= self._predicted <= self.low / trusted

    def _further(self) -> int:
        """A little above what passed, so that a failure ends the search; each time further."""
        above = self.low + max(1, int(self._stride * self.low))
        self._stride *= 2
        return self._allowed(min(self._ceiling, above))

    def _between(self, guess: int) -> int:
        """The next size between what passed and what failed; 0 if they are near enough."""
        low, high, tolerance = self.low, self._high, self._margins.tolerance
        if high - low <= max(1, tolerance * low):
            return 0
        if guess >= high and self._failures == 1:
            guess = int(high / (1 + tolerance))  # a little too high a prediction: just below
        # A guess far down, or one that failed before, has been wrong already: halve the gap.
        usable = low + (high - low) // 8 < guess < high
        size = self._allowed(guess if usable else (low + high) // 2)
        return size if size > low else 0


def jump(
    probe: ProbeOf,
    need: Need,
    limit_bytes: float,
    ceiling: int,
    allowed: Allowed,
    margins: Margins = MARGINS,
) -> SearchResult:
    """Probe near half of the limit, correct the prediction, jump to the limit, and close in.

    The search ends when the largest size that passed is within `margins.tolerance` (or 1) of the
    smallest that failed, or within `margins.near` of the corrected prediction. A peak near the
    limit does not end the search earlier. A peak above the limit ends the steps beyond a
    prediction that was far off.

    Args:
        probe: Function that tries a batch size.
        need: `Need`, the predicted curve.
        limit_bytes: Float, bytes that the answer may use.
        ceiling: Integer, the largest batch size to try.
        allowed: Function that rounds a size down to one that may be used.
        margins: `Margins`.
    """
    log = Log(probe)
    state = _Jump(need, limit_bytes, ceiling, allowed, margins)
    size = first(need, limit_bytes, ceiling, allowed, margins)
    while True:
        state.note(size, log.passes(size))
        size = state.following(log.probes)
        if size <= state.low:
            return log.result()


def first(
    need: Need, limit_bytes: float, ceiling: int, allowed: Allowed, margins: Margins = MARGINS
) -> int:
    """The first batch size to probe: near half of the largest that is predicted."""
    fixed = min(need.at(0), limit_bytes)
    aimed = need.largest(fixed + margins.first * (limit_bytes - fixed))
    return max(1, allowed(min(ceiling, aimed)))


def settle(probe: ProbeOf, guess: int, ceiling: int, allowed: Allowed) -> SearchResult:
    """Probe an exact prediction, and smaller sizes only if it fails.

    The first step down is 1 % of the size, and each later one twice as large.
    """
    log, size, percent = Log(probe), max(1, allowed(min(guess, ceiling))), 1
    while not log.passes(size) and size > 1:
        size = max(1, allowed(min(size - 1, int(size * (1 - percent / 100)))))
        percent *= 2
    return log.result()
