"""The benchmark of finders of the largest batch: kbatch's, Lightning's and accelerate's.

All of them probe through kbatch's worker. From the root of the repository, with
OUT=scripts/results:

    python scripts/bench_max_batch.py --out $OUT/max_batch.csv
    # predictions against the truth with XLA, appended:
    python scripts/bench_max_batch.py --out $OUT/max_batch.csv --jit
    # ten processes at each answer:
    python scripts/bench_max_batch.py --out $OUT/max_batch.csv --fresh $OUT/max_batch_fresh.csv
    # the table of 8 combinations against single finders:
    python scripts/bench_max_batch.py --table $OUT/max_batch_table.csv

Without a GPU, each model has a hard memory limit (TF_CPU_BFC_MEM_LIMIT_IN_MB, set for the workers).
Rows are appended as soon as they are known, and rows of the file are not measured again: after
Ctrl-C the same command goes on.
"""

from __future__ import annotations

import argparse
import csv
import functools
import itertools
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

# With oneDNN, running out of memory ends the process instead of raising an error.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import rows
from finder_models import build, data, specs
from finder_ratios import summary
from fresh_processes import STEPS, fifty, largest_that_survives, spread
from peer_finders import PEERS, searched

from kbatch import Recipe, Space, find_max_batch, max_batches
from kbatch.errors import KbatchError
from kbatch.memory._max_batch import Probe
from kbatch.memory._prober import Prober
from kbatch.memory._search import UNBOUNDED
from kbatch.memory._workload import Workload
from kbatch.model_spec import ModelSpec

MIB = 1 << 20
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
FINDERS = ("jump", "bisect", "shrink")
KEYS = ("model", "optimizer", "jit_compile", "finder")
COLUMNS = [
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
    "survives_50_steps",
    "confirmations",
    "total_wall_seconds",
    "predicted",
    "first_failing",
    "largest_that_survives",
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


def row(name: str, optimizer: str, jit: bool, finder: str, limit: int) -> dict[str, object]:
    """Return the row of one finder on one model."""
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
        # The time after the last probe is that of the confirmation.
        "wall_seconds": round(known[len(found.probes) - 1], 1),
        "survives_50_steps": "",  # of kbatch's answers --fresh says it
        "confirmations": " ".join(
            f"{probe.batch_size}:{probe.ended}" for probe in found.confirmations
        ),
        "total_wall_seconds": round(time.perf_counter() - began, 1),
        "predicted": found.predicted or "",
        "first_failing": found.first_failing or "",
        "largest_that_survives": largest_that_survives(workload, limit, found.predicted)
        if jit
        else "",
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
    """The result of a peer's procedure with kbatch's probes; it confirms nothing."""
    began = time.perf_counter()
    with Prober(workload, limit) as prober:
        found = searched(PEERS[finder](UNBOUNDED), prober.probe)
    seconds = round(time.perf_counter() - began, 1)
    return {
        **_tried(found.batch_size, found.probes),
        "wall_seconds": seconds,
        "survives_50_steps": fifty(workload, limit, found.batch_size).passed,
        "confirmations": "",
        "total_wall_seconds": seconds,
        "predicted": "",
        "first_failing": found.first_failing or "",
        "largest_that_survives": "",
    }


def fresh(answers: Path, path: Path) -> None:
    """Train 50 steps at each of kbatch's answers, in ten fresh processes with the whole limit."""
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
        found = {
            "limit_bytes": limit,
            "batch_size": size,
            "processes": FRESH,
            "survived": sum(probe.passed for probe in probes),
            "peak_bytes": max(probe.peak_bytes for probe in probes),
        }
        rows.append(path, FRESH_COLUMNS, {**dict(zip(KEYS, key, strict=True)), **found})


def table(path: Path) -> None:
    """Write the table of 8 combinations, against a single finder for each."""
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
    calls = f"{found.executed_probes} executed probes, {found.compilations} compile-only calls"
    print(f"{calls}, {found.seconds:.0f} s")


def parse_options() -> argparse.Namespace:
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
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    os.environ["KBATCH_CACHE"] = tempfile.mkdtemp()
    if options.spread:
        name, size, mebibytes = options.spread.split(":")
        spread(name, int(size), int(mebibytes) * MIB)
    if options.table:
        table(options.table)
    if not options.out:
        return
    if options.fresh:
        fresh(options.out, options.fresh)
        return
    find(options)
    summary(rows.read(options.out), STEPS)


def find(options: argparse.Namespace) -> None:
    """Run the finders that the file has no row of."""
    known = rows.known(options.out, KEYS)
    limits = JITTED if options.jit else LIMITS
    models = [name for name in options.models.split(",") if name in limits]
    if options.limits:
        pairs = dict(pair.split(":") for pair in options.limits.split(","))
        limits = {name: int(size) for name, size in pairs.items()}
        models = list(limits)
    finders = ("jump",) if options.jit else options.finders.split(",")
    for name, optimizer, finder in itertools.product(
        models, options.optimizers.split(","), finders
    ):
        if (name, optimizer, str(options.jit), finder) in known:
            continue
        try:
            found = row(name, optimizer, options.jit, finder, limits[name] * MIB)
        except KbatchError as error:
            print(f"{name} {optimizer} {finder}: {error}", flush=True)
            continue
        rows.append(options.out, COLUMNS, found)


if __name__ == "__main__":
    main()
