"""Child: the process of one check. `python -m kbatch.gpu_checks.child MODULE:FUNCTION FILE …`."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from kbatch.gpu_checks.check import Result
from kbatch.gpu_checks.scale import scale
from kbatch.records import files

ORPHAN_SECONDS = 1.0  # between two looks for the parent; chosen by hand, not tuned
TRACE_CHARACTERS = 1500


def main(function: str, file: str, *arguments: str) -> None:
    """Run one check, and write its result."""
    result = found(function, arguments)
    text = json.dumps(dataclasses.asdict(result), default=_plain)
    files.write(Path(file), text)


def found(function: str, arguments: tuple[str, ...] = ()) -> Result:
    """Return what a check finds; an error that it raises is a failure."""
    module, _, name = function.partition(":")
    try:
        result: Result = getattr(importlib.import_module(module), name)(scale(), *arguments)
    except Exception as error:
        trace = traceback.format_exc()[-TRACE_CHARACTERS:]
        return Result(False, {"error": type(error).__name__}, trace)
    return result


def end_with_parent() -> None:
    """End this process and all that it started when its parent is gone."""
    parent = os.getppid()

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(ORPHAN_SECONDS)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=look, daemon=True).start()


def _plain(value: object) -> object:
    """A number of NumPy as Python's own; anything else as text."""
    return value.item() if hasattr(value, "item") else str(value)


if __name__ == "__main__":
    end_with_parent()
    main(*sys.argv[1:])
    sys.stdout.flush()
    # what TensorFlow does at the end of a process may crash, and is no part of a check
    os._exit(0)
