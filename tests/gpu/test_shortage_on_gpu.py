"""Out of memory (O): memory that really runs out, and what can be done afterwards."""

from __future__ import annotations

import math

import psutil
import pytest
from gpu_models import WIDE_ELEMENTS, builder, wide_model

from kbatch import Recipe
from kbatch.cli import quick_checks
from kbatch.cli.gpu_check import Result, Scale
from kbatch.errors import ModelError
from kbatch.memory._find import find_max_batch
from kbatch.memory._prober import Prober
from kbatch.memory._workload import Workload
from kbatch.model_spec import ModelSpec
from kbatch.runtime import device_memory
from kbatch.runtime.worker import Death, Worker

TIMEOUT_SECONDS = 200.0
NEAR = 1e-3
MOST_ELEMENTS = 2**31 - 1  # that kernels with 32-bit indices can count
# the functions of `shortages`, some with why the fake cannot run them; `doctor --gpu` has one more
KINDS = {
    "conv_forward": "",
    "conv_backward": "",
    "matmul": "",
    "initialiser": "",
    "optimizer_slots": "",
    "batch_copy": "the fake copies nothing to a device",
    "lstm": "Keras takes cuDNN's LSTM where it sees a GPU",
    "evaluate": "",
    "xla_run": "",
    "xla_compile": "XLA tunes nothing on a CPU",
    "cuda_graph": "a CPU has no CUDA graphs",
}
# read when TensorFlow is imported
ENVIRONMENT = {"cuda_graph": {"XLA_FLAGS": "--xla_gpu_graph_min_graph_size=1"}}


@pytest.mark.gpu(
    "O1",
    "running out of 2 GB is certain, or suspect: an error of a known text, or a death",
    seconds_limit=240,
    shares=True,
)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.unrehearsed(why)] if why else [])
        for kind, why in KINDS.items()
    ],
)
def test_a_shortage_is_known(scale: Scale, kind: str) -> Result:
    """O1: run out of memory in a worker."""
    return quick_checks.shortage(scale, f"shortages:{kind}", ENVIRONMENT.get(kind))


@pytest.mark.gpu(
    "O2",
    "after running out of memory a smaller batch in the same process has the losses of a "
    "fresh process to 1e-3",
    seconds_limit=300,
    shares=True,
)
def test_a_smaller_batch_trains_afterwards(scale: Scale) -> Result:
    """O2: run out of memory in a step, then train a smaller batch in the same process."""
    losses = []
    for begins_with_shortage in (True, False):
        with Worker(device_memory.limit_environment(scale.small_limit_bytes)) as worker:
            told = worker.call(
                "shortages:losses", scale, begins_with_shortage, timeout_seconds=TIMEOUT_SECONDS
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


@pytest.mark.gpu(
    "O3",
    "a jitted step ends as out_of_memory or died; the next probe comes from a new worker",
    shares=True,
)
def test_a_jitted_shortage_ends_its_worker(scale: Scale) -> Result:
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


@pytest.mark.gpu(
    "O4",
    "where memory would allow 2**31 elements the finder answers below, without ModelError",
    seconds_limit=600,
    expected_seconds=120,
)
@pytest.mark.unrehearsed("a CPU has no memory for 2**31 elements")
@pytest.mark.parametrize("kind", ["bias_gradient", "broadcast_add", "conv"])
def test_no_answer_has_too_many_elements(scale: Scale, kind: str) -> Result:
    """O4: search where memory would allow more elements than 32 bits can count."""
    recipe = Recipe(optimizer="sgd", learning_rate=1e-3, policy="mixed_float16")
    try:
        found = find_max_batch(
            wide_model(kind),
            recipe=recipe,
            loss="mse",
            timeout_seconds=TIMEOUT_SECONDS,
        )
    except ModelError as error:
        return Result(False, {"error": "ModelError"}, str(error))
    elements = found.batch_size * WIDE_ELEMENTS
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
