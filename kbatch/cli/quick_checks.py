"""Quick checks of `kbatch doctor --gpu`: device, numbers, meter, limit, shortage, training."""

from __future__ import annotations

import glob
import importlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbatch.cli.gpu_check import GpuCheck, Result, Scale, in_child
from kbatch.runtime import device_memory, nvidia, tensorflow_private
from kbatch.runtime.oom import is_out_of_memory, is_suspect, is_suspect_exit

# TensorFlow is imported inside of the functions: E4 asks what its import takes, and the doctor
# needs only the table.
if TYPE_CHECKING:
    import keras

    from kbatch import Outcome, Recipe

IMPORTED = ("kbatch.hypermodel", "kbatch.memory._find", "keras", "keras_tuner")
UNCHANGED_BYTES = 20 * 10**6
FILES = {"ptxas": "bin/ptxas", "libdevice": "nvvm/libdevice/libdevice.10.bc"}
METER_NEAR, SECONDS_NEAR, CHANCE = 0.01, 0.05, 0.5
# shares of the limit: of 3814 MiB these are 3.6, 4.1 and 1.0 GiB
FITS, TOO_MUCH, SMALL = 0.965, 1.1, 0.27
WAITED_SECONDS, SHORTAGE_SECONDS = 15.0, 200.0
TOLD = (  # of an outcome, in a row
    *("ended", "value", "train_seconds", "updates", "median_update_seconds"),
    *("examples_per_second", "peak_bytes", "utilisation", "remarks", "message"),
)


