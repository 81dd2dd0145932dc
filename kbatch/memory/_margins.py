"""Margins: what the search for the largest batch keeps free, and when it ends."""

from __future__ import annotations

from dataclasses import dataclass

from kbatch.runtime.device_memory import MIB


@dataclass(frozen=True)
class Margins:
    """Safety margins of the search for the largest batch.

    A share is a part of 1. `scripts/bench_max_batch.py` measures what the margins give: answers
    next to bisection's, and whether an answer trains in ten fresh processes (`--fresh`). A number
    without a measurement of its own says that it was chosen by hand.
    """

    # Share of the limit that an answer leaves free. Without XLA the peak varies by a few percent
    # from step to step (`scripts/bench_max_batch.py --spread`); with 5 % and 10 steps, MobileNetV2
    # with Adam did not last 50 steps (`scripts/results/max_batch_margin.csv`).
    kept_free: float = 0.07
    # Steps of a confirmation. Running out of memory happens at any step, not at the first (same
    # measurement).
    confirmed_steps: int = 20
    # Share of the memory for batches that the first probe aims at. Chosen by hand: far enough from
    # both ends for a reliable peak.
    first: float = 0.5
    # Share of the usable bytes that probing aims at. Chosen by hand: a confirmation that fails
    # costs a process and a wait for memory.
    aimed: float = 0.98
    # Share of the usable bytes that a prediction may fill without a probe of that size: the need of
    # one batch size varies that much between steps (`scripts/bench_max_batch.py --spread`).
    computed: float = 0.97
    # Probing ends when the largest size that passed and the smallest that failed are nearer than
    # this share. Chosen by hand.
    tolerance: float = 0.05
    # A corrected prediction within this share of a passed size ends probing. Chosen by hand, below
    # `tolerance`.
    near: float = 0.04
    # Where steps are slow, a first probe within this share of its prediction is the last one.
    # Chosen by hand.
    agreeing: float = 0.05
    # A first prediction that was further off than this factor is not trusted near the limit either.
    # Chosen by hand.
    trusted: float = 0.7
    # Factor by which a prediction is exceeded to try the next power of two. Chosen by hand.
    rounded_up: float = 1.33
    # Share by which a size shrinks after a failed confirmation. Chosen by hand.
    step_down: float = 0.05
    # The same with XLA, whose own numbers are exact (`scripts/bench_max_batch.py --jit`).
    compiled_step_down: float = 0.01
    # Processes that confirm a size which XLA compiles on a GPU. Chosen by hand.
    timed_processes: int = 3
    # Steps down of that share before the share doubles. Chosen by hand.
    equal_steps: int = 2
    # A table's row that was confirmed below this share of the usable bytes is corrected by its own
    # peak and confirmed once more. Chosen by hand.
    upward: float = 0.9
    # The first confirmation is at least this share below a size that failed with the whole limit.
    # Chosen by hand.
    below_failed: float = 0.1
    # A size at its ceiling that uses less than this share is confirmed in the process that is
    # running. Chosen by hand.
    roomy: float = 0.75
    # A first confirmation that needs at least this share of its prediction corrects it for good:
    # the larger size is confirmed without a probe. Chosen by hand.
    correcting: float = 0.8
    # A peak above this share of the limit may show the allocator's slack instead of the need
    # (`scripts/bench_max_batch.py --spread`).
    reliable: float = 0.85
    # Least factor on a predicted slope that one probe, or two near ones, may show. Chosen by hand.
    flatter: float = 0.75
    # The same of two probes whose sizes differ by less than `far`. Chosen by hand.
    flattest: float = 0.375
    # Largest factor on a predicted slope. Chosen by hand.
    steepest: float = 4.0
    # Two probes give a slope if their sizes differ by this factor. Chosen by hand.
    apart: float = 1.3
    # Two probes give a reliable slope if their sizes differ by this factor. Chosen by hand.
    far: float = 2.0

    def usable(self, limit_bytes: int) -> int:
        """Bytes that a safe size may use: the limit less `kept_free`, in whole MiB.

        At least one MiB is kept free, since TensorFlow takes blocks of whole MiB.

        Example:
        >>> Margins().usable(400 << 20) >> 20, Margins().usable(10 << 20) >> 20
        (372, 9)
        """
        whole = limit_bytes // MIB
        return max(1, min(int((1 - self.kept_free) * whole), whole - 1)) * MIB


MARGINS: Margins = Margins()
