"""A whole search that is killed, and answers that are kept (S)."""

from __future__ import annotations

import collections
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from gpu_models import builder

from kbatch import Recipe
from kbatch.cli.gpu_check import FAKE_NAME, Result, Scale
from kbatch.memory import _cache
from kbatch.memory._find import find_max_batch
from kbatch.memory._max_batch import Probe
from kbatch.runtime import nvidia

BEFORE_KILL = 2  # trainings that have ended when the search is killed
PATIENCE_SECONDS = 240.0


@pytest.mark.gpu(
    "S1",
    "a search that is killed goes on: exit code 0, the report names the GPU, nothing is "
    "trained twice",
    seconds_limit=600,
    expected_seconds=60,
)
def test_a_killed_search_goes_on(scale: Scale) -> Result:
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


@pytest.mark.gpu(
    "S2",
    "a second find_max_batch gives the same answer and trains nothing; the key names the GPU",
    expected_seconds=40,
    shares=True,
)
def test_an_answer_is_kept(scale: Scale) -> Result:
    """S2: find a largest batch twice; the second answer must come from the disk."""
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


def _trained(folder: Path) -> list[str]:
    """The keys of the trainings that ended, in their order."""
    path = folder / "search" / "kbatch" / "records.jsonl"
    lines = path.read_text(errors="replace").split("\n")[:-1] if path.exists() else []
    return [json.loads(line)["key"] for line in lines if '"event": "ended"' in line]


def _names(scale: Scale) -> list[str]:
    """Names that a report may give the GPU."""
    return [FAKE_NAME] if scale.rehearsed else [row[0] for row in nvidia.told("name")]
