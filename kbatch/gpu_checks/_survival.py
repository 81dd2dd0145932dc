"""Survival: trainings of one batch size in fresh processes that keep to a limit."""

from __future__ import annotations

from dataclasses import dataclass

from kbatch.memory._max_batch import Probe
from kbatch.memory._prober import Prober
from kbatch.memory._workload import Workload

LARGER = 1.15  # times the answer of the finder, which must not train
FAILED_STEPS = 20


@dataclass(frozen=True)
class Survival:
    """How an answer and a larger size ended.

    Attributes:
        answer: List of strings, how each training of the answer ended.
        larger: List of strings, how each training of the larger size ended.
        larger_size: Integer, the larger size.
    """

    answer: list[str]
    larger: list[str]
    larger_size: int

    @property
    def answer_trains(self) -> bool:
        """Whether every training of the answer passed."""
        return all(ended == "passed" for ended in self.answer)

    @property
    def larger_fails(self) -> bool:
        """Whether every training of the larger size failed."""
        return all(ended != "passed" for ended in self.larger)


def fresh(workload: Workload, limit_bytes: int | None, batch_size: int, steps: int) -> Probe:
    """Train as `fit` does, and validate, in a fresh process with the whole limit."""
    with Prober(workload, limit_bytes) as prober:
        return prober.train(batch_size, steps)


def survival(
    workload: Workload,
    limit_bytes: int | None,
    batch_size: int,
    *,
    steps: int,
    processes: int,
    larger: float = LARGER,
) -> Survival:
    """Train an answer, and a size that is larger by a factor, each in fresh processes."""
    above = max(batch_size + 1, int(larger * batch_size))
    trained = [fresh(workload, limit_bytes, batch_size, steps) for _ in range(processes)]
    failed = [fresh(workload, limit_bytes, above, FAILED_STEPS) for _ in range(processes)]
    return Survival([each.ended for each in trained], [each.ended for each in failed], above)