def device(scale: Scale) -> Result:
    """E1: name the device and all libraries between it and TensorFlow."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    build = tf.sysconfig.get_build_info()
    named: dict[str, Any] = {
        "gpus": ", ".join(str(each.get("device_name", "")) for each in details),
        "compute_capability": str(details[0].get("compute_capability", "")) if details else "",
        "driver": ", ".join(row[0] for row in nvidia.told("driver_version")),
        "cuda": str(build.get("cuda_version", "")),
        "cudnn": _version("nvidia-cudnn-cu12") or str(build.get("cudnn_version", "")),
        **{name: _file(name) for name in FILES},
    }
    missing = [name for name, value in named.items() if not value]
    tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    measured = {**named, "tf32": tf32, "tensorflow": tf.__version__}
    if scale.rehearsed and gpus:
        result = Result(True, measured)
    else:
        text = f"not found: {', '.join(missing)}" if missing else named["gpus"]
        result = Result(bool(gpus) and not missing, measured, text)
    return result.unless_rehearsed(scale.rehearsed, "the fake has no driver and no CUDA")


def numbers(scale: Scale) -> Result:
    """E2: multiply and convolve on the GPU and on the CPU, forward and backward."""
    import tensorflow as tf

    errors = {}
    for dtype in ("float32", "float16", "bfloat16"):
        for name in ("matmul", "conv"):
            ours = _forward_and_backward(name, dtype)
            with tf.device("CPU:0"):
                theirs = _forward_and_backward(name, "float32")
            errors[f"{name}_{dtype}"] = max(map(_relative_error, ours, theirs))
    large = {
        name: error
        for name, error in errors.items()
        if not error < (2e-2 if name.endswith("bfloat16") else 2e-3)
    }
    text = f"too far from the CPU: {', '.join(large)}" if large else ""
    result = Result(not large, errors, text)
    return result.unless_rehearsed(scale.rehearsed, "a CPU was compared with itself")


def jitted(scale: Scale) -> Result:
    """E3: compile tanh and a train step by XLA, and compare them with plain TensorFlow."""
    import keras
    import numpy as np
    import tensorflow as tf

    from kbatch.models.case_study import cnn

    x = tf.random.stateless_normal((1 << 16,), (1, 2))
    gap = float(tf.reduce_max(tf.abs(tf.function(tf.tanh, jit_compile=True)(x) - tf.tanh(x))))
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (16, 32, 32, 3)).astype("float32")
    labels = rng.integers(0, 2, (16, 1)).astype("float32")
    losses = {}
    for jit in (False, True):
        keras.utils.set_random_seed(0)
        model = cnn(32)
        model.compile(keras.optimizers.SGD(0.01), "binary_crossentropy", jit_compile=jit)
        losses[jit] = [float(model.train_on_batch(pictures, labels)) for _ in range(3)]
    finite = bool(np.isfinite([*losses[True], gap]).all())
    loss_gap = max(abs(a - b) for a, b in zip(losses[True], losses[False], strict=True))
    measured = {"tanh": gap, "loss": loss_gap, "losses": losses[True], "finite": finite}
    return Result(finite and gap < 1e-2 and loss_gap < 1e-2, measured)


def imports(scale: Scale) -> Result:
    """E4: import all of kbatch, Keras and KerasTuner; the GPU must not be taken."""
    before = used_bytes()
    for name in IMPORTED:
        importlib.import_module(name)
    after = used_bytes()
    begun = tensorflow_private.has_started()
    grown = None if before is None or after is None else after - before
    unknown = "the driver did not tell the used bytes"
    if scale.rehearsed:
        unknown = "not rehearsed: the bytes that the driver says are used"
    text = "" if grown is not None else unknown
    passed = not begun and (grown or 0) < UNCHANGED_BYTES
    result = Result(passed, {"tensorflow_has_begun": begun, "grown_bytes": grown}, text)
    if grown is None and not scale.rehearsed:
        return Result(False if begun else None, result.measured, text)
    return result


def doctor(scale: Scale) -> Result:
    """E5: ask `kbatch doctor`, which must find no problem."""
    process = subprocess.run(
        [sys.executable, "-m", "kbatch", "doctor"], capture_output=True, text=True, check=False
    )
    said = process.stdout.splitlines()
    problems = [row for row in said if row.startswith("!")]
    passed = process.returncode == 0 and bool(said) and not problems
    text = " ".join(problems) or process.stderr[-500:] * (not passed)
    return Result(passed, {"exit_code": process.returncode, "said": said}, text)


def _forward_and_backward(name: str, dtype: str) -> list[Any]:
    """The output of an operation and the gradient of its weights, on the device in force."""
    import tensorflow as tf

    shape: tuple[int, ...] = (512, 512)
    weights_shape: tuple[int, ...] = (512, 512)
    if name == "conv":
        shape, weights_shape = ((8, 32, 32, 32), (3, 3, 32, 32))
    x, weights = (
        tf.cast(tf.random.stateless_normal(each, (seed, 1)), dtype)
        for seed, each in enumerate((shape, weights_shape))
    )
    rows = 512.0  # gradients of a mean over all elements would be too small for float16
    weights = weights * tf.cast(1 / 16, dtype)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        y = tf.nn.conv2d(x, weights, 1, "SAME") if name == "conv" else tf.matmul(x, weights)
        loss = tf.reduce_sum(tf.cast(y, "float32") ** 2) / rows
    return [tf.cast(part, "float32").numpy() for part in (y, tape.gradient(loss, weights))]


def _relative_error(ours: Any, theirs: Any) -> float:
    import numpy as np

    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _file(name: str) -> str:
    """Where a file of the CUDA toolkit is; empty if nobody knows."""
    on_path = shutil.which(name)
    if on_path:
        return on_path
    folders = [*(Path(folder) / "nvidia" / "*" for folder in sys.path), "/usr/local/cuda*"]
    own = os.environ.get("CUDA_HOME")
    patterns = [f"{folder}/{FILES[name]}" for folder in [*([own] if own else []), *folders]]
    places = [place for pattern in patterns for place in glob.glob(pattern)]
    return places[0] if places else ""


def used_bytes() -> int | None:
    """Return what the driver says is used of the GPU of TensorFlow; `None` if unknown."""
    memory = nvidia.smi_memory_bytes()
    return None if memory is None else memory[0] - memory[1]


def block(scale: Scale) -> Result:
    """M1: hold a tensor of known size, and let it go."""
    import tensorflow as tf

    from kbatch.runtime import device_memory

    device_memory.apply_limit(None)
    tf.zeros(1)
    before = device_memory.bytes_now() or 0
    device_memory.reset_peak()
    held = tf.zeros((scale.block_bytes // 4,))
    device_memory.wait()
    now, peak = device_memory.bytes_now() or 0, device_memory.bytes_peak() or 0
    del held
    device_memory.reset_peak()
    measured: dict[str, Any] = {
        "block_bytes": scale.block_bytes,
        "current_grew": now - before,
        "peak_grew": peak - before,
        "after_current": device_memory.bytes_now(),
        "after_peak": device_memory.bytes_peak(),
    }
    near = all(
        abs(measured[name] - scale.block_bytes) <= METER_NEAR * scale.block_bytes
        for name in ("current_grew", "peak_grew")
    )
    fresh = measured["after_current"] == measured["after_peak"] is not None
    returned = (measured["after_current"] or 0) - before < METER_NEAR * scale.block_bytes
    return Result(near and fresh and returned, measured)


def limited(scale: Scale) -> Result:
    """L1: keep to a limit, run out of it, and go on."""
    asked = scale.limit_bytes // device_memory.MIB * device_memory.MIB
    applied = device_memory.apply_limit(scale.limit_bytes)
    fits = allocates(FITS * asked)
    began = time.perf_counter()
    error = _error(TOO_MUCH * asked)
    seconds = time.perf_counter() - began
    again = allocates(SMALL * asked)
    certain = error is not None and is_out_of_memory(error)
    measured = {
        "applied_bytes": applied,
        "bytes_limit": device_memory.gpu_limit(),
        "asked_bytes": asked,
        "fits": fits,
        "seconds_until_refused": seconds,
        "certainly_out_of_memory": certain,
        "goes_on": again,
        "error": str(error)[:300],
    }
    agreed = applied == measured["bytes_limit"] == asked
    return Result(agreed and fits and certain and again and seconds < WAITED_SECONDS, measured)


def allocates(size: float) -> bool:
    """Tell whether so many bytes can be taken."""
    return _error(size) is None


def _error(size: float) -> Exception | None:
    """The error of taking so many bytes; `None` if there is none."""
    import tensorflow as tf

    from kbatch.runtime import device_memory

    try:
        tf.zeros((int(size) // 4,))
        device_memory.wait()
    except Exception as error:
        return error
    return None


def shortage(
    scale: Scale,
    kind: str = f"{__name__}:elementwise",
    environment: Mapping[str, str] | None = None,
) -> Result:
    """O1: run out of memory in a worker, by the function of a kind, given the limit in bytes."""
    from kbatch.runtime.worker import Death, Worker

    limit = device_memory.limit_environment(scale.small_limit_bytes)
    with Worker({**limit, **(environment or {})}) as worker:
        ended = worker.call(
            run_out, kind, scale.small_limit_bytes, timeout_seconds=SHORTAGE_SECONDS
        )
    if isinstance(ended, Death):
        suspect = ended.exit_code is not None and is_suspect_exit(ended.exit_code)
        how = "suspect death" if suspect else "death"
        measured: dict[str, Any] = {"how": how, "exit_code": ended.exit_code}
        return Result(suspect, measured, ended.said[-500:])
    how, text = ended
    return Result(how in ("certain", "suspect"), {"how": how}, text)


def run_out(kind: str, limit_bytes: int) -> tuple[str, str]:
    """Run out of memory, and return how that shows and the text of the error."""
    from kbatch.runtime import device_memory

    device_memory.apply_limit(limit_bytes)
    module, _, name = kind.partition(":")
    try:
        getattr(importlib.import_module(module), name)(limit_bytes)
        device_memory.wait()
    except Exception as error:
        return how_it_shows(error), f"{type(error).__name__}: {error}"[-800:]
    return "nothing", "it did not run out of memory"


def how_it_shows(error: Exception) -> str:
    """Tell how sure kbatch is that an error is a shortage of memory."""
    if is_out_of_memory(error):
        return "certain"
    return "suspect" if is_suspect(error) else "another error"


def floats(limit_bytes: int, share: float) -> int:
    """Return how many numbers of 4 bytes take a share of the limit."""
    return int(limit_bytes * share) // 4


def elementwise(limit_bytes: int) -> None:
    """Run out of memory in operations on each element."""
    import tensorflow as tf

    x = tf.zeros((floats(limit_bytes, 0.4),))
    tf.stack([x * 2 + 1, tf.exp(x)])


def policy(scale: Scale, name: str, jit: str) -> Result:
    """T1: train by a policy, with augmentation, jitted or not, for some seconds."""
    from kbatch import Recipe
    from kbatch.runtime import device_memory

    device_memory.apply_limit(None)
    more: dict[str, Any] = {"jit_compile": jit == "jit", "augmentation": "flip_shift"}
    recipe = Recipe(scale.batch_size, "adam", 0.001, policy=name, **more)
    model, outcome = trained(scale, recipe)
    device = device_memory.device()
    problems = {
        f"it ended by {outcome.ended}": outcome.ended != "horizon",
        "its seconds are not the horizon": abs(outcome.train_seconds - scale.seconds)
        > max(SECONDS_NEAR * scale.seconds, outcome.median_update_seconds or 0.0),
        f"its value is {outcome.value}": not (outcome.value or 0.0) > CHANCE,
        "its peak of memory is not above its weights": (outcome.peak_bytes or 0)
        <= 4 * model.count_params(),
        f"it trained on {device}": device != "GPU:0",
        "the load of the GPU is missing": not outcome.utilisation and not scale.rehearsed,
    }
    there = [problem for problem, is_there in problems.items() if is_there]
    text = "; ".join(there) or "not rehearsed: the load of the GPU" * scale.rehearsed
    return Result(not there, told(outcome), text)


def trained(scale: Scale, recipe: Recipe, epochs: int | None = None) -> tuple[keras.Model, Outcome]:
    """Train the case study's model on drawn pictures, for seconds or for epochs."""
    import tensorflow as tf

    import kbatch
    from kbatch.data.case_study import pictures
    from kbatch.models.case_study import cnn

    side = 32 if scale.rehearsed else 64
    data = pictures("drawn", image_size=side)
    seconds = scale.seconds if epochs is None else None
    arguments: dict[str, Any] = {"seconds": seconds, "epochs": epochs, "metrics": ["accuracy"]}
    arguments["loss"] = "binary_crossentropy"
    tf.keras.utils.set_random_seed(0)
    return kbatch.train(recipe, lambda: cnn(side), *data.train, data.validation, **arguments)


