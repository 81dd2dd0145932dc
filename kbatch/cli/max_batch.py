"""Max-batch: the command `kbatch max-batch`, from its options to the finder or the table, and their answers in words."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass

from rich.console import Console
from rich.status import Status

from kbatch.combination import Combination
from kbatch.device.card import has_card
from kbatch.errors import DataError, SearchError
from kbatch.memory import _probe_lines, _speed_line
from kbatch.memory._build_function import imported
from kbatch.memory._find import find_max_batch
from kbatch.memory._max_batch import MaxBatch
from kbatch.memory._max_batch_table import Row
from kbatch.memory._probe import Probe
from kbatch.memory._table import max_batches
from kbatch.number_text import example_shape
from kbatch.recipe import POLICIES, Recipe
from kbatch.space import Space

SHARE = 0.9


@dataclass(frozen=True)
class Asked:
    """Everything `kbatch max-batch` can be told; see its `--help`."""

    build: str
    shape: str | None
    dtype: str | None
    policies: str
    optimizers: str
    jit: str
    recomputes: str
    memory_limit: str | None
    ceiling: int | None
    loss: str | None
    accumulation: int
    sizes: str
    table: bool
    fresh: bool


def answer(asked: Asked, console: Console) -> None:
    """Find what was asked for and print it.

    Raises:
        KbatchError: If something the user gave cannot be used.
    """
    sys.path.insert(0, os.getcwd())
    build, example, jits = (
        imported(asked.build),
        _example(asked.shape, asked.dtype),
        _jits(asked.jit),
    )
    texts = (asked.policies, asked.optimizers, asked.recomputes)
    policies, optimizers, recomputes = (
        tuple(part.strip() for part in text.split(",")) for text in texts
    )
    several = asked.table or len(policies) * len(optimizers) * len(jits) * len(recomputes) > 1
    slow = [policy for policy in policies if policy in POLICIES and policy != "float32"]
    if slow and not has_card():
        console.print(
            f"There is no GPU here: a CPU computes {', '.join(slow)} several times slower than float32.",
            style="dim",
            highlight=False,
        )
    with console.status("Making the model …") as status:
        shown = _Shown(console, status)
        if several:
            if asked.accumulation > 1 or asked.sizes != "any":
                received = f"--accumulation {asked.accumulation} --sizes {asked.sizes}"
                raise SearchError(
                    "--table must come without --accumulation and --sizes",
                    received,
                    "Leave them out, or name one recipe",
                )
            space = Space(
                policy=policies, optimizer=optimizers, jit_compile=jits, recompute=recomputes
            )
            found = max_batches(
                build,
                example,
                space=space,
                memory_limit=asked.memory_limit,
                ceiling=asked.ceiling,
                loss=asked.loss,
                fresh=asked.fresh,
                on_probe=shown,
                on_row=shown.row,
            )
            console.print(str(found), highlight=False)
            return
        recipe = _recipe(
            Combination(policies[0], optimizers[0], jits[0], recomputes[0]), asked.accumulation
        )
        one = find_max_batch(
            build,
            example,
            recipe=recipe,
            memory_limit=asked.memory_limit,
            ceiling=asked.ceiling,
            loss=asked.loss,
            sizes=asked.sizes,
            fresh=asked.fresh,
            on_probe=shown,
        )
    console.print(sentence(one), highlight=False, soft_wrap=True)


def sentence(found: MaxBatch) -> str:
    """The answer, and from where on a larger batch hardly adds speed, as far down as it was measured."""
    probes = [probe for probe in (*found.probes, *found.confirmations) if probe.passed]
    fitted = _speed_line.of_probes(probes)
    if fitted is None:
        return str(found)
    smallest, fast = min(probe.batch_size for probe in probes), fitted.smallest(SHARE)
    if fast <= smallest:
        return f"{found}; {SHARE:.0%} of the best speed is reached at {smallest} or below"
    return f"{found}; {SHARE:.0%} of the best speed is reached at {fast}"


class _Shown(_probe_lines.Lines):
    """Prints every probe, and says meanwhile what is going on."""

    def __init__(self, console: Console, status: Status) -> None:
        super().__init__(console)
        self._status = status

    def __call__(self, probe: Probe) -> None:
        """Print the line of a probe, and what comes next."""
        super().__call__(probe)
        self._status.update("Probing …" if probe.passed else "Ran out; trying smaller …")

    def row(self, row: Row) -> None:
        self._console.print(f"{row}", highlight=False)


def _example(shape: str | None, dtype: str | None) -> object:
    """What stands for the data: the shape of one example, or nothing if the model's own is meant."""
    import numpy as np

    if shape is None:
        if dtype is not None:
            raise DataError(
                "--dtype must come with --shape",
                f"--dtype {dtype}",
                "Pass --shape too; without both, the model's keras.Input is taken",
            )
        return None
    dtype = dtype or "float32"
    sizes = example_shape(shape)
    kind = (
        np.dtype(dtype) if re.fullmatch(r"[a-z]+[0-9]*", dtype) and dtype in np.sctypeDict else None
    )
    if kind is None or kind.kind not in "biuf" or kind.itemsize > 8:
        raise DataError("--dtype must be a NumPy type of numbers", dtype, "Write --dtype float32")
    return _Shape(sizes, kind.name)


@dataclass(frozen=True)
class _Shape:
    shape: tuple[int, ...]
    dtype: str


def _jits(text: str) -> tuple[bool, ...]:
    known = {"off": (False,), "on": (True,), "both": (False, True)}
    if text not in known:
        raise SearchError("--jit must be off, on or both", text, "Pass one of these")
    return known[text]


def _recipe(combination: Combination, accumulation: int) -> Recipe:
    if accumulation < 1:
        raise SearchError(
            "--accumulation must be at least 1",
            accumulation,
            "Pass the passes per weight update, such as 4",
        )
    micro = 1 if accumulation > 1 else None
    rate = None if combination.optimizer == "compiled" else 1e-3
    return Recipe(accumulation, learning_rate=rate, micro_batch_size=micro, **combination._asdict())
