"""Tabular regression with a dict of inputs, scored by the mean absolute error.

Direction and chance are inferred from the name of the metric and the labels.

Usage: python examples/tabular_regression.py [--trials 4] [--seconds 2]
"""

import argparse

import keras
import keras_tuner
import numpy as np

import kbatch

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--trials", type=int, default=4)
parser.add_argument("--seconds", type=float, default=2.0)
parser.add_argument("--out", default="runs")
options = parser.parse_args()

rng = np.random.default_rng(0)


def table(count):
    """Make flats: size and age as numbers, the district as a category, and the price."""
    numbers = rng.normal(size=(count, 2)).astype("float32")
    district = rng.integers(0, 5, size=(count,))
    price = 3 + numbers @ np.array([1.0, -0.5]) + 0.3 * district + 0.2 * rng.normal(size=count)
    return {"numbers": numbers, "district": district}, price.astype("float32")


def build(hp):
    """Build your model as it is; your own hyperparameters are searched together with kbatch's."""
    numbers, district = (
        keras.Input((2,), name="numbers"),
        keras.Input((), name="district", dtype="int32"),
    )
    x = keras.layers.Concatenate()([numbers, keras.layers.Embedding(5, 3)(district)])
    x = keras.layers.Dense(hp.Choice("width", [16, 32]), "relu")(x)
    model = keras.Model(
        {"numbers": numbers, "district": district}, keras.layers.Dense(1, dtype="float32")(x)
    )
    model.compile("adam", "mse", metrics=["mae"])
    return model


hypermodel = kbatch.HyperModel(
    build,
    kbatch.Space(batch_size=(16, 32, 128)),
    metric="val_mae",
    seconds_per_trial=options.seconds,
)
tuner = keras_tuner.RandomSearch(
    hypermodel,
    objective=kbatch.objective(),
    max_trials=options.trials,
    directory=options.out,
    project_name="tabular",
    seed=1,
)
x, y = table(2000)
tuner.search(x, y, validation_data=table(500))
print(kbatch.report(tuner))
