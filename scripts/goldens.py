"""Write what kbatch says and does, as text files that two versions of it can be compared by.

Usage: python scripts/goldens.py FOLDER [--parts help,signatures,results,replay,code,trainings]
       diff -r FOLDER OTHER

It is for changes that must change nothing: the help of all commands, public signatures and
docstrings, what is said of recorded projects and exported from them, a replayed search, and the
outcome of trainings to the bit. Times, machines and versions are left out.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = ROOT / "tests" / "projects"
MODULES = ("", "callbacks", "errors", "memory", "recompute", "results", "testing")
PASSING = re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.+]+|commit_\w+/out-\d+")

Texts = Iterator[tuple[str, str]]


def helps() -> Texts:
    """Give the help of each command."""
    import typer

    from kbatch.cli.app import app

    yield "help/kbatch.txt", _said(["--help"])
    for name in sorted(typer.main.get_command(app).commands):  # type: ignore[attr-defined]
        yield f"help/{name}.txt", _said([name, "--help"])


def signatures() -> Texts:
    """Give the signature and the docstring of each public object."""
    import kbatch

    for name in MODULES:
        module = getattr(kbatch, name) if name else kbatch
        lines = [f"{each}\n{_described(getattr(module, each))}" for each in sorted(module.__all__)]
        yield f"signatures/{name or 'kbatch'}.txt", "\n\n".join(lines)


def _described(value: Any) -> str:
    if inspect.isclass(value):
        own = {name: getattr(value, name) for name in dir(value) if not name.startswith("_")}
        members = [f"  .{name}{_signature(member)}" for name, member in sorted(own.items())]
        return "\n".join([f"class{_signature(value)}", *members, inspect.getdoc(value) or ""])
    if inspect.ismodule(value):
        return "module"
    return f"{_signature(value)}\n{inspect.getdoc(value) or ''}"


def _signature(value: Any) -> str:
    try:
        return re.sub(r" at 0x\w+", "", str(inspect.signature(value)))
    except (TypeError, ValueError):
        return ""


def results() -> Texts:
    """Give what each command says of recorded projects, and all that can be exported from them."""
    import kbatch

    for kept in sorted(PROJECTS.iterdir()):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(shutil.copytree(kept, Path(place) / "project"))
            name = f"results/{kept.name}"
            table = kbatch.results.load(folder)
            yield f"{name}/trials.csv", table.to_csv(index=False)
            confirmed = kbatch.results.load_confirmations(folder)
            yield f"{name}/confirmations.csv", confirmed.to_csv(index=False)
            for command in ("report", "advise", "compare"):
                again = [str(folder)] if command == "compare" else []
                yield f"{name}/{command}.txt", _said([command, str(folder), *again], place)
            for trial in (None, *sorted(set(table.trial) - {-1})):
                which = ["--baseline"] if trial is None else ["--trial", str(trial)]
                code = _said(["export", str(folder), *which], place)
                yield f"{name}/export_{'baseline' if trial is None else trial}.py", code
            for file in sorted(folder.rglob("report.*")):
                text = file.read_text(encoding="utf-8").replace(place, "")
                yield f"{name}/{file.name}", PASSING.sub("", text)


def _said(arguments: list[str], place: str = "") -> str:
    environment = {**os.environ, "COLUMNS": "160", "NO_COLOR": "1", "TERM": "dumb"}
    command = [sys.executable, "-m", "kbatch", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    text = f"{done.stdout}{done.stderr}".replace(place, "")
    return PASSING.sub("", text)


def replay() -> Texts:
    """Give the trials of each way of search over a table of recorded trainings."""
    from kbatch.testing import Replay

    table = Replay.load(ROOT / "scripts" / "results" / "replay_drawn.jsonl.gz")
    for policy in ("kbatch", "random", "bayesian"):
        for seed in range(3):
            trials = table.trials(policy, 12, seed=seed)
            lines = [f"{each.recipe}: {each.seconds:.6f} {each.gain:.6f}" for each in trials]
            yield f"replay/{policy}_{seed}.txt", "\n".join(lines)


def recipes() -> dict[str, Any]:
    """Return recipes that together use each kind of training that there is."""
    from kbatch import Recipe

    sgd = {"optimizer": "sgd", "learning_rate": 0.05}
    return {
        "compiled": Recipe(32, "compiled", None),
        "adam": Recipe(32, "adam", 1e-3, warmup_updates=4, schedule="cosine"),
        "adamw": Recipe(64, "adamw", 1e-3, weight_decay=0.01, clip_norm=0.5),
        "lars": Recipe(64, "lars", 0.1, weight_decay=1e-4),
        "lamb": Recipe(64, "lamb", 0.01, ema=0.9),
        "passes": Recipe(64, micro_batch_size=16, **sgd),
        "exact passes": Recipe(64, micro_batch_size=16, accumulation="exact", **sgd),
        "sam": Recipe(32, training="sam:0.05", **sgd),
        "proximal": Recipe(32, training="proximal:0.1", **sgd),
        "mixed": Recipe(32, policy="mixed_float16", label_smoothing=0.1, **sgd),
        "pictures": Recipe(32, augmentation="flip_shift_mixup", normalization="group", **sgd),
        "recompute": Recipe(32, recompute="sqrt", dropout_scale=0.5, **sgd),
        "growing": Recipe(64, batch_schedule="linear:4", **sgd),
    }


def code() -> Texts:
    """Give the plain Keras code of each recipe."""
    for name, recipe in recipes().items():
        yield f"code/{name.replace(' ', '_')}.py", recipe.to_code()


def trainings() -> Texts:
    """Give the metrics and a digest of the weights of a training of each recipe."""
    import keras
    import numpy as np
    import tensorflow as tf

    import kbatch

    tf.config.experimental.enable_op_determinism()
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 480)
    x = (rng.normal(size=(480, 8, 8, 1)) + y[:, None, None, None]).astype("float32")
    labels = keras.utils.to_categorical(y, 3)

    def build() -> keras.Model:
        layers = [
            keras.layers.Conv2D(8, 3, padding="same"),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(3, "softmax", dtype="float32"),
        ]
        model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
        model.compile("sgd", "categorical_crossentropy", metrics=["accuracy"])
        return model

    for name, recipe in recipes().items():
        length = {"epochs": 3} if recipe.batch_schedule != "constant" else {"updates": 18}
        arguments = (x[:360], labels[:360], (x[360:], labels[360:]))
        model, outcome = kbatch.train(recipe, build, *arguments, **length)
        told = {
            "recipe": str(recipe),
            "ended": outcome.ended,
            "updates": outcome.updates,
            "examples": outcome.examples,
            "value": outcome.value,
            "metrics": outcome.metrics,
            "values": [value for _, value in outcome.curve],
            "weights": [_digest(weight) for weight in model.get_weights()],
        }
        yield f"trainings/{name.replace(' ', '_')}.json", json.dumps(told, indent=1, default=str)


def _digest(array: Any) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]


PARTS: dict[str, Callable[[], Texts]] = {
    "help": helps,
    "signatures": signatures,
    "results": results,
    "replay": replay,
    "code": code,
    "trainings": trainings,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"out of {', '.join(PARTS)}")
    options = parser.parse_args()
    for part in options.parts.split(","):
        for name, text in PARTS[part]():
            file = options.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.rstrip() + "\n", encoding="utf-8")
            print(file, flush=True)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main())
