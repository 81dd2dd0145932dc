"""Checks for the tests of the runner: one passes, one fails, one hangs, one dies."""

import os
import subprocess
import sys
import time
from pathlib import Path

from kbatch.cli.gpu_check import GpuCheck, Result, in_child


def passes(scale, *words):
    return Result(True, {"words": list(words), "rehearsed": scale.rehearsed}, "as it must")


def fails(scale):
    return Result(False, {"number": 7}, "too far")


def raises(scale):
    raise ValueError("no such card")


def dies(scale):
    print("last words", flush=True)
    os.kill(os.getpid(), 9)


def hangs(scale, file=""):
    """Hangs, with a process of its own whose id is written to a file."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if file:
        Path(file).write_text(str(child.pid))
    time.sleep(600)


def notes(scale, folder):
    """Notes when it ran, and how many ran beside it."""
    own = Path(folder) / str(os.getpid())
    own.touch()
    time.sleep(0.7)
    beside = len(list(Path(folder).iterdir()))
    own.unlink()
    return Result(True, {"beside": beside})


def check(name, function, *arguments, **more):
    more = {"seconds_limit": 30.0, "expected_seconds": 0.0, **more}
    return GpuCheck(name, "a criterion", in_child(f"made_up_checks:{function}", *arguments), **more)
