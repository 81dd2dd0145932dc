"""Confirmation of a batch size: fresh processes train it, and smaller ones until one passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kbatch.memory._margins import MARGINS, Margins
from kbatch.memory._next_size import Allowed
from kbatch.memory._probe import Probe
from kbatch.memory._search_result import SearchResult

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

    Args:
        confirm: Function that trains a batch size long enough to rely on it, in one process or in
            several. All must pass.
        batch_size: Integer, where to begin; 0 if there is nothing to confirm.
        step: Float, share of a size that is taken off after a failure.
        allowed: Function that rounds a size down to one that may be used.
        margins: `Margins`.
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
