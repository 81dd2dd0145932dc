"""The benchmark of means to a larger batch: policy, recompute, both, and accumulation.

The model is ResNet50 at 96 px, under 1000 MB.

    python scripts/bench_ladder.py --out scripts/results/ladder.csv

Each rung is `kbatch.find_max_batch` for one recipe, in processes of its own, with its
confirmations. Rungs in float32 come first: on a CPU an example in mixed_float16 takes about four
times as long, and in mixed_bfloat16 sixteen times, with oneDNN off (by hand, ResNet50, batch 4).
Rows of the file are not measured again: after Ctrl-C the same command goes on.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

# With oneDNN, running out of memory ends the process instead of raising an error.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import rows

from kbatch import Recipe, find_max_batch

LIMIT = "1000MB"
STEPS = 4  # of accumulation
# Steps in each fresh process: 20 in float16 would take this CPU over an hour a rung.
CONFIRMED_STEPS = {"float32": 20, "mixed_float16": 5}
# On a busy machine, three steps in float16 take longer than the finder's ten minutes.
TIMEOUT_SECONDS = 3600
RUNGS = (
    ("none", "float32", "none", 1),
    ("recompute", "float32", "minimal", 1),
    ("recompute, half kept", "float32", "budget:0.5", 1),
    (f"recompute, {STEPS} passes", "float32", "minimal", STEPS),
    ("policy", "mixed_float16", "none", 1),
    ("both", "mixed_float16", "minimal", 1),
    (f"both, {STEPS} passes", "mixed_float16", "minimal", STEPS),
)
COLUMNS = [
    "rung",
    "policy",
    "recompute",
    "micro_batch_size",
    "accumulation_steps",
    "batch_size",
    "peak_bytes",
    "first_failing",
    "seconds_per_example",
    "confirmed_steps",
]


def build():
    """Return ResNet50 at 96 px, compiled."""
    import keras

    model = keras.applications.ResNet50(weights=None, input_shape=(96, 96, 3), classes=10)
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def row(rung: str, policy: str, recompute: str, steps: int) -> dict[str, object]:
    """Return the row of one rung."""
    recipe = Recipe(
        steps,
        "sgd",
        1e-3,
        policy=policy,
        recompute=recompute,
        micro_batch_size=1 if steps > 1 else None,
    )
    found = find_max_batch(
        build,
        (96, 96, 3),
        recipe=recipe,
        memory_limit=LIMIT,
        confirmed_steps=CONFIRMED_STEPS[policy],
        timeout_seconds=TIMEOUT_SECONDS,
        on_probe=lambda probe: print(
            f"{rung}: batch {probe.batch_size} {probe.ended} after {probe.seconds:.0f} s",
            flush=True,
        ),
    )
    last = next(probe for probe in reversed(found.confirmations) if probe.passed)
    seconds = statistics.median(last.step_seconds[2:])
    return {
        "rung": rung,
        "policy": policy,
        "recompute": recompute,
        "micro_batch_size": found.batch_size,
        "accumulation_steps": steps,
        "batch_size": found.batch_size * steps,
        "peak_bytes": found.peak_bytes,
        "first_failing": found.first_failing or "",
        "seconds_per_example": round(seconds / last.batch_size, 4),
        "confirmed_steps": CONFIRMED_STEPS[policy],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    os.environ["KBATCH_CACHE"] = tempfile.mkdtemp()
    known = rows.known(options.out, ("rung",))
    for rung in RUNGS:
        if rung[:1] not in known:
            rows.append(options.out, COLUMNS, row(*rung))
    found = rows.read(options.out)
    plain = int(found[0]["batch_size"])
    for one in found:
        print(f"{one['rung']:<22}{one['batch_size']:>6}{int(one['batch_size']) / plain:>7.2f}x")


if __name__ == "__main__":
    main()
