"""Group E: the device, its libraries, and that its numbers are those of the CPU."""

from __future__ import annotations

import glob
import importlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from kbatch.gpu_checks import _nvidia_smi
from kbatch.gpu_checks.check import Result
from kbatch.gpu_checks.scale import Scale
from kbatch.runtime import nvidia, tensorflow_private

IMPORTED = ("kbatch.hypermodel", "kbatch.memory._find", "keras", "keras_tuner")
UNCHANGED_BYTES = 20 * 10**6
FILES = {"ptxas": "bin/ptxas", "libdevice": "nvvm/libdevice/libdevice.10.bc"}


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
    before = _nvidia_smi.used_bytes_of_first()
    for name in IMPORTED:
        importlib.import_module(name)
    after = _nvidia_smi.used_bytes_of_first()
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
