"""The benchmark of placements: kbatch's cuts beside cuts placed by hand, and beside Keras' own.

    pip install -e '.[hub]'
    python scripts/bench_placements.py --out scripts/results/placements.csv

By hand a model is cut after every block, after every second one, or into √n stretches of blocks
(Chen et al., 2016). `RematScope` is `keras.RematScope("list_of_layers")` with the names of the
blocks where a block is a layer, else `keras.RematScope("activations")`. `kbatch` is the plan of
`"minimal"`, `kbatch best` that of `best_plan`.

Each row is from processes of its own. The peak is the median of three, above what is held before a
step. The time is the median over pairs of steps, one of the plan and one of the plain model in
turn, of the CPU seconds of the one over those of the other. Rows of the file are not measured
again: after Ctrl-C the same command goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rows
from bench_recompute import peak

METHODS = ("none", "kbatch", "kbatch best", "every block", "every second", "√n", "RematScope")
POLICIES = ("float32", "mixed_bfloat16")
PAIRS = 7
PROCESSES = 3
COLUMNS = (
    "model",
    "policy",
    "jit_compile",
    "method",
    "blocks",
    "segments",
    "peak_bytes",
    "lowest_peak_bytes",
    "highest_peak_bytes",
    "predicted_bytes",
    "time_ratio",
    "equal_to",
)


@dataclass(frozen=True)
class Case:
    """A model, where its blocks end, and a batch."""

    build: Callable[[], Any]
    ends: str  # pattern of the names of the operations that end a block
    x: Any
    y: Any
    layers: str = ""  # pattern of the names of the layers that are a block


def cases() -> dict[str, Case]:
    """Models of 12 to 24 blocks, narrow; built by `bench_models.py` where it has them."""
    import bench_models as models

    block = r"transformer_layer_\d+$"
    narrow = {**models.TEXT, **models.HEADS, "num_layers": 24}

    def gpt():
        hub = models.models
        return hub.GPT2CausalLM(hub.GPT2Backbone(**narrow), preprocessor=None)

    return {
        "BERT": Case(
            models.bert,
            r"transformer_layer_\d+/feedforward_layer_norm$",
            models.PAIRS,
            models.LABELS,
            block,
        ),
        "GPT": Case(gpt, block, models.TOKENS, models.IDS, block),
        "ViT": Case(
            models.vit,
            r"transformer_block_\d+$",
            models.IMAGES,
            models.LABELS,
            r"transformer_block_\d+$",
        ),
        "ConvNeXt": Case(convnext, r"(^|/)add(_\d+)?$", models.LARGE, models.LABELS),
        "U-Net": Case(
            models.unet, r"max_pooling2d(_\d+)?$|conv2d_(7|9|11)$", models.LARGE, models.AREAS
        ),
        "EfficientNet": Case(
            lambda: models.application("EfficientNetB0", 64),
            r"_add$|block.a_project_bn$",
            models.LARGE,
            models.LABELS,
        ),
    }


def convnext():
    """Eighteen blocks of ConvNeXt in four stages, a quarter as wide as the tiny one."""
    import keras
    from keras import layers

    inputs = keras.Input((64, 64, 3))
    x = layers.LayerNormalization()(layers.Conv2D(24, 4, strides=4)(inputs))
    for depth, width in ((3, 24), (3, 48), (9, 96), (3, 192)):
        if width > 24:
            x = layers.Conv2D(width, 2, strides=2)(layers.LayerNormalization()(x))
        for _ in range(depth):
            inner = layers.LayerNormalization()(layers.DepthwiseConv2D(7, padding="same")(x))
            inner = layers.Dense(width)(layers.Dense(4 * width, "gelu")(inner))
            x = layers.Add()([x, inner])
    x = layers.LayerNormalization()(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, layers.Dense(2, "softmax")(x))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy())
    return model


def after(names: Sequence[str], method: str) -> list[str]:
    """The ends of blocks that a placement by hand cuts after."""
    if method == "every block":
        return list(names)
    if method == "every second":
        return list(names[1::2])
    length = max(1, round(len(names) ** 0.5))
    return list(names[length - 1 :: length])


def planned(model, case: Case, method: str):
    """The plan of a method, and how many blocks the model has."""
    from kbatch import recompute
    from kbatch.recompute._planner import _predictor

    size = len(case.y)
    predictor = _predictor(model, size, case.x)
    ends = [node.name for node in predictor.graph.nodes if re.search(case.ends, node.name)]
    if method in ("none", "RematScope"):
        return recompute.plan(model, size, "none", x=case.x), len(ends)
    if method == "kbatch":
        return recompute.plan(model, size, "minimal", x=case.x), len(ends)
    if method == "kbatch best":
        return recompute.best_plan(model, case.x, case.y), len(ends)
    layers = after(ends, method)
    return recompute.plan(model, size, "manual", layers=layers, x=case.x), len(ends)


def remat_scope(case: Case, model) -> contextlib.AbstractContextManager[None]:
    """Keras' scope for the same blocks."""
    import keras

    if not case.layers:
        return keras.RematScope(mode="activations")
    names = [layer.name for layer in model._flatten_layers()]
    blocks = [name for name in names if re.search(case.layers, name)]
    return keras.RematScope(mode="list_of_layers", layer_names=blocks)


