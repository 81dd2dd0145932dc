"""Finders of the largest batch side by side: kbatch's, Lightning's bisecting and accelerate's shrinking, through the same worker.

    python scripts/bench_max_batch.py --out scripts/results/max_batch.csv
    python scripts/bench_max_batch.py --out scripts/results/max_batch.csv --jit    # predictions
    against the truth, appended python scripts/bench_max_batch.py --out
    scripts/results/max_batch.csv --fresh scripts/results/max_batch_fresh.csv  # ten processes at
    each answer python scripts/bench_max_batch.py --table scripts/results/max_batch_table.csv  # the
    table of 8 combinations against single finders

Without a GPU, each model has a hard memory limit (TF_CPU_BFC_MEM_LIMIT_IN_MB, set for the workers).
Rows are appended as they are known, those that the file has are not measured again: after Ctrl-C
the same command goes on.
"""

from __future__ import annotations

import argparse
import csv
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# with oneDNN, running out of memory ends the process instead of raising
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import numpy as np
import rows
from peer_finders import PEERS

from kbatch import Recipe, Space, find_max_batch, max_batches
from kbatch.errors import KbatchError
from kbatch.memory._need import UNBOUNDED
from kbatch.memory._probe import Probe
from kbatch.memory._prober import Prober
from kbatch.memory._workload import Workload
from kbatch.model_spec import ModelSpec

MIB = 1 << 20
STEPS = 50
FRESH = 10
LIMITS = {
    "cnn": 1536,
    "resnet50": 560,
    "mobilenetv2": 400,
    "efficientnetb0": 400,
    "transformer": 400,
    "lstm": 200,
    "unet": 200,
}
JITTED = {"cnn": 1200, "transformer": 400, "lstm": 200}
SHAPES = {"cnn": (200, 200, 3), "transformer": (128,), "lstm": (100,), "unet": (64, 64, 3)}
FINDERS = ("jump", "bisect", "shrink")
KEYS = ("model", "optimizer", "jit_compile", "finder")
COLUMNS = [
    *(
        "model",
        "optimizer",
        "jit_compile",
        "limit_bytes",
        "finder",
        "batch_size",
        "probes",
        "ooms",
        "examples",
        "wall_seconds",
    ),
    *(
        "survives_50_steps",
        "confirmations",
        "total_wall_seconds",
        "predicted",
        "first_failing",
        "largest_that_survives",
    ),
]
FRESH_COLUMNS = [
    "model",
    "optimizer",
    "jit_compile",
    "finder",
    "limit_bytes",
    "batch_size",
    "processes",
    "survived",
    "peak_bytes",
]


def build(name: str):
    """The model of that name, compiled."""
    import keras
    from keras import layers

    applications = {
        "resnet50": "ResNet50",
        "mobilenetv2": "MobileNetV2",
        "efficientnetb0": "EfficientNetB0",
    }
    loss = "sparse_categorical_crossentropy"
    if name == "cnn":
        from kbatch.case_study.models import cnn

        model, loss = cnn(200), "binary_crossentropy"
    elif name in applications:
        model = getattr(keras.applications, applications[name])(
            weights=None, input_shape=(96, 96, 3), classes=10
        )
    elif name == "unet":
        model = unet()
    elif name == "lstm":
        model = keras.Sequential(
            [
                keras.Input((100,), dtype="int32"),
                layers.Embedding(5000, 64),
                layers.LSTM(128),
                layers.Dense(2, "softmax"),
            ]
        )
    else:
        inputs = keras.Input((128,), dtype="int32")
        x = layers.Embedding(5000, 128)(inputs)
        for _ in range(4):
            x = layers.LayerNormalization()(
                x + layers.Dropout(0.1)(layers.MultiHeadAttention(4, 32)(x, x))
            )
            x = layers.LayerNormalization()(
                x + layers.Dropout(0.1)(layers.Dense(128)(layers.Dense(512, "gelu")(x)))
            )
        model = keras.Model(inputs, layers.Dense(2, "softmax")(layers.GlobalAveragePooling1D()(x)))
    model.compile("sgd", loss)
    return model


