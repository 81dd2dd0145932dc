"""Group X: what XLA says that a step needs."""

from __future__ import annotations

from typing import Any

from kbatch import Recipe
from kbatch.errors import KbatchError
from kbatch.gpu_checks._data import builder
from kbatch.gpu_checks.check import Result
from kbatch.gpu_checks.scale import Scale
from kbatch.memory._prober import TOO_LARGE, Prober
from kbatch.memory._workload import Workload
from kbatch.model_spec import ModelSpec

NEAR = 0.01
RECIPE = Recipe(optimizer="sgd", learning_rate=1e-3, jit_compile=True)


def compiled(scale: Scale) -> Result:
    """X1: compare XLA's bytes with the measured peak, and with those of another process."""
    told, peaks = list[int](), list[int]()
    for _ in range(2):
        with _prober(scale) as prober:
            told.append(prober.compiled_bytes(scale.batch_size))
            peaks.append(prober.steps(scale.batch_size, 3).peak_bytes)
    gap = abs(told[0] - peaks[0]) / max(peaks[0], 1)
    measured: dict[str, Any] = {"compiled_bytes": told, "peak_bytes": peaks, "gap": gap}
    same = told[0] == told[1]
    text = "" if same else "two processes differ, which is why three confirm an answer"
    result = Result(scale.rehearsed or gap < NEAR, measured, text)
    why = "a CPU's convolutions take memory that XLA does not count, and it tunes nothing"
    return result.unless_rehearsed(scale.rehearsed, why)


def too_large(scale: Scale) -> Result:
    """X2: compile a step that needs twice the limit."""
    with _prober(scale) as prober:
        small = prober.compiled_bytes(scale.batch_size)
        size = 2 * scale.batch_size * scale.limit_bytes // small
        try:
            needed = prober.compiled_bytes(size)
        except KbatchError as error:
            return Result(False, {"batch_size": size, "error": type(error).__name__}, str(error))
    how = "TOO_LARGE" if needed == TOO_LARGE else "more than the limit"
    measured = {"batch_size": size, "needed_bytes": needed, "how": how}
    return Result(needed > scale.limit_bytes, measured)


def _prober(scale: Scale) -> Prober:
    spec = ModelSpec(builder("cnn", scale), loss="binary_crossentropy")
    return Prober(Workload(spec, (), RECIPE), scale.limit_bytes)
