"""The processor: the cores that a process may use."""

import os
import platform
import subprocess
import sys

import pytest

from kbatch.runtime import device


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_a_process_kept_to_one_core_is_told_one():
    first = min(os.sched_getaffinity(0))
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import os; os.sched_setaffinity(0, [{first}]);"
            "from kbatch.runtime import device; print(device.processor_words())",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip().endswith(", 1 core")


def test_all_cores_are_told_where_nothing_is_kept_from_them(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert device.cores() == os.cpu_count()
    monkeypatch.setattr(device, "cores", lambda: 8)
    monkeypatch.setattr(device, "processor_name", lambda: None)
    assert device.processor_words() == f"{platform.machine()}, 8 cores"
