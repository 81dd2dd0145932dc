r"""The benchmark of large batches: where accuracy falls, and how far each remedy moves the cliff.

    python scripts/bench_large_batch.py --photographs ../shared/data/PetImages \\
        --out scripts/results/large_batch.csv

Every training gets the same horizon, which is counted in gradient passes over the data: on a CPU an
example takes about as long in a batch of 16 as of 1024, and passes do not depend on what else the
machine does. A pass of SAM counts two, one of the proximal method as many as its inner steps. With
`--seconds` the horizon is that of a search; use it on a quiet GPU. The learning rate is the best of
three at batch 32, for each optimizer. It is kept (`plain`) or carried to the batch size by the rule
(all other methods, which warm up too but for `rule`). Batch normalization has Keras' own momentum
of 0.99 but for the method `momentum 0.9`, which the case study's network has too. A row is one
training; rows of the file are not trained again, so after Ctrl-C the same command goes on.

`--table` prints the tables from the file and trains nothing. The cliff of a method is the largest
batch whose mean accuracy over the seeds is within two points of the best that `plain` reached with
that optimizer at any batch. The score is the accuracy above chance per training second, of each row
by its own seconds; tables show it as a ratio to that of `plain` at the smallest batch.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import statistics
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import rows

import kbatch
from kbatch import Recipe
from kbatch.rules import scaling

BATCHES = (16, 64, 256, 1024)
# The small residual network has batch normalization and bears larger rates.
RATES = {
    ("cnn", "sgd"): (0.003, 0.01, 0.03),
    ("cnn", "adam"): (0.0003, 0.001, 0.003),
    ("small-resnet", "sgd"): (0.01, 0.03, 0.1),
    ("small-resnet", "adam"): (0.001, 0.003, 0.01),
}
SIZE = 64  # pixels
SEEDS = 3
POINTS = 0.02  # of accuracy, that count as equal
CHANCE = 0.5
# What each method adds to the scaled and warmed-up recipe.
METHODS: dict[str, dict[str, object]] = {
    "plain": {},
    "rule": {},
    "warm-up": {},
    "augmentation": {"augmentation": "flip_shift"},
    "sam": {"training": "sam:0.05"},
    "proximal": {"training": "proximal:0.1"},
    "cosine": {"schedule": "cosine"},
    "growing batch": {"batch_schedule": "exponential:8"},
    "group": {"normalization": "group"},
    "momentum 0.9": {},
}
KERAS_MOMENTUM = 0.99  # of the moving statistics of batch normalization
COLUMNS = [
    *("data", "model", "optimizer", "batch_size", "method", "seed", "horizon", "learning_rate"),
    *("accuracy", "updates", "train_seconds", "ended"),
]
KEY = COLUMNS[:7]


@dataclasses.dataclass(frozen=True)
class Cell:
    """One training of the benchmark."""

    data: str
    model: str
    optimizer: str
    batch_size: int
    method: str
    seed: int

    def key(self, horizon: str) -> tuple[str, ...]:
        """Its columns as the file holds them."""
        return (*map(str, dataclasses.astuple(self)), horizon)


class Bench:
    """Trains the cells of one data set, each once.

    Args:
        options: The options of the command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        from kbatch.data.case_study import pictures

        self.seconds, self.passes, self.out = options.seconds, options.passes, options.out
        self.horizon = f"{self.passes} passes" if self.seconds is None else f"{self.seconds:g} s"
        sources = {"drawn": "drawn", "photographs": options.photographs}
        self.pictures = {name: pictures(sources[name], SIZE) for name in options.data}

    def train(self, cell: Cell, rate_at_32: float) -> dict[str, str]:
        """Return the row of a training, from the file if it is there."""
        known = {tuple(row[name] for name in KEY): row for row in rows.read(self.out)}
        if cell.key(self.horizon) not in known:
            rows.append(self.out, COLUMNS, self._row(cell, rate_at_32))
            return self.train(cell, rate_at_32)
        return known[cell.key(self.horizon)]

    def _row(self, cell: Cell, rate_at_32: float) -> dict[str, object]:
        pictures = self.pictures[cell.data]
        examples = len(pictures.train[0])
        recipe = self.recipe(cell, rate_at_32, examples)
        _, outcome = kbatch.train(
            recipe,
            builder(cell.model, cell.method),
            *pictures.train,
            pictures.validation,
            seed=cell.seed,
            **self._length(recipe),
        )
        return {
            **dataclasses.asdict(cell),
            "horizon": self.horizon,
            "learning_rate": f"{recipe.learning_rate:.6g}",
            "accuracy": round(outcome.value or CHANCE, 4),
            "updates": outcome.updates,
            "train_seconds": round(outcome.train_seconds, 1),
            "ended": outcome.ended,
        }

    def _length(self, recipe: Recipe) -> dict[str, float]:
        """The argument of `kbatch.train` that ends a training at the horizon."""
        if self.seconds is not None:
            return {"seconds": self.seconds}
        method = recipe.method
        gradients = {"sam": 2, "proximal": method.inner_steps}.get(method.name, 1)
        return {"epochs": self.passes // gradients}

    def recipe(self, cell: Cell, rate_at_32: float, examples: int) -> Recipe:
        """Return the recipe of a cell."""
        if cell.method == "plain":
            return Recipe(cell.batch_size, cell.optimizer, rate_at_32)
        rule = scaling.DEFAULT_LEARNING_RATE_RULES[cell.optimizer]
        rate = rate_at_32 * scaling.learning_rate_factor(cell.batch_size, rule)
        recipe = Recipe(cell.batch_size, cell.optimizer, rate)
        if cell.method == "rule":
            return recipe
        # warm-up takes at most a tenth of the updates, as in a search
        recipe = dataclasses.replace(recipe, **METHODS[cell.method])  # type: ignore[arg-type]
        length = self._length(recipe).get("epochs")
        horizon_examples = None if length is None else length * examples
        updates = scaling.updates_of_warmup(cell.batch_size, examples, 1.0, horizon_examples)
        return dataclasses.replace(recipe, warmup_updates=updates)

    def rate_at_32(self, data: str, model: str, optimizer: str) -> float:
        """The best of three learning rates at batch 32, which are trained with the first seed."""
        trained = {}
        for rate in RATES[model, optimizer]:
            cell = Cell(data, model, optimizer, 32, f"rate {rate:g}", 0)
            known = [row for row in rows.read(self.out) if row["method"] == cell.method]
            if not any(tuple(row[n] for n in KEY) == cell.key(self.horizon) for row in known):
                plain = dataclasses.replace(cell, method="plain")
                row = {**self._row(plain, rate), "method": cell.method}
                rows.append(self.out, COLUMNS, row)
            trained[rate] = float(self.train(cell, rate)["accuracy"])
        return max(trained, key=lambda rate: trained[rate])


def builder(model: str, method: str):
    """Return the function that builds a model of the case study, as a method has it."""
    import keras

    from kbatch.models.case_study import MODELS

    def build():
        made = MODELS[model](SIZE)
        for layer in made.layers:
            if isinstance(layer, keras.layers.BatchNormalization) and method != "momentum 0.9":
                layer.momentum = KERAS_MOMENTUM
        made.compile("adam", "binary_crossentropy", metrics=["accuracy"])
        return made

    return build


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """Iterate over all trainings, seed by seed, so that a slow hour strikes all methods alike."""
    for seed in range(options.seeds):
        for data in options.data:
            for model in options.models:
                for optimizer in options.optimizers:
                    for method in options.methods:
                        for batch_size in options.batches:
                            yield Cell(data, model, optimizer, batch_size, method, seed)


def tables(out: Path) -> None:
    """Print accuracy and score of each method and batch, and the cliffs, as Markdown."""
    trained = [row for row in rows.read(out) if not row["method"].startswith("rate")]
    cases = sorted({tuple(row[name] for name in KEY[:3]) for row in trained})
    for case in cases:
        own = [row for row in trained if tuple(row[name] for name in KEY[:3]) == case]
        print(f"\n{' · '.join(case)}, {own[0]['horizon']}\n")
        print_case(own)


def print_case(own: list[dict[str, str]]) -> None:
    """Print the table of one data set, model and optimizer."""
    by_cell: dict[tuple[str, int], list[dict[str, str]]] = {}
    for row in own:
        by_cell.setdefault((row["method"], int(row["batch_size"])), []).append(row)
    plain = [mean(found, "accuracy") for (method, _), found in by_cell.items() if method == "plain"]
    best = max(plain, default=math.inf)  # without plain trainings there is no cliff
    batches = sorted({batch for _, batch in by_cell})
    unit = score(by_cell.get(("plain", batches[0]), []))
    print(f"| method | {' | '.join(map(str, batches))} | cliff |")
    print("|---" * (len(batches) + 2) + "|")
    for method in METHODS:
        found = {batch: by_cell[method, batch] for batch in batches if (method, batch) in by_cell}
        if found:
            texts = [text(found.get(batch), unit) for batch in batches]
            print(f"| {method} | {' | '.join(texts)} | {cliff(found, best)} |")


def text(found: list[dict[str, str]] | None, unit: float) -> str:
    """The mean accuracy with its spread and the number of seeds, and the score as a ratio."""
    if not found:
        return ""
    accuracies = [float(row["accuracy"]) for row in found]
    spread = f" ± {statistics.stdev(accuracies):.3f}" if len(found) > 1 else ""
    seeds = f" ({len(found)})" if len(found) < SEEDS else ""
    ratio = f"; {score(found) / unit:.1f}×" if unit else ""
    return f"{mean(found, 'accuracy'):.3f}{spread}{seeds}{ratio}"


def score(found: list[dict[str, str]]) -> float:
    """The accuracy above chance per training second, in the mean; 0 without trainings."""
    scores = [
        (float(row["accuracy"]) - CHANCE) / float(row["train_seconds"])
        for row in found
        if float(row["train_seconds"])
    ]
    return math.fsum(scores) / len(scores) if scores else 0.0


def cliff(found: dict[int, list[dict[str, str]]], best: float) -> str:
    """The largest batch within two points of the best plain accuracy."""
    near = [batch for batch, each in found.items() if mean(each, "accuracy") >= best - POINTS]
    return str(max(near)) if near else "none"


def mean(found: list[dict[str, str]], column: str) -> float:
    """The mean of a column."""
    return math.fsum(float(row[column]) for row in found) / len(found)


def words(text: str) -> list[str]:
    """Read words that commas separate."""
    return [word.strip() for word in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--photographs", default="../shared/data/PetImages")
    parser.add_argument("--data", type=words, default=["photographs", "drawn"])
    parser.add_argument("--models", type=words, default=["cnn", "small-resnet"])
    parser.add_argument("--optimizers", type=words, default=["sgd", "adam"])
    parser.add_argument("--methods", type=words, default=list(METHODS))
    parser.add_argument(
        "--batches", type=lambda text: [int(word) for word in words(text)], default=list(BATCHES)
    )
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--passes", type=int, default=12, help="gradient passes over the data")
    parser.add_argument("--seconds", type=float, help="training seconds instead of passes")
    parser.add_argument("--table", action="store_true", help="print the tables of the file only")
    options = parser.parse_args()
    if not options.table:
        bench = Bench(options)
        for cell in cells(options):
            rate = bench.rate_at_32(cell.data, cell.model, cell.optimizer)
            bench.train(cell, rate)
    tables(options.out)


if __name__ == "__main__":
    main()
