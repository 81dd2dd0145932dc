"""Kill the driver at random moments and start it again: no finished trial may be lost.

Usage: python scripts/kill_and_resume.py [--kills 20] [--seed 0] [--out FOLDER]
[--also="--isolated --tuner kbatch"] [--workers]

The driver is killed by SIGKILL, each time followed by the same command. With `--workers` every
other kill hits a process that trains for the driver, which goes on (Linux only). The script prints
how many trainings had finished at each kill, and exits with 1 if a record was lost, changed or made
twice. `--also` gives the driver further options.
"""

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRIALS = 12
SEARCH = (
    f"cats-vs-dogs --image-size 16 --trials {TRIALS} --seconds-per-trial 1 --confirm 2 "
    "--policies float32"
)


def ended(folder: Path) -> list[str]:
    """Return the complete lines that say a training ended, in order."""
    path = folder / "search" / "kbatch" / "records.jsonl"
    lines = path.read_text(errors="replace").split("\n")[:-1] if path.exists() else []
    return [line for line in lines if '"event": "ended"' in line]


def workers(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def killed_worker(process: subprocess.Popen, moments: random.Random) -> bool:
    """Kill a worker of a driver that runs, if there is one within 30 seconds."""
    for _ in range(300):
        found = workers(process.pid)
        if found:
            time.sleep(moments.uniform(0.0, 3.0))
            for pid in workers(process.pid):
                os.kill(pid, signal.SIGKILL)
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.1)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--also", default="")
    parser.add_argument("--workers", action="store_true")
    options = parser.parse_args()
    folder = options.out or Path(tempfile.mkdtemp())
    command = [sys.executable, "-m", "kbatch", *SEARCH.split(), *options.also.split()]
    command += ["--out", str(folder)]
    moments, before = random.Random(options.seed), []
    for kill in range(options.kills):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        if options.workers and kill % 2:
            hit = killed_worker(process, moments)
            print("a worker was killed" if hit else "there was no worker to kill", flush=True)
        time.sleep(moments.uniform(0.5, 9.0))
        alive = process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        after = ended(folder)
        print(
            f"kill {kill}: {'killed' if alive else 'had ended'}, {len(after)} trainings finished",
            flush=True,
        )
        if after[: len(before)] != before:
            print("LOST or changed a finished training")
            return 1
        before = after
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    records = [json.loads(line) for line in ended(folder)]
    keys = [record["key"] for record in records]
    counted = collections.Counter(record["record"]["outcome"]["ended"] for record in records)
    endings = {how: counted[how] for how in ("horizon", "crashed")}
    twice = len(keys) - len(set(keys))
    kept = ended(folder)[: len(before)] == before
    trainings = f"{len(keys)} trainings, {endings}, {twice} made twice, kept all: {kept}"
    print(f"last run: exit code {result.returncode}; {trainings}")
    searched = sum(record["record"]["purpose"] == "search" for record in records)
    whole = result.returncode == 0 and not twice and kept and searched == TRIALS
    print("ok" if whole else result.stderr)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
