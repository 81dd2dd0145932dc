"""Group M: the meter of memory, waiting for the GPU, and the training clock."""

from __future__ import annotations

import time
from typing import Any

import keras
import tensorflow as tf

from kbatch.callbacks.clock import TrainingClock
from kbatch.gpu_checks import _nvidia_smi
from kbatch.gpu_checks._data import noise
from kbatch.gpu_checks.check import Result
from kbatch.gpu_checks.scale import Scale
from kbatch.models.case_study import cnn
from kbatch.runtime import device_memory

SIDE, QUEUED = 8192, 20  # matmuls that are queued: 22 seconds' worth of a CPU, half of a GPU
NEAR, WALL_NEAR = 0.01, 0.02
QUEUED_SHARE, FASTEST = 0.2, 0.9


def block(scale: Scale) -> Result:
    """M1: hold a tensor of known size, and let it go."""
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
        abs(measured[name] - scale.block_bytes) <= NEAR * scale.block_bytes
        for name in ("current_grew", "peak_grew")
    )
    fresh = measured["after_current"] == measured["after_peak"] is not None
    returned = (measured["after_current"] or 0) - before < NEAR * scale.block_bytes
    return Result(near and fresh and returned, measured)


def wait(scale: Scale) -> Result:
    """M2: queue work, and wait for it."""
    square = tf.random.stateless_normal((SIDE, SIDE), (1, 2))
    product = tf.matmul(square, square)
    device_memory.wait()
    began = time.perf_counter()
    for _ in range(QUEUED):
        product = tf.matmul(square, product)
    queued = time.perf_counter() - began
    device_memory.wait()
    whole = time.perf_counter() - began
    measured = {"queued_seconds": queued, "seconds": whole, "share": queued / whole}
    return Result(queued < QUEUED_SHARE * whole, measured)


def clock(scale: Scale) -> Result:
    """M3: compare the training clock with the wall clock, and a clocked fit with a plain one."""
    device_memory.apply_limit(None)
    wall = _Wall()
    timed = TrainingClock()
    clocked_seconds = _fit_seconds(scale, [wall, timed, wall.after()])
    plain_seconds = min(_fit_seconds(scale, []) for _ in range(2))
    seconds = sum(timed.update_seconds)
    measured = {
        "updates": timed.updates,
        "clock_seconds": seconds,
        "wall_seconds": wall.seconds,
        "plain_fit_seconds": plain_seconds,
        "clocked_fit_seconds": clocked_seconds,
        "plain_over_clocked": plain_seconds / clocked_seconds,
    }
    agrees = abs(seconds - wall.seconds) <= WALL_NEAR * wall.seconds
    if scale.rehearsed:
        text = "not rehearsed: plain fit / clocked fit, since a CPU queues nothing"
        return Result(agrees, measured, text)
    return Result(agrees and plain_seconds / clocked_seconds >= FASTEST, measured)


def other_cards(scale: Scale) -> Result:
    """M4: wait for the first card; the second one must not be touched."""
    tf.zeros(1)  # TensorFlow makes a context of CUDA on every card when it begins
    before = _nvidia_smi.used_bytes()
    if len(tf.config.list_physical_devices("GPU")) < 2 or len(before) < 2:
        return Result(None, {"cards": len(before)}, "this machine has one card")
    device_memory.wait()
    after = _nvidia_smi.used_bytes()
    grown = [now - then for now, then in zip(after, before, strict=True)]
    # what others do in a second is less
    return Result(max(grown[1:]) < 100 * 10**6, {"grown_bytes": grown})


class _Wall(keras.callbacks.Callback):
    """Wall-clock seconds from the first batch to the end of the last."""

    def __init__(self) -> None:
        super().__init__()
        self._began, self.seconds = 0.0, 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Note the first batch."""
        self._began = self._began or time.perf_counter()

    def after(self) -> keras.callbacks.Callback:
        """Return a callback that notes the last batch, after the callbacks between them."""

        def ended(batch: int, logs: Any = None) -> None:
            self.seconds = time.perf_counter() - self._began

        return keras.callbacks.LambdaCallback(on_train_batch_end=ended)


def _fit_seconds(scale: Scale, callbacks: list[Any]) -> float:
    """Seconds of a fit whose model has been traced before."""
    keras.utils.set_random_seed(0)
    model = cnn(scale.image_size)
    model.compile("sgd", "binary_crossentropy", jit_compile=False)
    x, y = noise((scale.image_size, scale.image_size, 3), 2 * scale.batch_size)
    with tf.device("CPU:0"):
        rows = tf.data.Dataset.from_tensor_slices((x, y)).repeat()
        batches = rows.batch(scale.batch_size, drop_remainder=True).prefetch(2)
    model.fit(batches, steps_per_epoch=3, verbose=0)
    device_memory.wait()
    began = time.perf_counter()
    model.fit(batches, steps_per_epoch=scale.updates, verbose=0, callbacks=callbacks)
    device_memory.wait()
    return time.perf_counter() - began
