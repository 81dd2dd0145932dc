"""GPU check: a question to a real GPU, its process, and the rows of JSON that come of them.

`quick_checks` has those of `kbatch doctor --gpu`, `tests/gpu` all others; `scripts/gpu_check.py`
runs both.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.metadata
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kbatch import __version__
from kbatch.errors import KbatchError
from kbatch.records import files
from kbatch.runtime import device, nvidia
from kbatch.runtime.device_memory import MIB

FAKE, FAKE_NAME = "FAKE_GPU", "FAKE GPU"  # the variable that asks for the fake, and what it says
RESULT = "GPU_CHECK_RESULT"  # the variable that names the file of a process' result
NOT_REHEARSED = "cannot be rehearsed"
JSON_NAME = "pass"  # of `passed`, which Python keeps for itself
LIBRARIES = ("tensorflow", "keras", "keras-tuner", "numpy", "nvidia-ml-py", "nvidia-cudnn-cu12")
RUNNING, COMPLETE, STOPPED = "running", "complete", "stopped"
TIMEOUT_SECONDS = 120
# chosen by hand, not tuned
POLL_SECONDS, ORPHAN_SECONDS = 0.05, 1.0
SAID_CHARACTERS = 1500  # kept of an error, or of the output of a process that failed
TEXT_CHARACTERS = 160  # of a text on the screen; the file has all of it
AT_ONCE = 3  # checks that keep to a memory limit and are not timed
QUESTION = """
import json, tensorflow as tf
details = tf.config.experimental.get_device_details
gpus = tf.config.list_physical_devices("GPU")
print(json.dumps([details(gpu).get("device_name", "GPU") for gpu in gpus]))
"""


@dataclass(frozen=True)
class Scale:
    """How large the checks are on a real GPU, and in a rehearsal on the fake one."""

    rehearsed: bool  # the GPU is the fake, whose kernels are a CPU's
    limit_bytes: int  # the memory limit of most checks
    small_limit_bytes: int  # the limit that is run out of
    block_bytes: int  # of the tensor that the meter is asked about
    image_size: int
    batch_size: int
    updates: int  # of a training that is timed
    seconds: float  # of a training with a horizon
    steps: int  # that an answer of the finder must survive
    processes: int  # fresh ones in which it must
    trials: int  # short trainings in one process
    retraces: int  # how often a recomputed model is traced anew


REAL = Scale(
    rehearsed=False,
    limit_bytes=4 * 10**9,
    small_limit_bytes=2 * 10**9,
    block_bytes=1024 * MIB,
    image_size=200,
    batch_size=64,
    updates=300,
    seconds=5.0,
    steps=100,
    processes=2,
    trials=20,
    retraces=10,
)
REHEARSED = Scale(
    rehearsed=True,
    limit_bytes=200 * 10**6,
    small_limit_bytes=100 * 10**6,
    block_bytes=64 * MIB,
    image_size=32,
    batch_size=16,
    updates=30,
    seconds=3.0,
    steps=10,
    processes=1,
    trials=4,
    retraces=2,
)


def is_rehearsal() -> bool:
    """Tell whether the environment asks for the fake GPU."""
    return bool(os.environ.get(FAKE))


def scale() -> Scale:
    """Return the sizes for this process."""
    return REHEARSED if is_rehearsal() else REAL


@dataclass(frozen=True)
class Result:
    """What a check found: whether its criterion is met (`None`: nobody can say), and numbers."""

    passed: bool | None
    measured: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""

    def unless_rehearsed(self, rehearsed: bool, why: str) -> Result:
        """Return this result; of a rehearsal that passed, that it says nothing of a real GPU."""
        if not rehearsed or not self.passed:
            return self
        return dataclasses.replace(self, passed=None, text=f"{NOT_REHEARSED}: {why}. {self.text}")


@dataclass(frozen=True)
class GpuCheck:
    """One question to a GPU, with the criterion by which its answer passes."""

    name: str  # "L1", or "O1.matmul" for one of several
    criterion: str
    command: tuple[str, ...]  # arguments of Python, whose process writes a `Result`
    seconds_limit: float = 300.0  # after which it is killed and has failed
    expected_seconds: float = 15.0  # that must be left of a budget for it to begin
    shares: bool = False  # keeps to a memory limit and is not timed: others may run beside it
    unrehearsed: str = ""  # why the fake GPU cannot run it; empty if it can

    @property
    def group(self) -> str:
        """The letter of its group."""
        return self.name[0]

    def is_meant_by(self, name: str) -> bool:
        """Tell whether a name means this check: its own, or that of the several it is one of.

        Example:
        >>> check = GpuCheck("O1.matmul", "certain", ())
        >>> check.is_meant_by("O1"), check.is_meant_by("O1.matmul"), check.is_meant_by("O")
        (True, True, False)
        """
        return self.name == name or self.name.startswith(f"{name}.")


@dataclass(frozen=True)
class GpuRow:
    """A check with its result, and the wall-clock seconds of its process."""

    check: str
    passed: bool | None
    criterion: str
    measured: Mapping[str, Any]
    seconds: float
    text: str

    @property
    def word(self) -> str:
        """The result in a word."""
        return {True: "pass", False: "FAIL", None: "-"}[self.passed]

    def line(self, number: int, count: int) -> str:
        """Return the row as a line of text, with how many of all rows there are."""
        text = " ".join(self.text.split())
        if len(text) > TEXT_CHARACTERS:
            text = f"{text[:TEXT_CHARACTERS]} …"
        done = f"[{number:>{len(str(count))}}/{count}]"
        return f"{done} {self.word:<4} {self.check:<26} {self.seconds:6.1f} s  {text}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Return the row as a dict that JSON can hold."""
        fields = dataclasses.asdict(self)
        return {JSON_NAME if name == "passed" else name: value for name, value in fields.items()}


