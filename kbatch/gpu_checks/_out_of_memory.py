"""Group O: memory that really runs out, and what can be done afterwards."""

from __future__ import annotations

import math
from typing import Any

import psutil

from kbatch import Recipe
from kbatch.errors import ModelError
from kbatch.gpu_checks import _shortage
from kbatch.gpu_checks._data import builder
from kbatch.gpu_checks.check import Result
from kbatch.gpu_checks.scale import Scale
from kbatch.memory._find import find_max_batch
from kbatch.memory._prober import Prober
from kbatch.memory._workload import Workload
from kbatch.model_spec import ModelSpec
from kbatch.runtime import device_memory
from kbatch.runtime.oom import is_suspect_exit
from kbatch.runtime.worker import Death, Worker

ROOM = "kbatch.gpu_checks._shortage"
TIMEOUT_SECONDS = 200.0
NEAR = 1e-3
MOST_ELEMENTS = 2**31 - 1  # that kernels with 32-bit indices can count


def shortage(scale: Scale, kind: str) -> Result:
    """O1: run out of memory in a worker, in one of the ways of `_shortage.KINDS`."""
    environment = {
        **device_memory.limit_environment(scale.small_limit_bytes),
        **_shortage.environment(kind),
    }
    with Worker(environment) as worker:
        ended = worker.call(
            f"{ROOM}:run_out", kind, scale.small_limit_bytes, timeout_seconds=TIMEOUT_SECONDS
        )
    if isinstance(ended, Death):
        suspect = ended.exit_code is not None and is_suspect_exit(ended.exit_code)
        how = "suspect death" if suspect else "death"
        measured: dict[str, Any] = {"how": how, "exit_code": ended.exit_code}
        return Result(suspect, measured, ended.said[-500:])
    how, text = ended
    return Result(how in ("certain", "suspect"), {"how": how}, text)


def next_batch(scale: Scale) -> Result:
    """O2: run out of memory in a step, then train a smaller batch in the same process."""
    losses = []
    for begins_with_shortage in (True, False):
        with Worker(device_memory.limit_environment(scale.small_limit_bytes)) as worker:
            told = worker.call(
                f"{ROOM}:losses", scale, begins_with_shortage, timeout_seconds=TIMEOUT_SECONDS
            )
        if isinstance(told, Death):
            return Result(False, {"exit_code": told.exit_code}, told.said[-500:])
        losses.append(told)
    same, fresh = losses
    gap = max(abs(a - b) for a, b in zip(same[1:], fresh[1:], strict=True))
    measured = {"first_step": same[0], "losses": same[1:], "fresh_losses": fresh[1:], "gap": gap}
    if same[0] != "certain":
        return Result(False, measured, "the large batch did not run out of memory")
    return Result(math.isfinite(gap) and gap < NEAR, measured)


def jitted(scale: Scale) -> Result:
    """O3: run out of memory in a jitted step; the next probe must come from a new worker."""
    recipe = Recipe(optimizer="sgd", learning_rate=1e-3, jit_compile=True)
    spec = ModelSpec(builder("cnn", scale), loss="binary_crossentropy")
    with Prober(Workload(spec, (), recipe), scale.small_limit_bytes) as prober:
        prober.facts()
        before = _workers()
        large = prober.probe(_too_large(scale))
        small = prober.probe(2)
        after = _workers()
    measured = {
        "large": large.ended,
        "large_message": large.message,
        "small": small.ended,
        "workers_before": sorted(before),
        "workers_after": sorted(after),
    }
    ended = large.ended in ("out_of_memory", "died")
    return Result(ended and small.passed and not before & after, measured)


def too_many_elements(scale: Scale, kind: str) -> Result:
    """O4: search where memory would allow more elements than 32 bits can count."""
    recipe = Recipe(optimizer="sgd", learning_rate=1e-3, policy="mixed_float16")
    try:
        found = find_max_batch(
            _shortage.wide_model(kind),
            recipe=recipe,
            loss="mse",
            timeout_seconds=TIMEOUT_SECONDS,
        )
    except ModelError as error:
        return Result(False, {"error": "ModelError"}, str(error))
    elements = found.batch_size * _shortage.WIDE_ELEMENTS
    measured = {"batch_size": found.batch_size, "elements": elements, "said": str(found)}
    return Result(0 < elements <= MOST_ELEMENTS, measured)


def _too_large(scale: Scale) -> int:
    """A batch of pictures that alone would fill the small limit."""
    return scale.small_limit_bytes // (scale.image_size**2 * 3 * 4)


def _workers() -> set[int]:
    """Processes that this one started, and that still run."""
    return {
        child.pid
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE and "popen_loky" in " ".join(child.cmdline())
    }
