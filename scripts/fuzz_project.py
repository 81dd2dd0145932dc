"""Break projects at random, and check that each is read, repaired or refused in one sentence.

Usage: python scripts/fuzz_project.py [--projects 200] [--seed 0] [--seconds 60] [--project FOLDER]

Each broken copy of a project goes through `kbatch report`, `advise`, `compare` and `export`,
`kbatch.results.load`, `kbatch.Tuner`, and the command that searches on in it. What links point to
must stay as it was. The project is made by the driver with training replaced, or is one that
`kbatch cats-vs-dogs` wrote with its defaults. The script prints every call that ended in another
way or hung, and exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from fuzzing import GOOD, Ended, called, command, odd_files, replaced, told

COMMAND = [
    "cats-vs-dogs",
    "--model",
    "cnn",
    "--image-size",
    "16",
    "--trials",
    "3",
    "--seconds-per-trial",
    "1",
    "--confirm-top",
    "1",
    "--policies",
    "float32",
]
TARGETS = (
    "search/kbatch/records.jsonl",
    "search/kbatch/project.json",
    "search/oracle.json",
    "search/tuner0.json",
    "search/trial_0000/trial.json",
    "search/trial_0000/build_config.json",
    "search/kbatch/lock",
    "run.json",
    "report.md",
    "report.html",
    "trials.csv",
)
OUTSIDE = "outside"  # the file that links of a broken project point to
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 3, 0.5, -0.0, 1e308, float("nan"), float("inf"), 10**30,
    -1e308, -float("inf"), 10**400, "up",
    "", "text", "[/x]", "\ud800", "٣", "=1+1", "\x1b[2J\x1b]0;title\x07",
    "a\n# b", "<b>", "x" * 120_000,
    [], {}, [[]], [None], {"": None}, [1, [2, [3]]], {"a": {"b": []}},
)  # fmt: skip
DEEP = 100_000


def few_pets(examples: int, image_size: int, *rest: object) -> dict[str, np.ndarray]:
    """Stands for the drawn pictures: plain ones."""
    return {
        name: np.full((1000, 16, 16, 3), shade, "uint8")
        for shade, name in enumerate(("cat", "dog"))
    }


def not_trained(model: Any, recipe: Any, data: Any, goal: Any, options: Any) -> Any:
    """Stands for a training: the outcome is the same for the same recipe."""
    from kbatch import Outcome

    height = 0.6 + recipe.batch_size % 7 / 50 + options.seed / 200
    curve = tuple((second / 5, height * (0.9 + second / 50)) for second in range(1, 6))
    measured = {"curve": curve, "value": height, "metrics": {"val_accuracy": height}}
    return Outcome(
        ended="horizon", **measured, train_seconds=1.0, updates=40, examples=1280, peak_bytes=10**8
    )


@contextmanager
def nothing_trained() -> Iterator[None]:
    """Replace the training, and leave the driver as it is."""
    import kbatch.cli.search_run
    import kbatch.hypermodel  # noqa: F401  so that its functions can be replaced

    stands = {"training__trial__run": not_trained, "data__case_study__drawn_pets": few_pets}
    with replaced(
        **stands,
        cli__search_run__has_limit=lambda: False,
        training__confirmation__held_out_batches=lambda *rest, **named: (None, {}),
    ):
        yield


def drawn(folder: Path) -> Path:
    """Make a whole project in a new folder.

    Args:
        folder: A folder that does not exist.
    """
    ended = command([*COMMAND, "--confirm", "3", "--out", str(folder)], 300)
    if ended.how != "done":
        raise RuntimeError(ended.said)
    return folder


def damages(folder: Path) -> dict[str, Callable[[random.Random, Path], object]]:
    """Return the damages to a file, each with a function that does it.

    Args:
        folder: An empty folder for the targets of links.
    """
    put = {name: _instead(how) for name, how in odd_files(folder).items()}
    (folder / OUTSIDE).write_text(OUTSIDE)
    return {
        **put,
        "a link to a file outside": _instead(lambda path: path.symlink_to(folder / OUTSIDE)),
        "its folder is a link": lambda draw, path: _linked(path.parent, folder),
        "cut short": lambda draw, path: path.write_bytes(
            path.read_bytes()[: draw.randrange(max(path.stat().st_size, 1))]
        ),
        "a flipped bit": _flipped,
        "random bytes": lambda draw, path: path.write_bytes(
            draw.randbytes(draw.choice((1, 100, 5000)))
        ),
        "nested brackets": lambda draw, path: path.write_text(
            "[" * DEEP + "]" * DEEP + "\n" + path.read_text(errors="replace")
        ),
        "nested objects": lambda draw, path: path.write_text(
            '{"a":' * DEEP + "1" + "}" * DEEP + "\n"
        ),
        "another shape": lambda draw, path: path.write_text(json.dumps(draw.choice(ODD)) + "\n"),
        "a wrong value": _wrong,
        "two wrong values": lambda draw, path: [_wrong(draw, path) for _ in range(2)],
        "a missing name": _missing,
        "a line twice": lambda draw, path: path.write_text(
            path.read_text(errors="replace")
            + draw.choice(path.read_text(errors="replace").splitlines() or [""])
            + "\n"
        ),
        "a line less": _less,
        "another encoding": lambda draw, path: path.write_bytes(
            path.read_text(errors="replace").encode("utf-16")
        ),
    }


def broken(
    draw: random.Random,
    project: Path,
    copy: Path,
    how: dict[str, Callable[[random.Random, Path], object]],
) -> str:
    """Copy a project, break the copy, and return the damages in words.

    Args:
        draw: Random numbers.
        project: The whole project.
        copy: A folder that does not exist.
        how: The damages of `damages`.
    """
    shutil.copytree(project, copy)
    done = []
    for _ in range(draw.choice((1, 1, 1, 2))):
        target, name = (
            draw.choice(TARGETS),
            draw.choice((*how, "a wrong value", "a wrong value", "a missing name")),
        )
        path = copy / target
        if path.is_file() and not path.is_symlink():
            how[name](draw, path)
            done.append(f"{target}: {name}")
    return "; ".join(done)


def uses(folder: Path, seconds: float) -> Iterator[tuple[str, Ended]]:
    """Use a project in each way that people do, and give how that ended.

    Args:
        folder: Folder of the project.
        seconds: Float, after which one hangs.
    """
    yield "report", command(["report", str(folder)], seconds)
    yield "load", called(lambda: _loaded(folder), seconds)
    yield "advise", command(["advise", str(folder)], seconds)
    yield "compare", command(["compare", str(folder), str(folder)], seconds)
    yield "export", command(["export", str(folder)], seconds)
    yield "tuner", called(lambda: _resumed(folder), seconds)
    yield "search", command([*COMMAND, "--confirm", "1", "--out", str(folder)], seconds)


def run(
    count: int, seed: int, seconds: float, project: Path | None = None
) -> Iterator[tuple[str, str, Ended]]:
    """Break projects, and give for each use of them the damages, the use, and how it ended.

    Args:
        count: Integer, how many projects.
        seed: Integer; the same seed gives the same damages.
        seconds: Float, after which one hangs.
        project: A project to break instead of a drawn one. Optional.
    """
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as place, nothing_trained():
        root = Path(place)
        whole = project or drawn(root / "whole")
        (root / "links").mkdir()
        how = damages(root / "links")
        for number in range(count):
            words = broken(draw, whole, root / f"{number}", how)
            outside = _files(root / "links")
            for use, ended in uses(root / f"{number}", seconds):
                if _files(root / "links") != outside:
                    ended = Ended("written outside", ended.said)
                yield words, use, ended
            shutil.rmtree(root / f"{number}")


@contextmanager
def _told() -> Iterator[None]:
    """Tell errors of kbatch's own kinds as a command does; any other shows its traceback."""
    from kbatch.errors import KbatchError

    try:
        yield
    except KbatchError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


