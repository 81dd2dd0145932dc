"""Generate command lines, absurd ones most of all, and see that each is done or refused in one sentence with exit code 2; none may hang.

Usage: python scripts/fuzz_command_line.py [--lines 600] [--seed 0] [--seconds 20]

What is slow (a search, probes, tracing) is replaced: a line that is taken ends where it would
begin. Pictures and modules are really read. Prints every line that ended otherwise, and exits with
1 if one did.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from fuzzing import GOOD, Ended, begin, command, odd_files, replaced, told


def _words(text: str) -> list[str]:
    return text.split()


NUMBERS = [
    "",
    " ",
    "1/2",
    *_words(
        "0 1 2 3 5 8 16 64 0.5 0.8 2.0 -1 -0 nan inf -inf 1e-9 1e300 1e-300 1e999 99999999999999999999 9007199254740993 4294967296 2147483648 "
        "1_0 ٣٢ ² １６ 0x10 1e3 1,5 +3 3. .5 -.5 . e ½ Ⅷ 1__0 0b1 True None 1e1e1"
    ),
]
NAMES = [
    "",
    "\x1b[2J",
    *_words(
        "drawn tfds random bayesian grid cnn small-resnet sgd adam compiled lion sgd,adam adam,adam float32 mixed_float16 mixed_bfloat16 float64 "
        "none flip flip_shift none,flip off on both auto minimal sqrt stages budget:0.5 budget:0 budget:nan budget:1e999 any powers_of_two jump "
        "bisect mse binary_crossentropy nonsense SGD [/x] [bold] [/] :smile: %s {} \\"
    ),
]
LISTS = _words(
    "16,32 32,64,128 64 0 -1 16,,32 , 16;32 99999999999 1_0,2 16,abc 32,32 4096 2147483648"
)
RANGES = _words(
    "0.001:0.1 0.1:0.001 1e-300:1e300 nan:1 0:1 -1:1 1:1 :: : 0.1 a:b 1e-9:100 0.01:0.02:0.03 0.001:inf ١:٢"
)
SHAPES = _words(
    "4 8,8,3 224,224,3 0 -1 4294967296 1,1,1,1,1,1,1,1,1,1,1 65536,65536 ² 1_0 8x8 (8,8) [8] , 8,"
)
DTYPES = _words(
    "float32 float64 uint8 int32 bool float16 U10 S3 O datetime64 complex64 void V8 nonsense ,f4 f4,f4 (2,)f4 longdouble"
)
LIMITS = _words("8GB 1GB 0 -1 1KB 99999999999999GB 1e999 nanGB infGB 8 8TB eightGB 1_0GB ٣GB")
BUILDS = [
    "",
    *_words(
        "good:build good:nothing good good: :build good:build:x nowhere:build raises:build syntax:build null:build exits:build later:build "
        "returns:number returns:text good.py:build os:path sys:exit ..:x a..b:c"
    ),
]
MODULES = {
    "good": "def build(hp=None):\n    import keras\n    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])\n",
    "raises": "raise RuntimeError('not today')\n",
    "syntax": "def build(:\n",
    "null": "def build():\n    pass\0\n",
    "exits": "import sys\nsys.exit(4)\n",
    "later": "import sys\ndef build(hp=None):\n    sys.exit(5)\n",
    "returns": "def number(hp=None): return 3\ndef text(hp=None): return 'model'\n",
}
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
    "max-batch": {
        **dict.fromkeys(("--ceiling", "--accumulation"), NUMBERS),
        **dict.fromkeys(
            ("--policy", "--optimizer", "--jit", "--recompute", "--loss", "--sizes"), NAMES
        ),
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
}
PATHS = {
    "cats-vs-dogs": ("--out", "--data"),
    "max-batch": (),
    "recompute": ("--figure", "--plan"),
    "report": (),
}


def playground(folder: Path) -> list[str]:
    """Modules, pictures and hostile files in a folder, and the names of paths to try.

    Args:
        folder: An empty folder.
    """
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
    return [*odd, *odd_files(folder)]


def lines(seed: int, paths: list[str]) -> Iterator[list[str]]:
    """Command lines without an end.

    Args:
        seed: Integer; the same seed gives the same lines.
        paths: Paths to try.
    """
    draw = random.Random(seed)
    while True:
        name = draw.choice(
            ("cats-vs-dogs", "cats-vs-dogs", "cats-vs-dogs", "max-batch", "recompute", "report")
        )
        line = [name]
        if name in ("max-batch", "recompute"):
            line.append("good:build" if draw.random() < 0.6 else draw.choice(BUILDS))
        if name == "report":
            line.append(draw.choice(paths))
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
    """Stands for the drawn pictures."""
    return {name: np.zeros((1000, 8, 8, 3), "uint8") for name in ("cat", "dog")}


@contextmanager
def nothing_slow() -> Iterator[None]:
    """What is slow is not begun."""
    import kbatch.case_study.driver
    import kbatch.cli.max_batch
    import kbatch.cli.recompute

    assert kbatch.cli.max_batch
    assert kbatch.cli.recompute
    assert kbatch.case_study.driver
    slow = dict.fromkeys(
        (
            "case_study__driver___search_and_confirm",
            "max_batch__find_max_batch",
            "max_batch__max_batches",
            "plans__front",
        ),
        begin,
    )
    quick = {
        "case_study__driver___import_tensorflow": lambda: None,
        "case_study__sources__drawn_pets": few_pets,
        "case_study__limits__has_limit": lambda: False,
    }
    with replaced(**slow, **quick, case_study__sources__from_tfds=begin):
        yield


def run(count: int, seed: int, seconds: float) -> Iterator[tuple[list[str], Ended]]:
    """So many command lines and how each ended, in a folder that is thrown away.

    Args:
        count: Integer, how many.
        seed: Integer, which.
        seconds: Float, after which one hangs.
    """
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, nothing_slow():
        paths = playground(Path(folder))
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
