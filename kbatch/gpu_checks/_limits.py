"""Group L: the memory limit, on the GPU and not on the host, and memory that comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import tensorflow as tf

from kbatch.errors import MemoryLimitError
from kbatch.gpu_checks import _nvidia_smi
from kbatch.gpu_checks.check import Result
from kbatch.gpu_checks.scale import Scale
from kbatch.runtime import device_memory
from kbatch.runtime.oom import is_out_of_memory
from kbatch.runtime.worker import Worker

# shares of the limit: of 3814 MiB these are 3.6, 4.1 and 1.0 GiB
FITS, TOO_MUCH, SMALL = 0.965, 1.1, 0.27
WAITED_SECONDS = 15.0
RESERVED = int(1.8 * (1 << 30))  # TensorFlow leaves so much of a card to CUDA and its libraries
NEAR, ALL_BUT = 0.03, 0.97
BACK_SECONDS = 5.0
HOST_BYTES = 2 << 30
HELD_SLACK = 64 * device_memory.MIB
HOLD = "kbatch.gpu_checks._limits:hold"
PARENT = """
import sys, time
from kbatch.runtime.worker import Worker
worker = Worker()
print(worker.call({hold!r}, {size}, timeout_seconds=100), flush=True)
time.sleep(600)
"""


def limited(scale: Scale) -> Result:
    """L1: keep to a limit, run out of it, and go on."""
    asked = scale.limit_bytes // device_memory.MIB * device_memory.MIB
    applied = device_memory.apply_limit(scale.limit_bytes)
    fits = _allocates(FITS * asked)
    began = time.perf_counter()
    error = _error(TOO_MUCH * asked)
    seconds = time.perf_counter() - began
    again = _allocates(SMALL * asked)
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


def whole(scale: Scale) -> Result:
    """L2: take all of the card, and hold one block of nearly all of that."""
    free = _nvidia_smi.free_bytes()
    applied = device_memory.apply_limit(None) or 0
    fits = applied > 0 and _allocates(ALL_BUT * applied)
    expected = None if free is None else free - RESERVED
    measured = {"applied_bytes": applied, "expected_bytes": expected, "block_fits": fits}
    if scale.rehearsed:
        return Result(fits, measured, "not rehearsed: what the driver says is free")
    if expected is None:
        return Result(None, measured, "the driver did not tell the free bytes")
    return Result(fits and abs(applied - expected) <= NEAR * expected, measured)


def more_than_there_is(scale: Scale) -> Result:
    """L3: ask for more than the card has."""
    total = _nvidia_smi.total_bytes()
    asked = max(200 * 10**9, 2 * (total or 0))
    try:
        device_memory.checked_limit(asked)
        applied = device_memory.apply_limit(asked)
    except MemoryLimitError as error:
        return Result(True, {"asked_bytes": asked, "refused": str(error)})
    measured = {"asked_bytes": asked, "applied_bytes": applied, "total_bytes": total}
    return Result(applied is not None and total is not None and applied <= total, measured)


def host(scale: Scale) -> Result:
    """L4: hold more on the host than the GPU may use."""
    device_memory.apply_limit(10**9)
    with tf.device("CPU:0"):
        held = tf.zeros((HOST_BYTES // 4,))
    return Result(int(held.shape[0]) == HOST_BYTES // 4, {"device": held.device})


def killed(scale: Scale) -> Result:
    """L5: kill a worker, and the parent of another one; their memory must come back."""
    worker, before = Worker(), _nvidia_smi.used_bytes_of_first()
    pid = worker.call(HOLD, scale.block_bytes, timeout_seconds=100)
    held = _nvidia_smi.used_bytes_of_first()
    os.kill(pid, signal.SIGKILL)
    of_worker = _seconds_until(lambda: _is_back(pid, before))
    worker.close()
    code = PARENT.format(hold=HOLD, size=scale.block_bytes)
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


def hold(size: int) -> int:
    """Take bytes of the device in a worker, and return its process id."""
    global _held
    device_memory.apply_limit(2 * size)
    _held = tf.zeros((size // 4,))
    device_memory.wait()
    return os.getpid()


_held: object = None


def _is_back(pid: int, before: int | None) -> bool:
    """Whether a process is gone, and its memory with it."""
    try:
        if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            return False
    except psutil.NoSuchProcess:
        pass
    used = _nvidia_smi.used_bytes_of_first()
    return before is None or used is None or used <= before + HELD_SLACK


def _seconds_until(holds: Callable[[], bool]) -> float:
    """Seconds until something holds; twice the time it may take if it does not."""
    began = time.perf_counter()
    while not holds() and time.perf_counter() - began < 2 * BACK_SECONDS:
        time.sleep(0.05)
    return time.perf_counter() - began


def _error(size: float) -> Exception | None:
    """The error of taking so many bytes; `None` if there is none."""
    try:
        tf.zeros((int(size) // 4,))
        device_memory.wait()
    except Exception as error:
        return error
    return None


def _allocates(size: float) -> bool:
    return _error(size) is None
