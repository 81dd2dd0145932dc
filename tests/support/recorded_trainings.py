"""Made-up recorded trainings, whose accuracy rises with examples seen and falls off a best rate."""

import numpy as np

from kbatch.outcome import marks
from kbatch.recipe import Recipe
from kbatch.testing._table import RecordedTraining

HORIZON = 10.0
FASTER = {16: 0.25, 32: 0.4, 64: 0.55, 128: 0.7, 256: 0.8}  # examples per second by batch
BEST = {"sgd": 0.02, "adam": 0.0005}  # rates at batch 32


def recipes(count, seed):
    random = np.random.default_rng(seed)
    found = [Recipe(32, "adam", 0.001)]
    while len(found) < count:
        batch, optimizer = int(random.choice(list(FASTER))), str(random.choice(list(BEST)))
        low, high = (-3, -1) if optimizer == "sgd" else (-4, -2)
        scale = batch / 32 if optimizer == "sgd" else (batch / 32) ** 0.5
        augmentation = str(random.choice(["none", "flip"]))
        rate = 10 ** random.uniform(low, high) * scale
        found.append(Recipe(batch, optimizer, rate, augmentation=augmentation))
    return found


def trainings(count=60, seeds=3, noise=0.02, seed=0):
    random = np.random.default_rng(seed + 1)
    found = []
    for recipe in recipes(count, seed):
        scale = recipe.batch_size / 32
        at_32 = recipe.learning_rate / (scale if recipe.optimizer == "sgd" else scale**0.5)
        fit = np.exp(-2 * np.log10(at_32 / BEST[recipe.optimizer]) ** 2)
        speed = 6 * FASTER[recipe.batch_size] * fit
        most = 0.33 if recipe.augmentation == "flip" else 0.3
        for number in range(seeds):
            luck = random.normal(0, noise)
            curve = []
            for seconds in marks(HORIZON):
                value = 0.5 + most * (1 - np.exp(-speed * seconds / HORIZON)) + luck
                curve.append(
                    (seconds + 1e-3, float(np.clip(value + random.normal(0, noise), 0, 1)))
                )
            found.append(RecordedTraining(recipe, number, HORIZON, 0.5, tuple(curve)))
    return found