class GpuReport:
    """The rows so far, in a JSON file if there is one, which is whole after each of them."""

    def __init__(self, path: Path | None, gpus: list[str]) -> None:
        self.path, self.rows = path, list[GpuRow]()
        self._ended = RUNNING
        self._head = {
            "kbatch": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cores": device.cores(),
            "libraries": _versions(),
            "gpus": gpus,
            "rehearsed_on_the_fake_gpu": is_rehearsal(),
            "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        self._write()

    def add(self, row: GpuRow) -> None:
        """Add a row, and write the file."""
        self.rows.append(row)
        self._write()

    def end(self, how: str) -> None:
        """Note how the checks ended: `"complete"` or `"stopped"`."""
        self._ended = how
        self._write()

    @property
    def failed(self) -> list[GpuRow]:
        """The rows that failed."""
        return [row for row in self.rows if row.passed is False]

    def summary(self) -> str:
        """Count the rows in one sentence."""
        counted = [sum(row.passed is how for row in self.rows) for how in (True, False, None)]
        told = "{} passed, {} failed, {} could not be judged".format(*counted)
        return told if self.path is None else f"{told}; see {self.path}"

    def _write(self) -> None:
        if self.path is None:
            return
        content: dict[str, Any] = {**self._head, "ended": self._ended}
        content["rows"] = [row.to_dict() for row in self.rows]
        files.write(self.path, json.dumps(content, indent=1, default=str) + "\n")


class Attempt:
    """A running check, in a group of processes of its own, so that its workers end with it."""

    def __init__(self, check: GpuCheck, limit_seconds: float) -> None:
        self.check, self.limit_seconds = check, limit_seconds
        self._folder = tempfile.TemporaryDirectory(
            prefix="kbatch-gpu-check-", ignore_cleanup_errors=True
        )
        self._file = Path(self._folder.name) / "result.json"
        self._said = Path(self._folder.name) / "said.txt"
        self._began = time.monotonic()
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, *check.command],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=self._environment(),
                start_new_session=True,
            )

    @property
    def seconds(self) -> float:
        """Float, wall-clock seconds since the start."""
        return time.monotonic() - self._began

    def result(self) -> Result | None:
        """Return the result of a process that has ended or is past its time; else `None`."""
        if self._process.poll() is None and self.seconds < self.limit_seconds:
            return None
        result = self._read() or self._without_result()
        self.kill()
        return result

    def kill(self) -> None:
        """End the process and all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._folder.cleanup()

    def _environment(self) -> dict[str, str]:
        """The environment, with quiet libraries and a cache that ends with the check."""
        return {
            **os.environ,
            # of a CPU that stands for a GPU: oneDNN ends the process where memory runs out
            **({"TF_ENABLE_ONEDNN_OPTS": "0"} if is_rehearsal() else {}),
            "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
            "KBATCH_CACHE": str(Path(self._folder.name) / "cache"),
            "TMPDIR": self._folder.name,
            RESULT: str(self._file),
        }

    def _read(self) -> Result | None:
        """The result that the process wrote, if it did."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            fields: dict[str, Any] = json.loads(self._file.read_text(encoding="utf-8"))
            return Result(**fields)
        return None

    def _without_result(self) -> Result:
        said = self._said.read_text(errors="replace").strip()[-SAID_CHARACTERS:]
        code = self._process.poll()
        if code is not None:
            measured = {"exit_code": code}
            return Result(False, measured, f"its process ended with code {code}: {said}")
        if self.limit_seconds < self.check.seconds_limit:
            return Result(None, text="the budget was spent while it ran")
        return Result(False, text=f"no answer within {self.limit_seconds:.0f} seconds: {said}")