def told(outcome: Outcome) -> dict[str, Any]:
    """Return what a row keeps of an outcome."""
    kept = {name: getattr(outcome, name) for name in TOLD}
    return {**kept, "utilisation": dict(outcome.utilisation), "remarks": list(outcome.remarks)}


QUICK = (
    GpuCheck(
        "E1",
        "one GPU or more; device, driver, CUDA, cuDNN, ptxas and libdevice are named",
        in_child(f"{__name__}:device"),
        seconds_limit=60,
    ),
    GpuCheck(
        "E2",
        "relative error of matmul and conv, forward and backward, against the CPU: "
        "< 2e-3 (float32 with TF32, float16), < 2e-2 (bfloat16)",
        in_child(f"{__name__}:numbers"),
        seconds_limit=120,
    ),
    GpuCheck(
        "E3",
        "a jitted tanh and a jitted train step are finite and equal the plain ones to 1e-2",
        in_child(f"{__name__}:jitted"),
        seconds_limit=180,
    ),
    GpuCheck(
        "E4",
        "importing kbatch, Keras and KerasTuner takes < 20 MB of the GPU and begins no context",
        in_child(f"{__name__}:imports"),
        seconds_limit=90,
    ),
    GpuCheck(
        "E5",
        "`kbatch doctor` finds no problem",
        in_child(f"{__name__}:doctor"),
        seconds_limit=150,
    ),
    GpuCheck(
        "M1",
        "current and peak grow by a held tensor's bytes to 1 %; after reset peak = current",
        in_child(f"{__name__}:block"),
        seconds_limit=60,
    ),
    GpuCheck(
        "L1",
        "a limit of 4 GB is 3814 MiB; 96 % of it allocates, 110 % is certainly out of memory "
        "within 15 s, and then 27 % allocates",
        in_child(f"{__name__}:limited"),
        seconds_limit=90,
        shares=True,
    ),
    GpuCheck(
        "O1.elementwise",
        "running out of 2 GB is certain, or suspect: an error of a known text, or a death",
        in_child(f"{__name__}:shortage"),
        seconds_limit=240,
        shares=True,
    ),
    GpuCheck(
        "T1.float32.plain",
        "ended by the horizon, seconds within 5 % of it, value > 0.5, load of the GPU told",
        in_child(f"{__name__}:policy", "float32", "plain"),
        seconds_limit=180,
    ),
)