def _loaded(folder: Path) -> None:
    """Call `kbatch.results.load` in Python."""
    from kbatch.results.loading import load, load_confirmations

    with _told():
        load(folder)
        load_confirmations(folder)


def _resumed(folder: Path) -> None:
    """Make a `kbatch.Tuner` of the project, and ask it for what its files hold."""
    import keras

    import kbatch

    def build(hp: Any) -> keras.Model:
        model = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Flatten()])
        model.add(keras.layers.Dense(2))
        return model

    with _told():
        tuner = kbatch.Tuner(
            build, seconds_per_trial=1, loss="mse", directory=folder, project_name="search"
        )
        tuner.results_summary()


def _instead(put: Callable[[Path], object]) -> Callable[[random.Random, Path], object]:
    def instead(draw: random.Random, path: Path) -> None:
        path.unlink()
        put(path)

    return instead


def _linked(folder: Path, links: Path) -> None:
    """Move a folder of the project out of it, and put a link in its place."""
    if (folder / "run.json").exists():  # the whole project may be a link: it is named by its user
        return
    moved = links / f"moved {len([*links.iterdir()])}"
    shutil.move(folder, moved)
    folder.symlink_to(moved)


def _files(folder: Path) -> dict[Path, bytes]:
    """What the files in a folder hold."""
    return {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def _flipped(draw: random.Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(draw.choice((1, 1, 20)) if content else 0):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def _less(draw: random.Random, path: Path) -> None:
    rows = path.read_text(errors="replace").splitlines(keepends=True)
    if rows:
        rows.pop(draw.randrange(len(rows)))
    path.write_text("".join(rows))


def _wrong(draw: random.Random, path: Path) -> None:
    _changed(draw, path, lambda place, key: place.__setitem__(key, draw.choice(ODD)))


def _missing(draw: random.Random, path: Path) -> None:
    _changed(draw, path, lambda place, key: place.pop(key))


def _changed(draw: random.Random, path: Path, change: Callable[[Any, Any], object]) -> None:
    """Change one place in the JSON of one line."""
    text = path.read_text(errors="replace")
    rows = text.splitlines() if path.suffix == ".jsonl" else [text]
    number = draw.randrange(max(len(rows), 1))
    try:
        value = json.loads(rows[number])
    except (ValueError, IndexError, RecursionError):  # it was broken before
        return
    places = [*_places(value)]
    if places:
        change(*draw.choice(places))
        rows[number] = json.dumps(value)
        path.write_text("\n".join(rows) + "\n")


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Give every place in a JSON value: its container, and its name or number there."""
    if isinstance(value, (dict, list)):
        for key in [*value] if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--projects", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--project", type=Path)
    options = parser.parse_args()
    began, counted = time.perf_counter(), collections.Counter[str]()
    for words, use, ended in run(options.projects, options.seed, options.seconds, options.project):
        counted[ended.how] += 1
        if ended.how not in GOOD:
            print(f"{ended.how}: {use} of {words}\n{ended.said[-3000:]}", flush=True)
    print(told(counted, f"uses of {options.projects} broken projects", time.perf_counter() - began))
    return int(any(how not in GOOD for how in counted))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main())