class Runner:
    """Runs checks one after another, or a few at once, and reports each as soon as it is known."""

    def __init__(
        self,
        report: GpuReport,
        budget_seconds: float = math.inf,
        at_once: int = 1,
        on_row: Callable[[GpuRow, int], None] = lambda row, count: None,
    ) -> None:
        self.report, self.at_once, self.on_row = report, at_once, on_row
        self._ends = time.monotonic() + budget_seconds
        self._running: list[Attempt] = []
        self._count = 0

    def run(self, checks: Sequence[GpuCheck]) -> None:
        """Run the checks in their order.

        A `KeyboardInterrupt` ends the processes; the rows so far stay in the report.
        """
        waiting, self._count = deque(checks), len(checks)
        try:
            while waiting or self._running:
                while waiting and self._has_place_for(waiting[0]):
                    self._begin(waiting.popleft())
                self._collect()
                time.sleep(POLL_SECONDS if self._running else 0)
        except KeyboardInterrupt:
            self.report.end(STOPPED)
            raise
        finally:
            for attempt in self._running:
                attempt.kill()
        self.report.end(COMPLETE)

    def _has_place_for(self, check: GpuCheck) -> bool:
        if not self._running:
            return True
        together = check.shares and all(attempt.check.shares for attempt in self._running)
        return together and len(self._running) < self.at_once

    def _begin(self, check: GpuCheck) -> None:
        left = self._ends - time.monotonic()
        if is_rehearsal() and check.unrehearsed:
            self._add(check, Result(None, text=f"{NOT_REHEARSED}: {check.unrehearsed}"), 0.0)
        elif left < check.expected_seconds:
            self._add(check, Result(None, text="not begun: the budget was spent"), 0.0)
        else:
            self._running.append(Attempt(check, min(check.seconds_limit, left)))

    def _collect(self) -> None:
        for attempt in list(self._running):
            result = attempt.result()
            if result is not None:
                self._running.remove(attempt)
                self._add(attempt.check, result, attempt.seconds)

    def _add(self, check: GpuCheck, result: Result, seconds: float) -> None:
        found, rounded = result.measured, round(seconds, 2)
        row = GpuRow(check.name, result.passed, check.criterion, found, rounded, result.text)
        self.report.add(row)
        self.on_row(row, self._count)


def run(checks: Sequence[GpuCheck], report: GpuReport, budget_seconds: float = math.inf) -> None:
    """Run checks on this machine's GPU, and print a line of each."""

    def shown(row: GpuRow, count: int) -> None:
        print(row.line(len(report.rows), count), flush=True)

    Runner(report, budget_seconds, _at_once(), shown).run(checks)


def gpus() -> list[str]:
    """Return the names of the GPUs that TensorFlow sees, asked in a process of its own."""
    try:
        process = subprocess.run(
            [sys.executable, "-c", QUESTION],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _unseen(f"no answer within {TIMEOUT_SECONDS} seconds") from error
    lines = process.stdout.strip().splitlines()
    names: list[str] = json.loads(lines[-1]) if process.returncode == 0 and lines else []
    if is_rehearsal() and FAKE_NAME not in names:
        said = ", ".join(names) or "no GPU"
        raise KbatchError(
            f"With {FAKE} TensorFlow must see the fake GPU", said, "See tests/fake_gpu"
        )
    if not names:
        raise _unseen("none" if process.returncode == 0 else process.stderr.strip()[-300:])
    return names


def in_child(function: str, *arguments: str) -> tuple[str, ...]:
    """Return the `GpuCheck.command` that calls `"package.module:function"` with a `Scale`."""
    return ("-c", f"from {__name__} import child; child(*{(function, *arguments)!r})")


def child(function: str, *arguments: str) -> None:
    """Be the process of one check: call its function, and write what it finds."""
    end_with_parent()
    module, _, name = function.partition(":")
    tell(found(lambda: getattr(importlib.import_module(module), name)(scale(), *arguments)))
    sys.stdout.flush()
    # what TensorFlow does at the end of a process may crash, and is no part of a check
    os._exit(0)


def found(call: Callable[[], Result]) -> Result:
    """Return what a check finds; an error that it raises is a failure."""
    try:
        return call()
    except Exception as error:
        trace = traceback.format_exc()[-SAID_CHARACTERS:]
        return Result(False, {"error": type(error).__name__}, trace)


def tell(result: Result) -> None:
    """Write a result to the file that the environment names."""
    text = json.dumps(dataclasses.asdict(result), default=_plain)
    files.write(Path(os.environ[RESULT]), text)


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


def _at_once() -> int:
    """How many checks share the GPU: one on the fake, and where memory is short."""
    memory = None if is_rehearsal() else nvidia.memory_bytes()
    # each process takes its limit, and about a GB beside it for CUDA and its libraries
    need = AT_ONCE * (REAL.limit_bytes + 10**9)
    return AT_ONCE if memory is not None and memory[1] > need else 1


def _versions() -> dict[str, str]:
    versions = {}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _unseen(received: str) -> KbatchError:
    return KbatchError(
        "TensorFlow must see a GPU for these checks",
        received,
        f"Run `kbatch doctor` to see why, or rehearse with {FAKE}=1 in a checkout",
    )