def measure(name: str, policy: str, jit: bool, method: str, pairs: int) -> dict[str, object]:
    """Measure the peak in this process, and the ratio of time if there are pairs of steps."""
    import keras
    import tensorflow as tf

    from kbatch import recompute

    keras.config.set_dtype_policy(policy)
    case = cases()[name]
    gpu = bool(tf.config.list_physical_devices("GPU"))
    clock = time.perf_counter if gpu else time.process_time

    def built():
        keras.utils.set_random_seed(0)
        model = case.build()
        model.compile(keras.optimizers.Adam(1e-3), model.loss, jit_compile=jit)
        return model

    def step(model) -> float:
        began = clock()
        model.train_on_batch(case.x, case.y)
        return clock() - began

    other = built()
    plan, blocks = planned(other, case, method)
    equal_to = ""
    if pairs and method not in ("none", "RematScope"):
        report = recompute.verify(other, plan, case.x, case.y)
        equal_to = "the bit" if report.exact else f"{report.gradients:.0e}"
    if method == "RematScope":
        with remat_scope(case, other):
            other = built()
    else:
        recompute.apply(other, plan)
    # Measured before there is a second model: a user has one.
    peak_bytes = peak(lambda: step(other), "GPU:0" if gpu else "CPU:0")
    ratio = 0.0
    if pairs:
        plain = built()
        step(plain)
        both = [(step(plain), step(other)) for _ in range(pairs)]
        ratio = statistics.median(one / before for before, one in both)
    return {
        "model": name,
        "policy": policy,
        "jit_compile": jit,
        "method": method,
        "blocks": blocks,
        "segments": len(plan.segments),
        "peak_bytes": peak_bytes,
        "predicted_bytes": "" if method == "RematScope" else plan.peak_bytes,
        "time_ratio": round(ratio, 3),
        "equal_to": equal_to,
    }


def row(arguments: tuple[object, ...], processes: int) -> dict[str, object]:
    """One row from fresh processes, the first of which is timed; of a failure, its last line."""
    found = [in_fresh_process((*arguments, PAIRS if turn == 0 else 0)) for turn in range(processes)]
    failed = [one["equal_to"] for one in found if "peak_bytes" not in one]
    if failed:
        return {**dict(zip(COLUMNS, arguments, strict=False)), "equal_to": failed[0]}
    peaks = sorted(int(str(one["peak_bytes"])) for one in found)
    spread = {"lowest_peak_bytes": peaks[0], "highest_peak_bytes": peaks[-1]}
    return {**found[0], "peak_bytes": peaks[len(peaks) // 2], **spread}


def in_fresh_process(arguments: tuple[object, ...]) -> dict[str, object]:
    """Measure in a fresh process; of a failure, its last line as `equal_to`."""
    environment = {
        "TF_CPU_ALLOCATOR_USE_BFC": "true",
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    said = subprocess.run(
        [sys.executable, __file__, "--one", json.dumps(arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    if said.returncode:
        lines = [line for line in said.stderr.splitlines() if "Error" in line]
        return {"equal_to": [str(said.returncode), *lines][-1][:200]}
    return dict(json.loads(said.stdout.strip().splitlines()[-1]))


def summary(found: Sequence[dict[str, str]]) -> None:
    """Print each method's peak as a share of the plain one, and its time, by model."""
    keys = sorted({(one["model"], one["policy"], one["jit_compile"]) for one in found})
    for key in keys:
        of_key = {one["method"]: one for one in found if same(one, key)}
        plain = float(of_key.get("none", {}).get("peak_bytes") or "nan")
        print(*key)
        for method, one in of_key.items():
            if not one["peak_bytes"]:
                print(f"  {method:<13}{one['equal_to']}")
                continue
            share = float(one["peak_bytes"]) / plain
            print(f"  {method:<13}{share:>7.1%} at {one['time_ratio']}x  {one['equal_to']}")


def same(one: dict[str, str], key: tuple[str, ...]) -> bool:
    """Whether a row is of a model, a policy and a way to compile."""
    return (one["model"], one["policy"], one["jit_compile"]) == key


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--models", default="BERT,GPT,ViT,ConvNeXt,U-Net,EfficientNet")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--policy", default="float32", choices=POLICIES)
    parser.add_argument("--jit", action="store_true")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*json.loads(options.one))))
        return
    if not options.out:
        parser.error("--out must name a CSV file")
    done = rows.known(options.out, COLUMNS[:4])
    for name in options.models.split(","):
        for method in options.methods.split(","):
            if (name, options.policy, str(options.jit), method) not in done:
                found = row((name, options.policy, options.jit, method), options.processes)
                rows.append(options.out, COLUMNS, found)
    summary(rows.read(options.out))


if __name__ == "__main__":
    main()
