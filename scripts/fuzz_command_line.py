"""Call random command lines, and check that each is done or refused in one sentence.

Usage: python scripts/fuzz_command_line.py [--lines 600] [--seed 0] [--seconds 20]

Most lines are absurd. Slow parts (a search, probes, tracing) are replaced: a line that is accepted
ends where they would begin. Pictures and modules are really read. A refusal has exit code 2. The
script prints every line that ended in another way or hung, and exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from fuzz_project import drawn, nothing_trained
from fuzz_words import (
    BUILDS,
    DTYPES,
    HOSTILE,
    LIMITS,
    LISTS,
    MODULES,
    NAMES,
    NUMBERS,
    RANGES,
    RECIPES,
    SHAPES,
)
from fuzzing import GOOD, Ended, begin, command, odd_files, replaced, told
from PIL import Image

OPTIONS: dict[str, dict[str, list[str]]] = {
    "cats-vs-dogs": {
        **dict.fromkeys(
            (
                "--image-size",
                "--trials",
                "--seconds-per-trial",
                "--epochs",
                "--target",
                "--confirm",
                "--confirm-top",
                "--seed",
            ),
            NUMBERS,
        ),
        **dict.fromkeys(("--micro-batch-size", "--max-batch"), NUMBERS),
        **dict.fromkeys(
            (
                "--tuner",
                "--model",
                "--optimizers",
                "--policies",
                "--augmentations",
                "--jit",
                "--recompute",
            ),
            NAMES,
        ),
        **dict.fromkeys(("--sgd-rates", "--adam-rates"), RANGES),
        **dict.fromkeys(("--batch-sizes", "--label-smoothing"), LISTS),
    },
    "search": {
        **dict.fromkeys(("--image-size", "--trials", "--epochs", "--seed"), NUMBERS),
        **dict.fromkeys(("--target", "--chance", "--seconds-per-trial", "--max-batch"), NUMBERS),
        **dict.fromkeys(("--labels", "--loss", "--metric", "--direction", "--tuner"), NAMES),
        **dict.fromkeys(("--split", "--batch-sizes"), LISTS),
    },
    "max-batch": {
        **dict.fromkeys(("--ceiling", "--accumulation"), NUMBERS),
        **dict.fromkeys(
            ("--policy", "--optimizer", "--jit", "--recompute", "--loss", "--sizes"), NAMES
        ),
        "--label-smoothing": LISTS,
        "--dtype": DTYPES,
        "--memory-limit": LIMITS,
        "--shape": SHAPES,
    },
    "recompute": {
        "--batch-size": NUMBERS,
        **dict.fromkeys(("--policy", "--optimizer"), NAMES),
        "--memory-limit": LIMITS,
        "--shape": SHAPES,
    },
    "report": {},
    "compare": {},
    "export": {"--trial": NUMBERS},
    "study": {
        **dict.fromkeys(("--image-size", "--epochs", "--seeds"), NUMBERS),
        "--memory-limit": LIMITS,
        "--data": NAMES,
    },
    "doctor": {
        **dict.fromkeys(("--image-size", "--seed"), NUMBERS),
        **dict.fromkeys(("--labels", "--loss", "--metric", "--values"), NAMES),
        "--split": LISTS,
    },
    "advise": {
        **dict.fromkeys(("--examples", "--epochs", "--devices", "--max-batch"), NUMBERS),
        "--recipe": RECIPES,
        "--build": BUILDS,
    },
}
DATA = (
    *("pictures", "pictures", "good.npz", "pickled.npz", "tfds:", "tfds:mnistt", "tfds:../..", ":"),
    *("good:build", "cut.npz", "text.txt:build", "tfds:[/x]", "odd pictures:x"),
)
PATHS = {
    "cats-vs-dogs": ("--out", "--data"),
    "search": ("--out", "--data"),
    "max-batch": (),
    "recompute": ("--figure", "--plan"),
    "report": (),
    "compare": (),
    "export": ("--out",),
    "study": ("--out", "--data"),
    "doctor": ("--data",),
    "advise": (),
}
FLAGS = {"export": ("--best", "--baseline", "--force"), "study": ("--quick",)}
PROJECTS = ("project", "project/search")
STUDIES = ("optimizers", "augmentation", "throughput")


def playground(folder: Path) -> list[str]:
    """Make modules, pictures, a project and hostile files in a folder, and return paths to try.

    Args:
        folder: An empty folder.
    """
    with nothing_trained():
        drawn(folder / "project")
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "links").mkdir()
    for name, put in odd_files(folder / "links").items():
        put(folder / name)
    for label in ("Apple", "Banana"):
        (folder / "odd pictures" / label).mkdir(parents=True)
        for number, put in enumerate(odd_files(folder / "links").values()):
            put(folder / "odd pictures" / label / f"{number}.jpg")
        (folder / "odd pictures" / label / "[bold] [red] \n.jpg").write_bytes(b"no picture")
        (folder / "odd pictures" / label / os.fsdecode(b"\xff\xfe.jpg")).write_bytes(b"GIF89a")
    for label in ("[ant]", "bee"):
        (folder / "pictures" / label).mkdir(parents=True)
        for number in range(30):
            Image.new("L", (3, 4), number).save(folder / "pictures" / label / f"{number}.png")
    np.savez(folder / "good.npz", x=np.zeros((90, 4)), y=np.arange(90) % 3)
    np.savez(folder / "pickled.npz", x=np.array([None, {}]), y=np.zeros(2))
    (folder / "cut.npz").write_bytes((folder / "good.npz").read_bytes()[:-99])
    (folder / "one.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    (folder / "broken.zip").write_bytes(b"PK\x03\x04 nothing PK\x05\x06" + bytes(10))
    (folder / "text.txt").write_text("no folder")
    odd = [
        "[/x]",
        "a [bold]b",
        "\udcff\udcfe",
        "x" * 300,
        "/".join(["y" * 200] * 30),
        "",
        ".",
        "..",
        "/proc/none",
        "/dev/null",
        "/dev/zero",
        "🐈",
        "a\nb",
    ]
    odd += [
        "~",
        "-",
        "odd pictures",
        "one.zip",
        "broken.zip",
        "text.txt",
        "plan.json",
        "figure.png",
        "/proc/self/mem",
        "nowhere/at/all.png",
    ]
    return [*odd, *PROJECTS, *HOSTILE, *odd_files(folder)]


def lines(seed: int, paths: list[str]) -> Iterator[list[str]]:
    """Generate command lines without an end.

    Args:
        seed: Integer; the same seed gives the same lines.
        paths: Paths to try.
    """
    draw = random.Random(seed)
    while True:
        name = draw.choice((*2 * ("cats-vs-dogs", "search"), *sorted(OPTIONS)))
        line = [name]
        if name in ("search", "max-batch", "recompute", "doctor"):
            line.append("good:build" if draw.random() < 0.6 else draw.choice(BUILDS))
        if name in ("search", "doctor") and draw.random() < 0.9:
            line += ["--data", draw.choice((*DATA, *BUILDS, *paths))]
        if name == "study":
            line.append(draw.choice(STUDIES if draw.random() < 0.9 else NAMES))
        if name in ("report", "compare", "export") or (name == "advise" and draw.random() < 0.3):
            line.append(draw.choice(PROJECTS if draw.random() < 0.4 else paths))
        if name == "compare":
            line.append(draw.choice(PROJECTS if draw.random() < 0.4 else paths))
        if name == "advise" and draw.random() < 0.6:
            line += ["--recipe", draw.choice(RECIPES)]
        if name == "max-batch" and draw.random() < 0.8:
            line += ["--shape", "4"]
        options = OPTIONS[name]
        for option in draw.sample(
            list(options), min(len(options), draw.choice((0, 1, 1, 1, 2, 3)))
        ):
            line += [option, draw.choice(options[option])]
        for option in PATHS[name]:
            if draw.random() < 0.35:
                line += [option, draw.choice(paths)]
        line += [flag for flag in FLAGS.get(name, ()) if draw.random() < 0.3]
        if draw.random() < 0.05:
            line.insert(
                draw.randrange(len(line) + 1),
                draw.choice(
                    (
                        "--nonsense",
                        "--",
                        "-",
                        "",
                        "extra",
                        "--help",
                        "--version",
                        "--table",
                        "--fresh",
                        "[/x]",
                    )
                ),
            )
        yield line


def few_pets(examples: int, image_size: int, *rest: object) -> dict[str, np.ndarray]:
    """Stands for the drawn pictures: black ones."""
    return {name: np.zeros((1000, 8, 8, 3), "uint8") for name in ("cat", "dog")}


@contextlib.contextmanager
def nothing_slow() -> Iterator[None]:
    """Replace slow functions."""
    slow = dict.fromkeys(
        (
            "cli__search_run__SearchRun__search_and_confirm",
            "cli__task__OwnTask__searched",
            "memory___find__find_max_batch",
            "memory___table__max_batches",
            "recompute___planner__front",
            "cli__doctor___found",
            "studies__study_run__run",
        ),
        begin,
    )
    quick = {
        "cli__search_run__import_tensorflow": lambda: None,
        "cli__search_run__start_tensorflow": lambda: None,
        "cli__doctor__ask_tensorflow": dict,
        "data__case_study__drawn_pets": few_pets,
        "cli__search_run__has_limit": lambda: False,
    }
    with replaced(**slow, **quick, data__case_study__from_tfds=begin):
        yield


def run(count: int, seed: int, seconds: float) -> Iterator[tuple[list[str], Ended]]:
    """Call command lines in a temporary folder, and give each with how it ended.

    Args:
        count: Integer, how many lines.
        seed: Integer; the same seed gives the same lines.
        seconds: Float, after which one hangs.
    """
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        paths = playground(Path(folder))
        stack.enter_context(nothing_slow())
        os.chdir(folder)
        try:
            for _, line in zip(range(count), lines(seed, paths), strict=False):
                for name in MODULES:
                    sys.modules.pop(name, None)
                yield line, command(line, seconds)
        finally:
            os.chdir(here)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    began, counted = time.perf_counter(), collections.Counter[str]()
    for line, ended in run(options.lines, options.seed, options.seconds):
        counted[ended.how] += 1
        if ended.how not in GOOD:
            print(f"{ended.how}: kbatch {shlex.join(line)!a}\n{ended.said}", flush=True)
    print(told(counted, "command lines", time.perf_counter() - began))
    return int(any(how not in GOOD for how in counted))


if __name__ == "__main__":
    sys.exit(main())
