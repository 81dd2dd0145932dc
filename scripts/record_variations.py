"""The variations of the baseline for the table `replay_wide`: trainings of recipes in one axis off.

Usage: python scripts/record_variations.py TABLE --data FOLDER [--out FILE]

A table of random recipes of many axes lacks the recipes that kbatch's search tries first, and would
answer them with recipes that differ in several more axes. So they are trained in the same way: on
the same pictures, for the same seconds, with the same seeds. The trainings of TABLE and these are
written to FILE, or in place of TABLE.
"""

import argparse
import dataclasses
import functools
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import kbatch
from kbatch.case_study import sources, task
from kbatch.testing import Replay
from kbatch.testing._table import RecordedTraining

IMAGE_SIZE, MODEL, DATA_SEED = 32, "small-resnet", 5
# The middle of the ranges that `replay_wide` was drawn from.
RATES = {"sgd": 0.01, "adamw": 5.477e-4}
AUGMENTATIONS = ("flip", "flip_shift", "mixup", "flip_shift_mixup")


def variations(baseline):
    """Return the recipes that differ from the baseline in one axis without an order."""
    changes = [{"augmentation": name} for name in AUGMENTATIONS]
    changes += [{"optimizer": name, "learning_rate": rate} for name, rate in RATES.items()]
    changes += [{"label_smoothing": 0.1}, {"schedule": "cosine"}]
    return [dataclasses.replace(baseline, **change) for change in changes]


def recorded(recipe, seed, like, examples):
    """Train a recipe as the trainings of a table were."""
    spec = kbatch.ModelSpec(
        functools.partial(task.model, MODEL, IMAGE_SIZE),
        loss="binary_crossentropy",
        metrics=["accuracy"],
        seed=seed,
    )
    _, outcome = kbatch.train(
        recipe, spec, *examples.train, validation_data=examples.validation, seconds=like.horizon
    )
    print(recipe, f"seed {seed}: {outcome.value:.3f}", flush=True)
    return dataclasses.replace(
        like,
        recipe=recipe,
        seed=seed,
        curve=tuple(outcome.curve),
        peak_bytes=outcome.peak_bytes,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    table = Replay.load(options.table)
    examples = sources.pictures(options.data, IMAGE_SIZE, DATA_SEED)
    like: RecordedTraining = table.trainings[0]
    seeds = sorted({each.seed for each in table.trainings})
    found = [
        recorded(recipe, seed, like, examples)
        for recipe in variations(table.recipes[0])
        for seed in seeds
    ]
    known = [each for each in table.trainings if each.recipe not in {new.recipe for new in found}]
    Replay([*known, *found]).save(options.out or options.table)


if __name__ == "__main__":
    main()
