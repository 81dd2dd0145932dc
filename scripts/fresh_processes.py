"""Trainings of one batch size in fresh processes, for the benchmark of finders."""

from __future__ import annotations

import functools
import statistics

from finder_models import build, data

from kbatch import Recipe
from kbatch.memory._max_batch import Probe
from kbatch.memory._prober import Prober
from kbatch.memory._workload import Workload
from kbatch.model_spec import ModelSpec

STEPS = 50


def fifty(workload: Workload, limit_bytes: int, batch_size: int) -> Probe:
    """Train 50 steps as `fit` does, and validate, in a fresh process with the whole limit."""
    with Prober(workload, limit_bytes) as prober:
        return prober.train(batch_size, STEPS)


def confirms(workload: Workload, limit_bytes: int, batch_size: int, steps: int) -> bool:
    """Return whether a batch size trains some steps with 5 % of the limit kept back."""
    with Prober(workload, limit_bytes) as prober:
        return prober.confirm(batch_size, steps).passed


def largest_that_survives(workload: Workload, limit: int, predicted: int) -> str:
    """Return "=" and the largest batch that trains, by single steps from the prediction."""
    passes = functools.lru_cache(None)(lambda size: confirms(workload, limit, size, 3))
    size = predicted
    while not passes(size):
        size -= 1
    while passes(size + 1):
        size += 1
    return f"={size}"


def spread(name: str, size: int, limit_bytes: int) -> None:
    """Print the peaks of twelve single steps in each of two processes, with memory to spare."""
    workload = Workload(
        ModelSpec(functools.partial(build, name)),
        data(name),
        Recipe(optimizer="sgd", learning_rate=1e-3),
    )
    for process in (1, 2):
        with Prober(workload, limit_bytes) as prober:
            peaks = [prober.steps(size, 1).peak_bytes for _ in range(12)]
        shown = " ".join(f"{peak / 1e6:.0f}" for peak in peaks)
        ratio = max(peaks) / statistics.median(peaks)
        words = f"highest against median {ratio:.3f}"
        print(f"{name} at {size}, process {process}: {shown} MB; {words}", flush=True)
