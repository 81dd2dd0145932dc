"""The verification of every model of keras.applications under its plan of the lowest peak.

    python scripts/recompute_applications.py --out scripts/results/recompute_applications.csv

Each model (weights=None, its smallest input, 10 classes) is verified in a process of its own, with
the plan for a batch of 32 and a batch of 2. Losses, gradients, weights and state over 3 steps are
compared with plain training. If they differ, plain training is compared with itself too
(`plain_twice`): TensorFlow itself may not be reproducible. Rows of the file are not made again:
after Ctrl-C the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import rows

SMALLEST = {"Xception": 71, "InceptionV3": 75, "InceptionResNetV2": 75}  # all others take 32
BATCH = 2
# With two examples the weights' gradients are most of the memory, and some plans of the lowest peak
# recompute nothing.
PLANNED_BATCH = 32
TIMEOUT_SECONDS = 1800
COLUMNS = [
    "model",
    "image_size",
    "operations",
    "segments",
    "kept_share",
    "result",
    "plain_twice",
    "seconds",
]


def names() -> list[str]:
    """Return the names of all models, without importing Keras in this process."""
    code = "import keras; print(*[n for n in dir(keras.applications) if n[0].isupper()])"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()


def verified(name: str, strategy: str) -> dict[str, object]:
    """Verify a model in this process, and return its row."""
    import keras
    import numpy as np

    from kbatch import recompute
    from kbatch.errors import RecomputeError

    size = SMALLEST.get(name, 32)
    keras.utils.set_random_seed(0)
    model = getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3), classes=10)
    model.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy", jit_compile=False)
    rng = np.random.default_rng(0)
    x, y = rng.random((BATCH, size, size, 3)).astype("float32"), rng.integers(0, 10, BATCH)
    row: dict[str, object] = {"model": name, "image_size": size}
    try:
        plain = recompute.plan(model, PLANNED_BATCH, "none")
        plan = recompute.plan(model, PLANNED_BATCH, strategy)
        row |= {
            "operations": sum(segment.operations for segment in plan.segments),
            "segments": len(plan.segments),
        }
        row |= {
            "kept_share": round(plan.kept_bytes / plain.kept_bytes, 3),
            "result": str(recompute.verify(model, plan, x, y)),
        }
    except RecomputeError as error:
        row["result"] = f"refused: {error}"
    return row


def in_fresh_process(name: str, strategy: str = "minimal") -> dict[str, object] | None:
    """Verify a model in a fresh process; print its error and return `None` if that failed."""
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, __file__, "--one", json.dumps((name, strategy))]
    try:
        said = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        print(f"{name}: no answer in {TIMEOUT_SECONDS} s", flush=True)
        return None
    if said.returncode:
        last_line = [str(said.returncode), *said.stderr.strip().splitlines()][-1]
        print(f"{name}: {last_line}", flush=True)
        return None
    return dict(json.loads(said.stdout.strip().splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--models", default="")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(verified(*json.loads(options.one))))
        return
    if not options.out:
        parser.error("--out must name a CSV file")
    known = rows.known(options.out, ("model",))
    for name in options.models.split(",") if options.models else names():
        if (name,) in known:
            continue
        began = time.perf_counter()
        row = in_fresh_process(name)
        if row is None:
            continue
        if not str(row["result"]).startswith(("Exact", "refused")):
            again = in_fresh_process(name, "none")
            row["plain_twice"] = again["result"] if again else "failed"
        rows.append(options.out, COLUMNS, {**row, "seconds": round(time.perf_counter() - began)})
    found = rows.read(options.out)
    exact = sum(row["result"].startswith("Exact") for row in found)
    refused = sum(row["result"].startswith("refused") for row in found)
    differ = len(found) - exact - refused
    print(f"{len(found)} models: {exact} exact, {refused} refused, {differ} differ")


if __name__ == "__main__":
    main()
