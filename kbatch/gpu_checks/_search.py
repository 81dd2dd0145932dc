"""Groups S and P: a whole search, answers that are kept, and the tests for a GPU."""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import kbatch
from kbatch import Recipe
from kbatch.gpu_checks.check import Result
from kbatch.gpu_checks.scale import Scale
from kbatch.memory import _cache
from kbatch.memory._find import find_max_batch
from kbatch.memory._max_batch import Probe
from kbatch.runtime import nvidia

BEFORE_KILL = 2  # trainings that have ended when the search is killed
PATIENCE_SECONDS = 240.0


def resumed(scale: Scale) -> Result:
    """S1: search, kill the search, and go on; nothing may be trained twice."""
    folder = Path(tempfile.mkdtemp()) / "search"
    side, seconds, trials = ("16", "1", "2") if scale.rehearsed else ("64", "3", "4")
    options = ["--image-size", side, "--seconds-per-trial", seconds, "--trials", trials]
    command = [sys.executable, "-m", "kbatch", "cats-vs-dogs", *options, "--confirm", "1"]
    command += ["--confirm-top", "1", "--policies", "float32", "--out", str(folder)]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ends = time.monotonic() + PATIENCE_SECONDS
    while len(_trained(folder)) < BEFORE_KILL and first.poll() is None and time.monotonic() < ends:
        time.sleep(0.1)
    killed = first.poll() is None
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = _trained(folder)
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    after = _trained(folder)
    twice = [key for key, count in collections.Counter(after).items() if count > 1]
    names = _names(scale)
    report = folder / "report.md"
    said = report.read_text(encoding="utf-8") if report.is_file() else ""
    problems = {
        "it was not killed": not killed,
        f"it ended with code {second.returncode}: {second.stderr[-500:]}": second.returncode != 0,
        "a training was lost": after[: len(before)] != before,
        f"trained twice: {twice}": bool(twice),
        "the report does not name the GPU": not any(name in said for name in names),
    }
    there = [problem for problem, is_there in problems.items() if is_there]
    measured = {"before_the_kill": len(before), "trainings": len(after), "gpus": names}
    return Result(not there, measured, "; ".join(there))


def kept(scale: Scale) -> Result:
    """S2: find a largest batch twice; the second answer must come from the disk."""
    from kbatch.gpu_checks._data import builder

    probes = list[Probe]()
    answers, seconds = [], []
    for _ in range(2):
        began = time.perf_counter()
        found = find_max_batch(
            builder("cnn", scale),
            recipe=Recipe(optimizer="sgd", learning_rate=1e-3),
            memory_limit=scale.limit_bytes,
            ceiling=8,
            loss="binary_crossentropy",
            on_probe=probes.append,
        )
        answers.append(found)
        seconds.append(time.perf_counter() - began)
        if len(answers) == 1:
            trained = len(probes)
    names = [row[0] for row in nvidia.told("name")]
    device = _cache.device()
    same = answers[0] == answers[1] and len(probes) == trained > 0
    measured = {"first_seconds": seconds[0], "second_seconds": seconds[1], "device": device}
    if scale.rehearsed:
        return Result(same, measured, "not rehearsed: the name of the card")
    named = bool(names) and any(name in device for name in names)
    return Result(same and named, measured, "" if named else f"{names} is not named")


def suite(scale: Scale) -> Result:
    """P1: run the tests for a GPU."""
    folder = Path(kbatch.__file__).parents[1] / "tests" / "gpu"
    if not folder.is_dir():
        return Result(None, text="the tests are in a checkout of the repository only")
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "gpu", "-q", str(folder)],
        capture_output=True,
        text=True,
        cwd=folder.parents[1],
        env={**os.environ},
        check=False,
    )
    last = process.stdout.strip().splitlines()[-1:]
    return Result(process.returncode == 0, {"last_line": last}, process.stdout[-1500:])


def _trained(folder: Path) -> list[str]:
    """The keys of the trainings that ended, in their order."""
    path = folder / "search" / "kbatch" / "records.jsonl"
    lines = path.read_text(errors="replace").split("\n")[:-1] if path.exists() else []
    return [json.loads(line)["key"] for line in lines if '"event": "ended"' in line]


def _names(scale: Scale) -> list[str]:
    """Names that a report may give the GPU."""
    return ["FAKE GPU"] if scale.rehearsed else [row[0] for row in nvidia.told("name")]