def unet():
    """Encoder and decoder with skip connections, uncompiled."""
    import keras
    from keras import layers

    def block(x, filters):
        for _ in range(2):
            x = layers.ReLU()(
                layers.BatchNormalization()(
                    layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
                )
            )
        return x

    inputs = x = keras.Input((64, 64, 3))
    skips = []
    for filters in (8, 16, 32):
        x = block(x, filters)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = block(x, 64)
    for filters, skip in zip((32, 16, 8), reversed(skips), strict=True):
        x = block(layers.Concatenate()([layers.UpSampling2D()(x), skip]), filters)
    return keras.Model(inputs, layers.Conv2D(3, 1, activation="softmax")(x))


def data(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Eight examples, said to be many: what they hold does not change the memory."""
    rng, shape = np.random.default_rng(0), SHAPES.get(name, (96, 96, 3))
    x = (
        rng.integers(0, 5000, (8, *shape)).astype("int32")
        if len(shape) == 1
        else rng.random((8, *shape)).astype("float32")
    )
    return x, rng.integers(0, 2, (8, 64, 64) if name == "unet" else 8).astype("int32")


@dataclass(frozen=True)
class Spec:
    """Shape and type of one example: no ceiling, and no TensorFlow in this process."""

    shape: tuple[int, ...]
    dtype: str


def specs(name: str) -> tuple[Spec, Spec]:
    """The examples' shapes and types."""
    x, y = data(name)
    return Spec(x.shape[1:], str(x.dtype)), Spec(y.shape[1:], str(y.dtype))


def fifty(workload: Workload, limit_bytes: int, batch_size: int) -> Probe:
    """Fifty steps as `fit` does them, and validation, in a fresh process with the whole limit."""
    with Prober(workload, limit_bytes) as prober:
        return prober.train(batch_size, STEPS)


def survives(workload: Workload, limit_bytes: int, batch_size: int) -> bool:
    """Whether a batch size trains so."""
    return fifty(workload, limit_bytes, batch_size).passed


def confirms(workload: Workload, limit_bytes: int, batch_size: int, steps: int) -> bool:
    """The same with 5 % kept back."""
    with Prober(workload, limit_bytes) as prober:
        return prober.confirm(batch_size, steps).passed


def row(name: str, optimizer: str, jit: bool, finder: str, limit: int) -> dict[str, object]:
    """One finder on one model."""
    recipe = Recipe(optimizer=optimizer, learning_rate=1e-3, jit_compile=jit)
    workload = Workload(ModelSpec(functools.partial(build, name)), data(name), recipe)
    if finder != "jump":
        return {**_common(name, optimizer, jit, finder, limit), **_peer(workload, finder, limit)}
    began, known = time.perf_counter(), list[float]()
    found = find_max_batch(
        functools.partial(build, name),
        *specs(name),
        recipe=recipe,
        memory_limit=limit,
        on_probe=lambda _: known.append(time.perf_counter() - began),
    )
    return {
        **_common(name, optimizer, jit, finder, limit),
        **_tried(found.batch_size, found.probes),
        # of what follows, all is confirmation, its process too
        "wall_seconds": round(known[len(found.probes) - 1], 1),
        "survives_50_steps": "",  # ours: --fresh
        "confirmations": " ".join(
            f"{probe.batch_size}:{probe.ended}" for probe in found.confirmations
        ),
        "total_wall_seconds": round(time.perf_counter() - began, 1),
        "predicted": found.predicted or "",
        "first_failing": found.first_failing or "",
        "largest_that_survives": _truth(workload, limit, found) if jit else "",
    }


def _common(name: str, optimizer: str, jit: bool, finder: str, limit: int) -> dict[str, object]:
    return {
        "model": name,
        "optimizer": optimizer,
        "jit_compile": jit,
        "limit_bytes": limit,
        "finder": finder,
    }


def _tried(batch_size: int, probes: Sequence[Probe]) -> dict[str, object]:
    examples = sum(probe.batch_size * max(1, len(probe.step_seconds)) for probe in probes)
    return {
        "batch_size": batch_size,
        "probes": len(probes),
        "ooms": sum(not probe.passed for probe in probes),
        "examples": examples,
    }


def _peer(workload: Workload, finder: str, limit: int) -> dict[str, object]:
    """What a peer's procedure finds with our probes; it confirms nothing."""
    began = time.perf_counter()
    with Prober(workload, limit) as prober:
        found = PEERS[finder](prober.probe, UNBOUNDED)
    seconds = round(time.perf_counter() - began, 1)
    return {
        **_tried(found.batch_size, found.probes),
        "wall_seconds": seconds,
        "survives_50_steps": survives(workload, limit, found.batch_size),
        "confirmations": "",
        "total_wall_seconds": seconds,
        "predicted": "",
        "first_failing": found.first_failing or "",
        "largest_that_survives": "",
    }


def _truth(workload: Workload, limit: int, found) -> str:
    passes = functools.lru_cache(None)(lambda size: confirms(workload, limit, size, 3))
    size = found.predicted  # by single steps, each in a fresh process, from the prediction
    while not passes(size):
        size -= 1
    while passes(size + 1):
        size += 1
    return f"={size}"


def ratios(found: list[dict[str, str]]) -> None:
    """Print what is to be reached."""
    of = {
        (row["model"], row["optimizer"], row["finder"]): row
        for row in found
        if row["jit_compile"] == "False"
    }
    ours = [row for (_, _, finder), row in of.items() if finder == "jump"]
    for label, group in (
        ("all but the CNN", [row for row in ours if row["model"] != "cnn"]),
        ("the CNN", [row for row in ours if row["model"] == "cnn"]),
    ):
        if group:
            middle = {
                name: statistics.median(int(row[name]) for row in group)
                for name in ("probes", "ooms")
            }
            most = {name: max(int(row[name]) for row in group) for name in ("probes", "ooms")}
            print(
                f"{label}: probes median {middle['probes']:g} (most {most['probes']}), OOMs median {middle['ooms']:g} (most {most['ooms']})"
            )
    for finder in FINDERS[1:]:
        pairs = [
            (row, of[(*key[:2], finder)])
            for key, row in of.items()
            if key[2] == "jump" and (*key[:2], finder) in of
        ]
        if not pairs:
            continue
        for name in ("examples", "wall_seconds", "total_wall_seconds"):
            shares = [
                float(row[name]) / float(peer[name.replace("total_", "")]) for row, peer in pairs
            ]
            print(
                f"{name} against {finder}: median {statistics.median(shares):.2f}x, from {min(shares):.2f}x to {max(shares):.2f}x"
            )
    for finder in FINDERS[1:]:
        group = [row for key, row in of.items() if key[2] == finder]
        print(
            f"{finder}: {sum(row['survives_50_steps'] == 'True' for row in group)} of {len(group)} answers survive {STEPS} steps"
        )
    for row in (row for row in found if row["jit_compile"] == "True"):
        print(
            f"jit {row['model']} {row['optimizer']}: predicted {row['predicted']}, true {row['largest_that_survives'][1:]}"
        )


def fresh(answers: Path, path: Path) -> None:
    """Train 50 steps at each of our answers in ten fresh processes that have the whole limit."""
    known = rows.known(path, KEYS)
    for answer in rows.read(answers):
        key = tuple(answer[name] for name in KEYS)
        if answer["finder"] != "jump" or key in known:
            continue
        recipe = Recipe(
            optimizer=answer["optimizer"],
            learning_rate=1e-3,
            jit_compile=answer["jit_compile"] == "True",
        )
        workload = Workload(
            ModelSpec(functools.partial(build, answer["model"])), data(answer["model"]), recipe
        )
        limit, size = int(answer["limit_bytes"]), int(answer["batch_size"])
        probes = [fifty(workload, limit, size) for _ in range(FRESH)]
        survived, peak = (
            sum(probe.passed for probe in probes),
            max(probe.peak_bytes for probe in probes),
        )
        found = {
            "limit_bytes": limit,
            "batch_size": size,
            "processes": FRESH,
            "survived": survived,
            "peak_bytes": peak,
        }
        rows.append(path, FRESH_COLUMNS, {**dict(zip(KEYS, key, strict=True)), **found})


def spread(name: str, size: int, mebibytes: int) -> None:
    """Print the peak of each of twelve steps of one batch size, in two processes, with memory to spare."""
    workload = Workload(
        ModelSpec(functools.partial(build, name)),
        data(name),
        Recipe(optimizer="sgd", learning_rate=1e-3),
    )
    for process in (1, 2):
        with Prober(workload, mebibytes * MIB) as prober:
            peaks = [prober.steps(size, 1).peak_bytes for _ in range(12)]
        shown = " ".join(f"{peak / 1e6:.0f}" for peak in peaks)
        print(
            f"{name} at {size}, process {process}: {shown} MB; most against median {max(peaks) / statistics.median(peaks):.3f}",
            flush=True,
        )


def table(path: Path) -> None:
    """The table of 8 combinations, against a single finder for each."""
    name, limit = "transformer", LIMITS["transformer"] * MIB
    space = Space(
        optimizer=("sgd", "adam"), policy=("float32", "mixed_bfloat16"), jit_compile=(False, True)
    )
    whole = functools.partial(build, name)
    found = max_batches(whole, *specs(name), space=space, memory_limit=limit)
    lines = []
    for entry in found:
        recipe = Recipe(
            optimizer=entry.optimizer, policy=entry.policy, jit_compile=entry.jit_compile
        )
        single = find_max_batch(whole, *specs(name), recipe=recipe, memory_limit=limit)
        lines.append(
            {
                **found.frame.loc[len(lines)].to_dict(),
                "single": single.batch_size,
                "ratio": round(entry.batch_size / single.batch_size, 3),
            }
        )
        print(lines[-1], flush=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)
    print(
        f"{found.executed_probes} executed probes, {found.compilations} compile-only calls, {found.seconds:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--jit", action="store_true")
    parser.add_argument("--models", default=",".join(LIMITS))
    parser.add_argument("--optimizers", default="sgd,adam")
    parser.add_argument("--finders", default=",".join(FINDERS))
    parser.add_argument(
        "--limits",
        default="",
        help="models and their limits in MiB, such as unet:200,lstm:60, instead of --models",
    )
    parser.add_argument(
        "--fresh",
        type=Path,
        help="a file: measure no finder, train at the answers of --out in ten fresh processes each",
    )
    parser.add_argument(
        "--spread",
        help="a model, a batch size and MiB, such as unet:46:400: the peaks of single steps",
    )
    options = parser.parse_args()
    os.environ["KBATCH_CACHE"] = tempfile.mkdtemp()
    if options.spread:
        name, size, mebibytes = options.spread.split(":")
        spread(name, int(size), int(mebibytes))
    if options.table:
        table(options.table)
    if not options.out:
        return
    if options.fresh:
        fresh(options.out, options.fresh)
        return
    known = rows.known(options.out, KEYS)
    limits = JITTED if options.jit else LIMITS
    models = [name for name in options.models.split(",") if name in limits]
    if options.limits:
        limits = {
            name: int(size)
            for name, size in (pair.split(":") for pair in options.limits.split(","))
        }
        models = list(limits)
    for name in models:
        for optimizer in options.optimizers.split(","):
            for finder in options.finders.split(",") if not options.jit else ("jump",):
                if (name, optimizer, str(options.jit), finder) in known:
                    continue
                try:
                    found = row(name, optimizer, options.jit, finder, limits[name] * MIB)
                except KbatchError as error:
                    print(f"{name} {optimizer} {finder}: {error}", flush=True)
                    continue
                rows.append(options.out, COLUMNS, found)
    ratios(rows.read(options.out))


if __name__ == "__main__":
    main()
