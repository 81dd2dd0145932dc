"""A search with several workers whose process is killed goes on, and makes nothing twice."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from short_searches import build, SPACE
import numpy as np, kbatch
rng = np.random.default_rng(0)
x = rng.normal(size=(320, 12)).astype("float32")
y = (x[:, 0] > 0).astype("int32")
executor = {"local": kbatch.LocalExecutor, "ray": kbatch.RayExecutor}[sys.argv[3]](workers=2)
tuner = kbatch.Tuner(
    build, SPACE, seconds_per_trial=1, executor=executor, directory=sys.argv[2], project_name="p"
)
tuner.search(x[:240], y[:240], validation_data=(x[240:], y[240:]), max_trials=8, verbose=0)
print("best", len(tuner.oracle.get_best_trials(20)))
"""


def events(project):
    file = project / "kbatch" / "records.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["local", "ray"])
def test_a_killed_search_goes_on(executor, tmp_path):
    tests, project = str(Path(__file__).parents[1] / "support"), tmp_path / "p"
    command = [sys.executable, "-c", SCRIPT, tests, str(tmp_path), executor]
    for ended in (1, 3, 5):  # trainings after which it is killed
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        while process.poll() is None and _ended(project) < ended:
            time.sleep(0.05)
        time.sleep(0.3 * ended)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    records = [event["record"] for event in events(project) if event["event"] == "ended"]
    assert sorted(record["trial"] for record in records) == list(range(-1, 8))
    assert {record["outcome"]["ended"] for record in records} <= {"horizon", "stopped"}
    assert not list((project / "kbatch").glob("isolated*"))


def _ended(project):
    return sum(event["event"] == "ended" for event in events(project))
