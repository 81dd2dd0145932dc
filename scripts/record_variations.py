"""The variations of the baseline for a table of recorded trainings: recipes in one axis off.

Usage: python scripts/record_variations.py TABLE --data FOLDER --model cnn --image-size 48
[--data-seed 0] [--out FILE]

A table of random recipes lacks those that kbatch's search tries first, and would answer them with
recipes that differ in other axes too. So they are trained in the same way: with the model and on
the pictures of the table, for the same seconds, with the same seeds. The trainings of TABLE and
these are written to FILE, or in place of TABLE.

The baseline is trained again as well and told beside the table's own trainings: where they differ
by more than their noise, the machine is another one, and the table must be made anew.
"""

import argparse
import dataclasses
import functools
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras_tuner

import kbatch
from kbatch.cli import task
from kbatch.data import case_study
from kbatch.search import proposals
from kbatch.testing import Replay

RATE = "learning_rate"


def variations(table):
    """Return the recipes that differ from the baseline in one axis without an order."""
    hp, baseline = keras_tuner.HyperParameters(), table.recipes[0]
    table.points.declare(hp)
    found = proposals.variations(hp.space, table.points.values(baseline))
    return [varied(baseline, values) for values in found]


def varied(baseline, values):
    """Return the recipe of some values, whose rates are those at batch 32."""
    if {baseline.batch_size, values.get("batch_size", 32)} != {32}:
        raise SystemExit(
            f"The variations must be of batch 32; received: {values}. Use a table whose baseline "
            "has it, and three batch sizes at least."
        )
    fields = {field.name for field in dataclasses.fields(baseline)}
    changes = {name: value for name, value in values.items() if name in fields}
    rate = values.get(f"{RATE}_{changes.get('optimizer', baseline.optimizer)}")
    if rate is not None:
        changes[RATE] = float(f"{rate:.3g}")
    return dataclasses.replace(baseline, **changes)


def recorded(recipe, seed, like, build, examples):
    """Train a recipe as the trainings of a table were."""
    spec = kbatch.ModelSpec(build, loss="binary_crossentropy", metrics=["accuracy"], seed=seed)
    _, outcome = kbatch.train(
        recipe, spec, *examples.train, validation_data=examples.validation, seconds=like.horizon
    )
    print(recipe, f"seed {seed}: {outcome.value:.3f}", flush=True)
    curve = tuple(outcome.curve)
    return dataclasses.replace(
        like, recipe=recipe, seed=seed, curve=curve, peak_bytes=outcome.peak_bytes
    )


def shown(trainings):
    """Return what some trainings held above chance, as a text."""
    return ", ".join(f"{each.held(each.horizon):.3f}" for each in trainings)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--image-size", type=int, required=True)
    parser.add_argument("--data-seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    table = Replay.load(options.table)
    examples = case_study.pictures(options.data, options.image_size, options.data_seed)
    baseline, of_baseline = table.recipes[0], table.of[table.recipes[0]]
    seeds = [each.seed for each in of_baseline]
    record = functools.partial(
        recorded,
        like=of_baseline[0],
        build=functools.partial(task.named_model, options.model, options.image_size, 2),
        examples=examples,
    )
    again = [record(baseline, seed) for seed in seeds]
    print(f"{options.table.name}: baseline {shown(of_baseline)}; again {shown(again)}", flush=True)
    known = set(table.recipes)
    new = [recipe for recipe in variations(table) if recipe not in known]
    found = [record(recipe, seed) for recipe in new for seed in seeds]
    Replay([*table.trainings, *found]).save(options.out or options.table)


if __name__ == "__main__":
    main()
