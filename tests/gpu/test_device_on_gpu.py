"""The device: the meter of memory (M), the memory limit (L), and data that stay on the host (D)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import pytest
import tensorflow as tf
from gpu_models import builder, noise

import kbatch
from kbatch.callbacks.clock import TrainingClock
from kbatch.cli.gpu_check import Result, Scale
from kbatch.cli.quick_checks import allocates, used_bytes
from kbatch.data.streams import training_source
from kbatch.errors import MemoryLimitError
from kbatch.models.case_study import cnn
from kbatch.runtime import device_memory, nvidia
from kbatch.runtime.worker import Worker

SIDE, QUEUED = 8192, 20  # matmuls that are queued: 22 seconds' worth of a CPU, half of a GPU
WALL_NEAR, QUEUED_SHARE, FASTEST = 0.02, 0.2, 0.9
RESERVED = int(1.8 * (1 << 30))  # TensorFlow leaves so much of a card to CUDA and its libraries
NEAR, ALL_BUT = 0.03, 0.97
BACK_SECONDS = 5.0
HOST_BYTES = 2 << 30
HELD_SLACK = 64 * device_memory.MIB
LARGE_BYTES, MOST_BYTES = 6 * 10**9, 10**8
FED = 0.7  # share of the speed without a pipeline, below which a remark must say so
LOSS = "binary_crossentropy"
TWO_MEMORIES = "the fake's memory and the host's are one"
HOLD = "shortages:hold"
PARENT = """
import sys, time
from kbatch.runtime.worker import Worker
sys.path.insert(0, {folder!r})
worker = Worker()
print(worker.call({hold!r}, {size}, timeout_seconds=100), flush=True)
time.sleep(600)
"""


@pytest.mark.gpu(
    "M2",
    "20 matmuls of 8192 x 8192 are queued in < 20 % of the time until `wait` returns",
    seconds_limit=120,
)
@pytest.mark.unrehearsed("a CPU has computed when it returns")
def test_wait_waits_for_what_is_queued(scale: Scale) -> Result:
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


@pytest.mark.gpu("M3", "the clock's seconds are the wall's to 2 %; plain fit / clocked fit >= 0.9")
def test_the_clock_is_the_walls(scale: Scale) -> Result:
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


@pytest.mark.gpu("M4", "used bytes of the second card are unchanged after `wait`")
@pytest.mark.unrehearsed("the fake has no driver that tells the bytes of a card")
def test_other_cards_are_left_alone(scale: Scale) -> Result:
    """M4: wait for the first card; the second one must not be touched."""
    tf.zeros(1)  # TensorFlow makes a context of CUDA on every card when it begins
    before = _used_bytes_of_all()
    if len(tf.config.list_physical_devices("GPU")) < 2 or len(before) < 2:
        return Result(None, {"cards": len(before)}, "this machine has one card")
    device_memory.wait()
    after = _used_bytes_of_all()
    grown = [now - then for now, then in zip(after, before, strict=True)]
    # what others do in a second is less
    return Result(max(grown[1:]) < 100 * 10**6, {"grown_bytes": grown})


def _used_bytes_of_all() -> list[int]:
    """What the driver says is used of each GPU."""
    told = nvidia.told("memory.used")
    return [int(row[0]) * device_memory.MIB for row in told if row[0].isdecimal()]


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


@pytest.mark.gpu(
    "L2",
    "without a limit the free bytes less 1.8 GiB to 3 %; a block of 97 % of them allocates",
    seconds_limit=90,
)
def test_the_whole_card_can_be_taken(scale: Scale) -> Result:
    """L2: take all of the card, and hold one block of nearly all of that."""
    memory = nvidia.smi_memory_bytes()
    applied = device_memory.apply_limit(None) or 0
    fits = applied > 0 and allocates(ALL_BUT * applied)
    expected = None if memory is None else memory[1] - RESERVED
    measured = {"applied_bytes": applied, "expected_bytes": expected, "block_fits": fits}
    if scale.rehearsed:
        return Result(fits, measured, "not rehearsed: what the driver says is free")
    if expected is None:
        return Result(None, measured, "the driver did not tell the free bytes")
    return Result(fits and abs(applied - expected) <= NEAR * expected, measured)


@pytest.mark.gpu("L3", "a limit above the card's memory is refused, or cut to it", seconds_limit=90)
@pytest.mark.unrehearsed(TWO_MEMORIES)
def test_no_limit_is_above_the_card(scale: Scale) -> Result:
    """L3: ask for more than the card has."""
    memory = nvidia.smi_memory_bytes()
    total = None if memory is None else memory[0]
    asked = max(200 * 10**9, 2 * (total or 0))
    try:
        device_memory.checked_limit(asked)
        applied = device_memory.apply_limit(asked)
    except MemoryLimitError as error:
        return Result(True, {"asked_bytes": asked, "refused": str(error)})
    measured = {"asked_bytes": asked, "applied_bytes": applied, "total_bytes": total}
    return Result(applied is not None and total is not None and applied <= total, measured)


@pytest.mark.gpu(
    "L4",
    "2 GiB allocate on the host under a limit of 1 GB for the GPU",
    seconds_limit=90,
    shares=True,
)
@pytest.mark.unrehearsed(TWO_MEMORIES)
def test_the_host_has_no_limit(scale: Scale) -> Result:
    """L4: hold more on the host than the GPU may use."""
    device_memory.apply_limit(10**9)
    with tf.device("CPU:0"):
        held = tf.zeros((HOST_BYTES // 4,))
    return Result(int(held.shape[0]) == HOST_BYTES // 4, {"device": held.device})


@pytest.mark.gpu(
    "L5",
    "within 5 s after a worker is killed, or its parent, the GPU's used bytes are back",
    seconds_limit=150,
)
def test_memory_comes_back_of_the_killed(scale: Scale) -> Result:
    """L5: kill a worker, and the parent of another one; their memory must come back."""
    worker, before = Worker(), used_bytes()
    pid = worker.call(HOLD, scale.block_bytes, timeout_seconds=100)
    held = used_bytes()
    os.kill(pid, signal.SIGKILL)
    of_worker = _seconds_until(lambda: _is_back(pid, before))
    worker.close()
    folder = str(Path(__file__).parent)
    code = PARENT.format(folder=folder, hold=HOLD, size=scale.block_bytes)
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    orphan = int(parent.stdout.readline()) if parent.stdout else 0
    parent.kill()
    parent.wait()
    of_parent = _seconds_until(lambda: _is_back(orphan, before))
    measured = {
        "used_before": before,
        "used_while_held": held,
        "seconds_after_worker": of_worker,
        "seconds_after_parent": of_parent,
    }
    passed = max(of_worker, of_parent) <= BACK_SECONDS
    if before is None and not scale.rehearsed:
        return Result(None if passed else False, measured, "the driver did not tell the used bytes")
    why = "the fake's memory is the host's, which ends with the process"
    return Result(passed, measured).unless_rehearsed(scale.rehearsed, why)


def _is_back(pid: int, before: int | None) -> bool:
    """Whether a process is gone, and its memory with it."""
    try:
        if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            return False
    except psutil.NoSuchProcess:
        pass
    used = used_bytes()
    return before is None or used is None or used <= before + HELD_SLACK


def _seconds_until(holds: Callable[[], bool]) -> float:
    """Seconds until something holds; twice the time it may take if it does not."""
    began = time.perf_counter()
    while not holds() and time.perf_counter() - began < 2 * BACK_SECONDS:
        time.sleep(0.05)
    return time.perf_counter() - began


@pytest.mark.gpu("D1", "preparing 6 GB of data under a limit of 4 GB takes < 100 MB of the GPU")
@pytest.mark.unrehearsed(TWO_MEMORIES)
def test_prepared_data_stay_on_the_host(scale: Scale) -> Result:
    """D1: prepare more data than the GPU may hold."""
    device_memory.apply_limit(scale.limit_bytes)
    side = scale.image_size
    x = np.zeros((LARGE_BYTES // (side * side * 3), side, side, 3), "uint8")
    y = np.zeros((len(x), 1), "float32")
    tf.zeros(1)
    before = device_memory.bytes_now() or 0
    device_memory.reset_peak()
    source = training_source(x, y)
    source.fingerprint()
    for _ in source.stream(scale.batch_size, seed=0).take(2):
        pass
    peak = (device_memory.bytes_peak() or 0) - before
    return Result(peak < MOST_BYTES, {"x_bytes": x.nbytes, "peak_bytes": peak})


@pytest.mark.gpu(
    "D2",
    "examples/s against those of data on the GPU: >= 0.7, or a remark says that it waits",
    expected_seconds=30,
)
def test_a_training_that_waits_for_data_says_so(scale: Scale) -> Result:
    """D2: compare the examples per second with those of data that are on the GPU already."""
    device_memory.apply_limit(None)
    side, build = scale.image_size, builder("cnn", scale)
    x, y = noise((side, side, 3), 20 * scale.batch_size)
    recipe = kbatch.Recipe(scale.batch_size, "sgd", 0.001)
    few = (x[: scale.batch_size], y[: scale.batch_size])
    arguments: dict[str, Any] = {"loss": LOSS, "metrics": ["accuracy"]}
    _, outcome = kbatch.train(recipe, build, x, y, few, seconds=scale.seconds, **arguments)
    kept = _examples_per_second_on_the_device(scale, build(), *few)
    share = outcome.examples_per_second / kept
    remarks = [remark for remark in outcome.remarks if "waits for input" in remark]
    measured = {
        "examples_per_second": outcome.examples_per_second,
        "kept_on_the_device": kept,
        "share": share,
        "remarks": list(outcome.remarks),
    }
    text = "" if share >= FED or remarks else "slow, and no remark says that it waits for input"
    result = Result(not text, measured, text)
    return result.unless_rehearsed(scale.rehearsed, "the fake copies nothing to a device")


def _examples_per_second_on_the_device(
    scale: Scale, model: keras.Model, x: np.ndarray, y: np.ndarray
) -> float:
    """The speed of a plain train function on one batch that stays where it is."""
    model.compile(keras.optimizers.SGD(0.001), LOSS, metrics=["accuracy"], jit_compile=False)
    batch = (tf.identity(tf.constant(x)), tf.identity(tf.constant(y)))
    model.optimizer.build(model.trainable_variables)
    step = tf.function(model.train_step)
    for _ in range(3):
        step(batch)
    device_memory.wait()
    began = time.perf_counter()
    for _ in range(scale.updates):
        step(batch)
    device_memory.wait()
    return scale.updates * len(x) / (time.perf_counter() - began)
